"""Interrupts one rank of a ring repeatedly, each time on a new communicator. test_ring_interrupt.py runs this program
with mpirun.
"""

import random
import signal
import sys
import weakref

import attend
import numpy as np
from attend import _core, ring
from attend.ring._messages import MpiMessages
from interrupts import call_until_interrupted
from mpi4py import MPI


def outcome(comm: MPI.Comm, interrupted: int, after: float) -> str:
    """Returns the exception that ended a call. Also checks that the next call ends."""
    ring.attention(*[np.ones((1, 1, 8, 8), np.float32)] * 3, comm=comm)
    q = np.random.default_rng(0).standard_normal((1, 2, 1024, 64)).astype(np.float32)

    def call() -> None:
        ring.attention(q, q, q, comm=comm, causal=True)

    try:
        if comm.rank == interrupted:
            call_until_interrupted(call, after)
        while True:
            call()
    except BaseException as error:  # noqa: BLE001 (the ranks compare which error it is)
        text = f"{type(error).__name__}: {error}"
    try:
        ring.attention(q, q, q, comm=comm)
    except attend.RunError:
        return text
    return "the ring of an interrupt goes on"


def check_that_memory_in_use_is_kept() -> None:
    """Interrupts immediately after a message has begun, before Python has stored its request. MPI still uses the
    memory, which must not be freed.
    """
    used = []

    def begin(buffer: list, peer: int, channel: int) -> None:
        used.append(weakref.ref(buffer[0].base))
        raise KeyboardInterrupt

    messages = MpiMessages(MPI.COMM_SELF, 300.0)
    try:
        messages._begin(begin, 0, 0, np.empty(100, "u1"))
    except KeyboardInterrupt:
        messages.fail(_core.RING_INTERRUPTED)
    assert used[0]() is not None


def main() -> None:
    check_that_memory_in_use_is_kept()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    world = MPI.COMM_WORLD
    times = random.Random(int(sys.argv[1]))  # the random numbers are the same on every rank
    for _ in range(int(sys.argv[2])):
        interrupted, after = times.randrange(world.size), times.uniform(0.0, 0.4)
        found = world.allgather(outcome(world.Dup(), interrupted, after))
        want = [f"RunError: ring: rank {interrupted} failed: interrupted"] * world.size
        want[interrupted] = "KeyboardInterrupt: "
        assert found == want, found
        if world.rank == 0:
            print("interrupted and told", flush=True)
    x = np.ones((1, 1, 4, 8), np.float32)
    assert np.array_equal(ring.attention(x, x, x, comm=world), x)


main()
