#!/usr/bin/env python3
"""Times the `cpu` backend of two builds in turns in one process, to measure the effect of a change in src/cpu.

    git worktree add ../before REVISION    # and there: cmake --build --preset release --target torch_shim
    bench/two_builds.py ../before/build/release/bench/libtorch_shim.so build/release/bench/libtorch_shim.so

The script prints the lower quartiles of each case and, for each dtype and pass, the geometric mean of the ratio before
/ after. A ratio above 1 means that the second build is faster. The script needs only NumPy. OMP_NUM_THREADS sets the
number of threads, and `chrt -f 50` keeps other processes off the cores.
"""

import argparse
import ctypes
import math
import time

import numpy as np
from torch_shim import DTYPES, Call

SHAPES = [(1, 8, 2048, 64), (1, 16, 1024, 128), (4, 8, 512, 64)]  # (batch, heads, seqlen, head_dim)
NAMES = ("q", "k", "v", "o", "dout", "dq", "dk", "dv")


def aligned(x):
    """Returns a copy that begins at a multiple of 64 bytes."""
    memory = np.empty(x.nbytes + 64, np.uint8)
    begin = -memory.ctypes.data % 64
    copy = memory[begin : begin + x.nbytes].view(x.dtype).reshape(x.shape)
    copy[...] = x
    return copy


def random_tensor(generator, shape, dtype):
    x = generator.standard_normal(shape).astype(np.float32)
    return aligned((x.view(np.uint32) >> 16).astype(np.uint16) if dtype == "bf16" else x)


def lower_quartile(seconds):
    return sorted(seconds)[len(seconds) // 4]


def measure(functions, call, repeats):
    """Returns the seconds of the calls of each function. The functions take turns, and each round starts with another
    function.
    """
    for function in functions:
        if (message := function(ctypes.byref(call))) is not None:
            raise SystemExit(f"attend: {message.decode()}")
    times = ([], [])
    for repeat in range(repeats):
        for side in (0, 1) if repeat % 2 else (1, 0):
            begin = time.perf_counter()
            functions[side](ctypes.byref(call))
            times[side].append(time.perf_counter() - begin)
    return [lower_quartile(t) for t in times]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("before", help="libtorch_shim.so of one build")
    parser.add_argument("after", help="libtorch_shim.so of the other build")
    parser.add_argument("--repeats", type=int, default=25, help="calls of each side, 25 if not given")
    options = parser.parse_args()
    libraries = [ctypes.CDLL(path) for path in (options.before, options.after)]
    for library in libraries:
        library.shim_forward.restype = library.shim_backward.restype = ctypes.c_char_p
    generator = np.random.default_rng(0)
    for dtype in ("f32", "bf16"):
        ratios = {"forward": [], "backward": []}
        for shape in SHAPES:
            for causal in (0, 1):
                tensors = {name: random_tensor(generator, shape, dtype) for name in NAMES}
                tensors["lse"] = aligned(np.zeros(shape[:3], np.float32))
                b, h, s, d = shape
                call = Call(
                    batch=b,
                    num_heads=h,
                    seqlen_q=s,
                    seqlen_k=s,
                    head_dim=d,
                    dtype=DTYPES[dtype],
                    device=-1,
                    causal=causal,
                    compute=b"cpu",
                    **{name: x.ctypes.data for name, x in tensors.items()},
                )
                for mode, found in ratios.items():
                    before, after = measure([getattr(x, f"shim_{mode}") for x in libraries], call, options.repeats)
                    found.append(before / after)
                    print(
                        f"{dtype} {mode:8} {shape} {'causal' if causal else 'full':6} "
                        f"{before * 1e3:8.3f} {after * 1e3:8.3f} ms  {before / after:.4f}",
                        flush=True,
                    )
        for mode, found in ratios.items():
            print(f"{dtype} {mode}: geometric mean {math.exp(sum(map(math.log, found)) / len(found)):.4f}")


if __name__ == "__main__":
    main()
