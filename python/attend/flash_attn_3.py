"""The functions of flash-attn 3, by their names and with their positional orders, computed by attend.

    from attend.flash_attn_3 import flash_attn_func

As `attend.flash_attn`, with flash-attn 3's options: no dropout, no ALiBi. Each function gives out, or with
return_attn_probs (out, softmax_lse). What attend lacks raises NotImplementedError naming the argument.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

from attend._api import attention, attention_varlen
from attend._drop_in import refuse_unless

__all__ = ["flash_attn_func", "flash_attn_varlen_func"]


def flash_attn_func(
    q: Any,
    k: Any,
    v: Any,
    softmax_scale: Optional[float] = None,
    causal: bool = False,
    qv: Any = None,
    q_descale: Any = None,
    k_descale: Any = None,
    v_descale: Any = None,
    window_size: Sequence[int] = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: Optional[bool] = None,
    deterministic: bool = False,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
) -> Any:
    """Attention of q (batch, seqlen_q, heads_q, head_dim), k and v (batch, seqlen_k, heads_k, head_dim).

    Masks align bottom right. num_splits may be 0 or 1: attend splits, or not, as it sees fit.
    """
    _refuse(qv, q_descale, k_descale, v_descale, attention_chunk, num_splits, pack_gqa, sm_margin)
    out, lse = attention(
        q,
        k,
        v,
        layout="bshd",
        causal=causal,
        window=window_size,
        scale=softmax_scale,
        softcap=softcap,
        deterministic=deterministic,
        return_lse=True,
    )
    return (out, lse) if return_attn_probs else out


def flash_attn_varlen_func(
    q: Any,
    k: Any,
    v: Any,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any,
    max_seqlen_q: int,
    max_seqlen_k: int,
    seqused_q: Any = None,
    seqused_k: Any = None,
    softmax_scale: Optional[float] = None,
    causal: bool = False,
    qv: Any = None,
    q_descale: Any = None,
    k_descale: Any = None,
    v_descale: Any = None,
    window_size: Sequence[int] = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: Optional[bool] = None,
    deterministic: bool = False,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
) -> Any:
    """Attention of packed sequences, q (total_q, heads_q, head_dim): see `attend.attention_varlen`."""
    refuse_unless(seqused_q, (None,), "seqused_q")
    refuse_unless(seqused_k, (None,), "seqused_k")
    _refuse(qv, q_descale, k_descale, v_descale, attention_chunk, num_splits, pack_gqa, sm_margin)
    out, lse = attention_varlen(
        q,
        k,
        v,
        cu_seqlens_q,
        cu_seqlens_k,
        max_seqlen_q,
        max_seqlen_k,
        causal=causal,
        window=window_size,
        scale=softmax_scale,
        softcap=softcap,
        deterministic=deterministic,
        return_lse=True,
    )
    return (out, lse) if return_attn_probs else out


def _refuse(
    qv: Any,
    q_descale: Any,
    k_descale: Any,
    v_descale: Any,
    attention_chunk: int,
    num_splits: int,
    pack_gqa: Optional[bool],
    sm_margin: int,
) -> None:
    refuse_unless(qv, (None,), "qv")
    refuse_unless(q_descale, (None,), "q_descale")
    refuse_unless(k_descale, (None,), "k_descale")
    refuse_unless(v_descale, (None,), "v_descale")
    refuse_unless(attention_chunk, (0,), "attention_chunk")
    refuse_unless(num_splits, (0, 1), "num_splits")
    refuse_unless(pack_gqa, (None, False), "pack_gqa")
    refuse_unless(sm_margin, (0,), "sm_margin")
