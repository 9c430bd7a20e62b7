#!/usr/bin/env python3
"""Uses attend with NumPy only: attention, log-sum-exp, gradients, grouped heads, and a sliding window.

    python examples/numpy_only.py [--seed 0]

Every result is compared with the float64 formula below. The exit status is 0 if all checks passed, 1 if a check failed,
and 2 if the usage was wrong or NumPy is missing.
"""

import argparse
import sys

try:
    import numpy as np
except ImportError as error:
    print(f"{error.name} is not installed, which this example needs: pip install numpy", file=sys.stderr)
    sys.exit(2)

import attend

BUDGET = 2e-5  # allowed error relative to the largest magnitude of a result, for float32 sums over up to 80 keys


def formula(q, k, v, keep):
    """Returns o, lse and the probabilities p in float64. s = q k^T / sqrt(head_dim), and p = softmax(s) over the keys
    that `keep` allows.

    q is (batch, heads, seqlen_q, head_dim), k and v have the same number of heads, and keep is bool (seqlen_q,
        seqlen_k).
    """
    s = np.einsum("bhid,bhjd->bhij", q, k) / np.sqrt(q.shape[-1])
    s = np.where(keep, s, -np.inf)
    top = s.max(-1, keepdims=True)
    weights = np.exp(s - top)
    total = weights.sum(-1, keepdims=True)
    p = weights / total
    return p @ v, (top + np.log(total))[..., 0], p


def formula_gradients(dout, q, k, v, o, p):
    """Returns dq, dk, dv in float64 for the gradient dout of o."""
    scale = 1 / np.sqrt(q.shape[-1])
    dp = dout @ v.swapaxes(-1, -2)
    ds = p * (dp - (dout * o).sum(-1, keepdims=True)) * scale
    return ds @ k, ds.swapaxes(-1, -2) @ q, p.swapaxes(-1, -2) @ dout


class Checks:
    """Prints each comparison and records whether one failed."""

    def __init__(self):
        self.failed = False

    def __call__(self, title, ours, truth):
        error = np.abs(ours - truth).max()
        budget = BUDGET * np.abs(truth).max()
        passed = ours.shape == truth.shape and bool(error <= budget)  # False for NaN
        self.failed |= not passed
        print(f"{title:<36} error {error:.1e}  budget {budget:.1e}  {'ok' if passed else 'FAILED'}")


def causal_mask(seqlen_q, seqlen_k, left=None):
    """Returns bool (seqlen_q, seqlen_k), aligned bottom right. A row sees the key at its own position and all earlier
    keys, or only the last `left` of the earlier keys.
    """
    distance = np.arange(seqlen_q)[:, None] + (seqlen_k - seqlen_q) - np.arange(seqlen_k)
    return (distance >= 0) & (distance <= (seqlen_k if left is None else left))


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    seed = parser.parse_args(arguments).seed
    if seed < 0:
        parser.error(f"--seed: {seed}, allowed 0 and more")
    rng = np.random.default_rng(seed)
    check = Checks()

    # There are 4 query heads and 2 key heads, so two query heads share one key head. The 60 query rows belong to the
    # last of 80 tokens.
    q, dout = (rng.standard_normal((2, 4, 60, 64), dtype=np.float32) for _ in range(2))
    k, v = (rng.standard_normal((2, 2, 80, 64), dtype=np.float32) for _ in range(2))
    q64, dout64 = q.astype(np.float64), dout.astype(np.float64)
    k64, v64 = (np.repeat(x.astype(np.float64), 2, axis=1) for x in (k, v))  # the same number of heads as q

    o, lse = attend.attention(q, k, v, causal=True, return_lse=True)
    true_o, true_lse, p = formula(q64, k64, v64, causal_mask(60, 80))
    check("o, causal, grouped heads", o, true_o)
    check("lse", lse, true_lse)

    gradients = attend.backward(dout, q, k, v, o, lse, causal=True)
    true_dq, *true_dkv = formula_gradients(dout64, q64, k64, v64, true_o, p)
    check("dq", gradients[0], true_dq)
    for name, ours, truth in zip(("dk", "dv"), gradients[1:], true_dkv):
        check(f"{name}, summed over the heads that share", ours, truth.reshape(2, 2, 2, 80, 64).sum(2))

    o = attend.attention(q, k, v, window=(16, 0))  # a row sees the key at its position and the 16 keys before it
    check("o, sliding window", o, formula(q64, k64, v64, causal_mask(60, 80, left=16))[0])

    # Attend reads these transposed views without a copy.
    o = attend.attention(*(x.swapaxes(1, 2) for x in (q, k, v)), layout="bshd")
    check('o, layout="bshd"', o.swapaxes(1, 2), formula(q64, k64, v64, np.ones((60, 80), bool))[0])

    assert "torch" not in sys.modules, "numpy_only.py has imported torch"
    return 1 if check.failed else 0


if __name__ == "__main__":
    sys.exit(main())
