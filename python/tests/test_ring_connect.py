"""Tests of how ranks connect: after different earlier calls, after a failed attempt, after an interrupt, and within
torch.func.
"""

import os
import signal
import threading
import time

import pytest

pytest.importorskip("numpy")
pytest.importorskip("torch")

import attend
from attend import ring
from ring_ranks import normal


def text_of(call):
    try:
        call()
    except BaseException as error:  # noqa: BLE001 (the test checks which error it is)
        return f"{type(error).__name__}: {error}"
    return "ok"


@pytest.fixture(autouse=True)
def on_cpus(ring_device):
    if ring_device == "cuda":
        pytest.skip("the ranks of a GPU meet in torch's own group")


def run_with_another_past(rank, size, device, folder):
    """In an earlier job with the same store, rank 0 was a ring of one rank."""
    import torch.distributed as dist

    x = normal(device, 1, 1, 4, 8)
    dist.destroy_process_group()
    if rank == 0:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        ring.ring_attention(x, x, x)
        dist.destroy_process_group()
    dist.init_process_group("gloo", store=dist.FileStore(f"{folder}/store", size), rank=rank, world_size=size)
    ring.connect(timeout=20)
    return bool(ring.ring_attention(x, x, x).isfinite().all())


def test_ranks_need_not_have_the_same_past(new_ranks, tmp_path):
    assert new_ranks(2).run(run_with_another_past, str(tmp_path)) == [True] * 2


def run_after_a_try(rank, size, device, late):
    """All ranks except one try to connect and give up. Afterwards all ranks connect."""
    import torch.distributed as dist

    group = dist.new_group(list(range(size)))
    first = text_of(lambda: ring.connect(group, timeout=1)) if rank != late else ""
    dist.barrier()
    second = text_of(lambda: ring.connect(group, timeout=20))
    x = normal(device, 1, 1, 4, 8)
    return first, second, text_of(lambda: ring.ring_attention(x, x, x, group=group))


@pytest.mark.parametrize("late", [0, 1, 2])
def test_ranks_connect_after_a_try_that_failed(ranks, late):
    outcomes = ranks(3).run(run_after_a_try, late)
    for rank, (first, second, call) in enumerate(outcomes):
        assert (second, call) == ("ok", "ok"), outcomes
        if rank != late:
            assert first.startswith("RunError: ring: ") and "1 s" in first or "too long" in first, outcomes


def run_interrupted(rank, size, device):
    """Rank 0 is interrupted while it waits for the first call of the other ranks."""
    import torch.distributed as dist

    signal.signal(signal.SIGINT, signal.default_int_handler)
    group = dist.new_group(list(range(size)))
    x = normal(device, 1, 1, 4, 8)
    dist.barrier()
    if rank == 1:
        time.sleep(2)
    else:
        threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    start = time.monotonic()
    first = text_of(lambda: ring.ring_attention(x, x, x, group=group))
    waited = time.monotonic() - start
    dist.barrier()
    return first, waited, text_of(lambda: ring.ring_attention(x, x, x, group=group))


def test_an_interrupt_of_the_first_call_is_heard_at_once_and_told(new_ranks):
    (first, waited, last), (others, _, its_last) = new_ranks(2).run(run_interrupted)
    assert first == "KeyboardInterrupt: " and waited < 1.5, (first, waited)
    assert others == "RunError: ring: rank 0 failed: interrupted"
    assert last == its_last == "ok"


def run_within_transforms(rank, size, device):
    import torch

    x = normal(device, 1, 2, 4, 8)

    def attention(y, **options):
        return ring.ring_attention(y, y, y, **options)

    found = {
        "functionalize": text_of(lambda: torch.func.functionalize(lambda y: attention(y, sinks=1))(x)),
        "grad": text_of(lambda: torch.func.grad(lambda y: attention(y).sum())(x)),
        "jvp": text_of(lambda: torch.func.jvp(attention, (x,), (x,))),
        "vmap": text_of(lambda: torch.func.vmap(lambda y: attention(y, dropout_p=0.5, seed=1))(torch.stack([x, x]))),
    }
    whole = normal(device, 1, 2, 4 * size, 8, seed=7)
    mine = ring.shard(whole, 2)
    error = ring.unshard(attention(mine), 2) - attend.attention(whole, whole, whole)
    return found, error.abs().max().item() <= 1e-5


def test_what_torch_func_cannot_have_is_refused_and_the_ring_goes_on(ranks):
    for found, good in ranks(2).run(run_within_transforms):
        assert found["functionalize"].startswith("UnsupportedError: sinks: given"), found
        assert found["grad"].startswith("RunError: ") and "functorch" in found["grad"], found
        assert found["jvp"].startswith("UnsupportedError: forward-mode derivatives"), found
        assert found["vmap"].startswith("UnsupportedError: dropout_p: with vmap"), found
        assert good


def run_refused_buffers(rank, size, device, name):
    import torch

    first = torch.zeros(8, 4)
    with torch.inference_mode():
        second = torch.zeros(8, 4) if name == "inference" else [1]

    def enter():
        with ring.context_parallel(buffers=[first, second], buffer_seq_dims=[0, 0]):
            pass

    return text_of(enter), tuple(first.shape)


@pytest.mark.parametrize(("name", "why"), [("inference", "made in inference mode"), ("list", "list, allowed a torch")])
def test_a_refused_buffer_leaves_the_others_whole(ranks, name, why):
    for text, shape in ranks(2).run(run_refused_buffers, name):
        assert text.startswith(f"ArgumentError: buffers[1]: {why}") and shape == (8, 4)
