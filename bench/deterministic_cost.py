#!/usr/bin/env python3
"""What `deterministic=True` costs: gradients in bfloat16 with and without an order of the sums, on a GPU.

    python3 bench/deterministic_cost.py --output results/h200/deterministic_bf16.json

The sizes of the papers of FlashAttention: 16384 tokens and 2048 channels, whatever the length and head_dim. One
process, the two forms in turns, samples of three milliseconds by CUDA events behind a busy GPU, medians of nine. That
the gradients of two deterministic calls have the same bits is checked first. Exit status: 1 where they have not.
"""

import argparse
import json
import math
import pathlib
import statistics
import sys

import torch

import attend

BUSY_CYCLES = 1_000_000  # of the GPU before a sample: longer than launching its first call takes
SAMPLES, SAMPLE_MS = 9, 3.0
TOKENS, CHANNELS = 16384, 2048


def milliseconds(call, calls):
    """GPU time of one of so many calls in a row."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(BUSY_CYCLES)
    start.record()
    for _ in range(calls):
        call()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / calls


def backward_of(inputs, dout, causal, deterministic):
    o = attend.attention(*inputs, causal=causal, deterministic=deterministic)
    return lambda: torch.autograd.grad(o, inputs, dout, retain_graph=True)


def measure(head_dim, seqlen, causal):
    """One line of the file."""
    batch, heads = TOKENS // seqlen, CHANNELS // head_dim
    draw = lambda: torch.randn(batch, heads, seqlen, head_dim, device="cuda", dtype=torch.bfloat16)
    inputs, dout = [draw().requires_grad_() for _ in range(3)], draw()
    calls = {name: backward_of(inputs, dout, causal, name == "deterministic") for name in ("free", "deterministic")}
    first, second = calls["deterministic"](), calls["deterministic"]()
    if not all(torch.equal(a, b) for a, b in zip(first, second)):
        sys.exit(f"({batch}, {heads}, {seqlen}, {head_dim}): the bits of two deterministic calls differ")
    del first, second
    milliseconds(calls["free"], 1)
    count = max(1, round(SAMPLE_MS / milliseconds(calls["free"], 2)))
    samples = {name: [] for name in calls}
    for turn in range(SAMPLES):
        for name in calls if turn % 2 else reversed(calls):
            samples[name].append(milliseconds(calls[name], count))
    ms = {name: statistics.median(values) for name, values in samples.items()}
    flops = 10 * batch * heads * seqlen**2 * head_dim * (0.5 if causal else 1)
    tflops = {name: flops / value / 1e9 for name, value in ms.items()}
    return {"D": head_dim, "S": seqlen, "causal": causal, "tflops": tflops["free"],
            "deterministic_tflops": tflops["deterministic"], "ratio": ms["free"] / ms["deterministic"]}  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--output", type=pathlib.Path, help="JSON")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("torch sees no GPU; this times one only", file=sys.stderr)
        return 2
    rows = []
    for head_dim in (64, 128, 256):
        for causal in (False, True):
            for seqlen in (512, 1024, 2048, 4096, 8192, 16384):
                rows.append(measure(head_dim, seqlen, causal))
                print("d {D:3} S {S:5} {mask:6} {tflops:6.1f} {deterministic_tflops:6.1f} TFLOP/s, {ratio:.3f}".format(
                    mask="causal" if causal else "full", **rows[-1]), flush=True)  # fmt: skip
    mean = math.exp(statistics.fmean(math.log(row["ratio"]) for row in rows))
    print(f"geometric mean {mean:.3f}: {100 / mean - 100:.1f} % more time")
    if options.output:
        record = {"device_name": torch.cuda.get_device_name(), "rows": rows, "geometric_mean": mean}
        options.output.write_text(json.dumps(record, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
