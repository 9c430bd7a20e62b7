"""Makes random problems from the cases of the covering array, with NumPy arrays (batch, heads, seqlen, head_dim)."""

from __future__ import annotations

from typing import Any

import attend
import numpy as np
from oracle import Problem

OPTIONS: dict[str, list[Any]] = {
    "dtype": ["f32", "f16", "bf16", "f64"],
    "layout": ["bhsd", "bshd"],
    "visible": [{}, {"causal": True}, {"window": (7, 3)}, {"window": (5, -1), "causal": True}, {"window": (-1, 2)}],
    "softcap": [0.0, 3.0],
    "scale": [None, 0.3, -0.4],
    "bias": [None, "full", "heads", "keys", "rows"],
    "mask": [False, True],
    "alibi": [None, "heads", "batch"],
    "sinks": [None, "heads", "batch"],
    "dropout_p": [0.0, 0.3],
    "heads": [(1, 1), (4, 4), (6, 2), (4, 1)],
    "seqlens": [(1, 1), (17, 33), (33, 17), (64, 130), (1, 150), (0, 5), (5, 0)],
    "head_dims": [(16, 16), (40, 24), (64, 64), (1, 3)],
    "strides": ["dense", "packed", "strided", "reversed"],
    "batch": [1, 3],
    "dlse": [False, True],
}


def dtype_of(name: str) -> Any:
    if name == "bf16":
        import ml_dtypes

        return ml_dtypes.bfloat16
    return {"f32": np.float32, "f16": np.float16, "f64": np.float64}[name]


def make(case: dict[str, Any], rng: np.random.Generator) -> Problem:
    """Returns the problem of a case. Its inputs are rounded to the dtype of the case."""
    dtype = dtype_of(case["dtype"])
    (heads_q, heads_k), (seqlen_q, seqlen_k) = case["heads"], case["seqlens"]
    head_dim, head_dim_v = case["head_dims"]
    batch = case["batch"]

    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(dtype)

    bias_shape = {
        "full": (batch, heads_q, seqlen_q, seqlen_k),
        "heads": (heads_q, 1, seqlen_k),
        "keys": (seqlen_k,),
        "rows": (batch, 1, seqlen_q, 1),
    }.get(case["bias"])
    of_heads = {"heads": (heads_q,), "batch": (batch, heads_q)}
    slopes_shape, sinks_shape = (of_heads.get(case.get(name)) for name in ("alibi", "sinks"))
    if case["bias"] == "rows":
        sinks_shape = None  # attend refuses sinks with a bias of one column
    wide = np.float64 if case["dtype"] == "f64" else np.float32
    lse_shape = (batch, heads_q, seqlen_q)
    return Problem(
        q=normal(batch, heads_q, seqlen_q, head_dim),
        k=normal(batch, heads_k, seqlen_k, head_dim),
        v=normal(batch, heads_k, seqlen_k, head_dim_v),
        dout=normal(batch, heads_q, seqlen_q, head_dim_v),
        dlse=rng.standard_normal(lse_shape).astype(wide) if case["dlse"] else np.zeros(lse_shape, wide),
        scale=case["scale"],
        softcap=case["softcap"],
        bias=None if bias_shape is None else normal(*bias_shape),
        mask=rng.random((batch, 1, seqlen_q, seqlen_k)) < 0.7 if case["mask"] else None,
        alibi_slopes=None if slopes_shape is None else rng.random(slopes_shape).astype(np.float32) * 0.2,
        sinks=None if sinks_shape is None else normal(*sinks_shape),
        dropout_p=case["dropout_p"],
        **case["visible"],
    )


def options_of(p: Problem, seed: int) -> dict[str, Any]:
    """Returns the keyword arguments of attend.forward for the problem."""
    return {
        "scale": p.scale,
        "causal": p.causal,
        "window": p.window,
        "softcap": p.softcap,
        "bias": p.bias,
        "mask": p.mask,
        "alibi_slopes": p.alibi_slopes,
        "dropout_p": p.dropout_p,
        "seed": seed,
        # Rings do not support sinks, so the key is absent without them.
        **({} if p.sinks is None else {"sinks": p.sinks}),
    }


def dropout_pattern(p: Problem, seed: int) -> np.ndarray:
    """Returns which entries dropout keeps. The kept entries are read from the result of a problem with equal
    probabilities and the identity matrix as v.
    """
    batch, heads_q, seqlen_q, _ = p.q.shape
    seqlen_k = p.k.shape[2]
    if seqlen_q == 0 or seqlen_k == 0:
        return np.ones((batch, heads_q, seqlen_q, seqlen_k), bool)
    q, k = (np.zeros((batch, heads_q, n, 1), np.float32) for n in (seqlen_q, seqlen_k))
    v = np.broadcast_to(np.eye(seqlen_k, dtype=np.float32), (batch, heads_q, seqlen_k, seqlen_k))
    return attend.attention(q, k, v, dropout_p=p.dropout_p, seed=seed, compute="reference") > 0


def laid_out(x: np.ndarray, layout: str, strides: str) -> np.ndarray:
    """Returns an array with the same values, with the dimension order `layout` and the memory layout `strides`."""
    x = np.ascontiguousarray(x.swapaxes(1, 2) if layout == "bshd" else x)
    if strides == "packed":  # one third of a tensor that contains q, k and v next to each other
        host = np.zeros((*x.shape[:2], 3, *x.shape[2:]), x.dtype)
        host[:, :, 1] = x
        return host[:, :, 1]
    if strides == "strided":  # the last dimension is not contiguous
        host = np.zeros((*x.shape[:-1], x.shape[-1] * 2), x.dtype)
        host[..., ::2] = x
        return host[..., ::2]
    if strides == "reversed":
        return np.ascontiguousarray(x[:, ::-1])[:, ::-1]
    return x


def from_layout(x: np.ndarray, layout: str) -> np.ndarray:
    return x.swapaxes(1, 2) if layout == "bshd" else x
