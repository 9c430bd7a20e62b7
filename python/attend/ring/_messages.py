"""How messages of a ring travel on CPUs: over torch.distributed (gloo), or over an MPI communicator (mpi4py).

Each class gives what `_core.make_callback_ring` wants: `send` and `receive` begin and give a function that waits,
`all_gather` is a rendezvous, `fail` ends the others' waits.
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

_SPIN_S = 1e-3  # so long a wait asks again at once
_LONGEST_PAUSE_S = 1e-3
_yield = getattr(os, "sched_yield", lambda: time.sleep(0))  # ranks may be more than cores
_POLL_S = 0.01  # between two questions to the store of a job


def _pause(waited: float) -> None:
    """Between two looks at a message. Python's handlers of signals run here; what comes is late by a tenth at most."""
    if waited < _SPIN_S:
        _yield()
    else:
        time.sleep(min(_LONGEST_PAUSE_S, waited / 10))


def _meet(store: Any, name: str, rank: int, size: int, timeout_s: float) -> str:
    """The name under which the ranks of a group connect now, once all of them have come. All is said in the store of
    the job: rank 0 opens a try, the others come to one that is newer than their last. Python's handlers of signals run
    while a rank waits.

    Raises:
        attend.RunError where not all have come within `timeout_s`, or one of them has given up.
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
            store.set(opened, "0")  # whoever comes late waits for the next try; an interrupt it hears of
        raise
    return found


def _outside_of_transforms(function: _Method) -> _Method:
    """The tensors of messages are no part of what torch.func transforms."""

    @functools.wraps(function)
    def call(self: Any, *arguments: Any) -> Any:
        with self._torch._C._DisableFuncTorch():
            return function(self, *arguments)

    return call  # type: ignore[return-value]


class GroupMessages:
    """Over gloo connections of its own between the ranks of `group`, whatever that one's backend is.

    Messages of others do not mix with these, and it can be aborted where a call fails. torch.distributed.new_group does
    not make it: that one names a group by how many groups the process has, and ranks need not have as many.
    """

    def __init__(self, group: Any, timeout_s: float) -> None:
        import torch
        import torch.distributed as dist
        from torch.distributed import distributed_c10d as c10d

        self._torch = torch
        self.rank, self._size = dist.get_rank(group), dist.get_world_size(group)
        self._timeout_s = timeout_s
        self._failure: Optional[str] = None  # of another rank, or that a message has found
        self._gathering: Any = None  # what an interrupt has left under way
        self._store: Any = vars(c10d)["_get_default_store"]()
        name = f"attend/ring/{group.group_name}/{dist.get_global_rank(group, 0)}"
        self.group: Any = None
        name = _meet(self._store, name, self.rank, self._size, timeout_s)
        self._key = f"{name}/failure"
        self.group = self._checked(self._gloo, name)

    def _gloo(self, name: str) -> Any:
        import torch.distributed

        dist: Any = torch.distributed  # whose annotations lack PrefixStore
        if not dist.is_gloo_available():
            raise RuntimeError("torch.distributed has no gloo here")
        store = dist.PrefixStore(name, self._store)
        return dist.ProcessGroupGloo(store, self.rank, self._size, timedelta(seconds=self._timeout_s))

    # Messages are copied: gloo may hold on to their memory after a call that failed has let go of it.
    @_outside_of_transforms
    def send(self, to: int, channel: int, memory: memoryview) -> _Wait:
        message = self._torch.frombuffer(bytearray(memory), dtype=self._torch.uint8)
        # Not by a name: the traceback of an interrupt would hold it, and with it the connections.
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
            while not work[0].is_completed():  # wait() would hear no signal until the last rank is there
                _pause(time.monotonic() - start)
        except BaseException:
            self._gathering = work.pop()
            raise
        self._checked(lambda: work.pop().wait())
        self._torch.cat(parts, out=self._torch.frombuffer(everybodys, dtype=self._torch.uint8))

    def fail(self, why: str) -> None:
        """The connections close, which ends the others' waits. What they ended by lies in the store of the job."""
        if self._failure is None:
            with contextlib.suppress(Exception):
                self._store.compare_set(self._key, "", f"rank {self.rank} failed: {why}")
        if self._gathering is None:
            self.close()
        else:
            self._close_when_gathered()

    def _close_when_gathered(self) -> None:
        """Once the others have come, which go on then and have to hear of it. gloo ends no gather before that.

        A group that goes waits for its gather, even at the interpreter's end: this one has a reference that stays.
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
            self.group = None  # gloo closes them with the last reference, and not by any call

    def _open_group(self) -> Any:
        if self.group is None:
            raise RunError(f"ring: {self._failure or 'ended by an earlier call that failed'}")
        return self.group

    def _checked(self, function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return function(*arguments)
        except Exception as error:
            del function  # a method of the connections, which the traceback would keep open
            self._failure = self._failure_of_another()
            if self._failure is None:
                text = str(error).splitlines()[0] if str(error) else type(error).__name__
                self._failure = (
                    f"rank {self.rank}: another rank has failed, or not called within {self._timeout_s:g} s: {text}"
                )
            self.close()  # or a third rank would wait for this one: not all are connected with the one that failed
            raise RunError(f"ring: {self._failure}") from error

    def _failure_of_another(self) -> Optional[str]:
        """If it could still say it."""
        with contextlib.suppress(Exception):
            if self._store.check([self._key]):
                return str(self._store.get(self._key).decode())
        return None


class MpiMessages:
    """Over a duplicate of an mpi4py communicator, made by all ranks at once.

    A rank that is interrupted tells the others. One that fails in another way ends the program, as in C++, and so does
    one that has waited for another for `timeout_s`: whoever caught an error would wait for it in MPI_Finalize.
    """

    _MAX_PIECE = 1 << 30  # bytes: MPI counts in int
    _NOTICE = 8  # a tag: the channels of messages are 0 to 7
    _TRIES = 50  # before a wait yields its processor, which takes longer than most small messages

    def __init__(self, comm: Any, timeout_s: float) -> None:
        from mpi4py import MPI
        from numpy import empty

        self._mpi, self._empty, self._timeout_s = MPI, empty, timeout_s
        self.rank: int = comm.rank
        self._open: dict[int, Any] = {}  # what is under way, with its memory
        self._failure: Optional[str] = None  # of another rank
        self._comm: Any = None
        made, request = comm.Idup()
        self._finish([request], None, "the others")
        self._comm = made

    # Messages are copied: after an interrupt MPI goes on with what is under way, and the ring's own memory is gone.
    def send(self, to: int, channel: int, memory: memoryview) -> _Wait:
        return self._begin(self._comm.Isend, to, channel, memoryview(bytearray(memory)))

    def receive(self, origin: int, channel: int, memory: memoryview) -> _Wait:
        message: Any = self._empty(len(memory), "u1")  # not a bytearray, which would be filled with zeros
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
        """For the requests that are about to use the memory. An interrupt may come once one has begun, before it is in
        the list: MPI goes on with the memory then."""
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
        are_done = self._mpi.Request.Testall  # Waitall would hear no signal, nor a notice
        if not any(are_done(requests) for _ in range(self._TRIES)):
            start = time.monotonic()
            while not are_done(requests):
                waited = time.monotonic() - start
                if waited > _SPIN_S:
                    self._listen()
                if waited > self._timeout_s:
                    self._end_all(f"it has waited {self._timeout_s:g} s for {whom}")
                _yield()  # and no pause: MPI moves long messages only as far as it is asked
        self._open.pop(id(requests), None)

    def _listen(self) -> None:
        """Raises what another rank that has failed had to say."""
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
        raise RunError(f"ring: {why}")  # never: MPI_Abort ends the process

    def close(self) -> None:
        if not self._mpi.Is_finalized() and not _abandoned:
            self._comm.Free()


# Messages of MPI that an interrupt has left under way: their memory stays where it is.
_abandoned: list[Any] = []
