"""Splits tensors that contain several tensors along one axis."""

from __future__ import annotations

from typing import Any

from attend._errors import ArgumentError
from attend._frameworks import is_torch


def parts(packed: Any, axis: int, count: int, name: str) -> tuple[Any, ...]:
    """Returns views of the `count` tensors that are stacked along `axis`. The last dimensions of each are (heads,
    head_dim).
    """
    shape = _shape_of(packed)
    wanted = axis + 3
    if len(shape) != wanted or shape[axis] != count:
        found = _found(packed)
        raise ArgumentError(f"{name}: {found}, allowed {wanted} dimensions with {count} in dimension {axis}")
    if is_torch(packed):  # autograd stacks the gradients; for slices it would add padded gradients
        return tuple(packed.unbind(axis))
    before = (slice(None),) * axis
    places = ((*before, i) for i in range(count))
    return tuple(packed[place] for place in places)


def heads_of(qkv: Any, num_heads_q: int) -> tuple[Any, ...]:
    """Returns views of q, k and v, which are concatenated along the heads in qkv (batch, seqlen, num_heads_q + 2
    num_heads_k, head_dim).
    """
    shape = _shape_of(qkv)
    is_number = isinstance(num_heads_q, int)
    if len(shape) != 4 or not is_number or not 0 <= num_heads_q <= shape[2] or (shape[2] - num_heads_q) % 2:
        allowed = f"(batch, seqlen, {num_heads_q!r} + 2 num_heads_k, head_dim)"
        raise ArgumentError(f"qkv: {_found(qkv)}, allowed {allowed} with a whole num_heads_q")
    rest = (shape[2] - num_heads_q) // 2
    middle = num_heads_q + rest
    if is_torch(qkv):  # with slices, autograd would add padded gradients
        return tuple(qkv.split((num_heads_q, rest, rest), 2))
    return qkv[:, :, :num_heads_q], qkv[:, :, num_heads_q:middle], qkv[:, :, middle:]


def _shape_of(x: Any) -> tuple[Any, ...]:
    return tuple(getattr(x, "shape", ()))


def _found(x: Any) -> str:
    return f"shape {_shape_of(x)}" if hasattr(x, "shape") else type(x).__name__
