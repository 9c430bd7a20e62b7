"""xFormers' functions of attention (xformers.ops.fmha) by their names and positional orders, computed by attend."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Optional

import torch

from attend import _api
from attend._append import merge
from attend._decode import decode
from attend._drop_in import refuse_unless, renamed
from attend._errors import ArgumentError, Error, UnsupportedError
from attend.xformers import attn_bias
from attend.xformers._inputs import Inputs, inputs_of
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
    query: Any,
    key: Any,
    value: Any,
    attn_bias: Any = None,
    p: float = 0.0,
    scale: Optional[float] = None,
    *,
    op: Any = None,
    output_dtype: Any = None,
) -> Any:
    """o = dropout(softmax(scale * query key^T + attn_bias)) value, differentiable.

    Arguments:
        query: torch tensor f32, f16, bf16, or f64 on a CPU, (batch, seqlen_q, heads, head_dim); (batch, seqlen_q,
            head_dim) for one head; or (batch, seqlen_q, groups, heads of a group, head_dim).
        key: likewise (batch, seqlen_k, heads, head_dim). value: (batch, seqlen_k, heads, head_dim_v). A head that was
            expanded to all heads, or to all of a group, is read once. Beyond xFormers fewer heads will do, as in
            `attend.attention`, and the gradients are there for groups, too.
        attn_bias: None; a float tensor that is added to the scores, (batch, heads, seqlen_q, seqlen_k), with 3
            dimensions of query (batch, seqlen_q, seqlen_k), with 5 (batch, groups, heads, seqlen_q, seqlen_k), any of
            them 1, differentiable; or an instance of one of the classes of `attend.xformers.attn_bias`, or of
            xFormers' of the same name. With blocks the batch is 1. Padded and paged keys are read in place where no
            gradient is asked for, by `attend.decode`; else those that are seen are copied together first.
        p: probability of dropping an entry of the softmax, 0 <= p < 1, by torch's default generator of the device.
        scale: None: 1 / sqrt(head_dim).
        op: not used: it names the kernels of xFormers that would compute, and changes no result.
        output_dtype: of the result; None: that of query. It is computed in query's.

    Returns:
        Shaped like query, with head_dim_v in the place of head_dim. A row that sees no key is 0, not NaN.

    Raises:
        attend.Error naming the argument, the value found and the allowed ones. It is also a ValueError if an argument
        is wrong, and a NotImplementedError if attend lacks something.
    """
    o, _ = _attention(query, key, value, attn_bias, p, scale, wants_lse=False)
    return o if output_dtype is None else o.to(output_dtype)


def memory_efficient_attention_forward(
    query: Any,
    key: Any,
    value: Any,
    attn_bias: Any = None,
    p: float = 0.0,
    scale: Optional[float] = None,
    *,
    op: Any = None,
    output_dtype: Any = None,
) -> Any:
    """`memory_efficient_attention` without gradients."""
    with torch.no_grad():
        return memory_efficient_attention(query, key, value, attn_bias, p, scale, op=op, output_dtype=output_dtype)


def memory_efficient_attention_forward_requires_grad(
    query: Any,
    key: Any,
    value: Any,
    attn_bias: Any = None,
    p: float = 0.0,
    scale: Optional[float] = None,
    *,
    op: Any = None,
    output_dtype: Any = None,
) -> tuple[Any, Any]:
    """(o, lse) for `memory_efficient_attention_backward`, without autograd and without dropout.

    lse: f32 (f64 if query is) (batch, heads, seqlen_q), with 5 dimensions of query (batch, groups, heads, seqlen_q).
    Blocks have batch 1 in it, too.
    """
    refuse_unless(float(p), (0.0,), "p")
    with torch.no_grad():
        o, lse = _attention(query, key, value, attn_bias, p, scale, wants_lse=True)
    return o if output_dtype is None else o.to(output_dtype), lse


def memory_efficient_attention_partial(
    query: Any,
    key: Any,
    value: Any,
    attn_bias: Any = None,
    p: float = 0.0,
    scale: Optional[float] = None,
    *,
    op: Any = None,
    output_dtype: Any = None,
) -> tuple[Any, Any]:
    """(o, lse) over a part of the keys, which `merge_attentions` puts together, without gradients.

    o is f32 (f64 if query is) unless output_dtype says otherwise. lse as in
    `memory_efficient_attention_forward_requires_grad`.
    """
    wide = torch.float64 if getattr(query, "dtype", None) == torch.float64 else torch.float32
    return memory_efficient_attention_forward_requires_grad(
        query, key, value, attn_bias, p, scale, op=op, output_dtype=output_dtype or wide
    )  # fmt: skip


def memory_efficient_attention_backward(
    grad: Any,
    output: Any,
    lse: Any,
    query: Any,
    key: Any,
    value: Any,
    attn_bias: Any = None,
    p: float = 0.0,
    scale: Optional[float] = None,
    *,
    op: Any = None,
) -> tuple[Any, Any, Any]:
    """(dq, dk, dv) of what `memory_efficient_attention_forward_requires_grad` gave; grad and output are like query."""
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
    attn_split: Any, lse_split: Any, write_lse: bool = True, output_dtype: Any = None
) -> tuple[Any, Any]:  # fmt: skip
    """(o, lse) over all keys of the results over parts of them, (o, None) without `write_lse`.

    attn_split: tensors (batch, seqlen_q, heads, head_dim_v) or (batch, seqlen_q, groups, heads, head_dim_v), in a list
    or along the first dimension of one. lse_split: likewise (batch, heads, seqlen_q) or (batch, groups, heads,
    seqlen_q). Differentiable.
    """
    outs, lses = list(attn_split), list(lse_split)
    if len(outs) != len(lses) or not outs:
        raise ArgumentError(f"lse_split: {len(lses)} parts, allowed {len(outs)} as attn_split, one or more")
    shape, shape_lse = outs[0].shape, lses[0].shape
    flat = [(_with_heads(o), lse.reshape(lse.shape[0], -1, lse.shape[-1])) for o, lse in zip(outs, lses)]
    is_differentiated = torch.is_grad_enabled() and any(x.requires_grad for x in (*outs, *lses))
    with _by_xformers_names():
        if is_differentiated or outs[0].dtype == torch.float64:  # which the library does not merge
            o, lse = _merged_by_torch(flat)
        else:
            o, lse = merge(flat, layout="bshd", return_lse=True)
    o = o.reshape(shape) if output_dtype is None else o.reshape(shape).to(output_dtype)
    return o, lse.reshape(shape_lse) if write_lse else None


def _merged_by_torch(states: list[tuple[Any, Any]]) -> tuple[Any, Any]:
    lses = torch.stack([lse for _, lse in states])
    lse = torch.logsumexp(lses, 0)
    weights = torch.exp(lses - torch.where(lse.isinf(), 0, lse)).transpose(2, 3).unsqueeze(4)  # 0 where nothing is seen
    merged: Any = sum(weight * o for weight, (o, _) in zip(weights, states))
    return merged.to(states[0][0].dtype), lse


def _with_heads(o: Any) -> Any:
    return o.flatten(2, 3) if o.dim() == 5 else o


def _attention(
    query: Any, key: Any, value: Any, attn_bias: Any, p: float, scale: Optional[float], wants_lse: bool
) -> tuple[Any, Any]:
    """o in query's shape, and lse if it is asked for."""
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
        # A GPU too old for decode gets copies of the keys, as a call with gradients does.
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
    """Refusals of attend with the names that the caller knows."""
    try:
        yield
    except Error as error:
        raise renamed(error, _NAMES) from None
