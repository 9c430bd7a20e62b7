"""Computes torch's nested tensors in jagged layout as packed sequences."""

from __future__ import annotations

from typing import Any, Optional

import torch

from attend._api import attention_varlen
from attend._errors import ArgumentError, UnsupportedError


def sdpa(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any,
    dropout_p: float,
    is_causal: bool,
    scale: Optional[float],
    enable_gqa: bool,
) -> Any:
    """Computes attend.sdpa of a nested query (batch, heads, ragged, head_dim). key and value have the same form."""
    if attn_mask is not None:
        raise UnsupportedError("attn_mask: with nested tensors, attend supports is_causal only")
    q, k, v = (_packed(name, x) for name, x in (("query", query), ("key", key), ("value", value)))
    if not enable_gqa and not q.shape[1] == k.shape[1] == v.shape[1]:
        raise ArgumentError(f"key: {k.shape[1]} heads, allowed {q.shape[1]} as query (fewer with enable_gqa=True)")
    same_lengths = query.offsets() is key.offsets() or torch.equal(query.offsets(), key.offsets())
    if is_causal and not same_lengths:
        raise UnsupportedError("is_causal: with nested tensors, attend needs key to have the lengths of query")
    o = attention_varlen(
        q, k, v, query.offsets().to(torch.int32), key.offsets().to(torch.int32), _longest(query), _longest(key),
        causal=is_causal, scale=scale, dropout_p=dropout_p,
    )  # fmt: skip
    return torch.nested.nested_tensor_from_jagged(o, query.offsets()).transpose(1, 2)


def _packed(name: str, x: Any) -> Any:
    """Returns a view (tokens, heads, head_dim) of a nested tensor whose sequences are stored one after another."""
    if not (getattr(x, "is_nested", False) and x.layout == torch.jagged):
        raise UnsupportedError(f"{name}: layout {x.layout}, attend supports nested tensors in layout torch.jagged only")
    if x.dim() != 4 or x.lengths() is not None:
        raise UnsupportedError(
            f"{name}: {x.dim()} dimensions, attend supports (batch, heads, ragged, head_dim) without holes"
        )
    rows = x.transpose(1, 2)  # (batch, ragged, heads, head_dim)
    if rows._ragged_idx != 1:
        raise UnsupportedError(f"{name}: dimension {x._ragged_idx} is ragged, attend supports nested tensors with 2")
    return rows.values()


def _longest(x: Any) -> int:
    return int(x.offsets().diff().max()) if x.shape[0] else 0
