"""Several tensors side by side in one."""

from __future__ import annotations

from typing import Any

from attend._errors import ArgumentError


def parts(packed: Any, axis: int, count: int, name: str) -> tuple[Any, ...]:
    """Views of the `count` tensors of (heads, head_dim) or more that lie side by side along `axis`."""
    shape = tuple(getattr(packed, "shape", ()))
    wanted = axis + 3
    if len(shape) != wanted or shape[axis] != count:
        found = f"shape {shape}" if hasattr(packed, "shape") else type(packed).__name__
        raise ArgumentError(f"{name}: {found}, allowed {wanted} dimensions with {count} in dimension {axis}")
    if hasattr(packed, "unbind"):  # torch: autograd gathers their gradients at once, and adds nothing up
        return tuple(packed.unbind(axis))
    before = (slice(None),) * axis
    return tuple(packed[(*before, i)] for i in range(count))


def heads_of(qkv: Any, num_heads_q: int) -> tuple[Any, ...]:
    """Views of q, k and v in (batch, seqlen, num_heads_q + 2 num_heads_k, head_dim)."""
    rest = qkv.shape[2] - num_heads_q if len(qkv.shape) == 4 else -1
    if rest < 0 or rest % 2:
        shape = tuple(qkv.shape)
        raise ArgumentError(f"qkv: shape {shape}, allowed (batch, seqlen, {num_heads_q} + 2 num_heads_k, head_dim)")
    middle = num_heads_q + rest // 2
    if hasattr(qkv, "split"):  # torch, likewise
        return tuple(qkv.split((num_heads_q, rest // 2, rest // 2), 2))
    return qkv[:, :, :num_heads_q], qkv[:, :, num_heads_q:middle], qkv[:, :, middle:]
