"""The functions of ring-flash-attention, with the same names and the same order of arguments, computed by attend.

    from attend.ring_flash_attn import zigzag_ring_flash_attn_func

The prefix says how the tokens are distributed over the ranks of `group`: `ring_` gives each rank one piece,
`zigzag_ring_` two pieces, and `stripe_` single tokens in turn (`attend.ring.shard`: "contiguous", "zigzag", "striped").
`llama3_` gathers keys and values instead of passing them around the ring, and cuts packed sequences into consecutive
parts. Tensors are (batch, rows, heads, head_dim), packed ones (rows, heads, head_dim), with the rank's rows.

In addition to ring-flash-attention: exact results with every window, ALiBi and dropout (whose mask is the same as on
one device), every mask with every prefix, partial results in float32, CPU tensors over gloo, float32 and float64, and
torch.compile.

Names that are not implemented can be imported, and raise NotImplementedError when called.
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
