#!/usr/bin/env python3
"""What a call costs the host in Python: attend.attention and torch's SDPA on small CUDA tensors, autograd off and on.

    python3 bench/python_host_cost.py --output results/h200/python_host_cost.json

The time until the call returns, work submitted but not waited for; batches of calls, the sides in turns, the GPU idle
before each batch. Reported are the median of the batches and the quartiles. The forward calls of torch choose their
backend by themselves.
"""

import argparse
import json
import pathlib
import statistics
import time

import torch
import torch.nn.functional as F

import attend

SHAPE = (1, 1, 128, 64)  # (batch, heads, seqlen, head_dim)
BATCHES, CALLS = 60, 50  # fewer calls than a stream takes before it makes the host wait
WARM_UP_S = 2.0  # of calls before anything counts: the host's clocks rise, kernels compile
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
SIDES = {"attend": attend.attention, "torch": F.scaled_dot_product_attention}


def microseconds(call):
    """Host time of one of CALLS calls."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(CALLS):
        call()
    us = (time.perf_counter() - start) / CALLS * 1e6
    torch.cuda.synchronize()
    return us


def calls_of(dtype, autograd):
    """{side: a call without arguments}; with autograd forward and backward."""
    inputs = [torch.randn(SHAPE, device="cuda", dtype=dtype, requires_grad=autograd) for _ in range(3)]
    dout = torch.randn(SHAPE, device="cuda", dtype=dtype)

    def bind(function):
        if not autograd:
            return lambda: function(*inputs)
        return lambda: torch.autograd.grad(function(*inputs), inputs, dout)

    return {side: bind(function) for side, function in SIDES.items()}


def measure(name, autograd):
    calls = calls_of(DTYPES[name], autograd)
    samples = {side: [] for side in calls}
    warm_at = time.perf_counter() + WARM_UP_S
    while time.perf_counter() < warm_at:
        for call in calls.values():
            microseconds(call)
    for batch in range(BATCHES):
        for side in calls if batch % 2 else reversed(calls):
            samples[side].append(microseconds(calls[side]))
    row = {"dtype": name, "autograd": autograd, "shape": SHAPE}
    for side, values in samples.items():
        quartiles = statistics.quantiles(values, n=4)
        row |= {f"{side}_us": quartiles[1], f"{side}_quartiles_us": [quartiles[0], quartiles[2]]}
    print(f"{name:<5} {'forward and backward' if autograd else 'forward, no autograd':<22} attend {row['attend_us']:6.1f} us   torch "
          f"{row['torch_us']:6.1f} us", flush=True)
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--output", type=pathlib.Path, required=True)
    options = parser.parse_args()
    rows = []
    for name in DTYPES:
        with torch.no_grad():
            rows.append(measure(name, autograd=False))
        rows.append(measure(name, autograd=True))
    result = {"device_name": torch.cuda.get_device_name(), "torch": torch.__version__, "attend": attend.__version__,
              "rows": rows}
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
