#!/usr/bin/env python3
"""Compares a GPU backend of attend with PyTorch's scaled_dot_product_attention on this machine's GPU.

    python3 bench/gpu_vs_torch.py --dtype f32 --compute fa2 --sdp efficient --output results/h200/seed_f32.json

The comparison is fair for these reasons:
  * Both sides run in one process on one stream. They read the same dense (batch, heads, seqlen, head_dim) buffers of
    random normal numbers and allocate their outputs from torch's allocator inside the timed call.
  * Samples of the two sides alternate. A sample is a series of calls that fills a millisecond, timed by CUDA events.
    The calls rotate over copies of the inputs that together exceed the L2 cache. The script reports the median.
  * torch forward runs under no_grad. torch backward is autograd.grad on a graph built before the clock starts.
  * Results are compared with float64 before anything is timed. The script fails if the error of attend is more than
    twice the error of torch, plus 1e-6 of the largest magnitude (1e-5 in half precision).
"""

import argparse
import dataclasses
import json
import math
import pathlib
import statistics

import report
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch_shim import Attend

SEED_GRID = [
    (1, 1, 128, 64),
    (2, 4, 256, 64),
    (2, 8, 256, 64),
    (8, 16, 32, 64),
    (2, 8, 512, 64),
    (8, 16, 100, 64),
    (4, 8, 512, 64),
    (2, 8, 1024, 64),
    (4, 12, 1024, 64),
    (8, 16, 2048, 64),
]
SDP = {
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "math": SDPBackend.MATH,
}
TORCH_DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
SAMPLE_MS, MAX_CALLS, SAMPLES = 1.0, 100, 15
CHECKED_SCORES = 2**24  # if a problem has more scores, only its first heads are compared with float64


@dataclasses.dataclass(frozen=True)
class Case:
    shape: tuple
    causal: bool
    dtype: str

    def flops(self, mode):
        b, h, s, d = self.shape
        return 4.0 * b * h * s * s * d * (0.5 if self.causal else 1.0) * (2.5 if mode == "backward" else 1.0)


def make_sets(case):
    """Returns copies of (q, k, v, dout) that together exceed twice the L2 cache."""
    l2 = torch.cuda.get_device_properties(0).L2_cache_size
    make = lambda: torch.randn(case.shape, device="cuda").to(TORCH_DTYPES[case.dtype])
    one = math.prod(case.shape) * TORCH_DTYPES[case.dtype].itemsize * 4
    return [tuple(make() for _ in range(4)) for _ in range(max(1, min(32, 2 * l2 // one + 1)))]


class Sides:
    """The forward and backward calls of both sides. Each call is a function whose argument is the index of a set of
    inputs."""

    def __init__(self, case, attend, sdp):
        self.case, self.attend, self.sdp = case, attend, sdp
        self.sets = make_sets(case)
        self.saved, self.graphs = [], []
        for q, k, v, _ in self.sets:
            self.saved.append(attend.forward(case, q, k, v))
            leaves = tuple(t.detach().requires_grad_() for t in (q, k, v))
            with sdpa_kernel(sdp):
                self.graphs.append((leaves, F.scaled_dot_product_attention(*leaves, is_causal=case.causal)))

    def call(self, side, mode, i):
        i %= len(self.sets)
        q, k, v, dout = self.sets[i]
        if side == "attend":
            if mode == "forward":
                return self.attend.forward(self.case, q, k, v)[:1]
            return self.attend.backward(self.case, dout, q, k, v, *self.saved[i])
        if mode == "forward":
            with torch.no_grad():
                return (F.scaled_dot_product_attention(q, k, v, is_causal=self.case.causal),)
        leaves, o = self.graphs[i]
        return torch.autograd.grad(o, leaves, dout, retain_graph=True)


def check(sides, with_backward):
    """Returns the largest errors of both sides against float64, for the first heads of the first sequence."""
    case = sides.case
    _, h, s, d = case.shape
    heads = max(1, min(h, CHECKED_SCORES // (s * s)))
    q, k, v, dout = (t[:1, :heads].double().requires_grad_() for t in sides.sets[0])
    scores = q @ k.transpose(-1, -2) / math.sqrt(d)
    if case.causal:
        scores = scores.masked_fill(torch.ones(s, s, dtype=torch.bool, device="cuda").triu(1), -math.inf)
    o = scores.softmax(-1) @ v
    truth = (o.detach(),)
    ours, theirs = (sides.call(side, "forward", 0) for side in ("attend", "torch"))
    if with_backward:
        truth += torch.autograd.grad(o, (q, k, v), dout.detach())
        ours, theirs = (
            got + tuple(sides.call(side, "backward", 0)) for got, side in ((ours, "attend"), (theirs, "torch"))
        )
    errors = {}
    for name, want, our, their in zip(("o", "dq", "dk", "dv"), truth, ours, theirs):
        our_error, their_error = ((t[:1, :heads].double() - want).abs().max().item() for t in (our, their))
        allowed = 2 * their_error + (1e-6 if case.dtype == "f32" else 1e-5) * want.abs().max().item()
        if not our_error <= allowed:  # also catches NaN
            raise SystemExit(f"{case} {name}: attend's error is {our_error:.3g}, allowed {allowed:.3g}")
        errors[name] = {"attend": our_error, "torch": their_error}
    return errors


def sample(sides, side, mode, calls, first):
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for i in range(calls):
        sides.call(side, mode, first + i)
    stop.record()
    stop.synchronize()
    return start.elapsed_time(stop) / calls


def measure(sides, mode):
    """Returns {side: median milliseconds}. The sides are sampled in turns."""
    names = ("attend", "torch")
    calls = {}
    for side in names:
        sample(sides, side, mode, len(sides.sets), 0)
        once = min(sample(sides, side, mode, 2, 0) for _ in range(3))
        calls[side] = max(1, min(MAX_CALLS, math.ceil(SAMPLE_MS / once)))
    samples = {side: [] for side in names}
    for turn in range(SAMPLES):
        for side in names if turn % 2 == 0 else names[::-1]:
            samples[side].append(sample(sides, side, mode, calls[side], turn * calls[side]))
    return {side: statistics.median(values) for side, values in samples.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--dtype", choices=TORCH_DTYPES, default="f32")
    parser.add_argument("--compute", default="fa2", help="attend's backend")
    parser.add_argument("--sdp", choices=SDP, default="efficient", help="PyTorch's backend")
    parser.add_argument("--causal", action="store_true")
    parser.add_argument("--modes", default="forward,backward")
    parser.add_argument("--shapes", help="B,H,S,D;B,H,S,D;... (the ten shapes of the seed grid)")
    parser.add_argument("--output", type=pathlib.Path, required=True)
    options = parser.parse_args()
    shapes = SEED_GRID if not options.shapes else [tuple(map(int, s.split(","))) for s in options.shapes.split(";")]
    torch.manual_seed(0)
    attend = Attend(torch, options.compute)
    rows = []
    print(f"{'shape':<20} {'pass':<9} {'attend':>10} {'torch':>10} {'attend':>8} {'torch':>8} TFLOP/s  torch/attend")
    for shape in shapes:
        case = Case(shape, options.causal, options.dtype)
        with sdpa_kernel(SDP[options.sdp]):
            sides = Sides(case, attend, SDP[options.sdp])
            errors = check(sides, "backward" in options.modes)
            for mode in options.modes.split(","):
                ms = measure(sides, mode)
                speed = {side: case.flops(mode) / value / 1e9 for side, value in ms.items()}
                rows.append(
                    {
                        "B": shape[0],
                        "H": shape[1],
                        "S": shape[2],
                        "D": shape[3],
                        "causal": case.causal,
                        "dtype": case.dtype,
                        "mode": mode,
                        "ms": ms["attend"],
                        "torch_ms": ms["torch"],
                        "tflops": speed["attend"],
                        "torch_tflops": speed["torch"],
                        "errors": errors,
                    }
                )
                print(
                    f"{shape!s:<20} {mode:<9} {ms['attend']:>10.4f} {ms['torch']:>10.4f} {speed['attend']:>8.2f} "
                    f"{speed['torch']:>8.2f}          {ms['torch'] / ms['attend']:.2f}",
                    flush=True,
                )
        del sides
        torch.cuda.empty_cache()
    means = {
        mode: {
            side: statistics.mean(r[key] for r in rows if r["mode"] == mode)
            for side, key in (("attend", "ms"), ("torch", "torch_ms"))
        }
        for mode in options.modes.split(",")
    }
    for mode, mean in means.items():
        print(f"mean time, {mode}: attend {mean['attend']:.4f} ms, torch {mean['torch']:.4f} ms")
    result = {
        "date": report.today(),
        "sources": report.present_sources(),
        "device_name": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "sdp_backend": options.sdp,
        "compute": options.compute,
        "attend": attend.version,
        "mean_ms": means,
        "rows": rows,
    }
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
