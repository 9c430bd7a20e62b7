"""The functions of ring-flash-attention, with the same names and the same order of arguments, computed by attend.

    from attend.ring_flash_attn import zigzag_ring_flash_attn_func

The prefix of a function determines how the tokens are distributed over the ranks of `group`. With `ring_` each rank has
one chunk, with `zigzag_ring_` two chunks, and with `stripe_` every n-th token, where n is the number of ranks. In
`attend.ring.shard` these are "contiguous", "zigzag" and "striped". Functions with `llama3_` gather keys and values
instead of passing them around the ring, and each rank has one chunk of all packed tokens. Tensors contain the rank's
rows and are (batch, rows, heads, head_dim), or (rows, heads, head_dim) if packed.

In addition to ring-flash-attention's features, these functions support CPU tensors over gloo, float32 and float64,
torch.compile, and every mask with every prefix. Results are exact with every window, with ALiBi, and with dropout,
which drops the same entries as on one device. Partial results are in float32.

Functions that are not implemented can be imported, but raise NotImplementedError when they are called.
"""

from attend._drop_in import StandIn
from attend.ring._flash_attn import dense_functions, varlen_functions
from attend.ring._llama3 import (
    llama3_flash_attn_prepare_cu_seqlens,
    llama3_flash_attn_varlen_func,
    llama3_flash_attn_varlen_kvpacked_func,
    llama3_flash_attn_varlen_qkvpacked_func,
)

ring_flash_attn_func, ring_flash_attn_kvpacked_func, ring_flash_attn_qkvpacked_func = dense_functions(
    "ring_flash_attn", "contiguous"
)
zigzag_ring_flash_attn_func, zigzag_ring_flash_attn_kvpacked_func, zigzag_ring_flash_attn_qkvpacked_func = (
    dense_functions("zigzag_ring_flash_attn", "zigzag")
)
stripe_flash_attn_func, stripe_flash_attn_kvpacked_func, stripe_flash_attn_qkvpacked_func = dense_functions(
    "stripe_flash_attn", "striped"
)
ring_flash_attn_varlen_func, ring_flash_attn_varlen_kvpacked_func, ring_flash_attn_varlen_qkvpacked_func = (
    varlen_functions("ring_flash_attn", "contiguous")
)
(
    zigzag_ring_flash_attn_varlen_func,
    zigzag_ring_flash_attn_varlen_kvpacked_func,
    zigzag_ring_flash_attn_varlen_qkvpacked_func,
) = varlen_functions("zigzag_ring_flash_attn", "zigzag")
stripe_flash_attn_varlen_func, stripe_flash_attn_varlen_kvpacked_func, stripe_flash_attn_varlen_qkvpacked_func = (
    varlen_functions("stripe_flash_attn", "striped")
)

_INSTEAD = "attend.ring.context_parallel runs a model on the ranks of a group"
substitute_hf_flash_attn = StandIn("substitute_hf_flash_attn", _INSTEAD)
update_ring_flash_attn_params = StandIn("update_ring_flash_attn_params", _INSTEAD)
use_ring_attn = StandIn("use_ring_attn", _INSTEAD)

__all__ = [
    "llama3_flash_attn_prepare_cu_seqlens",
    "llama3_flash_attn_varlen_func",
    "llama3_flash_attn_varlen_kvpacked_func",
    "llama3_flash_attn_varlen_qkvpacked_func",
    "ring_flash_attn_func",
    "ring_flash_attn_kvpacked_func",
    "ring_flash_attn_qkvpacked_func",
    "ring_flash_attn_varlen_func",
    "ring_flash_attn_varlen_kvpacked_func",
    "ring_flash_attn_varlen_qkvpacked_func",
    "stripe_flash_attn_func",
    "stripe_flash_attn_kvpacked_func",
    "stripe_flash_attn_qkvpacked_func",
    "stripe_flash_attn_varlen_func",
    "stripe_flash_attn_varlen_kvpacked_func",
    "stripe_flash_attn_varlen_qkvpacked_func",
    "substitute_hf_flash_attn",
    "update_ring_flash_attn_params",
    "use_ring_attn",
    "zigzag_ring_flash_attn_func",
    "zigzag_ring_flash_attn_kvpacked_func",
    "zigzag_ring_flash_attn_qkvpacked_func",
    "zigzag_ring_flash_attn_varlen_func",
    "zigzag_ring_flash_attn_varlen_kvpacked_func",
    "zigzag_ring_flash_attn_varlen_qkvpacked_func",
]
