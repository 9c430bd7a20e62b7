"""How messages of a ring travel on CPUs: over torch.distributed (gloo), or over an MPI communicator (mpi4py).

Each class gives what `_core.make_callback_ring` wants: `send` and `receive` begin and give a function that waits,
`all_gather` is a rendezvous, `fail` ends the others' waits.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from attend._errors import RunError

_Wait = Callable[[], None]


class GroupMessages:
    """Over a gloo group of its own with the ranks of `group`, whatever that one's backend is.

    Messages of others do not mix with these, and it can be aborted where a call fails.
    """

    def __init__(self, group: Any, timeout_s: float) -> None:
        import torch
        import torch.distributed as dist

        self._torch, self._dist = torch, dist
        self._ranks = dist.get_process_group_ranks(group)  # global ones, by rank of the ring
        self.rank = dist.get_rank(group)
        self._timeout_s = timeout_s
        time = timedelta(seconds=timeout_s)
        self.group: Any = self._checked(
            dist.new_group, self._ranks, backend="gloo", timeout=time, use_local_synchronization=True
        )

    # Messages are copied: gloo may hold on to their memory after a call that failed has let go of it.
    def send(self, to: int, channel: int, memory: memoryview) -> _Wait:
        message = self._torch.frombuffer(bytearray(memory), dtype=self._torch.uint8)
        work = self._checked(self._dist.isend, message, self._ranks[to], group=self.group, tag=channel)
        return lambda: self._checked(work.wait)

    def receive(self, origin: int, channel: int, memory: memoryview) -> _Wait:
        message = self._torch.empty(len(memory), dtype=self._torch.uint8)
        work = self._checked(self._dist.irecv, message, self._ranks[origin], group=self.group, tag=channel)

        def wait() -> None:
            self._checked(work.wait)
            self._torch.frombuffer(memory, dtype=self._torch.uint8).copy_(message)

        return wait

    def all_gather(self, mine: memoryview, everybodys: memoryview) -> None:
        message = self._torch.frombuffer(bytearray(mine), dtype=self._torch.uint8)
        parts = [self._torch.empty_like(message) for _ in self._ranks]
        self._checked(self._dist.all_gather, parts, message, group=self.group)
        self._torch.cat(parts, out=self._torch.frombuffer(everybodys, dtype=self._torch.uint8))

    def fail(self, why: str) -> None:
        """The connections close, which ends the others' waits."""
        self.close()

    def close(self) -> None:
        group, self.group = self.group, None  # gloo closes them with the last reference, and not by any call
        # One that was destroyed with the default group is as good as closed.
        with contextlib.suppress(Exception):
            self._dist.destroy_process_group(group)

    def _checked(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        try:
            return function(*arguments, **named)
        except Exception as error:
            text = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise RunError(
                f"ring: rank {self.rank}: another rank has failed, or not called within {self._timeout_s:g} s: {text}"
            ) from error


class MpiMessages:
    """Over a duplicate of an mpi4py communicator. A call that fails ends the program, as in C++."""

    _MAX_PIECE = 1 << 30  # bytes: MPI counts in int

    def __init__(self, comm: Any) -> None:
        from mpi4py import MPI

        self._mpi, self._comm = MPI, comm.Dup()
        self.rank: int = comm.rank

    def send(self, to: int, channel: int, memory: memoryview) -> _Wait:
        return self._begin(self._comm.Isend, to, channel, memory)

    def receive(self, origin: int, channel: int, memory: memoryview) -> _Wait:
        return self._begin(self._comm.Irecv, origin, channel, memory)

    def _begin(self, function: Callable[..., Any], peer: int, channel: int, memory: memoryview) -> _Wait:
        cuts = range(0, len(memory), self._MAX_PIECE)
        pieces = [memory[begin : begin + self._MAX_PIECE] for begin in cuts]
        requests = [function([piece, self._mpi.BYTE], peer, channel) for piece in pieces]
        return lambda: self._mpi.Request.Waitall(requests)

    def all_gather(self, mine: memoryview, everybodys: memoryview) -> None:
        self._comm.Allgather([mine, self._mpi.BYTE], [everybodys, self._mpi.BYTE])

    def fail(self, why: str) -> None:
        print(f"attend: rank {self.rank} of the ring failed: {why}", file=sys.stderr, flush=True)
        self._comm.Abort(1)

    def close(self) -> None:
        if not self._mpi.Is_finalized():
            self._comm.Free()
