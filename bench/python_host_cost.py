#!/usr/bin/env python3
"""Measures the host time of a call in Python: attend.attention and torch's SDPA on small tensors, autograd off and on.

    python3 bench/python_host_cost.py --output results/h200/python_host_cost.json
    python3 bench/python_host_cost.py --device cpu             # Python's part alone, on a machine without a GPU
    python3 bench/python_host_cost.py --device cpu --serving   # decode, append and flash_attn_with_kvcache instead

The time ends when the call returns, even if the GPU is still computing. The sides take turns. In each turn a side makes
a batch of calls. The GPU is idle before each batch. The script reports the median and quartiles of the batches. torch's
forward calls use torch's default backend. On a CPU the script measures the time of the calling thread, on tensors of a
few numbers.

--serving uses one sequence, one head, head_dim 8 and a cache of one key, so almost nothing is computed. For each
function it also times the call of the extension module alone. This call reads and checks the arguments, and computes.
This time is an upper bound for the cost of the C++ code. The difference between the two times is the cost of Python and
torch.
"""

import argparse
import functools
import json
import pathlib
import statistics
import time

import attend
import report
import torch
import torch.nn.functional as F
from attend import _core, flash_attn, flash_attn_3
from attend._serving import Numbers, Tensors

SHAPES = {"cuda": (1, 1, 128, 64), "cpu": (1, 1, 8, 8)}  # (batch, heads, seqlen, head_dim)
CLOCKS = {"cuda": time.perf_counter, "cpu": time.thread_time}  # on a GPU, another thread submits backward
BATCHES, CALLS = 60, 50  # CALLS is lower than the number of calls that a stream can queue before the host has to wait
WARM_UP_S = 2.0  # duration of calls before the measurement, during which the CPU's frequency rises and kernels compile
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
SIDES = {"attend": attend.attention, "torch": F.scaled_dot_product_attention}


def microseconds(call, device):
    """Returns the mean host time of CALLS calls in microseconds."""
    finish = torch.cuda.synchronize if device == "cuda" else lambda: None
    finish()
    start = CLOCKS[device]()
    for _ in range(CALLS):
        call()
    us = (CLOCKS[device]() - start) / CALLS * 1e6
    finish()
    return us


def calls_of(dtype, device, autograd):
    """Returns {side: call without arguments}. With autograd, a call runs forward and backward."""
    shape = SHAPES[device]
    inputs = [torch.randn(shape, device=device, dtype=dtype, requires_grad=autograd) for _ in range(3)]
    dout = torch.randn(shape, device=device, dtype=dtype)

    def bind(function):
        if not autograd:
            return lambda: function(*inputs)
        return lambda: torch.autograd.grad(function(*inputs), inputs, dout)

    return {side: bind(function) for side, function in SIDES.items()}


def sampled(calls, device):
    """Returns medians and quartiles of the batches of each side. The sides take turns."""
    samples = {side: [] for side in calls}
    warm_at = time.perf_counter() + WARM_UP_S
    while time.perf_counter() < warm_at:
        for call in calls.values():
            microseconds(call, device)
    for batch in range(BATCHES):
        for side in calls if batch % 2 else reversed(calls):
            samples[side].append(microseconds(calls[side], device))
    row = {}
    for side, values in samples.items():
        quartiles = statistics.quantiles(values, n=4)
        row |= {f"{side}_us": quartiles[1], f"{side}_quartiles_us": [quartiles[0], quartiles[2]]}
    return row


def measure(name, device, autograd):
    row = {"dtype": name, "autograd": autograd, "shape": SHAPES[device]}
    row |= sampled(calls_of(DTYPES[name], device, autograd), device)
    passes = "forward and backward" if autograd else "forward, no autograd"
    print(f"{name:<5} {passes:<22} attend {row['attend_us']:6.1f} us   torch {row['torch_us']:6.1f} us", flush=True)
    return row


def serving_calls(dtype, device):
    """Returns {name of the function: (call without arguments, tensors of the call of the extension module)}."""
    q, new, cache, rows = (torch.randn(1, 1, 1, 8, device=device, dtype=dtype) for _ in range(4))
    values, pages = torch.randn_like(cache), torch.zeros(1, 1, device=device, dtype=torch.int32)
    one, zero = (torch.full((1,), n, device=device, dtype=torch.int32) for n in (1, 0))
    lse = torch.empty(1, 1, 1, device=device)
    caches = cache, values
    read = Tensors(q, *caches, rows, None, one)
    paged = read._replace(page_table=pages)
    written = read._replace(seqlens_k=zero, k=new, v=new)
    into = Tensors(k_cache=cache, v_cache=values, seqlens_k=zero, k=new, v=new)
    decode, append = attend.decode, attend.append
    calls = {
        "decode, out=": (lambda: decode(q, *caches, seqlens_k=one, out=rows), read),
        "decode": (lambda: decode(q, *caches, seqlens_k=one), read),
        "decode, a number of keys": (lambda: decode(q, *caches, seqlens_k=1), read),
        "decode, lse": (lambda: decode(q, *caches, seqlens_k=one, return_lse=True), read._replace(lse=lse)),
        "decode, pages, out=": (lambda: decode(q, *caches, seqlens_k=one, page_table=pages, out=rows), paged),
        "decode, pages": (lambda: decode(q, *caches, seqlens_k=one, page_table=pages), paged),
        "decode, new keys": (lambda: decode(q, *caches, seqlens_k=zero, k=new, v=new), written),
        "append": (lambda: append(new, new, *caches, seqlens_k=zero), into),
        "append, pages": (
            lambda: append(new, new, *caches, seqlens_k=zero, page_table=pages),
            into._replace(page_table=pages),
        ),
    }
    for name, door in (("flash_attn", flash_attn), ("flash_attn_3", flash_attn_3)):
        run = door.flash_attn_with_kvcache  # (batch, 1, 1, 8) is the same in both layouts
        calls[f"{name}'s kvcache"] = (lambda run=run: run(q, *caches, cache_seqlens=one), read)
        calls[f"{name}'s kvcache, new keys"] = (lambda run=run: run(q, *caches, new, new, cache_seqlens=zero), written)
    return calls


def measure_serving(name, device):
    rows = []
    for called, (call, tensors) in serving_calls(DTYPES[name], device).items():
        library, numbers = (_core.decode if tensors.q is not None else _core.append), Numbers()
        stream = torch.cuda.current_stream().cuda_stream if device == "cuda" else 0
        sides = {"attend": call, "library": functools.partial(library, tensors, numbers, stream)}
        rows.append({"dtype": name, "call": called} | sampled(sides, device))
        print(
            f"{name:<5} {called:<32} attend {rows[-1]['attend_us']:6.1f} us   library {rows[-1]['library_us']:6.1f} us",
            flush=True,
        )
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--device", choices=SHAPES, default="cuda")
    parser.add_argument("--serving", action="store_true", help="measure decode, append and flash_attn_with_kvcache instead")
    parser.add_argument("--output", type=pathlib.Path, help="JSON")
    options = parser.parse_args()
    rows = []
    for name in DTYPES:
        with torch.no_grad():
            if options.serving:
                rows += measure_serving(name, options.device)
                continue
            rows.append(measure(name, options.device, autograd=False))
        rows.append(measure(name, options.device, autograd=True))
    if options.output is None:
        return
    where = torch.cuda.get_device_name() if options.device == "cuda" else "CPU"
    result = {
        "device_name": where,
        "torch": torch.__version__,
        "attend": attend.__version__,
        **report.provenance(),
        "rows": rows,
    }
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
