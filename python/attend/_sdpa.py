"""torch's scaled_dot_product_attention by its own conventions, computed by attend."""

from __future__ import annotations

from typing import Any, Optional

from attend._api import attention
from attend._drop_in import dropout_seed
from attend._errors import ArgumentError


def sdpa(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: Optional[float] = None,
    enable_gqa: bool = False,
) -> Any:
    """``torch.nn.functional.scaled_dot_product_attention`` with the same arguments.

    Arguments:
        query: torch tensor (..., heads_q, seqlen_q, head_dim); any number of leading dimensions, also none.
        key, value: (..., heads_k, seqlen_k, head_dim). Leading dimensions broadcast.
        attn_mask: bool (True keeps) or float (added to the scores), broadcasts to (..., heads_q, seqlen_q, seqlen_k). A
            float mask is differentiable. Not together with is_causal.
        dropout_p: the seed comes from torch's default generator.
        is_causal: keep j <= i: aligned **top left**, unlike everything else in attend. seqlen_q = 2, seqlen_k = 5::

            1 0 0 0 0
            1 1 0 0 0
        scale: None: 1 / sqrt(head_dim).
        enable_gqa: allows fewer heads in key and value than in query.

    Returns:
        (..., heads_q, seqlen_q, head_dim of value). A row that sees no key is zero.

    Raises:
        attend.Error, as `attend.attention`.
    """
    if is_causal and attn_mask is not None:
        raise ArgumentError("attn_mask: given with is_causal=True, allowed without it only")
    lead = _leading(query, key, value)
    q, k, v = (_four_dims(x, lead) for x in (query, key, value))
    if not enable_gqa and not q.shape[1] == k.shape[1] == v.shape[1]:
        raise ArgumentError(f"key: {k.shape[1]} heads, allowed {q.shape[1]} as query (fewer with enable_gqa=True)")
    window = (-1, -1)
    if is_causal:
        k, v, window = top_left(q, k, v)
    mask = bias = None
    if attn_mask is not None:
        expanded = _mask_dims(attn_mask, lead)
        mask, bias = (expanded, None) if str(attn_mask.dtype) == "torch.bool" else (None, expanded)
    o = attention(
        q, k, v, window=window, scale=scale, bias=bias, mask=mask, dropout_p=dropout_p, seed=dropout_seed(dropout_p)
    )
    return o.reshape(*lead, *o.shape[1:]) if query.dim() > 2 else o.reshape(o.shape[2:])


def top_left(q: Any, k: Any, v: Any) -> tuple[Any, Any, tuple[int, int]]:
    """k, v and the window with which a mask aligned bottom right keeps j <= i. All (batch, heads, seqlen, head_dim)."""
    seqlen_q, seqlen_k = q.shape[2], k.shape[2]
    if seqlen_k > seqlen_q:  # no row sees a key behind the last row's
        return k[:, :, :seqlen_q], v[:, :, :seqlen_q], (-1, 0)
    return k, v, (-1, seqlen_q - seqlen_k)


def _leading(query: Any, key: Any, value: Any) -> tuple[int, ...]:
    """The dimensions before the heads, broadcast."""
    import torch

    for name, x in (("query", query), ("key", key), ("value", value)):
        if not isinstance(x, torch.Tensor):
            raise ArgumentError(f"{name}: {type(x).__name__}, allowed a torch.Tensor")
        if x.dim() < 2 or x.dim() != query.dim():
            raise ArgumentError(f"{name}: {x.dim()} dimensions, allowed at least 2, and as many as query")
    if query.dim() == 4 and query.shape[0] == key.shape[0] == value.shape[0]:
        return (query.shape[0],)
    return tuple(torch.broadcast_shapes(*(x.shape[:-3] for x in (query, key, value))))


def _four_dims(x: Any, lead: tuple[int, ...]) -> Any:
    if x.dim() == 2:
        return x[None, None]
    if tuple(x.shape[:-3]) != lead:
        x = x.expand(*lead, *x.shape[-3:])
    return x if len(lead) == 1 else x.reshape(-1, *x.shape[-3:])


def _mask_dims(mask: Any, lead: tuple[int, ...]) -> Any:
    """The mask with all leading dimensions as one."""
    if mask.dim() <= 3 or len(lead) == 1:
        return mask
    return mask.expand(*lead, *mask.shape[-3:]).reshape(-1, *mask.shape[-3:])
