#!/usr/bin/env python3
"""Uses attend with CuPy arrays. They are read in place on the GPU, in CuPy's current stream, and the results are CuPy
arrays.

    python examples/cupy_attention.py [--seed 0]

Attention, the log-sum-exp, the gradients and grouped heads are computed in float32 and float16, and compared with the
float64 formula. The exit status is 0 if all checks passed, 1 if a check failed, 2 if the usage was wrong or CuPy is
missing, and 77 if there is no GPU and nothing was checked.
"""

import argparse
import sys

try:
    import cupy as cp  # pyright: ignore[reportMissingImports]  # the types are checked without it
except ImportError as error:
    print(f"{error.name} is not installed, which this example needs: pip install cupy-cuda13x", file=sys.stderr)
    sys.exit(2)

import attend

NO_GPU = 77
BUDGETS = {"float32": 1e-5, "float16": 4e-3}  # allowed errors relative to the largest magnitude of a result


def formula(q, k, v):
    """Computes causal attention of (batch, heads, seqlen, head_dim), aligned bottom right, in float64. Returns o, lse
    and the probabilities.
    """
    q, k, v = (x.astype(cp.float64) for x in (q, k, v))
    k, v = (cp.repeat(x, q.shape[1] // k.shape[1], axis=1) for x in (k, v))
    s = q @ k.swapaxes(2, 3) / q.shape[3] ** 0.5
    i, j = cp.arange(s.shape[2])[:, None] + s.shape[3] - s.shape[2], cp.arange(s.shape[3])
    s = cp.where(j <= i, s, -cp.inf)
    top = s.max(axis=3, keepdims=True)
    sums = cp.exp(s - top).sum(axis=3, keepdims=True)
    p = cp.exp(s - top) / sums
    return p @ v, (top + cp.log(sums))[..., 0], p


def gradients(dout, q, k, v, o, p):
    """Returns dq, dk and dv of the formula. dk and dv are summed over the query heads that share a key head."""
    dout, q, k, v = (x.astype(cp.float64) for x in (dout, q, k, v))
    group = q.shape[1] // k.shape[1]
    wide_k, wide_v = (cp.repeat(x, group, axis=1) for x in (k, v))
    ds = p * (dout @ wide_v.swapaxes(2, 3) - (dout * o).sum(axis=3, keepdims=True)) / q.shape[3] ** 0.5
    of_query_heads = (ds.swapaxes(2, 3) @ q, p.swapaxes(2, 3) @ dout)
    dk, dv = (x.reshape(*k.shape[:2], group, k.shape[2], -1).sum(axis=2) for x in of_query_heads)
    return ds @ wide_k, dk, dv


class Checks:
    """Prints each comparison and records whether one failed."""

    def __init__(self):
        self.failed = False

    def __call__(self, title, ours, truth):
        budget = max(BUDGETS.get(str(x.dtype), 0.0) for x in ours)
        are_cupys = all(isinstance(x, cp.ndarray) for x in ours)
        errors = [float(abs(x.astype(cp.float64) - y).max() / abs(y).max()) for x, y in zip(ours, truth)]
        passed = are_cupys and all(error <= budget for error in errors)  # False for NaN
        self.failed |= not passed
        print(f"{title:<36} error {max(errors):.1e}  budget {budget:.1e}  {'ok' if passed else 'FAILED'}")


def check_dtype(check, dtype, random):
    normal = lambda *shape: random.standard_normal(shape, dtype=cp.float32).astype(dtype)
    q, k, v = normal(2, 8, 60, 64), normal(2, 2, 90, 64), normal(2, 2, 90, 64)
    name = cp.dtype(dtype).name
    with cp.cuda.Stream():  # attend uses this stream, because it is CuPy's current stream
        o, lse = attend.attention(q, k, v, causal=True, return_lse=True)
        o_true, lse_true, p = formula(q, k, v)
        check(f"o and lse, {name}", (o, lse), (o_true, lse_true))
        dout = normal(*o.shape)
        found = attend.backward(dout, q, k, v, o, lse, causal=True)
        check(f"dq, dk and dv, {name}", found, gradients(dout, q, k, v, o_true, p))
        rows = q.swapaxes(1, 2)[:, :, :, :32]  # (batch, seqlen, heads, head_dim); attend reads any strides in place
        keys, values = (x.swapaxes(1, 2)[:, :, :, :32] for x in (k, v))
        turned = attend.attention(rows, keys, values, layout="bshd", causal=True).swapaxes(1, 2)
        check(f"views, {name}", (turned,), formula(*(x[..., :32] for x in (q, k, v)))[:1])


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    try:
        count = cp.cuda.runtime.getDeviceCount()
    except cp.cuda.runtime.CUDARuntimeError as error:
        count, reason = 0, str(error)
    else:
        reason = "CuPy counts none"
    if count == 0:
        print(f"cupy example: SKIPPED, there is no GPU here: {reason}")
        return NO_GPU
    check, random = Checks(), cp.random.default_rng(options.seed)
    for dtype in (cp.float32, cp.float16):
        check_dtype(check, dtype, random)
    return 1 if check.failed else 0


if __name__ == "__main__":
    sys.exit(main())
