"""Tests of Ctrl-C on one rank of a ring. That rank must always raise KeyboardInterrupt, and the other ranks must soon
raise an error that names the cause.
"""

import importlib.util
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import time

import pytest
from conftest import SEED
from test_ring_mpi import ENVIRONMENT

pytest.importorskip("numpy")
pytest.importorskip("torch")

from attend import ring
from interrupts import call_until_interrupted
from ring_ranks import normal

TRIES = 20
SOON_S = 20  # seconds; the time limit after which a waiting rank gives up is 300 s
PROGRAM = pathlib.Path(__file__).with_name("ring_mpi_interrupt.py")


def outcome_of(call, after):
    """Returns the exception that ends a series of calls. A signal arrives after `after` seconds, or never if `after` is
    None.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    start = time.monotonic()
    try:
        if after is not None:
            call_until_interrupted(call, after)
        while time.monotonic() - start < SOON_S:
            call()
        text = "nothing was raised"
    except BaseException as error:  # noqa: BLE001 (the test checks which error it is)
        text = f"{type(error).__name__}: {error}"
    finally:
        signal.signal(signal.SIGINT, before)
    return text


def run_interrupted(rank, size, device, interrupted, after, with_backward):
    import attend.ring._operators  # noqa: F401 (the import defines the operators)
    import torch
    import torch.distributed as dist
    from attend._settings import Extras, Settings

    group = dist.new_group(list(range(size)))
    ring.connect(group, device)
    q = normal(device, 1, 2, 1024, 64)
    options = (*Extras(), *Settings(causal=True), group.group_name, "zigzag", "exchange", False)
    o, lse = torch.ops.attend.ring_forward(q, q, q, *options)

    def call():
        if with_backward:
            torch.ops.attend.ring_backward(q, q, q, o, lse, o, None, *options)
        else:
            ring.ring_attention(q, q, q, causal=True, group=group)

    dist.barrier()
    text = outcome_of(call, after if rank == interrupted else None)
    later = outcome_of(call, None)
    dist.barrier()
    return text, later


def expect(outcomes, interrupted):
    for rank, (text, later) in enumerate(outcomes):
        told = f"RunError: ring: rank {interrupted} failed: interrupted"
        assert text == ("KeyboardInterrupt: " if rank == interrupted else told), outcomes
        assert later == told or later.startswith("RunError: ring: ended by an earlier call that failed: "), outcomes


@pytest.mark.parametrize("with_backward", [False, True])
@pytest.mark.parametrize("size", [2, 3])
def test_an_interrupt_is_keyboard_interrupt_and_told(ranks, ring_device, size, with_backward):
    if ring_device == "cuda":
        pytest.skip("a call is over once it is on the stream")
    times = random.Random(SEED)
    for _ in range(TRIES // 2):
        interrupted = times.randrange(size)
        expect(ranks(size).run(run_interrupted, interrupted, times.uniform(0.0, 0.4), with_backward), interrupted)


def run_interrupted_while_waiting(rank, size, device):
    """Rank 0 is interrupted while it waits for rank 1, which calls later."""
    import torch.distributed as dist

    group = dist.new_group(list(range(size)))
    ring.connect(group, device)
    x = normal(device, 1, 1, 4, 8)
    dist.barrier()
    start = time.monotonic()
    if rank == 1:
        time.sleep(1.5)
    text = outcome_of(lambda: ring.ring_attention(x, x, x, group=group), 0.3 if rank == 0 else None)
    waited = time.monotonic() - start
    dist.barrier()
    return text, waited


def test_a_rank_that_waits_for_others_hears_an_interrupt_at_once(ranks, ring_device):
    if ring_device == "cuda":
        pytest.skip("ranks on GPUs are told by each other's memory, or by NCCL")
    (text, waited), (others, _) = ranks(2).run(run_interrupted_while_waiting)
    assert text == "KeyboardInterrupt: " and waited < 1.2, (text, waited)
    assert others == "RunError: ring: rank 0 failed: interrupted"


@pytest.mark.skipif(
    importlib.util.find_spec("mpi4py") is None or shutil.which("mpirun") is None,
    reason="mpi4py or mpirun is not installed",
)
@pytest.mark.parametrize("size", [2, 3])
def test_an_interrupt_of_a_process_of_mpi(size):
    command = ["mpirun", "-n", str(size), sys.executable, str(PROGRAM), str(SEED), str(TRIES)]
    done = subprocess.run(
        command, env=os.environ | ENVIRONMENT, capture_output=True, text=True, timeout=120, check=False
    )
    print(done.stdout)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("interrupted and told") == TRIES
