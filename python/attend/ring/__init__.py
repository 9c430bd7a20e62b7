"""Ring attention: exact attention of one sequence whose tokens are distributed over several ranks (context
parallelism).

    from attend.ring import ring_attention, shard

    q, k, v = (shard(x, 2) for x in (q, k, v))     # this rank's rows of (batch, heads, seqlen, head_dim)
    o = ring_attention(q, k, v, causal=True)       # differentiable; over the default group of torch.distributed

- `ring_attention` computes attention of torch tensors on a torch.distributed group. CPU tensors are sent over gloo, and
  GPU tensors over NCCL.

- `context_parallel` is a context manager for models that call torch's scaled_dot_product_attention.

- `attention` and `backward` compute with NumPy or CuPy arrays on an mpi4py communicator.

- `attend.ring_flash_attn` has the functions of ring-flash-attention under their names.

- `shard`, `unshard`, `join` and `positions` define how rows are distributed over ranks.

- `explain` estimates the cost of a call.

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
