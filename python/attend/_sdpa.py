"""torch's scaled_dot_product_attention with torch's conventions, computed by attend."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Optional

from attend._api import attention
from attend._drop_in import TORCH_NAMES, renamed, top_left
from attend._errors import ArgumentError, Error

if TYPE_CHECKING:
    from torch import Tensor


class TwoMasksError(ArgumentError, RuntimeError):
    """Raised if both attn_mask and is_causal are given. The exception is also a RuntimeError, because torch raises a
    RuntimeError in this case.
    """


def sdpa(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Optional[Tensor] = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: Optional[float] = None,
    enable_gqa: bool = False,
) -> Tensor:
    """``torch.nn.functional.scaled_dot_product_attention`` with the same arguments.

    Arguments:
        query: torch tensor (..., heads_q, seqlen_q, head_dim) with any number of leading dimensions, including none.
            query may instead be a nested tensor in jagged layout, (batch, heads, ragged seqlen, head_dim). In this case
            key and value must also be nested, and attn_mask must be None.
        key, value: (..., heads_k, seqlen_k, head_dim). Leading dimensions and heads broadcast.
        attn_mask: a bool tensor (True keeps a score) or a float tensor (added to the scores), which broadcasts to (...,
            heads_q, seqlen_q, seqlen_k). It may also be a mask of torch.nn.attention.bias. A float mask is
            differentiable. Not allowed together with is_causal.
        dropout_p: probability of dropping a softmax entry. The seed comes from torch's default generator of the
            tensors' device.
        is_causal: row i sees the keys j <= i. The mask is aligned **top left**, unlike in all other functions of
            attend: the first row sees only the first key, even if seqlen_k is larger than seqlen_q.
        scale: None means 1 / sqrt(head_dim).
        enable_gqa: allows fewer heads in key and value than in query.

    Returns:
        (..., heads_q, seqlen_q, head_dim of value). A row that sees no key is zero.

    Raises:
        attend.Error, as `attend.attention`.
    """
    if type(query).__module__ == "torch.fx.proxy":
        from attend.torch import _tracing

        node: Tensor = _tracing.one_node(sdpa, query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
        return node
    if attn_mask is not None:
        _check_mask(attn_mask, is_causal)
    if getattr(query, "is_nested", False):
        from attend.torch import _jagged

        nested: Tensor = _jagged.sdpa(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
        return nested
    lead = leading(query, key, value)
    q, k, v = same_heads([four_dims(x, lead) for x in (query, key, value)], enable_gqa)
    aligned = _alignment(attn_mask, q.shape[2], k.shape[2])
    window = (-1, -1)
    if is_causal or aligned == "UPPER_LEFT":
        k, v, window = top_left(q, k, v)
    mask = bias = None
    if attn_mask is not None and aligned is None:
        expanded = _mask_dims(attn_mask, lead)
        mask, bias = (expanded, None) if str(attn_mask.dtype) == "torch.bool" else (None, expanded)
    causal = aligned == "LOWER_RIGHT"
    try:
        o = attention(
            q, k, v, causal=causal, window=window, scale=scale, bias=bias, mask=mask, dropout_p=dropout_p
        )  # fmt: skip
    except Error as error:
        raise renamed(error, TORCH_NAMES) from None
    shaped: Tensor = o.reshape(*lead, *o.shape[1:]) if query.dim() > 2 else o.reshape(o.shape[2:])
    return shaped


def _check_mask(mask: Any, is_causal: bool) -> None:
    import torch

    if not isinstance(mask, torch.Tensor):
        raise ArgumentError(f"attn_mask: {type(mask).__name__}, allowed a torch.Tensor")
    if is_causal:  # the error messages are those of torch
        if type(mask).__name__ == "CausalBias":
            raise TwoMasksError("attn_mask: CausalBias should not be used with causal=True")
        raise TwoMasksError("attn_mask: Explicit attn_mask should not be set when is_causal=True")


def _alignment(mask: Any, seqlen_q: int, seqlen_k: int) -> Optional[str]:
    """Returns UPPER_LEFT or LOWER_RIGHT for a CausalBias, which is a mask without data, and None for other masks."""
    variant = getattr(mask, "variant", None)
    if variant is None or type(mask).__name__ != "CausalBias":
        return None
    if (mask.seq_len_q, mask.seq_len_kv) != (seqlen_q, seqlen_k):
        found = (mask.seq_len_q, mask.seq_len_kv)
        raise ArgumentError(f"attn_mask: causal bias of {found}, allowed (seqlen_q, seqlen_k) = {(seqlen_q, seqlen_k)}")
    return str(variant.name)


def same_heads(tensors: list[Any], enable_gqa: bool) -> list[Any]:
    """Returns the tensors with equal numbers of heads. Without `enable_gqa`, only a single head broadcasts."""
    heads = [x.shape[1] for x in tensors]
    # The library itself lets query heads share a key head.
    if enable_gqa or heads[1] == heads[2] and heads[1] in (1, heads[0]):
        return tensors
    most = max(heads)
    for name, count in zip(("query", "key", "value"), heads):
        if count not in (1, most):
            raise ArgumentError(
                f"{name}: {count} heads, allowed 1 or {most} as the others (fewer with enable_gqa=True)"
            )
    return [x.expand(-1, most, -1, -1) if x.shape[1] != most else x for x in tensors]


def leading(query: Any, key: Any, value: Any) -> tuple[int, ...]:
    """Returns the leading dimensions (before the heads) to which query, key and value broadcast."""
    import torch

    for name, x in (("query", query), ("key", key), ("value", value)):
        if not isinstance(x, torch.Tensor):
            raise ArgumentError(f"{name}: {type(x).__name__}, allowed a torch.Tensor")
        if x.dim() < 2 or x.dim() != query.dim():
            raise ArgumentError(f"{name}: {x.dim()} dimensions, allowed at least 2, and as many as query")
    if query.dim() == 4 and query.shape[0] == key.shape[0] == value.shape[0]:
        return (query.shape[0],)
    shapes = [tuple(x.shape[:-3]) for x in (query, key, value)]
    try:
        return tuple(torch.broadcast_shapes(*shapes))
    except RuntimeError:
        found = ", ".join(map(str, shapes))
        raise ArgumentError(
            f"query, key, value: leading dimensions {found}, allowed ones that broadcast together"
        ) from None


def four_dims(x: Any, lead: tuple[int, ...]) -> Any:
    if x.dim() == 2:
        return x[None, None]
    if tuple(x.shape[:-3]) != lead:
        x = x.expand(*lead, *x.shape[-3:])
    return x if len(lead) == 1 else x.reshape(math.prod(lead), *x.shape[-3:])


def _mask_dims(mask: Any, lead: tuple[int, ...]) -> Any:
    """Flattens all leading dimensions of the mask into one."""
    if mask.dim() <= 3 or len(lead) == 1:
        return mask
    if mask.requires_grad:
        from attend.torch._operators import wide

        mask = wide(mask)
    return mask.expand(*lead, *mask.shape[-3:]).reshape(math.prod(lead), *mask.shape[-3:])
