"""Tests of rings in which a rank disagrees, refuses, stalls, fails or dies. The other ranks must soon raise a one-line
error.
"""

import time

import pytest

np = pytest.importorskip("numpy")
pytest.importorskip("torch")

import attend
from attend import ring
from ring_ranks import RaisedError, Ranks, normal


def run_disagreeing(rank, size, device, name):
    import torch

    q, k, v = (normal(device, 1, 4, 6, 8, seed=n) for n in range(3))
    options = {}
    if rank == 1:
        if name == "causal":
            options["causal"] = True
        elif name == "sharding":
            options["sharding"] = "striped"
        elif name == "dtype":
            k = k.double()
        elif name == "heads":
            k, v = k[:, :2], v[:, :2]
        elif name == "rows":
            q = q[:, :, :4]
        elif name == "bias":
            options["bias"] = torch.zeros(1, 4, 6, 11, device=device)
        elif name == "spelling":
            options["sharding"] = "spiral"
        elif name == "algorithm":
            options["algorithm"] = "all_gather"
        elif name == "unknown":
            options["algorithm"] = "pigeons"
    try:
        ring.ring_attention(q, k, v, **options)
    except attend.Error as error:
        text = f"{type(error).__name__}: {error}"
    else:
        text = "nothing was raised"
    good = ring.ring_attention(q, q, q) if name != "rows" else q  # afterwards the ring works
    return text, bool(good.isfinite().all())


DISAGREEMENTS = {
    "algorithm": "ArgumentError: algorithm: all_gather on rank 1, allowed automatic as on rank 0",
    "unknown": "ArgumentError: algorithm: 'pigeons', allowed 'automatic', 'exchange', 'all_gather', "
    "'all_to_all', 'two_level' (ran",
    "causal": "ArgumentError: causal: true on rank 1, allowed false as on rank 0",
    "sharding": "ArgumentError: sharding: striped on rank 1, allowed zigzag as on rank 0",
    "dtype": "ArgumentError: k: dtype f64, allowed f32 as q (any with compute='reference') (rank 1)",
    "heads": "ArgumentError: k: f32 (batch 1, heads 2, head_dim 8) on ",
    "rows": "ArgumentError: q: seqlen ",
    "bias": "ArgumentError: bias: given on rank 1, allowed none as on rank 0",
    "spelling": "ArgumentError: sharding: 'spiral', allowed 'contiguous', 'zigzag', 'striped' (rank 1)",
}


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("name", DISAGREEMENTS)
def test_a_rank_that_disagrees_is_named_on_all(ranks, size, name):
    outcomes = ranks(size).run(run_disagreeing, name)
    texts = {text for text, _ in outcomes}
    assert len(texts) == 1 and next(iter(texts)).startswith(DISAGREEMENTS[name]) and "\n" not in next(iter(texts))
    assert all(good for _, good in outcomes)


def run_without_rank_1(rank, size, device):
    import torch.distributed as dist

    group = dist.new_group(list(range(size)))
    ring.connect(group, device, timeout=2)
    x = normal(device, 1, 1, 4, 8)
    ring.ring_attention(x, x, x, group=group)
    if rank == 1:
        return 0.0
    start = time.monotonic()
    try:
        ring.ring_attention(x, x, x, group=group)
    except RuntimeError as error:
        assert "\n" not in str(error), str(error)
        assert str(error).startswith(f"ring: rank {rank}"), str(error)
    else:
        raise AssertionError("nothing was raised")
    return time.monotonic() - start


def test_a_rank_that_does_not_call_is_waited_for_so_long(ranks):
    waited = ranks(2).run(run_without_rank_1)
    assert waited[1] == 0 and 1 <= waited[0] <= 30


def run_and_die(rank, size, device):
    import os

    x = normal(device, 1, 1, 4, 8)
    ring.ring_attention(x, x, x)
    if rank == 1:
        os._exit(1)
    ring.ring_attention(x, x, x)


def test_a_rank_that_dies_ends_the_others(ring_device):
    """The other ranks end long before the time limit of 5 minutes."""
    if ring_device == "cuda":
        pytest.skip("NCCL notices a rank that died by the time-out only, which is that of the test above")
    pool = Ranks(3, ring_device)
    start = time.monotonic()
    try:
        outcomes = pool.outcomes(run_and_die, dying=1)
    finally:
        pool.close()
    assert time.monotonic() - start < 60
    for rank in (0, 2):
        assert isinstance(outcomes[rank], RaisedError) and "RunError" in outcomes[rank].classes
        assert outcomes[rank].text.startswith(f"ring: rank {rank}: another rank has failed")


def run_with_a_broken_rank(rank, size, device):
    """Rank 1 fails when it sends keys. Returns the errors of this rank's first call and of its next call."""
    import torch.distributed as dist
    from attend.ring import _messages

    sound = _messages.GroupMessages.send

    def send(self, to, channel, memory):
        if channel != 0:  # channel 0 is used for the messages before a call
            raise OSError("the cable\nis out")
        return sound(self, to, channel, memory)

    group = dist.new_group(list(range(size)))
    _messages.GroupMessages.send = send if rank == 1 else sound
    try:
        ring.connect(group, device)
    finally:
        _messages.GroupMessages.send = sound
    x, texts = normal(device, 1, 1, 4, 8), []
    for _ in range(2):
        try:
            ring.ring_attention(x, x, x, group=group)
        except attend.RunError as error:
            texts.append(str(error))
    return texts


def test_a_rank_that_fails_ends_the_others(ranks, ring_device):
    if ring_device == "cuda":
        pytest.skip("NCCL sends by itself")
    start = time.monotonic()
    outcomes = ranks(2).run(run_with_a_broken_rank)
    assert time.monotonic() - start < 60
    print(outcomes)
    assert outcomes[1][0] == "the cable is out"
    assert outcomes[0][0] == "ring: rank 1 failed: the cable is out"
    assert all(texts[1].startswith("ring: ended by an earlier call that failed: ") for texts in outcomes)


def run_refusals(rank, size, device):
    import torch

    x, texts = normal(device, 1, 2, 4, 8), {}
    bias = torch.zeros(1, 2, 4, 4 * size, device=device, requires_grad=True)
    slopes = torch.ones(2, device=device, requires_grad=True)
    for name, call in {
        "array": lambda: ring.ring_attention(x.cpu().numpy(), x, x),
        "bias": lambda: ring.ring_attention(x, x, x, bias=bias),
        "slopes": lambda: ring.ring_attention(x, x, x, alibi_slopes=slopes),
        "group": lambda: ring.ring_attention(x, x, x, group=7),
        "name": lambda: ring.ring_attention(x, x, x, group="nobody's"),
        "layout": lambda: ring.ring_attention(x, x, x, layout="sbhd"),
        "compute": lambda: ring.ring_attention(x, x, x, compute="nobody"),
        "connect": lambda: ring.connect(None, device),
    }.items():
        try:
            call()
        except (attend.Error, RuntimeError) as error:
            texts[name] = str(error)
    return texts


def test_what_is_refused(ranks):
    texts = ranks(2).run(run_refusals)[1]
    starts = {
        "array": "q: ndarray, allowed a torch.Tensor",
        "bias": "bias: requires grad; a ring gives no gradient",
        "slopes": "alibi_slopes: requires grad; attend gives no gradient",
        "group": "group: int, allowed a process group, its name",
        "name": 'group: "nobody\'s", allowed the name of a group',
        "layout": "layout: 'sbhd', allowed 'bhsd', 'bshd'",
        "compute": "compute: 'nobody', allowed ",
        "connect": "group: connected on ",
    }
    assert {name: texts.get(name, "nothing")[: len(start)] for name, start in starts.items()} == starts
    assert not any("\n" in text for text in texts.values())


def test_without_torch_distributed():
    import torch

    x = torch.zeros(1, 1, 4, 8)
    with pytest.raises(RuntimeError, match="^group: torch.distributed is not initialised, allowed after"):
        ring.ring_attention(x, x, x)
