"""Computes attention and its gradients by the definition, in NumPy float64, and the magnitude of the terms of each
result.

All arrays are (batch, heads, seqlen, head_dim).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Optional

import numpy as np


@dataclass
class Problem:
    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    dout: Any = 0.0
    dlse: Any = 0.0
    scale: Optional[float] = None
    causal: bool = False
    window: tuple[int, int] = (-1, -1)
    softcap: float = 0.0
    bias: Optional[np.ndarray] = None
    mask: Optional[np.ndarray] = None
    alibi_slopes: Optional[np.ndarray] = None
    sinks: Optional[np.ndarray] = None  # (heads) or (batch, heads)
    keep: Optional[np.ndarray] = None  # dropout: (batch, heads, seqlen_q, seqlen_k); True means kept
    dropout_p: float = 0.0


class Result(NamedTuple):
    value: np.ndarray
    # The sum of the magnitudes of the terms of `value`. Rounding errors grow with this sum, even if terms cancel.
    magnitude: np.ndarray
    factors: Any = 0.0  # the sum of the magnitudes of the factors of score gradients


def kept(p: Problem) -> np.ndarray:
    """Returns which keys each row sees, (seqlen_q, seqlen_k)."""
    seqlen_q, seqlen_k = p.q.shape[2], p.k.shape[2]
    i = np.arange(seqlen_q)[:, None] + seqlen_k - seqlen_q
    j = np.arange(seqlen_k)[None, :]
    left, right = p.window
    right = 0 if p.causal else right
    return ((left < 0) | (j >= i - left)) & ((right < 0) | (j <= i + right))


def solve(p: Problem) -> dict[str, Result]:
    """Returns o, lse, dq, dk, dv, and dbias and dsinks if there is a bias or there are sinks."""
    group = p.q.shape[1] // p.k.shape[1] if p.k.shape[1] else 1
    q = p.q.astype(np.float64)
    k, v = (np.repeat(x.astype(np.float64), group, axis=1) for x in (p.k, p.v))
    dout = np.broadcast_to(np.asarray(p.dout, np.float64), (*q.shape[:3], v.shape[3]))
    dlse = np.broadcast_to(np.asarray(p.dlse, np.float64), q.shape[:3])[..., None]
    scale = 1 / np.sqrt(q.shape[3]) if p.scale is None else p.scale

    s, slope = scores(p, q, k, scale)
    lse = log_sum_exp(s)
    if p.sinks is not None:
        sinks = np.broadcast_to(p.sinks.astype(np.float64), q.shape[:2])[..., None]
        lse = np.logaddexp(lse, sinks)
    prob = np.exp(s - np.where(np.isneginf(lse), 0, lse)[..., None])
    factor = 1.0 if p.keep is None else p.keep / (1 - p.dropout_p)
    dprob, dprob_size = (dout @ flip(v)) * factor, (abs(dout) @ flip(abs(v))) * factor
    delta, delta_size = ((prob * x).sum(axis=3, keepdims=True) for x in (dprob, dprob_size))
    ds, ds_size = prob * (dprob - delta + dlse), prob * (dprob_size + delta_size + abs(dlse))
    dropped, score_size = prob * factor, abs(scale) * abs(q) @ flip(abs(k))
    inner, inner_size = scale * ds * slope, abs(scale) * ds_size
    has_ds = abs(scale) * (prob > 0)
    results = {
        "o": Result(dropped @ v, dropped @ abs(v)),
        "lse": Result(lse, np.ones_like(lse) + score_size.max(axis=3, initial=0)),
        "dq": Result(inner @ k, inner_size @ abs(k), has_ds @ abs(k)),
        "dk": Result(*(ungroup(flip(x) @ y, group) for x, y in ((inner, q), (inner_size, abs(q)), (has_ds, abs(q))))),
        "dv": Result(*(ungroup(x, group) for x in (flip(dropped) @ dout, flip(dropped) @ abs(dout)))),
    }
    if p.bias is not None:
        results["dbias"] = Result(*(sum_to(x, p.bias.shape) for x in (ds, ds_size)))
    if p.sinks is not None:
        share = np.exp(sinks - lse)[..., None]
        own, own_size = share * (dlse - delta), share * (abs(dlse) + delta_size)
        results["dsinks"] = Result(*(sum_to(x.sum(axis=(2, 3)), p.sinks.shape) for x in (own, own_size)))
    return results


def scores(p: Problem, q: np.ndarray, k: np.ndarray, scale: float) -> tuple[np.ndarray, Any]:
    """Returns the masked scores, and the derivative of the softcap."""
    s, slope = scale * q @ flip(k), 1.0
    if p.softcap:
        slope = 1 - np.tanh(s / p.softcap) ** 2
        s = p.softcap * np.tanh(s / p.softcap)
    if p.bias is not None:
        s = s + p.bias.astype(np.float64)
    if p.alibi_slopes is not None:
        i, j = np.arange(q.shape[2])[:, None], np.arange(k.shape[2])[None, :]
        slopes = np.atleast_2d(p.alibi_slopes).astype(np.float64)
        s = s - slopes[:, :, None, None] * np.abs(i + k.shape[2] - q.shape[2] - j)
    visible = kept(p) if p.mask is None else kept(p) & p.mask
    return np.where(visible, s, -np.inf), slope


def log_sum_exp(s: np.ndarray) -> np.ndarray:
    top = s.max(axis=3, initial=-np.inf)
    top = np.where(np.isneginf(top), 0, top)
    with np.errstate(divide="ignore"):
        return np.log(np.exp(s - top[..., None]).sum(axis=3)) + top


def flip(x: np.ndarray) -> np.ndarray:
    return x.swapaxes(2, 3)


def ungroup(x: np.ndarray, group: int) -> np.ndarray:
    """Sums a gradient over the `group` query heads that share a key head."""
    batch, heads, seqlen, head_dim = x.shape
    return x.reshape(batch, heads // group, group, seqlen, head_dim).sum(axis=2)


def sum_to(x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Sums x over broadcast dimensions, so that the result has `shape`."""
    full = (1,) * (x.ndim - len(shape)) + tuple(shape)
    axes = tuple(d for d in range(x.ndim) if full[d] == 1 and x.shape[d] != 1)
    return x.sum(axis=axes, keepdims=True).reshape(shape)


# Allowed errors relative to the magnitude. In f16 and bf16 there are two roundings: that of o, from which backward
# computes its row sums, and that of the result. In f32 and f64, sums of some hundred terms lose a few bits. Other tests
# measure the documented error bounds.
_TOLERANCE = {"f64": 2.0**-42, "f32": 2.0**-16, "f16": 2.0**-9, "bf16": 2.0**-6}


def check(name: str, found: Any, want: Result, dtype: str, by_tensor_cores: bool = False) -> None:
    """Checks the shape, the infinities, and that the error of every element is within its budget. Prints the worst
    element.

    If by_tensor_cores is True, gradients of scores were rounded to the dtype. Below the dtype's normal numbers this
        error is half a step.
    """
    found = np.asarray(found, dtype=np.float64)
    assert found.shape == want.value.shape, f"{name}: shape {found.shape}, expected {want.value.shape}"
    infinite = np.isinf(want.value)
    assert np.array_equal(found[infinite], want.value[infinite]), f"{name}: infinities differ"
    error = np.abs(np.where(infinite, 0, found) - np.where(infinite, 0, want.value))
    smallest = 2.0**-24 if dtype == "f16" else 2.0**-120  # distance of two numbers below the dtype's normal range
    of_scores = smallest / 2 * want.factors if by_tensor_cores else 0.0
    budget = _TOLERANCE[dtype] * want.magnitude + smallest + of_scores
    if error.size == 0:
        return
    share = error / budget
    worst = np.unravel_index(np.argmax(share), share.shape)  # the position of a NaN if there is one
    report = f"{share[worst]:.3g} of its budget at {tuple(map(int, worst))}: {found[worst]}, not {want.value[worst]}"
    print(f"{name}: {report}")
    # The condition is not written as `share > 1`, because a NaN must fail.
    assert (share <= 1).all(), f"{name} ({dtype}): {report}; NaN in {np.isnan(found).sum()} of {found.size}"
