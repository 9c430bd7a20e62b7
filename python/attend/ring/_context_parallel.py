"""Replaces torch's scaled_dot_product_attention by a ring, for models without ring support, like torch's
context_parallel.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Optional

from attend._errors import ArgumentError, UnsupportedError
from attend._frameworks import is_torch
from attend.ring._attention import ring_attention
from attend.ring._contexts import door_of_group, group_name
from attend.ring._shards import shard
from attend.ring._telling import told

if TYPE_CHECKING:
    from torch import Tensor

    from attend.ring._contexts import Group


@contextlib.contextmanager
def context_parallel(
    mesh: Optional[Group] = None,
    *,
    buffers: Optional[Sequence[Tensor]] = None,
    buffer_seq_dims: Optional[Sequence[int]] = None,
    no_restore_buffers: Optional[Collection[Tensor]] = None,
    sharding: str = "zigzag",
) -> Iterator[None]:
    """Returns a context in which torch.nn.functional.scaled_dot_product_attention calls `ring_attention` over `mesh`.

    Its arguments follow torch.distributed.tensor.experimental.context_parallel::

        with attend.ring.context_parallel(mesh, buffers=[tokens, labels, positions], buffer_seq_dims=[1, 1, 0]):
            loss = model(tokens, positions, labels)    # this rank's tokens
            loss.backward()

    Arguments:
        mesh: a device mesh of one dimension, a process group, its name, or None for the default group.
        buffers: tensors with a dimension of tokens. They must not require grad. Inside the context they contain the
            rank's rows, and afterwards their original contents. If the model uses a tensor of positions, it must be one
            of the buffers.
        buffer_seq_dims: the dimension of tokens of each buffer.
        no_restore_buffers: the buffers that keep the rank's rows when the context ends.
        sharding: "zigzag", "contiguous" or "striped": see `attend.ring.shard`.

    Inside the context, attention receives the rank's rows of query, key and value, (..., heads, rows, head_dim).
    is_causal applies to the entire sequence, and requires the same number of rows and keys. For dropout, rank 0 draws
    the seed. attn_mask is refused, because it would have to be split. If one rank refuses a call, the other ranks raise
    the same error in their next attention call. Backward must also run inside the context, because the graph may have
    saved a buffer, for example the tokens for the gradient of their embedding.

    Raises:
        attend.ArgumentError naming the argument. Nothing has been changed in that case.
    """
    group, restored = _cut(mesh, list(buffers or ()), list(buffer_seq_dims or ()), no_restore_buffers, sharding)
    try:
        with _routing(group, sharding):
            yield
    finally:
        _set(restored)


@told(door_of_group, "mesh")
def _cut(mesh: Any, given: list[Any], dims: list[int], no_restore: Any, sharding: str) -> tuple[str, list[Any]]:
    """Replaces the buffers' contents by the rank's rows. Returns the group's name and the contents to restore."""
    kept = list(no_restore or ())
    _check(given, dims, kept)
    group = group_name(mesh)
    parts = [shard(buffer, dim, group=group, sharding=sharding) for buffer, dim in zip(given, dims)]
    whole = [(buffer, buffer.detach()) for buffer in given]
    try:
        _set(zip(given, parts))
    except BaseException:
        _set(whole)
        raise
    return group, [pair for pair in whole if not any(pair[0] is x for x in kept)]


def _set(pairs: Iterable[tuple[Any, Any]]) -> None:
    """Replaces the memory of the first tensor of each pair by that of the second. Autograd treats this as an in-place
    change, so a graph that has saved the first tensor raises an error.
    """
    import torch

    with torch.no_grad():
        for buffer, x in pairs:
            buffer.set_(x)


def _check(buffers: list[Any], dims: list[int], kept: list[Any]) -> None:
    if len(buffers) != len(dims):
        raise ArgumentError(f"buffer_seq_dims: {len(dims)} dimensions, allowed one for each of {len(buffers)} buffers")
    for n, buffer in enumerate(buffers):
        if not is_torch(buffer):
            raise ArgumentError(f"buffers[{n}]: {type(buffer).__name__}, allowed a torch.Tensor")
        if buffer.is_inference():
            raise ArgumentError(f"buffers[{n}]: made in inference mode, allowed tensors made outside of it")
        if buffer.requires_grad:
            raise ArgumentError(
                f"buffers[{n}]: requires grad, allowed tensors that do not (attend.ring.shard is differentiable)"
            )
    if not all(any(x is buffer for buffer in buffers) for x in kept):
        raise ArgumentError("no_restore_buffers: one that is not among the buffers, allowed buffers only")


def _routing(group: str, sharding: str) -> Any:
    import torch
    from torch.overrides import TorchFunctionMode

    class Routing(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is torch.nn.functional.scaled_dot_product_attention:
                return _attention(group, sharding, *args, **(kwargs or {}))
            return func(*args, **(kwargs or {}))

    return Routing()


@told(door_of_group, "group", traceable=True)
def _attention(
    group: str,
    sharding: str,
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: Optional[float] = None,
    enable_gqa: bool = False,
) -> Any:
    from attend._sdpa import four_dims, leading, same_heads

    if attn_mask is not None:
        raise UnsupportedError("attn_mask: given within attend.ring.context_parallel, attend supports None there only")
    if is_causal and query.shape[-2] != key.shape[-2]:
        raise UnsupportedError(
            f"is_causal: with {query.shape[-2]} rows and {key.shape[-2]} keys within attend.ring.context_parallel, "
            "attend supports equal numbers only"
        )
    lead = leading(query, key, value)
    q, k, v = same_heads([four_dims(x, lead) for x in (query, key, value)], enable_gqa)
    o = ring_attention(
        q, k, v, group=group, sharding=sharding, causal=is_causal, scale=scale, dropout_p=dropout_p
    )  # fmt: skip
    return o.reshape(*lead, *o.shape[1:]) if query.dim() > 2 else o.reshape(o.shape[2:])
