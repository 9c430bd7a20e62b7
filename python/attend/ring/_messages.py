"""Sends the messages of a ring between CPUs, over torch.distributed (gloo) or over an MPI communicator (mpi4py).

Each class implements the interface of `_core.make_callback_ring`. `send` and `receive` start a transfer and return a
function that waits for it. `all_gather` returns after all ranks have called it. `fail` makes the other ranks stop
waiting.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NoReturn, Optional, TypeVar

from attend import _core
from attend._errors import RunError

_Wait = Callable[[], None]
_Method = TypeVar("_Method", bound=Callable[..., Any])

_SPIN_S = 1e-3  # during the first millisecond of a wait, polls follow each other without a pause
_LONGEST_PAUSE_S = 1e-3
_yield = getattr(os, "sched_yield", lambda: time.sleep(0))  # lets other ranks run if there are fewer cores
_POLL_S = 0.01  # pause between two reads of the job's store


def _pause(waited: float) -> None:
    """Pauses between two polls of a message. Python's signal handlers run during the pause. The pause is at most a
    tenth of the time waited so far.
    """
    if waited < _SPIN_S:
        _yield()
    else:
        time.sleep(min(_LONGEST_PAUSE_S, waited / 10))


def _meet(store: Any, name: str, rank: int, size: int, timeout_s: float) -> str:
    """Waits for all ranks of a group and returns the name under which they connect.

    The ranks communicate through the key-value store of the job. Rank 0 opens a numbered attempt. Each other rank joins
    an attempt with a higher number than that of its previous attempt. Python's signal handlers run while a rank waits.

    Raises:
        attend.RunError if not all ranks have arrived within `timeout_s`, or one of them has given up.
    """
    start = time.monotonic()

    def until(is_true: Callable[[], bool]) -> None:
        while not is_true():
            if time.monotonic() - start > timeout_s:
                raise RunError(f"ring: rank {rank}: another rank has not called within {timeout_s:g} s")
            time.sleep(_POLL_S)

    def number(key: str) -> int:
        return int(store.get(key)) if store.check([key]) else 0

    opened, mine = f"{name}/open", f"{name}/last of {rank}"
    if rank == 0:
        this = store.add(f"{name}/tries", 1)
        store.set(opened, str(this))
    else:
        this, last = 0, number(mine)

        def is_newer() -> bool:
            nonlocal this
            this = number(opened)
            return this > last

        until(is_newer)
    found = f"{name}/{this}"
    given_up = f"{found}/given up"
    store.set(mine, str(this))
    try:
        store.set(f"{found}/{rank} is here", "")
        everyone = [f"{found}/{other} is here" for other in range(size)]
        until(lambda: store.check(everyone) or store.check([given_up]))
        if store.check([given_up]):
            raise RunError(f"ring: {store.get(given_up).decode()}")
    except BaseException as error:
        why = "interrupted" if not isinstance(error, Exception) else "it has waited too long for the others"
        store.compare_set(given_up, "", f"rank {rank} failed: {why}")
        if rank == 0 and isinstance(error, Exception):
            store.set(opened, "0")  # closes the attempt: a late rank waits for the next one
        raise
    return found


def _outside_of_transforms(function: _Method) -> _Method:
    """Wraps a method so that torch.func's transforms do not apply to the tensors of messages."""

    @functools.wraps(function)
    def call(self: Any, *arguments: Any) -> Any:
        with self._torch._C._DisableFuncTorch():
            return function(self, *arguments)

    return call  # type: ignore[return-value]


class GroupMessages:
    """Messages over separate gloo connections between the ranks of `group`, whatever the group's backend is.

    With separate connections, these messages cannot be mixed up with others, and a failed call can close the
    connections. torch.distributed.new_group is not used, because it names a group by the number of groups in the
    process, which may differ between ranks.
    """

    def __init__(self, group: Any, timeout_s: float) -> None:
        import torch
        import torch.distributed as dist
        from torch.distributed import distributed_c10d as c10d

        self._torch = torch
        self.rank, self._size = dist.get_rank(group), dist.get_world_size(group)
        self._timeout_s = timeout_s
        self._failure: Optional[str] = None  # text of the first error, of another rank or of a message
        self._gathering: Any = None  # an all_gather that was interrupted and is still in progress
        self._store: Any = vars(c10d)["_get_default_store"]()
        name = f"attend/ring/{group.group_name}/{dist.get_global_rank(group, 0)}"
        self.group: Any = None
        name = _meet(self._store, name, self.rank, self._size, timeout_s)
        self._key = f"{name}/failure"
        self.group = self._checked(self._gloo, name)

    def _gloo(self, name: str) -> Any:
        import torch.distributed

        dist: Any = torch.distributed  # torch's annotations do not include PrefixStore
        if not dist.is_gloo_available():
            raise RuntimeError("torch.distributed has no gloo here")
        store = dist.PrefixStore(name, self._store)
        return dist.ProcessGroupGloo(store, self.rank, self._size, timedelta(seconds=self._timeout_s))

    # Messages are copied, because gloo may still use their memory after a failed call has released it.
    @_outside_of_transforms
    def send(self, to: int, channel: int, memory: memoryview) -> _Wait:
        message = self._torch.frombuffer(bytearray(memory), dtype=self._torch.uint8)
        # The request is in a list and has no name, because the traceback of an interrupt would keep a named variable,
        # and with it the connections, alive.
        work = [self._checked(self._open_group().send, [message], to, channel)]
        return lambda: self._checked(lambda: work.pop().wait())

    @_outside_of_transforms
    def receive(self, origin: int, channel: int, memory: memoryview) -> _Wait:
        message = self._torch.empty(len(memory), dtype=self._torch.uint8)
        work = [self._checked(self._open_group().recv, [message], origin, channel)]

        def wait() -> None:
            self._checked(lambda: work.pop().wait())
            with self._torch._C._DisableFuncTorch():
                self._torch.frombuffer(memory, dtype=self._torch.uint8).copy_(message)

        return wait

    @_outside_of_transforms
    def all_gather(self, mine: memoryview, everybodys: memoryview) -> None:
        message = self._torch.frombuffer(bytearray(mine), dtype=self._torch.uint8)
        parts = [self._torch.empty_like(message) for _ in range(self._size)]
        work = [self._checked(self._open_group().allgather, [parts], [message])]
        try:
            start = time.monotonic()
            while not work[0].is_completed():  # wait() would block signal handlers until the last rank has joined
                _pause(time.monotonic() - start)
        except BaseException:
            self._gathering = work.pop()
            raise
        self._checked(lambda: work.pop().wait())
        self._torch.cat(parts, out=self._torch.frombuffer(everybodys, dtype=self._torch.uint8))

    def fail(self, why: str) -> None:
        """Writes the reason to the store of the job and closes the connections, so that the other ranks stop
        waiting.
        """
        if self._failure is None:
            with contextlib.suppress(Exception):
                self._store.compare_set(self._key, "", f"rank {self.rank} failed: {why}")
        if self._gathering is None:
            self.close()
        else:
            self._close_when_gathered()

    def _close_when_gathered(self) -> None:
        """Closes the connections after the other ranks have joined the all_gather, which gloo cannot abort. The other
        ranks then raise the failure.

        Destroying the gloo group would wait for its all_gather, even when the interpreter exits. An extra reference
        therefore keeps the group alive.
        """
        work, group = self._gathering, ctypes.py_object(self.group)
        ctypes.pythonapi.Py_IncRef(group)

        def wait() -> None:
            nonlocal group, work
            with contextlib.suppress(Exception):
                work.wait()
            ctypes.pythonapi.Py_DecRef(group)
            self._gathering = work = group = None  # type: ignore[assignment]
            self.close()

        threading.Thread(target=wait, daemon=True).start()

    def close(self) -> None:
        if self._gathering is None:
            self.group = None  # gloo closes the connections when the last reference is gone

    def _open_group(self) -> Any:
        if self.group is None:
            raise RunError(f"ring: {self._failure or 'ended by an earlier call that failed'}")
        return self.group

    def _checked(self, function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return function(*arguments)
        except Exception as error:
            del function  # the traceback would keep this bound method, and so the connections, alive
            self._failure = self._failure_of_another()
            if self._failure is None:
                text = str(error).splitlines()[0] if str(error) else type(error).__name__
                self._failure = (
                    f"rank {self.rank}: another rank has failed, or not called within {self._timeout_s:g} s: {text}"
                )
            self.close()  # otherwise a third rank without a connection to the failed one would wait for this rank
            raise RunError(f"ring: {self._failure}") from error

    def _failure_of_another(self) -> Optional[str]:
        """Returns the failure that another rank has written to the store, or None."""
        with contextlib.suppress(Exception):
            if self._store.check([self._key]):
                return str(self._store.get(self._key).decode())
        return None


class MpiMessages:
    """Messages over a duplicate of an mpi4py communicator. Making the duplicate is a collective call.

    An interrupted rank notifies the others. A rank that fails in another way ends the program, as in C++. A rank that
    has waited for another rank for `timeout_s` also ends the program, because a process that caught an error instead
    would hang in MPI_Finalize.
    """

    _MAX_PIECE = 1 << 30  # bytes of one MPI message, because MPI's counts are of type int
    _NOTICE = 8  # the MPI tag of failure notices; messages use their channels, 0 to 7, as tags
    _TRIES = 50  # polls before a wait yields its core, because a yield takes longer than most small messages

    def __init__(self, comm: Any, timeout_s: float) -> None:
        from mpi4py import MPI
        from numpy import empty

        self._mpi, self._empty, self._timeout_s = MPI, empty, timeout_s
        self.rank: int = comm.rank
        self._open: dict[int, Any] = {}  # transfers in progress and their memory, by id
        self._failure: Optional[str] = None  # text of another rank's error
        self._comm: Any = None
        made, request = comm.Idup()
        self._finish([request], None, "the others")
        self._comm = made

    # Messages are copied, because after an interrupt the ring frees its memory while MPI continues transfers in
    # progress.
    def send(self, to: int, channel: int, memory: memoryview) -> _Wait:
        return self._begin(self._comm.Isend, to, channel, memoryview(bytearray(memory)))

    def receive(self, origin: int, channel: int, memory: memoryview) -> _Wait:
        message: Any = self._empty(len(memory), "u1")  # unlike a bytearray, not filled with zeros
        finish = self._begin(self._comm.Irecv, origin, channel, message)

        def wait() -> None:
            finish()
            memory[:] = message

        return wait

    def _begin(self, function: Callable[..., Any], peer: int, channel: int, message: memoryview) -> _Wait:
        requests = self._held(message)
        for begin in range(0, len(message), self._MAX_PIECE):
            piece = message[begin : begin + self._MAX_PIECE]
            requests.append(function([piece, self._mpi.BYTE], peer, channel))
        return lambda: self._finish(requests, message, f"rank {peer}")

    def _held(self, memory: Any) -> list[Any]:
        """Registers memory for requests that are about to use it, and returns their list.

        An interrupt may arrive after a request has started and before it is in the list. MPI then still uses the
        memory.
        """
        requests: list[Any] = []
        self._open[id(requests)] = requests, memory
        return requests

    def all_gather(self, mine: memoryview, everybodys: memoryview) -> None:
        self._listen()
        messages = memoryview(bytearray(mine)), memoryview(bytearray(len(everybodys)))
        sent, received = ([message, self._mpi.BYTE] for message in messages)
        requests = self._held(messages)
        requests.append(self._comm.Iallgather(sent, received))
        self._finish(requests, messages, "the others")
        everybodys[:] = messages[1]

    def _finish(self, requests: list[Any], memory: Any, whom: str) -> None:
        are_done = self._mpi.Request.Testall  # Waitall would handle neither signals nor failure notices
        if not any(are_done(requests) for _ in range(self._TRIES)):
            start = time.monotonic()
            while not are_done(requests):
                waited = time.monotonic() - start
                if waited > _SPIN_S:
                    self._listen()
                if waited > self._timeout_s:
                    self._end_all(f"it has waited {self._timeout_s:g} s for {whom}")
                _yield()  # no pause, because MPI advances long messages only while it is polled
        self._open.pop(id(requests), None)

    def _listen(self) -> None:
        """Raises an error if another rank has sent a failure notice."""
        status = self._mpi.Status()
        if self._comm is not None and self._comm.Iprobe(self._mpi.ANY_SOURCE, self._NOTICE, status):
            text = bytearray(status.Get_count(self._mpi.BYTE))
            self._comm.Recv([text, self._mpi.BYTE], status.Get_source(), self._NOTICE)
            self._failure = self._failure or text.decode()
        if self._failure is not None:
            raise RunError(f"ring: {self._failure}")

    def fail(self, why: str) -> None:
        if why != _core.RING_INTERRUPTED and self._failure is None:
            self._end_all(why)
        _abandoned.append(self._open)
        self._open = {}
        if self._failure is not None:
            return
        text = f"rank {self.rank} failed: {why}".encode()
        others = (rank for rank in range(self._comm.size) if rank != self.rank)
        _abandoned.append(text)
        _abandoned.append([self._comm.Isend([text, self._mpi.BYTE], rank, self._NOTICE) for rank in others])

    def _end_all(self, why: str) -> NoReturn:
        print(f"attend: rank {self.rank} of the ring failed: {why}", file=sys.stderr, flush=True)
        self._mpi.COMM_WORLD.Abort(1)
        raise RunError(f"ring: {why}")  # not reached: MPI_Abort ends the process

    def close(self) -> None:
        if not self._mpi.Is_finalized() and not _abandoned:
            self._comm.Free()


# MPI transfers that were interrupted and are still in progress. The memory of these transfers must stay allocated.
_abandoned: list[Any] = []
