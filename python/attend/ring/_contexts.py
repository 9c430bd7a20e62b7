"""Manages ring contexts. There is one context for each group and device. The first call makes it, and it is destroyed
with the group.
"""

from __future__ import annotations

import atexit
import functools
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Optional, Union

from attend import _core
from attend._errors import ArgumentError, RunError
from attend.ring._messages import GroupMessages, MpiMessages
from attend.ring._telling import begins, connecting

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

    Group = Union[ProcessGroup, DeviceMesh, str]  # "" is the default group

TIMEOUT_S = 300.0


class _Rank:
    """This process as a rank of a group. `contexts` maps a GPU index (-1 for CPUs) to a ring, and `at` is the index of
    the current ring.

    All ranks must switch to another ring together. Before a switch they compare their next calls in the current ring,
    and raise an error if the calls differ.
    """

    def __init__(self) -> None:
        self.contexts: dict[int, _core.RingContext] = {}
        self.at: Optional[int] = None

    def go_to(self, index: int, make: Callable[[int], _core.RingContext]) -> _core.RingContext:
        if self.at is not None and self.at != index:
            kind, new = "cpu" if index < 0 else "cuda", "" if index in self.contexts else ", for the first time"
            _core.ring_agree(self.contexts[self.at], "call", f"one with tensors on {kind}{new}")
        if index not in self.contexts:
            self.contexts[index] = make(index)
        self.at = index
        return self.contexts[index]


_of_groups: weakref.WeakKeyDictionary[Any, _Rank] = weakref.WeakKeyDictionary()
_of_comms: list[dict[Any, Any]] = []  # the dictionary of ranks of each communicator


def connect(group: Any = None, device: Any = "cpu", timeout: float = TIMEOUT_S, copy_engines: bool = True) -> None:
    """Makes the connections for calls on `group` with tensors on `device`. Without this call, the first ring call makes
    them.

    Collective: every rank of the group must call. For CPUs it makes gloo connections, and for GPUs an NCCL
    communicator. The connections belong to attend. attend's connections are independent of those of `group`, and
    torch.distributed lists no additional group. attend's connections are closed when `group` is destroyed, for example
    by torch.distributed.destroy_process_group(group).

    Arguments:
        group: a torch.distributed process group, its name, a device mesh of one dimension, or None for the default
            group.
        device: "cpu" or the rank's GPU, in any form that torch.device accepts.
        timeout: seconds that a rank waits for the others before its call raises an error.
        copy_engines: True lets the GPUs of one machine exchange blocks with their copy engines, so that all
            multiprocessors stay free for the computation. Every rank must support and enable this. Otherwise, and
            between machines, NCCL's kernels copy the blocks. No effect on CPUs.

    Raises:
        attend.RunError if the group is already connected for this device, torch.distributed is not initialised, or the
        ranks do not find each other.
    """
    import torch

    made = torch.device(device)
    index = -1 if made.type == "cpu" else torch.cuda.current_device() if made.index is None else made.index
    resolved = process_group(group_name(group))
    if resolved in _of_groups and index in _of_groups[resolved].contexts:
        raise RunError(f"group: connected on {device} already, allowed once")
    _go_to(resolved, index, timeout, copy_engines)


def group_name(group: Any) -> str:
    """Returns the name of a group, which torch operators accept as an argument. "" means the default group."""
    if group is None:
        return ""
    if isinstance(group, str):
        return group
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

    if isinstance(group, DeviceMesh):
        group = group.get_group()  # raises an error if the mesh has several dimensions
    if not isinstance(group, ProcessGroup):
        raise ArgumentError(
            f"group: {type(group).__name__}, allowed a process group, its name, a device mesh of one dimension, or None"
        )
    return str(group.group_name)


def process_group(name: str) -> Any:
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_initialized():
        raise RunError("group: torch.distributed is not initialised, allowed after init_process_group")
    if not name:
        return dist.group.WORLD
    from torch.distributed import distributed_c10d as c10d

    resolve: Any = vars(c10d)["_resolve_process_group"]
    try:
        return resolve(name)
    except RuntimeError as error:
        raise ArgumentError(f"group: {name!r}, allowed the name of a group that this rank is in") from error


def of_group(name: str, index: int) -> _core.RingContext:
    """Returns the context of the named group for GPU `index`, or for CPUs (-1). The first call is collective."""
    group = process_group(name)
    rank = _of_groups.get(group)
    return rank.contexts[index] if rank is not None and rank.at == index else _go_to(group, index)


def door_of_group(group: Any, connects: bool = True) -> Optional[_core.RingContext]:
    """Returns the ring in which the other ranks of the group begin their calls. If there is none and `connects` is
    False, returns None.
    """
    resolved = process_group(group_name(group))
    rank = _of_groups.get(resolved)
    if rank is not None and rank.at is not None:
        return rank.contexts[rank.at]
    if not connects:
        return None
    import torch

    return _go_to(resolved, _home(resolved, torch.cuda.current_device() if torch.cuda.is_available() else -1))


def agree(group: Any, name: str, value: str) -> None:
    """Waits for all ranks, and raises an error on all of them if they pass different values."""
    context = door_of_group(group)
    begins()
    assert context is not None
    _core.ring_agree(context, name, value)


def _go_to(group: Any, index: int, timeout_s: float = TIMEOUT_S, copy_engines: bool = True) -> _core.RingContext:
    rank = _of_groups.setdefault(group, _Rank())

    def make(its: int) -> _core.RingContext:
        return _connect(group, its, timeout_s, copy_engines)

    with connecting():
        if rank.at is None:
            rank.go_to(_home(group, index), make)
        return rank.go_to(index, make)


def _home(group: Any, index: int) -> int:
    """Returns the index of the device whose ring is made first: -1 (the CPU) if the group supports gloo, otherwise
    `index`.
    """
    import torch.distributed as dist

    return -1 if "gloo" in dist.get_backend_config(group) else index


def _connect(group: Any, index: int, timeout_s: float, copy_engines: bool) -> _core.RingContext:
    import torch
    import torch.distributed as dist

    rank, size = dist.get_rank(group), dist.get_world_size(group)
    if rank < 0:
        raise ArgumentError("group: this rank is not in it, allowed a group of this rank")
    if index < 0:
        messages = GroupMessages(group, timeout_s)
        # Closes the connections with the group, even if a thread in a call or the traceback of an error still holds
        # `messages`.
        weakref.finalize(group, messages.close).atexit = False
        return _callback_ring(rank, size, messages)
    box = [_core.make_nccl_id() if rank == 0 else b""]
    where = torch.device("cuda", index) if "nccl" in dist.get_backend(group) else None
    dist.broadcast_object_list(box, src=dist.get_global_rank(group, 0), group=group, device=where)
    return _core.make_nccl_ring(box[0], rank, size, index, timeout_s, copy_engines)


def of_comm(comm: Any, index: int) -> _core.RingContext:
    """Returns the context of an mpi4py communicator. The context is an attribute of the communicator and is destroyed
    with it.
    """
    rank = _rank_of_comm(comm)
    if rank.at == index:
        return rank.contexts[index]

    def make(its: int) -> _core.RingContext:
        made = comm.bcast(_core.make_nccl_id() if comm.rank == 0 else None)
        return _core.make_nccl_ring(made, comm.rank, comm.size, its, TIMEOUT_S, True)

    with connecting():
        return rank.go_to(index, make)


def door_of_comm(comm: Any, connects: bool = True) -> Optional[_core.RingContext]:
    if not connects and not (hasattr(comm, "Get_attr") and comm.Get_attr(_attribute())):
        return None
    rank = _rank_of_comm(comm)
    return rank.contexts[rank.at if rank.at is not None else -1]


def _rank_of_comm(comm: Any) -> _Rank:
    """Returns this process's _Rank of a communicator. Ranks first connect on CPUs, whatever the device of their
    arrays.
    """
    if not hasattr(comm, "Get_attr"):
        raise ArgumentError(f"comm: {type(comm).__name__}, allowed an mpi4py communicator")
    held: Optional[dict[Any, Any]] = comm.Get_attr(_attribute())
    if held is None:
        with connecting():
            rank, messages = _Rank(), MpiMessages(comm, TIMEOUT_S)
            rank.go_to(-1, lambda _: _callback_ring(comm.rank, comm.size, messages))
        held = {"rank": rank, "close": messages.close}
        comm.Set_attr(_attribute(), held)
        _of_comms.append(held)
    found: _Rank = held["rank"]
    return found


@functools.cache
def _attribute() -> int:
    from mpi4py import MPI

    def drop(comm: Any, key: int, held: dict[Any, Any]) -> None:
        close = held.pop("close", None)
        held.clear()
        if close is not None:
            close()

    return MPI.Comm.Create_keyval(delete_fn=drop)


def _callback_ring(rank: int, size: int, messages: Any) -> _core.RingContext:
    return _core.make_callback_ring(rank, size, messages.send, messages.receive, messages.all_gather, messages.fail)


@atexit.register
def _drop() -> None:
    """Releases all contexts before the interpreter ends, because they call Python functions."""
    _of_groups.clear()
    for held in _of_comms:
        held.clear()
