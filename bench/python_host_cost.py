#!/usr/bin/env python3
"""What a call costs the host in Python: attend.attention and torch's SDPA on small CUDA tensors, autograd off and on.

    python3 bench/python_host_cost.py --output results/h200/python_host_cost.json
    python3 bench/python_host_cost.py --device cpu        # Python's part alone, on a machine without a GPU

The time until the call returns, work submitted but not waited for; batches of calls, the sides in turns, the GPU idle
before each batch. Reported are the median of the batches and the quartiles. The forward calls of torch choose their
backend by themselves. On a CPU the time is that of the calling thread, which works on tensors of a few numbers.
"""

import argparse
import json
import pathlib
import statistics
import time

import torch
import torch.nn.functional as F

import attend
import report

SHAPES = {"cuda": (1, 1, 128, 64), "cpu": (1, 1, 8, 8)}  # (batch, heads, seqlen, head_dim)
CLOCKS = {"cuda": time.perf_counter, "cpu": time.thread_time}  # on a GPU the gradients are submitted by another thread
BATCHES, CALLS = 60, 50  # fewer calls than a stream takes before it makes the host wait
WARM_UP_S = 2.0  # of calls before anything counts: the host's clocks rise, kernels compile
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
SIDES = {"attend": attend.attention, "torch": F.scaled_dot_product_attention}


def microseconds(call, device):
    """Host time of one of CALLS calls."""
    finish = torch.cuda.synchronize if device == "cuda" else lambda: None
    finish()
    start = CLOCKS[device]()
    for _ in range(CALLS):
        call()
    us = (CLOCKS[device]() - start) / CALLS * 1e6
    finish()
    return us


def calls_of(dtype, device, autograd):
    """{side: a call without arguments}; with autograd forward and backward."""
    shape = SHAPES[device]
    inputs = [torch.randn(shape, device=device, dtype=dtype, requires_grad=autograd) for _ in range(3)]
    dout = torch.randn(shape, device=device, dtype=dtype)

    def bind(function):
        if not autograd:
            return lambda: function(*inputs)
        return lambda: torch.autograd.grad(function(*inputs), inputs, dout)

    return {side: bind(function) for side, function in SIDES.items()}


def measure(name, device, autograd):
    calls = calls_of(DTYPES[name], device, autograd)
    samples = {side: [] for side in calls}
    warm_at = time.perf_counter() + WARM_UP_S
    while time.perf_counter() < warm_at:
        for call in calls.values():
            microseconds(call, device)
    for batch in range(BATCHES):
        for side in calls if batch % 2 else reversed(calls):
            samples[side].append(microseconds(calls[side], device))
    row = {"dtype": name, "autograd": autograd, "shape": SHAPES[device]}
    for side, values in samples.items():
        quartiles = statistics.quantiles(values, n=4)
        row |= {f"{side}_us": quartiles[1], f"{side}_quartiles_us": [quartiles[0], quartiles[2]]}
    passes = "forward and backward" if autograd else "forward, no autograd"
    print(f"{name:<5} {passes:<22} attend {row['attend_us']:6.1f} us   torch {row['torch_us']:6.1f} us", flush=True)
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--device", choices=SHAPES, default="cuda")
    parser.add_argument("--output", type=pathlib.Path, help="JSON")
    options = parser.parse_args()
    rows = []
    for name in DTYPES:
        with torch.no_grad():
            rows.append(measure(name, options.device, autograd=False))
        rows.append(measure(name, options.device, autograd=True))
    if options.output is None:
        return
    where = torch.cuda.get_device_name() if options.device == "cuda" else "CPU"
    result = {"device_name": where, "torch": torch.__version__, "attend": attend.__version__, **report.provenance(),
              "rows": rows}
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
