"""The attention functions of xFormers, computed by attend, with the same names. See docs/xformers.md.

    from attend.xformers import LowerTriangularMask, memory_efficient_attention

xFormers need not be installed, and is not imported. If it is installed, `activate()` replaces xFormers' own functions.
"""

from attend.xformers import attn_bias, fmha
from attend.xformers._activate import activate, restore
from attend.xformers.fmha import (
    AttentionBias,
    BlockDiagonalMask,
    LowerTriangularMask,
    memory_efficient_attention,
    memory_efficient_attention_backward,
    memory_efficient_attention_forward,
    memory_efficient_attention_forward_requires_grad,
    memory_efficient_attention_partial,
    merge_attentions,
)

__all__ = [
    "AttentionBias",
    "BlockDiagonalMask",
    "LowerTriangularMask",
    "activate",
    "attn_bias",
    "fmha",
    "memory_efficient_attention",
    "memory_efficient_attention_backward",
    "memory_efficient_attention_forward",
    "memory_efficient_attention_forward_requires_grad",
    "memory_efficient_attention_partial",
    "merge_attentions",
    "restore",
]
