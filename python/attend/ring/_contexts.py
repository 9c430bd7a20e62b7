"""Ranks of rings: one for each group of processes and device, made by the first call there, gone with the group."""

from __future__ import annotations

import atexit
import functools
import weakref
from typing import Any, Optional

from attend import _core
from attend._errors import ArgumentError, RunError
from attend.ring._messages import GroupMessages, MpiMessages

TIMEOUT_S = 300.0

# By group, then by index of the GPU, -1 for CPUs.
_of_groups: weakref.WeakKeyDictionary[Any, dict[int, _core.RingContext]] = weakref.WeakKeyDictionary()
_of_comms: list[dict[Any, Any]] = []  # what communicators have as an attribute


def connect(group: Any = None, device: Any = "cpu", timeout: float = TIMEOUT_S, copy_engines: bool = True) -> None:
    """Makes the connections that calls on `group` with tensors on `device` need; else the first call makes them.

    Collective: every rank of the group has to call. On CPUs it makes a gloo group, on GPUs a communicator of NCCL, of
    attend's own. They go with `group`, or at torch.distributed.destroy_process_group(group).

    Arguments:
        group: a torch.distributed process group, its name, a device mesh of one dimension, or None: the default group.
        device: "cpu" or the rank's GPU, as torch.device takes it.
        timeout: seconds that a rank waits for the others before its call ends in an error.
        copy_engines: GPUs of one machine pass blocks on by their copy engines, which leave all multiprocessors to the
            products, where every rank can and wants to; else, and between machines, NCCL's kernels do. No matter on
            CPUs.

    Raises:
        attend.RunError where the group is connected for this device already, torch.distributed is not initialised, or
        the ranks do not find each other.
    """
    import torch

    made = torch.device(device)
    index = -1 if made.type == "cpu" else torch.cuda.current_device() if made.index is None else made.index
    resolved = process_group(group_name(group))
    if index in _of_groups.get(resolved, {}):
        raise RunError(f"group: connected on {device} already, allowed once")
    _connect(resolved, index, timeout, copy_engines)


def group_name(group: Any) -> str:
    """What stands for a group in an operator's arguments: "" is the default one."""
    if group is None:
        return ""
    if isinstance(group, str):
        return group
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

    if isinstance(group, DeviceMesh):
        group = group.get_group()  # which refuses by itself where there are several dimensions
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
    """The rank of the named group for tensors on GPU `index`, or on CPUs (-1). The first call is collective."""
    group = process_group(name)
    found = _of_groups.get(group, {}).get(index)
    return _connect(group, index, TIMEOUT_S) if found is None else found


def _connect(group: Any, index: int, timeout_s: float, copy_engines: bool = True) -> _core.RingContext:
    import torch
    import torch.distributed as dist

    rank, size = dist.get_rank(group), dist.get_world_size(group)
    if rank < 0:
        raise ArgumentError("group: one that this rank is not in, allowed a group of this rank")
    if index < 0:
        messages = GroupMessages(group, timeout_s)
        # The default group takes all groups with it where it is destroyed; else this one has to go by itself.
        weakref.finalize(group, messages.close).atexit = False
        context = _callback_ring(rank, size, messages)
    else:
        box = [_core.make_nccl_id() if rank == 0 else b""]
        device = torch.device("cuda", index) if "nccl" in dist.get_backend(group) else None
        dist.broadcast_object_list(box, src=dist.get_global_rank(group, 0), group=group, device=device)
        context = _core.make_nccl_ring(box[0], rank, size, index, timeout_s, copy_engines)
    _of_groups.setdefault(group, {})[index] = context
    return context


def of_comm(comm: Any, index: int) -> _core.RingContext:
    """The rank of an mpi4py communicator, likewise. It goes with the communicator, whose attribute it is."""
    if not hasattr(comm, "Get_attr"):
        raise ArgumentError(f"comm: {type(comm).__name__}, allowed an mpi4py communicator")
    contexts: Optional[dict[Any, Any]] = comm.Get_attr(_attribute())
    if contexts is None:
        contexts = {}
        comm.Set_attr(_attribute(), contexts)
        _of_comms.append(contexts)
    if index not in contexts:
        if index < 0:
            messages = MpiMessages(comm)
            contexts[index] = _callback_ring(comm.rank, comm.size, messages)
            contexts["close"] = messages.close
        else:
            made = comm.bcast(_core.make_nccl_id() if comm.rank == 0 else None)
            contexts[index] = _core.make_nccl_ring(made, comm.rank, comm.size, index, TIMEOUT_S, True)
    found: _core.RingContext = contexts[index]
    return found


@functools.cache
def _attribute() -> int:
    from mpi4py import MPI

    def drop(comm: Any, key: int, contexts: dict[Any, Any]) -> None:
        close = contexts.pop("close", None)
        contexts.clear()
        if close is not None:
            close()

    return MPI.Comm.Create_keyval(delete_fn=drop)


def _callback_ring(rank: int, size: int, messages: Any) -> _core.RingContext:
    return _core.make_callback_ring(rank, size, messages.send, messages.receive, messages.all_gather, messages.fail)


@atexit.register
def _drop() -> None:
    """Before the interpreter ends, whose functions the contexts call."""
    _of_groups.clear()
    for contexts in _of_comms:
        contexts.clear()
