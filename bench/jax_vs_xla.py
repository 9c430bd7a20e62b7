#!/usr/bin/env python3
"""Compares attend.jax with jax.nn.dot_product_attention by XLA and, on a GPU, by cuDNN.

    .venv/bin/python bench/jax_vs_xla.py [--seconds S] [--dtype f32,bf16] [--sides xla,cudnn] [--shape B,S,H,D]
                                         [--output FILE]

Prints a table, and writes a JSON file after each line of it. Each line has the time of forward, or of forward with the
three gradients, in milliseconds (median and quartiles). It also has the ratio of each side's time to attend's time.

The comparison is fair for these reasons:
  * Each side is one jitted function in one process, with the same arrays in JAX's layout (batch, seqlen, heads,
    head_dim). The clock stops when the results have arrived. Compilation and the call after it are not timed.
  * The sides take turns, and each round starts with the other side.
  * Before anything is timed, o and the gradients are compared with XLA's float32 results. The script fails if they
    differ by more than 2e-3 of the largest magnitude in float32, or 3e-2 with 16 bits.
  * On a CPU each side has a pool of threads. Idle threads spin for some milliseconds on the cores that the other side
    needs. Therefore each repeat follows a pause, in which the threads go to sleep, and an untimed call of the same
    side.
"""

import argparse
import json
import pathlib
import statistics
import sys
import time

try:
    import jax
    import jax.numpy as jnp
    import numpy as np
except ImportError as error:
    print(f"{error.name} is not installed, which this script needs: pip install jax", file=sys.stderr)
    sys.exit(2)

import attend
import attend.jax

DTYPES = {"f32": jnp.float32, "f16": jnp.float16, "bf16": jnp.bfloat16}
CPU_SHAPES = [(1, 1024, 8, 64), (4, 512, 8, 64), (1, 2048, 8, 64), (1, 1024, 8, 128)]
GPU_SHAPES = [
    (32, 512, 32, 64), (32, 512, 16, 128), (8, 2048, 32, 64), (8, 2048, 16, 128), (2, 8192, 32, 64), (2, 8192, 16, 128),
    (2, 8192, 8, 256),
]  # fmt: skip
SIDES = ("xla", "cudnn")
BUDGET = {"f32": 2e-3, "f16": 3e-2, "bf16": 3e-2}
MIN_REPEATS, MAX_REPEATS = 5, 101
PAUSE = 0.02  # seconds of the pause before each repeat


def of_jax(name):
    return lambda *x, **options: jax.nn.dot_product_attention(*x, **options, implementation=name)


def sides_of(asked, has_gpu, dtype):
    """Returns {side: function of query, key, value and is_causal}. attend is the first side."""
    there = [name for name in asked if name != "cudnn" or (has_gpu and dtype != "f32")]
    return {"attend": attend.jax.dot_product_attention} | {name: of_jax(name) for name in there}


def program(function, mode, causal):
    def forward(q, k, v):
        return function(q, k, v, is_causal=causal)

    def both(q, k, v, dout):
        o, pull = jax.vjp(forward, q, k, v)
        return o, *pull(dout)

    return jax.jit(both) if mode == "both" else jax.jit(lambda q, k, v, dout: forward(q, k, v))


def largest_difference(found, want):
    """Returns the largest difference relative to the largest magnitude, or NaN if there is one."""
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(want))
    differences = [np.abs(np.float32(x) - np.float32(y)).max() / np.abs(np.float32(y)).max() for x, y in pairs]
    return float(np.max(differences))


def milliseconds(run, tensors):
    start = time.perf_counter()
    jax.block_until_ready(run(*tensors))
    return (time.perf_counter() - start) * 1e3


def interleaved(programs, tensors, seconds):
    """Returns {side: milliseconds of each repeat}."""
    names, times = list(programs), {name: [] for name in programs}
    end = time.perf_counter() + seconds * len(names)
    while len(times[names[0]]) < MIN_REPEATS or (time.perf_counter() < end and len(times[names[0]]) < MAX_REPEATS):
        names.reverse()
        for name in names:
            time.sleep(PAUSE)
            milliseconds(programs[name], tensors)
            times[name].append(milliseconds(programs[name], tensors))
    return times


def measure(shape, dtype, causal, mode, seconds, sides):
    keys = jax.random.split(jax.random.key(0), 4)
    tensors = [jax.random.normal(key, shape, DTYPES[dtype]) for key in keys]
    programs, left_out, results = {}, {}, {}
    for name, function in sides.items():
        run = program(function, mode, causal)
        try:
            results[name] = jax.block_until_ready(run(*tensors))
            programs[name] = run
        except Exception as error:  # cuDNN's exceptions have several types
            if name == "attend":
                raise
            left_out[name] = str(error).splitlines()[0][:200]
    for name, result in list(results.items())[1:]:
        difference = largest_difference(results["attend"], result)
        if not difference <= BUDGET[dtype]:
            raise SystemExit(f"{shape} {dtype} {mode}: attend differs from {name} by {difference:.1e}")
    times = interleaved(programs, tensors, seconds)
    row = {"shape": shape, "dtype": dtype, "causal": causal, "mode": mode, "left_out": left_out, "ms": {}, "ratio": {}}
    for name, values in times.items():
        low, middle, high = statistics.quantiles(values, n=4)
        row["ms"][name] = {"median": middle, "quartiles": [low, high], "repeats": len(values)}
        row["ratio"][name] = middle / row["ms"]["attend"]["median"]
    return row


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1.0, help="time for each side of each case, in seconds")
    parser.add_argument("--dtype", default="f32,bf16", help="comma-separated, from f32, f16, bf16")
    parser.add_argument("--sides", default=",".join(SIDES), help="sides to compare with attend; cuDNN supports only GPUs, and not f32")
    parser.add_argument("--shape", action="append", help="batch,seqlen,heads,head_dim; may be given several times")
    parser.add_argument("--output", type=pathlib.Path, help="JSON file for the results")
    options = parser.parse_args(arguments)
    dtypes = options.dtype.split(",")
    if unknown := [x for x in dtypes if x not in DTYPES]:
        parser.error(f"--dtype: {unknown[0]!r}, allowed {', '.join(DTYPES)}")
    asked = options.sides.split(",")
    if unknown := [x for x in asked if x not in SIDES]:
        parser.error(f"--sides: {unknown[0]!r}, allowed {', '.join(SIDES)}")
    has_gpu = jax.default_backend() == "gpu"
    shapes = GPU_SHAPES if has_gpu else CPU_SHAPES
    if options.shape:
        shapes = [tuple(map(int, text.split(","))) for text in options.shape]
    machine = {
        "device": str(jax.devices()[0].device_kind), "jax": jax.__version__, "attend": attend.__version__,
        "threads": attend.cpu_threads(), "simd": attend.cpu_simd_target(), "date": time.strftime("%Y-%m-%d"),
    }  # fmt: skip
    rows = []
    for shape in shapes:
        for dtype in dtypes:
            for causal in (False, True):
                for mode in ("forward", "both"):
                    row = measure(shape, dtype, causal, mode, options.seconds, sides_of(asked, has_gpu, dtype))
                    rows.append(row)
                    ours = row["ms"]["attend"]["median"]
                    others = "".join(f"  {name} {ratio:5.2f}x" for name, ratio in list(row["ratio"].items())[1:])
                    mask = "causal" if causal else "full"
                    print(f"{shape!s:20} {dtype:5} {mask:7} {mode:8} attend {ours:9.3f} ms{others}", flush=True)
                    if options.output:
                        options.output.write_text(json.dumps({"machine": machine, "rows": rows}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
