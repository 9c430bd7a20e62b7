"""Checks the arguments of xFormers' functions and merges all heads into one dimension."""

from __future__ import annotations

from typing import Any, NamedTuple, Optional, Protocol, Union

import torch

from attend._errors import ArgumentError, UnsupportedError
from attend.xformers._lengths import Device
from attend.xformers._patterns import Pattern, pattern_of

_DIMENSIONS = (
    "3 (batch, seqlen, head_dim), 4 (batch, seqlen, heads, head_dim) or 5 (batch, seqlen, groups, heads, head_dim)"
)
_OF_BIAS = {
    3: "(batch, seqlen_q, seqlen_k)",
    4: "(batch, heads, seqlen_q, seqlen_k)",
    5: "(batch, groups, heads, seqlen_q, seqlen_k)",
}


class _BiasObject(Protocol):
    """An instance of a bias class of attend or of xFormers."""

    def materialize(
        self, shape: tuple[int, ...], dtype: torch.dtype = ..., device: Device = ...
    ) -> torch.Tensor: ...  # fmt: skip


Bias = Union[torch.Tensor, _BiasObject]


class Inputs(NamedTuple):
    q: Any  # (batch, seqlen_q, heads_q, head_dim)
    k: Any  # (batch, seqlen_k, heads_k, head_dim)
    v: Any  # (batch, seqlen_k, heads_k, head_dim_v)
    bias: Any  # float (batch, heads_q, seqlen_q, seqlen_k), or None
    pattern: Optional[Pattern]

    @property
    def needs_gradients(self) -> bool:
        tensors = [x for x in (self.q, self.k, self.v, self.bias) if x is not None]
        return torch.is_grad_enabled() and any(x.requires_grad for x in tensors)


def inputs_of(query: Any, key: Any, value: Any, attn_bias: Any) -> Inputs:
    for name, x in (("query", query), ("key", key), ("value", value)):
        if not isinstance(x, torch.Tensor):
            raise ArgumentError(f"{name}: {type(x).__name__}, allowed a torch.Tensor")
        if x.dim() not in (3, 4, 5) or x.dim() != query.dim():
            raise ArgumentError(f"{name}: {x.dim()} dimensions, allowed {_DIMENSIONS}, as many as query")
        if x.dim() == 5 and x.shape[2] != query.shape[2]:
            raise ArgumentError(f"{name}: {x.shape[2]} groups of heads, allowed {query.shape[2]} as query")
    pattern = pattern_of(attn_bias)
    if query.dim() == 3 and pattern is not None and type(attn_bias).__name__ != "LowerTriangularMask":
        found = type(attn_bias).__name__
        raise ArgumentError(f"attn_bias: {found} with 3 dimensions, allowed None, a tensor or LowerTriangularMask")
    tensor = attn_bias if pattern is None else _tensor_of(attn_bias)
    bias = None if tensor is None else _bias(tensor, query)
    if pattern is not None and pattern.kind.keys != "dense":
        _check_sequences(query, key, value, pattern)
    are_shared = _are_shared(key) and _are_shared(value)
    return Inputs(_heads(query), _heads(key, are_shared), _heads(value, are_shared), bias, pattern)


def _tensor_of(attn_bias: Any) -> Any:
    return attn_bias._bias if type(attn_bias).__name__ == "LowerTriangularMaskWithTensorBias" else None


def _are_shared(x: Any) -> bool:
    """Returns whether the heads of a group are one expanded head. Returns False for a leaf tensor, whose gradient has
    an entry for each head.
    """
    axis = x.dim() - 2
    return x.dim() > 3 and x.shape[axis] > 1 and x.stride(axis) == 0 and not (x.is_leaf and x.requires_grad)


def _heads(x: Any, are_shared: bool = False) -> Any:
    """Returns x as (batch, seqlen, heads, head_dim). If `are_shared` is True, each group has one head."""
    if x.dim() == 3:
        return x.unsqueeze(2)
    if are_shared:
        x = x.narrow(x.dim() - 2, 0, 1)
    return x.flatten(2, 3) if x.dim() == 5 else x


def _bias(bias: Any, query: Any) -> Any:
    if not isinstance(bias, torch.Tensor) or not bias.is_floating_point():
        found = bias.dtype if isinstance(bias, torch.Tensor) else type(bias).__name__
        raise UnsupportedError(f"attn_bias: {found}, attend supports a float tensor, with -inf for masked pairs")
    if bias.dim() != query.dim():
        raise ArgumentError(f"attn_bias: {bias.dim()} dimensions, allowed {query.dim()} {_OF_BIAS[query.dim()]}")
    if query.dim() == 3:
        return bias.unsqueeze(1)
    if query.dim() == 5:
        if bias.shape[1:3] != (1, 1):
            bias = bias.expand(-1, *query.shape[2:4], -1, -1)
        return bias.flatten(1, 2)
    return bias


def _check_sequences(query: Any, key: Any, value: Any, pattern: Pattern) -> None:
    """Checks that packed tensors have batch 1 and the lengths that are stored in the bias."""
    named = type(pattern.fields).__name__
    for name, x in (("query", query), ("key", key), ("value", value)):
        if x.shape[0] != 1:
            raise ArgumentError(f"{name}: batch {x.shape[0]} with {named}, allowed 1")
    rows = pattern.fields.q_seqinfo.seqstart_py[-1]
    if query.shape[1] != rows:
        raise ArgumentError(f"query: {query.shape[1]} rows, allowed {rows} as attn_bias has them")
    for name, x in (("key", key), ("value", value)):
        if "pages" in pattern.kind.keys:
            size = pattern.fields.page_size
            if x.shape[1] % size:
                raise ArgumentError(f"{name}: {x.shape[1]} keys, allowed a multiple of page_size, {size}")
        elif x.shape[1] != pattern.fields.k_seqinfo.seqstart_py[-1]:
            keys = pattern.fields.k_seqinfo.seqstart_py[-1]
            raise ArgumentError(f"{name}: {x.shape[1]} keys, allowed {keys} as attn_bias has them")
