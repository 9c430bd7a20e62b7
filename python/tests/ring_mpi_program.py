"""Run by mpirun (test_ring_mpi.py): attend.ring of NumPy arrays on MPI communicators. Ends with 1 where it is wrong."""

import sys

import attend
import numpy as np
from attend import ring
from mpi4py import MPI

ALGORITHMS = {"zigzag": "automatic", "contiguous": "all_gather", "striped": "exchange"}
OPTIONS = dict(causal=True, softcap=3.0, dropout_p=0.2, seed=9)


def main() -> None:
    comm = MPI.COMM_WORLD
    rng = np.random.default_rng(int(sys.argv[1]))  # alike on every rank
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
    half = comm.Split(comm.rank % 2)  # a communicator that goes before the program ends
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
    """The same line on every rank, and the ring is as good as new."""
    texts = []
    for options in (dict(causal=comm.rank == 1), dict(softcap=-1.0 if comm.rank == 1 else 0.0), dict(compute="nobody")):
        try:
            ring.attention(*mine, comm=comm, sharding="striped", **options)
        except attend.ArgumentError as error:
            texts.append(str(error))
    assert len(texts) == 3 and comm.allgather(texts) == [texts] * comm.size, texts
    assert texts[0] == "causal: true on rank 1, allowed false as on rank 0"


main()
