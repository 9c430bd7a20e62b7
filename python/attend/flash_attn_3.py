"""The functions of flash-attn 3, computed by attend, with the same names and argument order.

    from attend.flash_attn_3 import flash_attn_func

Like `attend.flash_attn`, but with flash-attn 3's options, which include neither dropout nor ALiBi. Each function
returns out, or (out, softmax_lse) with return_attn_probs. An option that attend does not support raises
NotImplementedError, which names the argument. A function that attend does not support can be imported, but raises
NotImplementedError when it is called.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, Optional, Union, overload

from attend._api import attention, attention_qkvpacked, attention_varlen
from attend._drop_in import FLASH_NAMES, StandIn, refuse_unless, renamed
from attend._errors import ArgumentError, Error
from attend._flash_attn_3_inputs import joined, without_unused
from attend._flash_attn_kvcache import with_kvcache
from attend._flash_attn_paged import no_metadata, varlen_with_pages
from attend._packed import heads_of
from attend._resolve import NO_SOFTCAP, OPEN

if TYPE_CHECKING:
    from torch import Tensor, dtype

    from attend._types import Array, ArrayT, WholeNumber

__all__ = [
    "FlashAttnFunc",
    "FlashAttnQKVPackedFunc",
    "FlashAttnVarlenFunc",
    "_flash_attn_backward",
    "_flash_attn_forward",
    "flash_attn_combine",
    "flash_attn_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_with_kvcache",
    "get_scheduler_metadata",
]

FlashAttnFunc = StandIn("FlashAttnFunc", "flash_attn_func is there")
FlashAttnQKVPackedFunc = StandIn("FlashAttnQKVPackedFunc", "flash_attn_qkvpacked_func is there")
FlashAttnVarlenFunc = StandIn("FlashAttnVarlenFunc", "flash_attn_varlen_func is there")
_flash_attn_backward = StandIn("_flash_attn_backward", "attend.backward is there")
_flash_attn_forward = StandIn("_flash_attn_forward", "attend.forward is there")


@overload
def flash_attn_func(
    q: ArrayT, k: ArrayT, v: ArrayT, softmax_scale: Optional[float] = ..., causal: bool = ...,
    qv: Optional[Array] = ..., q_descale: Optional[Array] = ..., k_descale: Optional[Array] = ...,
    v_descale: Optional[Array] = ..., window_size: Sequence[int] = ..., attention_chunk: int = ...,
    softcap: float = ..., num_splits: int = ..., pack_gqa: Optional[bool] = ..., deterministic: bool = ...,
    sm_margin: int = ..., return_attn_probs: Literal[False] = ..., *, s_aux: Optional[Array] = ...,
    learnable_sink: Optional[Array] = ...,
) -> ArrayT: ...  # fmt: skip
@overload
def flash_attn_func(
    q: ArrayT, k: ArrayT, v: ArrayT, softmax_scale: Optional[float] = ..., causal: bool = ...,
    qv: Optional[Array] = ..., q_descale: Optional[Array] = ..., k_descale: Optional[Array] = ...,
    v_descale: Optional[Array] = ..., window_size: Sequence[int] = ..., attention_chunk: int = ...,
    softcap: float = ..., num_splits: int = ..., pack_gqa: Optional[bool] = ..., deterministic: bool = ...,
    sm_margin: int = ..., *, return_attn_probs: Literal[True], s_aux: Optional[Array] = ...,
    learnable_sink: Optional[Array] = ...,
) -> tuple[ArrayT, ArrayT]: ...  # fmt: skip
@overload
def flash_attn_func(
    q: ArrayT, k: ArrayT, v: ArrayT, softmax_scale: Optional[float] = ..., causal: bool = ...,
    qv: Optional[Array] = ..., q_descale: Optional[Array] = ..., k_descale: Optional[Array] = ...,
    v_descale: Optional[Array] = ..., window_size: Sequence[int] = ..., attention_chunk: int = ...,
    softcap: float = ..., num_splits: int = ..., pack_gqa: Optional[bool] = ..., deterministic: bool = ...,
    sm_margin: int = ..., return_attn_probs: bool = ..., *, s_aux: Optional[Array] = ...,
    learnable_sink: Optional[Array] = ...,
) -> Union[ArrayT, tuple[ArrayT, ArrayT]]: ...  # fmt: skip
def flash_attn_func(
    q: Array, k: Array, v: Array, softmax_scale: Optional[float] = None, causal: bool = False,
    qv: Optional[Array] = None, q_descale: Optional[Array] = None, k_descale: Optional[Array] = None,
    v_descale: Optional[Array] = None, window_size: Sequence[int] = OPEN, attention_chunk: int = 0,
    softcap: float = NO_SOFTCAP, num_splits: int = 1, pack_gqa: Optional[bool] = None, deterministic: bool = False,
    sm_margin: int = 0, return_attn_probs: bool = False, *, s_aux: Optional[Array] = None,
    learnable_sink: Optional[Array] = None,
) -> Any:  # fmt: skip
    """Attention of q (batch, seqlen_q, heads_q, head_dim) with k and v (batch, seqlen_k, heads_k, head_dim).

    Masks align bottom right. num_splits, pack_gqa and sm_margin are ignored, because in flash-attn they only divide the
    work and do not change results.

    qv: like q (batch, seqlen_q, heads_q, head_dim of v). The scores become softmax_scale * (q k^T + qv v^T), and
    softmax_scale defaults to 1 / sqrt(head_dim + head_dim of v). The sum of the two head dimensions is at most 512. The
    call copies q and qv into one tensor, and k and v into another. qv is differentiable, unlike in flash-attn.

    s_aux, or learnable_sink, its name in flash-attn 4: float (heads_q), one extra score per row that belongs to no key.
    It equals `sinks` of `attend.attention` and is differentiable.
    """
    _refuse(q_descale, k_descale, v_descale, attention_chunk)
    q, k = joined(q, k, v, qv)
    sinks = _sinks(s_aux, learnable_sink)
    options = (softmax_scale, causal, window_size, softcap, deterministic, return_attn_probs, sinks)
    return _attend(attention, (q, k, v), *options, layout="bshd")


@overload
def flash_attn_varlen_func(
    q: ArrayT, k: ArrayT, v: ArrayT, cu_seqlens_q: Array, cu_seqlens_k: Array, max_seqlen_q: int, max_seqlen_k: int,
    seqused_q: Optional[Array] = ..., seqused_k: Optional[Array] = ..., softmax_scale: Optional[float] = ...,
    causal: bool = ..., qv: Optional[Array] = ..., q_descale: Optional[Array] = ..., k_descale: Optional[Array] = ...,
    v_descale: Optional[Array] = ..., window_size: Sequence[int] = ..., attention_chunk: int = ...,
    softcap: float = ..., num_splits: int = ..., pack_gqa: Optional[bool] = ..., deterministic: bool = ...,
    sm_margin: int = ..., return_attn_probs: Literal[False] = ..., *, s_aux: Optional[Array] = ...,
    learnable_sink: Optional[Array] = ..., page_table: Optional[Array] = ..., block_table: Optional[Array] = ...,
    scheduler_metadata: Optional[Array] = ...,
) -> ArrayT: ...  # fmt: skip
@overload
def flash_attn_varlen_func(
    q: ArrayT, k: ArrayT, v: ArrayT, cu_seqlens_q: Array, cu_seqlens_k: Array, max_seqlen_q: int, max_seqlen_k: int,
    seqused_q: Optional[Array] = ..., seqused_k: Optional[Array] = ..., softmax_scale: Optional[float] = ...,
    causal: bool = ..., qv: Optional[Array] = ..., q_descale: Optional[Array] = ..., k_descale: Optional[Array] = ...,
    v_descale: Optional[Array] = ..., window_size: Sequence[int] = ..., attention_chunk: int = ...,
    softcap: float = ..., num_splits: int = ..., pack_gqa: Optional[bool] = ..., deterministic: bool = ...,
    sm_margin: int = ..., *, return_attn_probs: Literal[True], s_aux: Optional[Array] = ...,
    learnable_sink: Optional[Array] = ..., page_table: Optional[Array] = ..., block_table: Optional[Array] = ...,
    scheduler_metadata: Optional[Array] = ...,
) -> tuple[ArrayT, ArrayT]: ...  # fmt: skip
@overload
def flash_attn_varlen_func(
    q: ArrayT, k: ArrayT, v: ArrayT, cu_seqlens_q: Array, cu_seqlens_k: Array, max_seqlen_q: int, max_seqlen_k: int,
    seqused_q: Optional[Array] = ..., seqused_k: Optional[Array] = ..., softmax_scale: Optional[float] = ...,
    causal: bool = ..., qv: Optional[Array] = ..., q_descale: Optional[Array] = ..., k_descale: Optional[Array] = ...,
    v_descale: Optional[Array] = ..., window_size: Sequence[int] = ..., attention_chunk: int = ...,
    softcap: float = ..., num_splits: int = ..., pack_gqa: Optional[bool] = ..., deterministic: bool = ...,
    sm_margin: int = ..., return_attn_probs: bool = ..., *, s_aux: Optional[Array] = ...,
    learnable_sink: Optional[Array] = ..., page_table: Optional[Array] = ..., block_table: Optional[Array] = ...,
    scheduler_metadata: Optional[Array] = ...,
) -> Union[ArrayT, tuple[ArrayT, ArrayT]]: ...  # fmt: skip
def flash_attn_varlen_func(
    q: Array, k: Array, v: Array, cu_seqlens_q: Array, cu_seqlens_k: Array, max_seqlen_q: int, max_seqlen_k: int,
    seqused_q: Optional[Array] = None, seqused_k: Optional[Array] = None, softmax_scale: Optional[float] = None,
    causal: bool = False, qv: Optional[Array] = None, q_descale: Optional[Array] = None,
    k_descale: Optional[Array] = None, v_descale: Optional[Array] = None, window_size: Sequence[int] = (-1, -1),
    attention_chunk: int = 0, softcap: float = 0.0, num_splits: int = 1, pack_gqa: Optional[bool] = None,
    deterministic: bool = False, sm_margin: int = 0, return_attn_probs: bool = False, *, s_aux: Optional[Array] = None,
    learnable_sink: Optional[Array] = None, page_table: Optional[Array] = None, block_table: Optional[Array] = None,
    scheduler_metadata: Optional[Array] = None,
) -> Any:  # fmt: skip
    """Attention of packed sequences, q (total_q, heads_q, head_dim). See `attend.attention_varlen`.

    seqused_q, seqused_k: i32 (sequences): the number of used rows and keys, counted from the start of each sequence.
    Masks align by these numbers. flash-attn leaves the results of unused rows undefined. attend sets out = 0 and
    softmax_lse = -inf (or s_aux) in unused rows, and the gradients of unused rows and keys to 0. max_seqlen_q and
    max_seqlen_k are upper bounds of the lengths in cu_seqlens_q and cu_seqlens_k, which include unused tokens.

    qv: (total_q, heads_q, head_dim of v). qv, s_aux and learnable_sink: as in `flash_attn_func`.

    page_table (flash-attn 4's name) or block_table: i32 (sequences, pages of a sequence). With a table, k and v are
    (pages, page_size, heads_k, head_dim), and `attend.decode` computes the result without gradients: a tensor that
    requires grad is refused outside of torch.no_grad(). The number of keys of each sequence is given by seqused_k or,
    without it, by the differences of cu_seqlens_k. max_seqlen_k and scheduler_metadata are ignored, and qv is refused.
    """
    _refuse(q_descale, k_descale, v_descale, attention_chunk)
    if page_table is not None and block_table is not None:
        raise ArgumentError("block_table: given with page_table, allowed one of the two")
    if page_table is not None or block_table is not None:
        refuse_unless(qv, (None,), "qv")
        sinks = _sinks(s_aux, learnable_sink)
        table = ("page_table", page_table) if block_table is None else ("block_table", block_table)
        out, lse = varlen_with_pages(
            q, k, v, cu_seqlens_q=cu_seqlens_q, max_seqlen_q=max_seqlen_q, cu_seqlens_k=cu_seqlens_k, page_table=table,
            seqused_q=seqused_q, seqused_k=seqused_k, causal=causal, window_size=window_size,
            softmax_scale=softmax_scale, softcap=softcap, sinks=sinks[1], names={"sinks": sinks[0]},
        )  # fmt: skip
        return (out, lse) if return_attn_probs else out
    cu_seqlens_q, cu_seqlens_k = without_unused(cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k)
    q, k = joined(q, k, v, qv)
    packed = (q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
    sinks = _sinks(s_aux, learnable_sink)
    options = (softmax_scale, causal, window_size, softcap, deterministic, return_attn_probs, sinks)
    return _attend(attention_varlen, packed, *options)


@overload
def flash_attn_qkvpacked_func(
    qkv: ArrayT, softmax_scale: Optional[float] = ..., causal: bool = ..., q_descale: Optional[Array] = ...,
    k_descale: Optional[Array] = ..., v_descale: Optional[Array] = ..., window_size: Sequence[int] = ...,
    attention_chunk: int = ..., softcap: float = ..., deterministic: bool = ..., num_heads_q: Optional[int] = ...,
    sm_margin: int = ..., return_attn_probs: Literal[False] = ..., *, s_aux: Optional[Array] = ...,
    learnable_sink: Optional[Array] = ...,
) -> ArrayT: ...  # fmt: skip
@overload
def flash_attn_qkvpacked_func(
    qkv: ArrayT, softmax_scale: Optional[float] = ..., causal: bool = ..., q_descale: Optional[Array] = ...,
    k_descale: Optional[Array] = ..., v_descale: Optional[Array] = ..., window_size: Sequence[int] = ...,
    attention_chunk: int = ..., softcap: float = ..., deterministic: bool = ..., num_heads_q: Optional[int] = ...,
    sm_margin: int = ..., *, return_attn_probs: Literal[True], s_aux: Optional[Array] = ...,
    learnable_sink: Optional[Array] = ...,
) -> tuple[ArrayT, ArrayT]: ...  # fmt: skip
@overload
def flash_attn_qkvpacked_func(
    qkv: ArrayT, softmax_scale: Optional[float] = ..., causal: bool = ..., q_descale: Optional[Array] = ...,
    k_descale: Optional[Array] = ..., v_descale: Optional[Array] = ..., window_size: Sequence[int] = ...,
    attention_chunk: int = ..., softcap: float = ..., deterministic: bool = ..., num_heads_q: Optional[int] = ...,
    sm_margin: int = ..., return_attn_probs: bool = ..., *, s_aux: Optional[Array] = ...,
    learnable_sink: Optional[Array] = ...,
) -> Union[ArrayT, tuple[ArrayT, ArrayT]]: ...  # fmt: skip
def flash_attn_qkvpacked_func(
    qkv: Array, softmax_scale: Optional[float] = None, causal: bool = False, q_descale: Optional[Array] = None,
    k_descale: Optional[Array] = None, v_descale: Optional[Array] = None, window_size: Sequence[int] = OPEN,
    attention_chunk: int = 0, softcap: float = NO_SOFTCAP, deterministic: bool = False,
    num_heads_q: Optional[int] = None, sm_margin: int = 0, return_attn_probs: bool = False, *,
    s_aux: Optional[Array] = None, learnable_sink: Optional[Array] = None,
) -> Any:  # fmt: skip
    """`flash_attn_func` of a packed qkv (batch, seqlen, 3, heads, head_dim). See `attend.attention_qkvpacked`.

    With num_heads_q, qkv is (batch, seqlen, num_heads_q + 2 * num_heads_k, head_dim): first the heads of q, then those
    of k, then those of v. The call does not copy them, but autograd concatenates the three gradients.
    """
    _refuse(q_descale, k_descale, v_descale, attention_chunk)
    sinks = _sinks(s_aux, learnable_sink)
    options = (softmax_scale, causal, window_size, softcap, deterministic, return_attn_probs, sinks)
    if num_heads_q is None:
        return _attend(attention_qkvpacked, (qkv,), *options)
    return _attend(attention, heads_of(qkv, num_heads_q), *options, layout="bshd")


@overload
def flash_attn_combine(
    out_partial: Tensor, lse_partial: Tensor, out: Optional[Tensor] = ..., out_dtype: Optional[dtype] = ...,
    return_lse: Literal[True] = ...,
) -> tuple[Tensor, Tensor]: ...  # fmt: skip
@overload
def flash_attn_combine(
    out_partial: Tensor, lse_partial: Tensor, out: Optional[Tensor] = ..., out_dtype: Optional[dtype] = ..., *,
    return_lse: Literal[False],
) -> Tensor: ...  # fmt: skip
@overload
def flash_attn_combine(
    out_partial: Tensor, lse_partial: Tensor, out: Optional[Tensor] = ..., out_dtype: Optional[dtype] = ...,
    return_lse: bool = ...,
) -> Union[Tensor, tuple[Tensor, Tensor]]: ...  # fmt: skip
def flash_attn_combine(
    out_partial: Tensor, lse_partial: Tensor, out: Optional[Tensor] = None, out_dtype: Optional[dtype] = None,
    return_lse: bool = True,
) -> Any:  # fmt: skip
    """Merges attention over parts of the keys into attention over all keys.

    Arguments:
        out_partial: torch tensor (parts, batch, seqlen, heads, head_dim).
        lse_partial: f32 (parts, batch, seqlen, heads).
        out: the tensor for the result. None means a new one.
        out_dtype: the dtype of the result. None means that of out_partial.

    Returns:
        (out, lse) or out. out is (batch, seqlen, heads, head_dim) and lse is f32 (batch, seqlen, heads). A row that
        sees no key in any part has out = 0 and lse = -inf.
    """
    if out_partial.shape[:-1] != lse_partial.shape:
        shape = tuple(lse_partial.shape)
        raise ArgumentError(f"lse_partial: shape {shape}, allowed that of out_partial, {tuple(out_partial.shape[:-1])}")
    lse = lse_partial.float().logsumexp(0)
    share = (lse_partial - lse.masked_fill(lse == float("-inf"), 0.0)).exp()
    found = (share[..., None] * out_partial.float()).sum(0).to(out_dtype or out_partial.dtype)
    if out is not None:
        found = out.copy_(found)
    return (found, lse) if return_lse else found


@overload
def flash_attn_with_kvcache(
    q: ArrayT, k_cache: Array, v_cache: Array, k: Optional[Array] = ..., v: Optional[Array] = ...,
    qv: Optional[Array] = ..., rotary_cos: Optional[Array] = ..., rotary_sin: Optional[Array] = ...,
    cache_seqlens: Optional[WholeNumber] = ..., cache_batch_idx: Optional[Array] = ...,
    cache_leftpad: Optional[Array] = ..., page_table: Optional[Array] = ..., cu_seqlens_q: Optional[Array] = ...,
    cu_seqlens_k_new: Optional[Array] = ..., max_seqlen_q: Optional[int] = ..., rotary_seqlens: Optional[Array] = ...,
    q_descale: Optional[Array] = ..., k_descale: Optional[Array] = ..., v_descale: Optional[Array] = ...,
    softmax_scale: Optional[float] = ..., causal: bool = ..., window_size: Sequence[int] = ...,
    attention_chunk: int = ..., softcap: float = ..., rotary_interleaved: bool = ...,
    scheduler_metadata: Optional[Array] = ..., num_splits: int = ..., pack_gqa: Optional[bool] = ...,
    sm_margin: int = ..., return_softmax_lse: Literal[False] = ..., *, s_aux: Optional[Array] = ...,
    learnable_sink: Optional[Array] = ...,
) -> ArrayT: ...  # fmt: skip
@overload
def flash_attn_with_kvcache(
    q: ArrayT, k_cache: Array, v_cache: Array, k: Optional[Array] = ..., v: Optional[Array] = ...,
    qv: Optional[Array] = ..., rotary_cos: Optional[Array] = ..., rotary_sin: Optional[Array] = ...,
    cache_seqlens: Optional[WholeNumber] = ..., cache_batch_idx: Optional[Array] = ...,
    cache_leftpad: Optional[Array] = ..., page_table: Optional[Array] = ..., cu_seqlens_q: Optional[Array] = ...,
    cu_seqlens_k_new: Optional[Array] = ..., max_seqlen_q: Optional[int] = ..., rotary_seqlens: Optional[Array] = ...,
    q_descale: Optional[Array] = ..., k_descale: Optional[Array] = ..., v_descale: Optional[Array] = ...,
    softmax_scale: Optional[float] = ..., causal: bool = ..., window_size: Sequence[int] = ...,
    attention_chunk: int = ..., softcap: float = ..., rotary_interleaved: bool = ...,
    scheduler_metadata: Optional[Array] = ..., num_splits: int = ..., pack_gqa: Optional[bool] = ...,
    sm_margin: int = ..., *, return_softmax_lse: Literal[True], s_aux: Optional[Array] = ...,
    learnable_sink: Optional[Array] = ...,
) -> tuple[ArrayT, ArrayT, None, None]: ...  # fmt: skip
@overload
def flash_attn_with_kvcache(
    q: ArrayT, k_cache: Array, v_cache: Array, k: Optional[Array] = ..., v: Optional[Array] = ...,
    qv: Optional[Array] = ..., rotary_cos: Optional[Array] = ..., rotary_sin: Optional[Array] = ...,
    cache_seqlens: Optional[WholeNumber] = ..., cache_batch_idx: Optional[Array] = ...,
    cache_leftpad: Optional[Array] = ..., page_table: Optional[Array] = ..., cu_seqlens_q: Optional[Array] = ...,
    cu_seqlens_k_new: Optional[Array] = ..., max_seqlen_q: Optional[int] = ..., rotary_seqlens: Optional[Array] = ...,
    q_descale: Optional[Array] = ..., k_descale: Optional[Array] = ..., v_descale: Optional[Array] = ...,
    softmax_scale: Optional[float] = ..., causal: bool = ..., window_size: Sequence[int] = ...,
    attention_chunk: int = ..., softcap: float = ..., rotary_interleaved: bool = ...,
    scheduler_metadata: Optional[Array] = ..., num_splits: int = ..., pack_gqa: Optional[bool] = ...,
    sm_margin: int = ..., return_softmax_lse: bool = ..., *, s_aux: Optional[Array] = ...,
    learnable_sink: Optional[Array] = ...,
) -> Union[ArrayT, tuple[ArrayT, ArrayT, None, None]]: ...  # fmt: skip
def flash_attn_with_kvcache(
    q: Array, k_cache: Array, v_cache: Array, k: Optional[Array] = None, v: Optional[Array] = None,
    qv: Optional[Array] = None, rotary_cos: Optional[Array] = None, rotary_sin: Optional[Array] = None,
    cache_seqlens: Optional[WholeNumber] = None, cache_batch_idx: Optional[Array] = None,
    cache_leftpad: Optional[Array] = None, page_table: Optional[Array] = None, cu_seqlens_q: Optional[Array] = None,
    cu_seqlens_k_new: Optional[Array] = None, max_seqlen_q: Optional[int] = None,
    rotary_seqlens: Optional[Array] = None, q_descale: Optional[Array] = None, k_descale: Optional[Array] = None,
    v_descale: Optional[Array] = None, softmax_scale: Optional[float] = None, causal: bool = False,
    window_size: Sequence[int] = OPEN, attention_chunk: int = 0, softcap: float = NO_SOFTCAP,
    rotary_interleaved: bool = True, scheduler_metadata: Optional[Array] = None, num_splits: int = 0,
    pack_gqa: Optional[bool] = None, sm_margin: int = 0, return_softmax_lse: bool = False, *,
    s_aux: Optional[Array] = None, learnable_sink: Optional[Array] = None,
) -> Any:  # fmt: skip
    """`attend.flash_attn.flash_attn_with_kvcache` with flash-attn 3's options.

    Arguments:
        page_table: flash-attn 2's block_table.
        cu_seqlens_q: i32 (batch + 1). With cu_seqlens_q, q is packed, (total_q, heads_q, head_dim), and no sequence has
            more than max_seqlen_q rows.
        cu_seqlens_k_new: the same for k and v. Ignored without k and v.
        rotary_seqlens: i32 (batch): positions of the rotation begin here instead of at cache_seqlens.
        s_aux, learnable_sink: as in `flash_attn_func`.
        scheduler_metadata, num_splits, pack_gqa, sm_margin: ignored, as in `flash_attn_func`.
        k_descale, v_descale: f32 (batch, heads_k), factors of 8-bit caches. q, k and v have 16 or 32 bits in this case.
        qv, q_descale, attention_chunk: refused.

    Returns:
        out, or (out, softmax_lse, None, None) with return_softmax_lse. softmax_lse is f32 (batch, heads_q, seqlen_q),
        or (heads_q, total_q) if q is packed. In flash-attn the last two values are the partial results of the splits.
    """
    refuse_unless(qv, (None,), "qv")
    refuse_unless(q_descale, (None,), "q_descale")
    refuse_unless(attention_chunk, (0,), "attention_chunk")
    sinks = _sinks(s_aux, learnable_sink)
    is_packed = {"cu_seqlens_q": cu_seqlens_q, "max_seqlen_q": max_seqlen_q} if cu_seqlens_q is not None else {}
    new = {"cu_seqlens_new": cu_seqlens_k_new} if k is not None else {}
    out, lse = with_kvcache(
        q, k_cache, v_cache, k, v, rotary=(rotary_cos, rotary_sin, rotary_interleaved, rotary_seqlens),
        cache_seqlens=cache_seqlens, causal=causal, window_size=window_size, softmax_scale=softmax_scale,
        return_lse=return_softmax_lse, names={"sinks": sinks[0]},
        cache_batch_idx=cache_batch_idx, cache_leftpad=cache_leftpad,
        page_table=page_table, softcap=softcap, sinks=sinks[1], k_descale=k_descale, v_descale=v_descale,
        **is_packed, **new,
    )  # fmt: skip
    return (out, lse, None, None) if return_softmax_lse else out


def get_scheduler_metadata(
    batch_size: int,
    max_seqlen_q: int,
    max_seqlen_k: int,
    num_heads_q: int,
    num_heads_kv: int,
    headdim: int,
    cache_seqlens: ArrayT,
    qkv_dtype: object = None,
    headdim_v: Optional[int] = None,
    cu_seqlens_q: Optional[Array] = None,
    cu_seqlens_k_new: Optional[Array] = None,
    cache_leftpad: Optional[Array] = None,
    page_size: Optional[int] = None,
    max_seqlen_k_new: int = 0,
    causal: bool = False,
    window_size: Sequence[int] = OPEN,
    attention_chunk: int = 0,
    has_softcap: bool = False,
    num_splits: int = 0,
    pack_gqa: Optional[bool] = None,
    sm_margin: int = 0,
) -> ArrayT:
    """Returns an empty i32 array on the device of cache_seqlens, because attend needs no scheduler metadata.

    The functions of this module accept the array as scheduler_metadata for any batch, and ignore it.
    """
    empty: ArrayT = no_metadata(cache_seqlens)
    return empty


def _attend(
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    softmax_scale: Optional[float],
    causal: bool,
    window_size: Sequence[int],
    softcap: float,
    deterministic: bool,
    return_attn_probs: bool,
    sinks: tuple[str, Any],
    **layout: str,
) -> Any:
    """Calls attend's `function` and returns its results. Errors use flash-attn's argument names."""
    try:
        return function(
            *arguments,
            causal=causal,
            window=window_size,
            scale=softmax_scale,
            softcap=softcap,
            sinks=sinks[1],
            deterministic=deterministic,
            return_lse=return_attn_probs,
            **layout,
        )
    except Error as error:
        raise renamed(error, {**FLASH_NAMES, "sinks": sinks[0]}) from None


def _sinks(s_aux: Any, learnable_sink: Any) -> tuple[str, Any]:
    """Returns the name and value of the argument that is given. The value is None if neither argument is given."""
    if s_aux is not None and learnable_sink is not None:
        raise ArgumentError("learnable_sink: given with s_aux, allowed one of the two")
    return ("s_aux", s_aux) if learnable_sink is None else ("learnable_sink", learnable_sink)


def _refuse(q_descale: Any, k_descale: Any, v_descale: Any, attention_chunk: int) -> None:
    refuse_unless(q_descale, (None,), "q_descale")
    refuse_unless(k_descale, (None,), "k_descale")
    refuse_unless(v_descale, (None,), "v_descale")
    refuse_unless(attention_chunk, (0,), "attention_chunk")
