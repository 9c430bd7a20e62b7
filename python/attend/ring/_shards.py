"""Selects the rows of a sequence that each rank holds, and reassembles a sequence from the rows of all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Optional, Union, cast

from attend import _core
from attend._errors import ArgumentError
from attend.ring._contexts import group_name, process_group

if TYPE_CHECKING:
    from attend._types import Array, ArrayT
    from attend.ring._contexts import Group

    Offsets = Union[Sequence[int], Array]

_POSITION_BYTES = 8


def positions(
    seqlen: int, *, rank: int, size: int, sharding: str = "zigzag", cu_seqlens: Optional[Sequence[int]] = None
) -> list[int]:
    """Returns the indices in the full sequence of the rows that `rank` of `size` holds, in the rank's order.

    `cu_seqlens`: the offsets of packed sequences, each of which is split over the ranks separately. See `shard`.
    """
    found = _core.shard_positions(sharding, seqlen, rank, size, _offsets(cu_seqlens))
    return list(memoryview(found).cast("q"))


def shard(
    x: ArrayT,
    dim: int,
    *,
    group: Optional[Group] = None,
    rank: Optional[int] = None,
    size: Optional[int] = None,
    sharding: str = "zigzag",
    cu_seqlens: Optional[Offsets] = None,
) -> ArrayT:
    """Copies a rank's part of a full tensor: the rows along `dim` that the rank holds, in the rank's order.

    12 tokens on 3 ranks::

                      rank 0         rank 1        rank 2
        contiguous    0 1 2 3        4 5 6 7       8 9 10 11
        zigzag        0 1 10 11      2 3 8 9       4 5 6 7       chunks r and 2 * size - 1 - r of 2 * size
        striped       0 3 6 9        1 4 7 10      2 5 8 11

    Arguments:
        x: torch tensor or NumPy array of any dtype: q, k, v, positions, labels, or the rows of a bias.
        dim: the dimension of the tokens.
        group: the group from which rank and size are taken if they are not passed. None means torch.distributed's
            default group.
        rank, size: the rank and the number of ranks. Pass both or neither.
        sharding: "zigzag", "contiguous" or "striped".
        cu_seqlens: offsets of packed sequences in the full tensor. Each sequence is split separately, and a rank's
            result contains its parts of all sequences, one after another.

    Returns:
        The rank's part: an array like x, differentiable. `size` need not divide the length.

    Raises:
        attend.ArgumentError naming the argument.
    """
    if (rank is None) != (size is None):
        raise ArgumentError("rank: given without size or size without rank, allowed both or neither")
    if rank is None or size is None:
        import torch.distributed as dist

        resolved = process_group(group_name(group))
        rank, size = dist.get_rank(resolved), dist.get_world_size(resolved)
    found = _core.shard_positions(sharding, _length(x, dim), rank, size, _offsets(cu_seqlens))
    part: ArrayT = _taken(x, dim, found)
    return part


def unshard(
    x: ArrayT,
    dim: int,
    *,
    group: Optional[Group] = None,
    sharding: str = "zigzag",
    cu_seqlens: Optional[Offsets] = None,
    comm: Optional[object] = None,
) -> ArrayT:
    """Returns the full tensor on every rank, assembled from all ranks' parts along `dim`. This is the inverse of
    `shard`. Every rank of the group must call it.

    Arguments:
        x: this rank's part, a torch tensor or, with `comm`, a NumPy array.
        group: the torch.distributed group over which torch tensors are sent. None means the default group.
        comm: an mpi4py communicator, over which NumPy arrays are sent.
        dim, sharding, cu_seqlens: as given to `shard`.

    Returns:
        An array like x, with all rows. Not differentiable.
    """
    parts: list[ArrayT] = _gathered(x, dim, group) if comm is None else cast(Any, comm).allgather(x)
    return join(parts, dim, sharding=sharding, cu_seqlens=cu_seqlens)


def join(
    parts: Sequence[ArrayT], dim: int, *, sharding: str = "zigzag", cu_seqlens: Optional[Offsets] = None
) -> ArrayT:
    """Returns the full tensor, assembled from all ranks' parts in the order of the ranks."""
    size, seqlen = len(parts), sum(_length(part, dim) for part in parts)
    held = []
    for rank, part in enumerate(parts):
        rows = _core.shard_positions(sharding, seqlen, rank, size, _offsets(cu_seqlens))
        count = len(rows) // _POSITION_BYTES
        if count != part.shape[dim]:
            raise ArgumentError(
                f"parts[{rank}]: {part.shape[dim]} rows in dimension {dim}, allowed {count}: what rank {rank} of "
                f"{size} holds of {seqlen} tokens with {sharding} sharding"
            )
        held.append(rows)
    order = b"".join(held)
    if _is_torch(parts[0]):
        import torch

        tensors: Any = parts
        there = torch.argsort(_torch_rows(order)).to(tensors[0].device)
        whole: Any = torch.cat(list(tensors), dim).index_select(dim, there)
        return cast("ArrayT", whole)
    import numpy as np

    arrays: Any = parts
    whole = np.take(np.concatenate(arrays, axis=dim), np.argsort(np.frombuffer(order, np.int64)), axis=dim)
    return cast("ArrayT", whole)


def _gathered(x: Any, dim: int, group: Any) -> list[Any]:
    """Returns every rank's part. The lengths of the parts may differ by one or two tokens for each sequence."""
    import torch
    import torch.distributed as dist

    resolved = process_group(group_name(group))
    mine = x.detach().movedim(dim, 0).contiguous()
    lengths = [torch.empty(1, dtype=torch.int64, device=x.device) for _ in range(dist.get_world_size(resolved))]
    dist.all_gather(lengths, torch.tensor([len(mine)], device=x.device), group=resolved)
    longest = max(int(length) for length in lengths)
    padded = mine.new_zeros((longest, *mine.shape[1:]))
    padded[: len(mine)] = mine
    parts = [torch.empty_like(padded) for _ in lengths]
    dist.all_gather(parts, padded, group=resolved)
    return [part[: int(length)].movedim(0, dim) for part, length in zip(parts, lengths)]


def _length(x: Any, dim: int) -> int:
    if not -len(x.shape) <= dim < len(x.shape):
        raise ArgumentError(f"dim: {dim}, allowed a dimension of shape {tuple(x.shape)}")
    return int(x.shape[dim])


def _offsets(cu_seqlens: Any) -> list[int]:
    return [] if cu_seqlens is None else [int(n) for n in cu_seqlens]


def _taken(x: Any, dim: int, rows: bytes) -> Any:
    if _is_torch(x):
        return x.index_select(dim, _torch_rows(rows).to(x.device))
    import numpy as np

    return np.take(x, np.frombuffer(rows, np.int64), axis=dim)


def _torch_rows(rows: bytes) -> Any:
    import torch

    return torch.frombuffer(bytearray(rows), dtype=torch.int64) if rows else torch.empty(0, dtype=torch.int64)


def _is_torch(x: Any) -> bool:
    return type(x).__module__.partition(".")[0] == "torch" or hasattr(x, "index_select")
