#!/usr/bin/env python3
"""Compares attend's `cpu` backend with PyTorch's scaled_dot_product_attention on this machine's CPU.

    .venv/bin/python bench/cpu_vs_torch.py [--threads N] [--repeats R] [--gap-ms G]

Writes results/cpu/cpu_vs_torch.json, the tables of docs/benchmarks_cpu.md and the summary in README.md.

The comparison is fair for these reasons:
  * Both sides run in one process. Each case has new random normal data. Both sides read the same dense
    (batch, heads, seqlen, head_dim) buffers and allocate their outputs from torch's allocator inside the timed call.
  * The sides take turns, and each round starts with the other side. If the machine is slow for a second, both sides are
    affected. The script reports the median and the quartiles.
  * torch forward runs under no_grad. torch backward is autograd.grad on a graph built before the clock starts. attend's
    backward uses the o and lse of a forward that is not timed.
  * Results are compared with float64 before anything is timed. The error of attend may be at most twice the error of
    torch, plus 1e-6 of the largest magnitude. Otherwise the script fails.
  * Both sides have the same number of threads. PyTorch's wheel contains a libgomp. If the file is named libgomp.so.1,
    the loader also uses it for attend, and the process has one pool of threads. Otherwise there are two pools, and idle
    threads of one pool spin for some milliseconds on the cores that the other pool needs. The script records the number
    of OpenMP runtimes. Before every timed call there is a pause (--gap-ms), in which spinning threads go to sleep, and
    one untimed call of the same side, which wakes its threads. Therefore each timed call starts with its threads awake
    and no others running. (With PyTorch 2.15 there is one pool. The pause makes both sides 3 % slower at (4, 8, 512,
    64), where a call takes 9 ms.)
"""

import argparse
import dataclasses
import itertools
import math
import os
import pathlib
import statistics
import sys
import time

import cpu_tables
import report
from torch_shim import Attend

SHAPES = [(1, 8, 2048, 64), (1, 16, 1024, 128), (4, 8, 512, 64)]  # (batch, heads, seqlen, head_dim)
MODES = ["forward", "backward"]
SECONDS_PER_SIDE = 1.5  # short calls get more repeats
MIN_REPEATS, MAX_REPEATS = 11, 101


@dataclasses.dataclass(frozen=True)
class Case:
    shape: tuple
    causal: bool
    dtype: str  # "f32" or "bf16"

    def flops(self, mode: str) -> float:
        b, h, s, d = self.shape
        return 4.0 * b * h * s * s * d * (0.5 if self.causal else 1.0) * (2.5 if mode == "backward" else 1.0)

    def bytes_moved(self, mode: str) -> float:
        """Returns the minimum memory traffic in bytes. Forward reads q, k and v and writes o. Backward reads five
        tensors and writes three.
        """
        b, h, s, d = self.shape
        return b * h * s * d * (4 if self.dtype == "f32" else 2) * (4.0 if mode == "forward" else 8.0)


def truth(case, q, k, v, dout):
    """Returns o, dq, dk, dv in float64. Computes one head at a time, so that only one score matrix exists."""
    results = [torch.empty(t.shape, dtype=torch.float64) for t in (q, q, k, v)]
    b, h, s, d = case.shape
    hidden = torch.ones(s, s, dtype=torch.bool).triu(1) if case.causal else None
    for index in itertools.product(range(b), range(h)):
        qh, kh, vh = (t[index].double().requires_grad_() for t in (q, k, v))
        scores = qh @ kh.T / math.sqrt(d)
        if hidden is not None:
            scores = scores.masked_fill(hidden, -math.inf)
        o = scores.softmax(-1) @ vh
        grads = torch.autograd.grad(o, (qh, kh, vh), dout[index].double())
        for result, value in zip(results, (o.detach(), *grads)):
            result[index] = value
    return results


def check_agreement(expected, ours, theirs) -> dict:
    """Returns the largest error of each side. Raises if attend's error exceeds twice torch's plus 1e-6 of the largest
    magnitude.
    """
    errors = {}
    for name, want, our, their in zip(("o", "dq", "dk", "dv"), expected, ours, theirs):
        our_error = (our.double() - want).abs().max().item()
        their_error = (their.double() - want).abs().max().item()
        allowed = 2 * their_error + 1e-6 * want.abs().max().item()
        if not our_error <= allowed:  # also catches NaN
            raise SystemExit(f"{name}: attend's error {our_error:.3g} exceeds {allowed:.3g} (torch: {their_error:.3g})")
        errors[name] = {"attend": our_error, "torch": their_error}
    return errors


def quartiles(values) -> list:
    return [round(v, 4) for v in statistics.quantiles(values, n=4, method="inclusive")]


def time_interleaved(sides: dict, repeats, gap_s) -> dict:
    """Returns {side: [ms, ...]}. `sides` are functions without arguments."""

    def one(function):
        time.sleep(gap_s)
        function()
        begin = time.perf_counter()
        function()
        return (time.perf_counter() - begin) * 1e3

    first = {name: min(one(function), one(function)) for name, function in sides.items()}
    if repeats is None:
        slowest = max(first.values()) / 1e3 * 2 + gap_s
        repeats = min(MAX_REPEATS, max(MIN_REPEATS, math.ceil(SECONDS_PER_SIDE / slowest)))
    times = {name: [] for name in sides}
    for repeat in range(repeats):
        for name in sorted(sides, reverse=repeat % 2 == 1):
            times[name].append(one(sides[name]))
    return times


def measure(case, attend, options) -> list:
    dtype = {"f32": torch.float32, "bf16": torch.bfloat16}[case.dtype]
    q, k, v, dout = (torch.randn(case.shape).to(dtype) for _ in range(4))
    sdpa = torch.nn.functional.scaled_dot_product_attention
    leaves = [t.detach().clone().requires_grad_() for t in (q, k, v)]
    graph = sdpa(*leaves, is_causal=case.causal)
    o, lse = attend.forward(case, q, k, v)

    def torch_forward():
        with torch.no_grad():
            return sdpa(q, k, v, is_causal=case.causal)

    def torch_backward():
        return torch.autograd.grad(graph, leaves, dout, retain_graph=True)

    sides = {
        "forward": {"attend": lambda: attend.forward(case, q, k, v), "torch": torch_forward},
        "backward": {"attend": lambda: attend.backward(case, dout, q, k, v, o, lse), "torch": torch_backward},
    }
    errors = check_agreement(
        truth(case, q, k, v, dout),
        (o, *attend.backward(case, dout, q, k, v, o, lse)),
        (graph.detach(), *torch_backward()),
    )
    return [
        row(case, mode, time_interleaved(sides[mode], options.repeats, options.gap_ms / 1e3), errors) for mode in MODES
    ]


def row(case, mode, times, errors) -> dict:
    b, h, s, d = case.shape
    ours, theirs = quartiles(times["attend"]), quartiles(times["torch"])
    result = {
        "compute": "cpu",
        "mode": mode,
        "device": "cpu",
        "dtype": case.dtype,
        "B": b,
        "H": h,
        "Hkv": h,
        "Sq": s,
        "Sk": s,
        "D": d,
        "causal": case.causal,
        "ms": ours[1],
        "ms_quartiles": ours,
        "torch_ms": theirs[1],
        "torch_ms_quartiles": theirs,
        "repeats": len(times["attend"]),
        "tflops": round(case.flops(mode) / ours[1] * 1e-9, 4),
        "torch_tflops": round(case.flops(mode) / theirs[1] * 1e-9, 4),
        "gbps": round(case.bytes_moved(mode) / ours[1] * 1e-6, 2),
        "speedup": round(theirs[1] / ours[1], 3),
        "max_abs_err": {k: v for k, v in errors.items() if (k == "o") == (mode == "forward")},
    }
    print(
        f"{mode:8} {case.dtype:4} {case.shape!s:20} {'causal' if case.causal else 'full':6} "
        f"attend {result['ms']:9.3f} ms   torch {result['torch_ms']:9.3f} ms   {result['speedup']:.2f}x",
        flush=True,
    )
    return result


def summarise(rows) -> list:
    """Returns the geometric mean and minimum of the speed-up for each dtype and mode."""
    summary = []
    for dtype, mode in itertools.product(dict.fromkeys(r["dtype"] for r in rows), MODES):
        ratios = [r["speedup"] for r in rows if r["dtype"] == dtype and r["mode"] == mode]
        summary.append(
            {
                "dtype": dtype,
                "mode": mode,
                "geomean_speedup": round(statistics.geometric_mean(ratios), 3),
                "min_speedup": min(ratios),
            }
        )
    return summary


def openmp_runtimes() -> list:
    paths = {line.split()[-1] for line in pathlib.Path("/proc/self/maps").read_text().splitlines() if "/" in line}
    return sorted({pathlib.Path(p).name for p in paths if any(s in p for s in ("libgomp", "libomp", "libiomp"))})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--repeats", type=int, help="timed calls per side and case (default: 11 to 101 by duration)")
    parser.add_argument("--gap-ms", type=float, default=20.0, help="pause before each timed pair of calls")
    parser.add_argument("--dtypes", default="f32,bf16")
    parser.add_argument("--dry", action="store_true", help="print results without writing files")
    options = parser.parse_args()

    # The variable must be set before torch and the library are loaded, because an OpenMP runtime reads its environment
    # once.
    os.environ["OMP_NUM_THREADS"] = str(options.threads)
    global torch
    import torch

    torch.set_num_threads(options.threads)
    attend = Attend(torch)
    if attend.threads != options.threads:
        sys.exit(f"attend would use {attend.threads} threads instead of {options.threads}")

    cases = [
        Case(shape, causal, dtype)
        for dtype in options.dtypes.split(",")
        for shape in SHAPES
        for causal in (False, True)
    ]
    info = report.machine(options.threads)
    info |= {
        "simd_target": attend.simd_target,
        "attend": attend.version,
        "torch": torch.__version__,
        "openmp_runtimes": openmp_runtimes(),
        "gap_ms": options.gap_ms,
    }
    rows = [r for case in cases for r in measure(case, attend, options)]
    data = {"machine": info, "summary": summarise(rows), "rows": rows}
    for s in data["summary"]:
        print(
            f"{s['dtype']:4} {s['mode']:8} geometric mean {s['geomean_speedup']:.2f}x, smallest {s['min_speedup']:.2f}x"
        )
    if not options.dry:
        report.write_json(report.RESULTS / "cpu_vs_torch.json", data)
        for section in cpu_tables.sections():
            section.write()


if __name__ == "__main__":
    main()
