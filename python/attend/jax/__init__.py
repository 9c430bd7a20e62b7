"""attend for JAX: the same exact attention as a custom call of XLA, on CPUs and NVIDIA GPUs.

    o = attend.jax.attention(q, k, v, layout="bshd", causal=True)

`attend.jax.attention` works inside jax.jit, grad, vmap, lax.scan, jax.checkpoint and shard_map. See docs/jax.md.
"""

from attend.jax import _call
from attend.jax._activate import activate, restore
from attend.jax._api import attention, attention_varlen
from attend.jax._dot_product import dot_product_attention
from attend.jax._export import disabled_checks
from attend.jax._ring import ring_attention, ring_positions

_call.register()

__all__ = [
    "activate",
    "attention",
    "attention_varlen",
    "disabled_checks",
    "dot_product_attention",
    "restore",
    "ring_attention",
    "ring_positions",
]
