"""Tests attend.ring with NumPy arrays on MPI communicators. test_ring_mpi.py runs it with mpirun. Exits with 1 if a
check fails.
"""

import sys

import attend
import numpy as np
from attend import ring
from attend.ring import _seed
from mpi4py import MPI

ALGORITHMS = {"zigzag": "automatic", "contiguous": "all_gather", "striped": "exchange"}
OPTIONS = dict(causal=True, softcap=3.0, dropout_p=0.2, seed=9)


def main() -> None:
    comm = MPI.COMM_WORLD
    rng = np.random.default_rng(int(sys.argv[1]))  # the random numbers are the same on every rank
    q, k, v, dout = (rng.standard_normal((2, heads, 29, 16)).astype(np.float32) for heads in (4, 2, 2, 4))
    o, lse = attend.attention(q, k, v, return_lse=True, **OPTIONS)
    dq, dk, dv = attend.backward(dout, q, k, v, o, lse, **OPTIONS)
    for sharding, algorithm in ALGORITHMS.items():
        own = dict(rank=comm.rank, size=comm.size, sharding=sharding)
        mine = [ring.shard(x, 2, **own) for x in (q, k, v)]
        its_dout = ring.shard(dout, 2, **own)
        named = dict(comm=comm, sharding=sharding, algorithm=algorithm, **OPTIONS)
        ring_o, ring_lse = ring.attention(*mine, return_lse=True, **named)
        gradients = ring.backward(its_dout, *mine, ring_o, ring_lse, **named)
        for name, part, want in zip(
            ("o", "lse", "dq", "dk", "dv"), (ring_o, ring_lse, *gradients), (o, lse, dq, dk, dv)
        ):
            whole = ring.unshard(part, 2, sharding=sharding, comm=comm)
            error = np.abs(whole - want).max()
            if comm.rank == 0:
                print(f"{sharding} {name}: error {error:.2e}")
            assert isinstance(part, np.ndarray) and error <= 1e-5, f"{sharding} {name}: error {error:.2e}"
    check_packed(comm, rng)
    check_refusal(comm, mine)
    check_front_end(comm, mine)
    check_drawn_seeds(comm)
    half = comm.Split(comm.rank % 2)  # a communicator that is freed before the program ends
    x = np.ones((1, 1, 4, 8), np.float32)
    assert np.array_equal(ring.attention(x, x, x, comm=half), x)
    half.Free()


def check_packed(comm: MPI.Comm, rng: np.random.Generator) -> None:
    offsets = np.array([0, 3, 17, 17, 30], np.int32)
    q, k, v = (rng.standard_normal((30, heads, 8)).astype(np.float32) for heads in (4, 2, 2))
    lengths = dict(cu_seqlens_q=offsets, cu_seqlens_k=offsets, max_seqlen_q=14, max_seqlen_k=14, causal=True)
    want, _ = attend.forward(q, k, v, **lengths)
    mine = [ring.shard(x, 0, rank=comm.rank, size=comm.size, cu_seqlens=offsets) for x in (q, k, v)]
    found = ring.unshard(ring.attention(*mine, comm=comm, **lengths), 0, cu_seqlens=offsets, comm=comm)
    assert np.abs(found - want).max() <= 1e-5


def check_refusal(comm: MPI.Comm, mine: list[np.ndarray]) -> None:
    """Checks a refused call. Every rank must raise the same one-line error, and the ring must work afterwards."""
    texts = []
    for options in (dict(causal=comm.rank == 1), dict(softcap=-1.0 if comm.rank == 1 else 0.0), dict(compute="nobody")):
        try:
            ring.attention(*mine, comm=comm, sharding="striped", **options)
        except attend.ArgumentError as error:
            texts.append(str(error))
    assert len(texts) == 3 and comm.allgather(texts) == [texts] * comm.size, texts
    assert texts[0] == "causal: true on rank 1, allowed false as on rank 0"


def check_front_end(comm: MPI.Comm, mine: list[np.ndarray]) -> None:
    """Checks arguments that Python refuses on one rank before it calls the library. All ranks must raise the same
    one-line error.
    """
    q, k, v = mine
    last = comm.size - 1
    wrong = (
        dict(window=(1, 0, 0)),
        dict(seed=1.5, dropout_p=0.1),
        dict(layout="sbhd"),
        dict(q=None),
        dict(q=q[0]),
        dict(k="keys"),
        dict(offset=2),
        dict(sinks=np.zeros(2, np.float32)),
        dict(windw=1),
    )
    starts = (
        "window: 3 values, allowed (left, right)",
        "seed: float, allowed a whole number",
        "layout: 'sbhd', allowed ",
        "q: NoneType, allowed ",
        "q: 3 dimensions, allowed 4",
        "k: str",
        "offset: given without seed",
        "sinks: given, allowed none with attention",
        "",
    )
    for changed, start in zip(wrong, starts):
        arguments = dict(q=q, k=k, v=v, comm=comm, sharding="striped") | (changed if comm.rank == last else {})
        try:
            ring.attention(**arguments)
        except (attend.Error, TypeError) as error:
            text = str(error)
        else:
            text = "nothing was raised"
        texts = comm.allgather(text)
        assert all("windw" in text for text in texts) or texts == [texts[0]] * comm.size, texts
        assert texts[0].startswith(start) and texts[0].endswith(f" (rank {last})"), texts
    for options, start in (
        (dict(dropout_p=0.2), "seed: None with dropout_p > 0, allowed the seed"),
        (dict(sinks=np.zeros(2, np.float32)), "sinks: given, allowed none with backward"),
    ):
        try:
            ring.backward(q, q, k, v, q, q, comm=comm, **options)
        except attend.Error as error:
            assert str(error).startswith(start), error
        else:
            raise AssertionError(f"nothing was raised with {options}")


def check_drawn_seeds(comm: MPI.Comm) -> None:
    """Checks calls without a seed. All ranks must use the seed that rank 0 draws, and each call must use a new seed."""
    ones = np.ones((1, 2, 24, 8), np.float32)
    q = ring.shard(ones, 2, rank=comm.rank, size=comm.size)
    # With this v, o contains the softmax weights of each row after dropout.
    eye = np.broadcast_to(np.eye(24, dtype=np.float32), (1, 2, 24, 24))
    v = ring.shard(eye, 2, rank=comm.rank, size=comm.size)
    found = [ring.unshard(ring.attention(q, q, v, comm=comm, dropout_p=0.5), 2, comm=comm) > 0 for _ in range(2)]
    assert not np.array_equal(*found)
    _seed.drawn_seed = lambda: 1000 + comm.rank
    kept = ring.unshard(ring.attention(q, q, v, comm=comm, dropout_p=0.5), 2, comm=comm) > 0
    assert np.array_equal(kept, attend.attention(ones, ones, eye, dropout_p=0.5, seed=1000) > 0)


main()
