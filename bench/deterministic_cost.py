#!/usr/bin/env python3
"""Measures the cost of `deterministic=True`: bfloat16 gradients on a GPU with a fixed and with an arbitrary order of
additions.

    python3 bench/deterministic_cost.py --output results/h200/deterministic_bf16.json

The sizes are those of the FlashAttention papers: 16384 tokens and 2048 channels for every length and head_dim. The two
modes alternate in one process. CUDA events time samples of three milliseconds while the GPU is busy, and the result is
the median of nine samples. First the script checks that the gradients of two deterministic calls have the same bits.
The exit status is 1 if they differ.
"""

import argparse
import json
import math
import pathlib
import statistics
import sys

import attend
import report
import torch
from attend._measure import timing
from attend._measure.implementations import Prepared
from h200_vs_peers import kept_busy

LIMITS = timing.Limits(samples=9, seconds=3.0, sample_ms=3.0)
TOKENS, CHANNELS = 16384, 2048


def backward_of(inputs, dout, causal, deterministic):
    o = attend.attention(*inputs, causal=causal, deterministic=deterministic)
    return lambda: torch.autograd.grad(o, inputs, dout, retain_graph=True)


def measure(shape, causal, device="cuda"):
    """Returns one line of the result file. `shape` is (batch, heads, seqlen, head_dim)."""
    inputs = [torch.randn(shape, device=device, dtype=torch.bfloat16, requires_grad=True) for _ in range(3)]
    dout = torch.randn(shape, device=device, dtype=torch.bfloat16)
    calls = {name: backward_of(inputs, dout, causal, name == "deterministic") for name in ("free", "deterministic")}
    if not all(torch.equal(a, b) for a, b in zip(calls["deterministic"](), calls["deterministic"]())):
        sys.exit(f"{shape}: the bits of two deterministic calls differ")
    prepared = {name: Prepared(lambda i, call=call: call(), lambda: kept_busy(device, True))
                for name, call in calls.items()}  # fmt: skip
    rough = {name: timing.rough_ms(one, device, 1) for name, one in prepared.items()}
    ms = {name: taken.ms for name, taken in timing.in_turns(prepared, rough, device, LIMITS).items()}
    batch, heads, seqlen, head_dim = shape
    flops = 10 * batch * heads * seqlen**2 * head_dim * (0.5 if causal else 1)
    tflops = {name: flops / value / 1e9 for name, value in ms.items()}
    return {"D": head_dim, "S": seqlen, "causal": causal, "tflops": tflops["free"],
            "deterministic_tflops": tflops["deterministic"], "ratio": ms["free"] / ms["deterministic"]}  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--output", type=pathlib.Path, help="JSON")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("torch finds no GPU, which this script requires", file=sys.stderr)
        return 2
    rows = []
    for head_dim in (64, 128, 256):
        for causal in (False, True):
            for seqlen in (512, 1024, 2048, 4096, 8192, 16384):
                rows.append(measure((TOKENS // seqlen, CHANNELS // head_dim, seqlen, head_dim), causal))
                print("d {D:3} S {S:5} {mask:6} {tflops:6.1f} {deterministic_tflops:6.1f} TFLOP/s, {ratio:.3f}".format(
                    mask="causal" if causal else "full", **rows[-1]), flush=True)  # fmt: skip
    mean = math.exp(statistics.fmean(math.log(row["ratio"]) for row in rows))
    print(f"geometric mean {mean:.3f}: {100 / mean - 100:.1f} % more time")
    if options.output:
        record = {
            "device_name": torch.cuda.get_device_name(),
            **report.provenance(),
            "rows": rows,
            "geometric_mean": mean,
        }
        options.output.write_text(json.dumps(record, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
