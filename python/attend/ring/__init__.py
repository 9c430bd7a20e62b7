"""Ring attention: exact attention of one sequence whose tokens are distributed over several ranks (context
parallelism).

    from attend.ring import ring_attention, shard

    q, k, v = (shard(x, 2) for x in (q, k, v))     # this rank's rows of (batch, heads, seqlen, head_dim)
    o = ring_attention(q, k, v, causal=True)       # differentiable; over the default group of torch.distributed

- torch: `ring_attention` on a torch.distributed group, CPU tensors over gloo and GPU tensors over NCCL;
- a model that calls torch's scaled_dot_product_attention: `context_parallel`, a context manager;
- NumPy and CuPy: `attention` and `backward` on an mpi4py communicator;
- the functions of ring-flash-attention under their names: `attend.ring_flash_attn`;
- the distribution of rows over ranks: `shard`, `unshard`, `join`, `positions`; the cost of a call: `explain`.

docs/ring.md describes the algorithms and their cost.
"""

from attend.ring._attention import attention, backward, ring_attention
from attend.ring._context_parallel import context_parallel
from attend.ring._contexts import connect
from attend.ring._plan import explain
from attend.ring._shards import join, positions, shard, unshard

__all__ = [
    "attention",
    "backward",
    "connect",
    "context_parallel",
    "explain",
    "join",
    "positions",
    "ring_attention",
    "shard",
    "unshard",
]
