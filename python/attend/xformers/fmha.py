"""xFormers' attention functions (xformers.ops.fmha), computed by attend, with the same names and argument order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Optional, Union

import torch

from attend import _api
from attend._append import merge
from attend._decode import decode
from attend._drop_in import refuse_unless, renamed
from attend._errors import ArgumentError, Error, UnsupportedError
from attend.xformers import attn_bias
from attend.xformers._inputs import Bias, Inputs, inputs_of
from attend.xformers._parts import cache_of, cut, joined, parts_of
from attend.xformers.attn_bias import AttentionBias, BlockDiagonalMask, LowerTriangularMask

__all__ = [
    "AttentionBias",
    "BlockDiagonalMask",
    "LowerTriangularMask",
    "attn_bias",
    "memory_efficient_attention",
    "memory_efficient_attention_backward",
    "memory_efficient_attention_forward",
    "memory_efficient_attention_forward_requires_grad",
    "memory_efficient_attention_partial",
    "merge_attentions",
]

_NAMES = {"q": "query", "k": "key", "v": "value", "k_cache": "key", "v_cache": "value", "dropout_p": "p",
          "o": "output", "dout": "grad"}  # fmt: skip
_OF_BIAS = ("bias", "window", "cu_seqlens_q", "cu_seqlens_k", "seqlens_k", "page_table", "cache_leftpad")
_NAMES |= dict.fromkeys(_OF_BIAS, "attn_bias")


def memory_efficient_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_bias: Optional[Bias] = None,
    p: float = 0.0,
    scale: Optional[float] = None,
    *,
    op: object = None,
    output_dtype: Optional[torch.dtype] = None,
) -> torch.Tensor:
    """Computes o = dropout(softmax(scale * query key^T + attn_bias)) value, differentiable.

    Arguments:
        query: torch tensor, f32, f16, bf16, or f64 on a CPU. The shape is (batch, seqlen_q, heads, head_dim), or
            (batch, seqlen_q, head_dim) for one head, or (batch, seqlen_q, groups, heads of a group, head_dim).
        key: dtype and number of dimensions of query, (batch, seqlen_k, heads, head_dim).
        value: like key, (batch, seqlen_k, heads, head_dim_v). A head that was expanded to all heads, or to all heads of
            a group, is read once. Unlike in xFormers, key and value may have fewer heads than query, as in
            `attend.attention`, and groups have gradients.
        attn_bias: None, a float tensor, or a bias object. A float tensor is added to the scores and is differentiable.
            Its shape is (batch, heads, seqlen_q, seqlen_k), or (batch, seqlen_q, seqlen_k) if query has 3 dimensions,
            or (batch, groups, heads, seqlen_q, seqlen_k) if query has 5. Each of its dimensions may be 1. A bias object
            is an instance of a class of `attend.xformers.attn_bias`, or of xFormers' class of the same name. With
            blocks the batch is 1. If no gradient is required, `attend.decode` reads padded and paged keys in place.
            Otherwise the visible keys are first copied into one tensor.
        p: probability of dropping a softmax entry, 0 <= p < 1. The seed comes from torch's default generator of the
            device.
        scale: None means 1 / sqrt(head_dim).
        op: ignored, because in xFormers it selects kernels and does not change results.
        output_dtype: the dtype of the result. None means that of query. The computation uses query's dtype.

    Returns:
        o, shaped like query, with head_dim_v instead of head_dim. A row that sees no key is 0, not NaN.

    Raises:
        attend.Error, whose message names the argument, the value found and the allowed values. It is also a ValueError
        if an argument is wrong, and a NotImplementedError if attend does not support the call.
    """
    o: torch.Tensor = _attention(query, key, value, attn_bias, p, scale, wants_lse=False)[0]
    return o if output_dtype is None else o.to(output_dtype)


def memory_efficient_attention_forward(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_bias: Optional[Bias] = None,
    p: float = 0.0,
    scale: Optional[float] = None,
    *,
    op: object = None,
    output_dtype: Optional[torch.dtype] = None,
) -> torch.Tensor:
    """`memory_efficient_attention` without gradients."""
    with torch.no_grad():
        return memory_efficient_attention(query, key, value, attn_bias, p, scale, op=op, output_dtype=output_dtype)


def memory_efficient_attention_forward_requires_grad(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_bias: Optional[Bias] = None,
    p: float = 0.0,
    scale: Optional[float] = None,
    *,
    op: object = None,
    output_dtype: Optional[torch.dtype] = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Computes (o, lse) for `memory_efficient_attention_backward`, without autograd and without dropout.

    lse is f32 (f64 if query is). Its shape is (batch, heads, seqlen_q), or (batch, groups, heads, seqlen_q) if query
    has 5 dimensions. With blocks the batch of lse is 1.
    """
    refuse_unless(float(p), (0.0,), "p")
    with torch.no_grad():
        o, lse = _attention(query, key, value, attn_bias, p, scale, wants_lse=True)
    return o if output_dtype is None else o.to(output_dtype), lse


def memory_efficient_attention_partial(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_bias: Optional[Bias] = None,
    p: float = 0.0,
    scale: Optional[float] = None,
    *,
    op: object = None,
    output_dtype: Optional[torch.dtype] = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Computes (o, lse) over a part of the keys, without gradients. `merge_attentions` merges the parts.

    o is f32 (f64 if query is) unless output_dtype is given. lse is as in
    `memory_efficient_attention_forward_requires_grad`.
    """
    wide = torch.float64 if getattr(query, "dtype", None) == torch.float64 else torch.float32
    return memory_efficient_attention_forward_requires_grad(
        query, key, value, attn_bias, p, scale, op=op, output_dtype=output_dtype or wide
    )  # fmt: skip


def memory_efficient_attention_backward(
    grad: torch.Tensor,
    output: torch.Tensor,
    lse: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_bias: Optional[Bias] = None,
    p: float = 0.0,
    scale: Optional[float] = None,
    *,
    op: object = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Computes (dq, dk, dv) for results of `memory_efficient_attention_forward_requires_grad`. grad and output have the
    shape of query, with head_dim_v instead of head_dim.
    """
    refuse_unless(float(p), (0.0,), "p")
    q, k, v = leaves = [x.detach().requires_grad_() for x in (query, key, value)]
    with torch.enable_grad(), _by_xformers_names():
        inputs = inputs_of(q, k, v, attn_bias)
        parts = parts_of(inputs)
        shape = (*inputs.q.shape[:3], inputs.v.shape[3])
        douts, outs = (cut(parts, x.reshape(shape), 1) for x in (grad, output))
        lses = cut(parts, lse.reshape(shape[0], shape[2], shape[1]), 2)
        ends: list[Any] = []
        gradients: list[Any] = []
        for part, dout, o, of_rows in zip(parts, douts, outs, lses):
            rows, keys, values = (x.detach() for x in (part.q, part.k, part.v))
            options = part.options | {"scale": scale, "needs_dbias": False}
            found = _api.backward(dout, rows, keys, values, o, of_rows, **options)
            ends += [part.q, part.k, part.v]
            gradients += found[:3]
        dq, dk, dv = torch.autograd.grad(ends, leaves, gradients)
    return dq, dk, dv


def merge_attentions(
    attn_split: Union[torch.Tensor, Sequence[torch.Tensor]],
    lse_split: Union[torch.Tensor, Sequence[torch.Tensor]],
    write_lse: bool = True,
    output_dtype: Optional[torch.dtype] = None,
) -> tuple[torch.Tensor, Optional[torch.Tensor]]:
    """Merges results over parts of the keys. Returns (o, lse) over all keys, or (o, None) without `write_lse`.

    attn_split contains tensors (batch, seqlen_q, heads, head_dim_v) or (batch, seqlen_q, groups, heads, head_dim_v), in
    a list or stacked along the first dimension of one tensor. lse_split contains tensors (batch, heads, seqlen_q) or
    (batch, groups, heads, seqlen_q) in the same form. The result is differentiable.
    """
    outs, lses = list(attn_split), list(lse_split)
    if len(outs) != len(lses) or not outs:
        raise ArgumentError(f"lse_split: {len(lses)} parts, allowed {len(outs)} as attn_split, one or more")
    shape, shape_lse = outs[0].shape, lses[0].shape
    flat = [(_with_heads(o), lse.reshape(lse.shape[0], -1, lse.shape[-1])) for o, lse in zip(outs, lses)]
    is_differentiated = torch.is_grad_enabled() and any(x.requires_grad for x in (*outs, *lses))
    with _by_xformers_names():
        if is_differentiated or outs[0].dtype == torch.float64:  # `merge` supports neither gradients nor f64
            o, lse = _merged_by_torch(flat)
        else:
            o, lse = merge(flat, layout="bshd", return_lse=True)
    o = o.reshape(shape) if output_dtype is None else o.reshape(shape).to(output_dtype)
    return o, lse.reshape(shape_lse) if write_lse else None


def _merged_by_torch(states: list[tuple[Any, Any]]) -> tuple[Any, Any]:
    lses = torch.stack([lse for _, lse in states])
    lse = torch.logsumexp(lses, 0)
    weights = torch.exp(lses - torch.where(lse.isinf(), 0, lse)).transpose(2, 3).unsqueeze(4)  # 0 if no key is visible
    merged: Any = sum(weight * o for weight, (o, _) in zip(weights, states))
    return merged.to(states[0][0].dtype), lse


def _with_heads(o: Any) -> Any:
    return o.flatten(2, 3) if o.dim() == 5 else o


def _attention(
    query: Any, key: Any, value: Any, attn_bias: Any, p: float, scale: Optional[float], wants_lse: bool
) -> tuple[Any, Any]:
    """Returns o in query's shape, and lse if `wants_lse`."""
    with _by_xformers_names():
        inputs = inputs_of(query, key, value, attn_bias)
        o, lse = _run(inputs, p, scale, wants_lse)
    o = o.reshape(*query.shape[:-1], value.shape[-1])
    if lse is not None and query.dim() == 5:
        lse = lse.unflatten(1, query.shape[2:4])
    return o, lse


def _run(inputs: Inputs, p: float, scale: Optional[float], wants_lse: bool) -> tuple[Any, Any]:
    cache = None if inputs.needs_gradients or p else cache_of(inputs)
    if cache is not None:
        # If the GPU is too old for `decode`, the keys are copied below, as in a call with gradients.
        with suppress(UnsupportedError):
            return joined([cache], [decode(*cache[:3], scale=scale, return_lse=True, **cache.options)])
    parts = parts_of(inputs)
    results: list[tuple[Any, Any]] = []
    for part in parts:
        function: Any = _api.attention_varlen if part.is_packed else _api.attention
        found = function(*part[:3], scale=scale, dropout_p=p, return_lse=wants_lse, **part.options)
        results.append(found if wants_lse else (found, None))
    if not wants_lse:
        outs = [o[None] if part.is_packed else o for part, (o, _) in zip(parts, results)]
        return (outs[0] if len(outs) == 1 else torch.cat(outs, 1)), None
    return joined(parts, results)


@contextmanager
def _by_xformers_names() -> Iterator[None]:
    """Renames the arguments in attend's errors to the caller's names."""
    try:
        yield
    except Error as error:
        raise renamed(error, _NAMES) from None
