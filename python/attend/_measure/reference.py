"""Computes attention and its gradients in float64 as a reference, some heads at a time, and the errors of results.

The formulas are evaluated in NumPy or torch, depending on the data, without code of the library:

    S = scale * Q K^T,  P = softmax(S),  O = P V
    dV = P^T dO,  dP = dO V^T,  dS = P * (dP - rowsum(dO * O)),  dQ = scale * dS K,  dK = scale * dS^T Q
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any, Optional

from attend._measure.errors import torch_or_none

# Maximum number of scores that are computed at a time. A handful of float64 matrices of this size exist.
CHUNK = {"cpu": 2**22, "cuda": 2**25}
# Relative error of rounding to nearest: bf16 has 8 significant bits and f16 has 11. For f32 the error is set to 0,
# because it is far below any tolerance.
UNIT_ROUNDOFF = {"f32": 0.0, "bf16": 2.0**-8, "f16": 2.0**-11}
# Tolerance of a half-precision result. The unit is one rounding of the largest magnitude in the result's block of rows.
# The result is rounded, and so are P and dS, because tensor cores read them in half precision. The tolerance of
# backward is larger, because dS contains a difference, which cancels leading digits.
HALF_ROUNDINGS = {"forward": 2, "backward": 4}
# Additional factor if the scores are also in half precision. Scores of N(0, 1) inputs reach 4 to 8. At this magnitude,
# rounding to nearest has an error of up to 4 roundings of 1. The probabilities have the same relative error, and one or
# two of them may contain nearly the full sum of a row.
ROUNDED_SCORES = 3
# Number of rows of one head that share an error limit. Under a causal mask, a later row is a mean over more keys and
# therefore smaller. If the limit came from the first rows, a kernel that omits a key tile in later rows would pass.
BLOCK_ROWS = 64


@dataclasses.dataclass(frozen=True)
class Errors:
    """Errors of one call. `max_abs` and `allowed` are the error and the limit of the block of rows whose error is
    largest relative to its limit.
    """

    max_abs: float
    allowed: float
    mean_abs: float
    mse: float
    max_rel: float  # largest absolute error divided by the largest magnitude of the reference
    passed: bool


def to_float64(x: Any, device: str) -> Any:
    """Returns `x` in float64: a torch tensor on `device`, or a NumPy array."""
    torch = torch_or_none()
    if torch is not None and isinstance(x, torch.Tensor):
        return x.detach().to(device=device, dtype=torch.float64)
    return x.astype("float64")


class Truth:
    """The reference o and, if requested, dq, dk and dv of one set of inputs, for all heads or a number of leading
    heads.
    """

    def __init__(
        self,
        inputs: tuple[Any, Any, Any, Any],
        causal: bool,
        with_backward: bool,
        device: str,
        most_scores: Optional[int] = None,
    ) -> None:
        """`inputs` contains q, k, v and dout, each (batch, num_heads, seqlen, head_dim). `device` is a device of torch,
        cpu or cuda.

        The reference covers all heads or, if `most_scores` is given, the first heads that have at most this number of
        scores together, but at least one head.
        """
        self.device = device
        b, h, s, _ = inputs[0].shape
        self.heads = b * h if most_scores is None else max(1, min(b * h, most_scores // (s * s)))
        at_once = max(1, CHUNK[device] // (s * s))
        parts = []
        for first in range(0, self.heads, at_once):
            some = slice(first, min(first + at_once, self.heads))
            parts.append(_attention([to_float64(_by_head(x)[some], device) for x in inputs], causal, with_backward))
        xp = _namespace(parts[0][0])
        self._results = tuple(xp.concatenate(list(part)) for part in zip(*parts))

    def pairs(self, got: tuple[Any, ...], mode: str) -> Iterator[tuple[Any, Any]]:
        """Yields a pair (result, reference) for each tensor of `got`, which is (o,) or (dq, dk, dv). Both are float64
        (heads, seqlen, head_dim).
        """
        wanted = self._results[:1] if mode == "forward" else self._results[1:]
        for result, want in zip(got, wanted, strict=True):
            yield to_float64(_by_head(result)[: self.heads], self.device), want


def compare(got: tuple[Any, ...], truth: Truth, mode: str, dtype: str, tolerance: float, rounds_scores: bool) -> Errors:
    """Returns the errors of `got`, the results of one call: (o,) or (dq, dk, dv).

    Every BLOCK_ROWS rows of a head form a block. The largest absolute error of a block may reach `tolerance`. In half
    precision the limit is higher by HALF_ROUNDINGS roundings of the block's largest magnitude. If the scores are also
    stored in half precision (`rounds_scores`), this number of roundings is multiplied by ROUNDED_SCORES.
    """
    roundings = HALF_ROUNDINGS[mode] * (ROUNDED_SCORES if rounds_scores else 1) * UNIT_ROUNDOFF[dtype]
    nearest, absolute, squares, count, relative = [], 0.0, 0.0, 0, 0.0
    for result, want in truth.pairs(got, mode):
        difference = abs(result - want)
        found, magnitudes = _largest_of_blocks(difference), _largest_of_blocks(abs(want))
        found[found != found] = math.inf  # noqa: PLR0124 (NaN, in NumPy and torch alike)
        limits = tolerance + roundings * magnitudes
        worst = (found / limits).argmax()
        nearest.append((float(found[worst]), float(limits[worst])))
        largest, magnitude = float(found.max()), float(magnitudes.max())
        absolute += float(difference.sum())
        squares += float((difference * difference).sum())
        count += math.prod(want.shape)
        relative = max(relative, largest / magnitude if magnitude else largest)
    error, allowed = max(nearest, key=lambda pair: pair[0] / pair[1])
    return Errors(error, allowed, absolute / count, squares / count, relative, error <= allowed)


def _largest_of_blocks(x: Any) -> Any:
    """Returns the maximum of `x` (heads, seqlen, head_dim) over each block of BLOCK_ROWS rows. The maximum is NaN if
    the block has a NaN.
    """
    xp = _namespace(x)
    rows = xp.amax(x, axis=-1)
    heads, seqlen = rows.shape
    blocks = -(-seqlen // BLOCK_ROWS)
    places = xp.arange(blocks * BLOCK_ROWS).clip(max=seqlen - 1)  # repeats the last row to fill the last block
    return xp.amax(rows[:, places].reshape(heads * blocks, BLOCK_ROWS), axis=-1)


def _by_head(x: Any) -> Any:
    """Reshapes (batch, num_heads, seqlen, head_dim) to (batch * num_heads, seqlen, head_dim)."""
    return x.reshape(-1, *x.shape[2:])


def _namespace(x: Any) -> Any:
    if type(x).__module__.partition(".")[0] == "torch":
        return torch_or_none()
    import numpy as np

    return np


def _attention(inputs: list[Any], causal: bool, with_backward: bool) -> tuple[Any, ...]:
    """Returns (o,) or (o, dq, dk, dv) of float64 (heads, seqlen, head_dim) inputs."""
    q, k, v, dout = inputs
    xp = _namespace(q)
    scale = 1 / math.sqrt(q.shape[-1])
    scores = q @ k.swapaxes(-1, -2) * scale
    if causal:
        hidden = xp.triu(xp.ones_like(scores[0]), 1) > 0
        scores[:, hidden] = -math.inf
    p = xp.exp(scores - xp.amax(scores, axis=-1, keepdims=True))
    p /= xp.sum(p, axis=-1, keepdims=True)
    o = p @ v
    if not with_backward:
        return (o,)
    ds = p * (dout @ v.swapaxes(-1, -2) - xp.sum(dout * o, axis=-1, keepdims=True))
    return o, scale * (ds @ k), scale * (ds.swapaxes(-1, -2) @ q), p.swapaxes(-1, -2) @ dout
