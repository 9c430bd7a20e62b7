"""The functions of flash-attn 2, computed by attend, with the same names and argument order.

    from attend.flash_attn import flash_attn_func

Tensors are (batch, seqlen, heads, head_dim); packed tensors are (tokens, heads, head_dim). In addition to flash-attn's
inputs, these functions accept CPU tensors, float32, head_dim up to 512, and v with a different head_dim. An option that
attend does not support raises NotImplementedError, which names the argument. A function that attend does not support
can be imported, but raises NotImplementedError when it is called. With dropout_p > 0 the seed comes from torch's
default generator of the tensors' device.

Each function returns out, or (out, softmax_lse, None) with return_attn_probs. softmax_lse is f32 (batch, heads,
seqlen_q), or (heads, tokens) for packed tensors. In flash-attn the third value is the dropout pattern, which only
flash-attn's tests use. return_attn_probs is refused with dropout_p > 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, Optional, Union, overload

from attend._api import attention, attention_qkvpacked, attention_varlen
from attend._drop_in import FLASH_NAMES, StandIn, refuse_unless, renamed
from attend._errors import Error
from attend._flash_attn_kvcache import with_kvcache
from attend._flash_attn_paged import varlen_with_pages
from attend._flash_attn_passes import flash_attn_backward as _flash_attn_backward
from attend._flash_attn_passes import flash_attn_forward as _flash_attn_forward
from attend._flash_attn_passes import flash_attn_varlen_backward as _flash_attn_varlen_backward
from attend._flash_attn_passes import flash_attn_varlen_forward as _flash_attn_varlen_forward
from attend._packed import parts
from attend._resolve import NO_SOFTCAP, OPEN
from attend._settings import drops

if TYPE_CHECKING:
    from attend._types import Array, ArrayT, WholeNumber

__all__ = [
    "FlashAttnFunc",
    "FlashAttnKVPackedFunc",
    "FlashAttnQKVPackedFunc",
    "FlashAttnVarlenFunc",
    "FlashAttnVarlenKVPackedFunc",
    "FlashAttnVarlenQKVPackedFunc",
    "_flash_attn_backward",
    "_flash_attn_forward",
    "_flash_attn_varlen_backward",
    "_flash_attn_varlen_forward",
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_attn_with_kvcache",
]

FlashAttnFunc = StandIn("FlashAttnFunc", "flash_attn_func is there")
FlashAttnKVPackedFunc = StandIn("FlashAttnKVPackedFunc", "flash_attn_kvpacked_func is there")
FlashAttnQKVPackedFunc = StandIn("FlashAttnQKVPackedFunc", "flash_attn_qkvpacked_func is there")
FlashAttnVarlenFunc = StandIn("FlashAttnVarlenFunc", "flash_attn_varlen_func is there")
FlashAttnVarlenKVPackedFunc = StandIn("FlashAttnVarlenKVPackedFunc", "flash_attn_varlen_kvpacked_func is there")
FlashAttnVarlenQKVPackedFunc = StandIn("FlashAttnVarlenQKVPackedFunc", "flash_attn_varlen_qkvpacked_func is there")


@overload
def flash_attn_func(
    q: ArrayT, k: ArrayT, v: ArrayT, dropout_p: float = ..., softmax_scale: Optional[float] = ..., causal: bool = ...,
    window_size: Sequence[int] = ..., softcap: float = ..., alibi_slopes: Optional[Array] = ...,
    deterministic: bool = ..., return_attn_probs: Literal[False] = ...,
) -> ArrayT: ...  # fmt: skip
@overload
def flash_attn_func(
    q: ArrayT, k: ArrayT, v: ArrayT, dropout_p: float = ..., softmax_scale: Optional[float] = ..., causal: bool = ...,
    window_size: Sequence[int] = ..., softcap: float = ..., alibi_slopes: Optional[Array] = ...,
    deterministic: bool = ..., *, return_attn_probs: Literal[True],
) -> tuple[ArrayT, ArrayT, None]: ...  # fmt: skip
@overload
def flash_attn_func(
    q: ArrayT, k: ArrayT, v: ArrayT, dropout_p: float = ..., softmax_scale: Optional[float] = ..., causal: bool = ...,
    window_size: Sequence[int] = ..., softcap: float = ..., alibi_slopes: Optional[Array] = ...,
    deterministic: bool = ..., return_attn_probs: bool = ...,
) -> Union[ArrayT, tuple[ArrayT, ArrayT, None]]: ...  # fmt: skip
def flash_attn_func(
    q: Array, k: Array, v: Array, dropout_p: float = 0.0, softmax_scale: Optional[float] = None, causal: bool = False,
    window_size: Sequence[int] = OPEN, softcap: float = NO_SOFTCAP, alibi_slopes: Optional[Array] = None,
    deterministic: bool = False, return_attn_probs: bool = False,
) -> Any:  # fmt: skip
    """Attention of q (batch, seqlen_q, heads_q, head_dim) with k and v (batch, seqlen_k, heads_k, head_dim).

    Masks align bottom right. The options are those of `attend.attention`: softmax_scale is its scale, and window_size
    is its window.
    """
    rest = (dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs)
    return _attend(attention, (q, k, v), *rest, layout="bshd")


@overload
def flash_attn_qkvpacked_func(
    qkv: ArrayT, dropout_p: float = ..., softmax_scale: Optional[float] = ..., causal: bool = ...,
    window_size: Sequence[int] = ..., softcap: float = ..., alibi_slopes: Optional[Array] = ...,
    deterministic: bool = ..., return_attn_probs: Literal[False] = ...,
) -> ArrayT: ...  # fmt: skip
@overload
def flash_attn_qkvpacked_func(
    qkv: ArrayT, dropout_p: float = ..., softmax_scale: Optional[float] = ..., causal: bool = ...,
    window_size: Sequence[int] = ..., softcap: float = ..., alibi_slopes: Optional[Array] = ...,
    deterministic: bool = ..., *, return_attn_probs: Literal[True],
) -> tuple[ArrayT, ArrayT, None]: ...  # fmt: skip
@overload
def flash_attn_qkvpacked_func(
    qkv: ArrayT, dropout_p: float = ..., softmax_scale: Optional[float] = ..., causal: bool = ...,
    window_size: Sequence[int] = ..., softcap: float = ..., alibi_slopes: Optional[Array] = ...,
    deterministic: bool = ..., return_attn_probs: bool = ...,
) -> Union[ArrayT, tuple[ArrayT, ArrayT, None]]: ...  # fmt: skip
def flash_attn_qkvpacked_func(
    qkv: Array, dropout_p: float = 0.0, softmax_scale: Optional[float] = None, causal: bool = False,
    window_size: Sequence[int] = OPEN, softcap: float = NO_SOFTCAP, alibi_slopes: Optional[Array] = None,
    deterministic: bool = False, return_attn_probs: bool = False,
) -> Any:  # fmt: skip
    """`flash_attn_func` of a packed qkv (batch, seqlen, 3, heads, head_dim). See `attend.attention_qkvpacked`."""
    rest = (dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs)
    return _attend(attention_qkvpacked, (qkv,), *rest)


@overload
def flash_attn_kvpacked_func(
    q: ArrayT, kv: ArrayT, dropout_p: float = ..., softmax_scale: Optional[float] = ..., causal: bool = ...,
    window_size: Sequence[int] = ..., softcap: float = ..., alibi_slopes: Optional[Array] = ...,
    deterministic: bool = ..., return_attn_probs: Literal[False] = ...,
) -> ArrayT: ...  # fmt: skip
@overload
def flash_attn_kvpacked_func(
    q: ArrayT, kv: ArrayT, dropout_p: float = ..., softmax_scale: Optional[float] = ..., causal: bool = ...,
    window_size: Sequence[int] = ..., softcap: float = ..., alibi_slopes: Optional[Array] = ...,
    deterministic: bool = ..., *, return_attn_probs: Literal[True],
) -> tuple[ArrayT, ArrayT, None]: ...  # fmt: skip
@overload
def flash_attn_kvpacked_func(
    q: ArrayT, kv: ArrayT, dropout_p: float = ..., softmax_scale: Optional[float] = ..., causal: bool = ...,
    window_size: Sequence[int] = ..., softcap: float = ..., alibi_slopes: Optional[Array] = ...,
    deterministic: bool = ..., return_attn_probs: bool = ...,
) -> Union[ArrayT, tuple[ArrayT, ArrayT, None]]: ...  # fmt: skip
def flash_attn_kvpacked_func(
    q: Array, kv: Array, dropout_p: float = 0.0, softmax_scale: Optional[float] = None, causal: bool = False,
    window_size: Sequence[int] = OPEN, softcap: float = NO_SOFTCAP, alibi_slopes: Optional[Array] = None,
    deterministic: bool = False, return_attn_probs: bool = False,
) -> Any:  # fmt: skip
    """`flash_attn_func` of q and a packed kv (batch, seqlen_k, 2, heads_k, head_dim). The call does not copy kv."""
    k, v = parts(kv, 2, 2, "kv")
    rest = (dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs)
    return flash_attn_func(q, k, v, *rest)


@overload
def flash_attn_varlen_func(
    q: ArrayT, k: ArrayT, v: ArrayT, cu_seqlens_q: Array, cu_seqlens_k: Array, max_seqlen_q: int, max_seqlen_k: int,
    dropout_p: float = ..., softmax_scale: Optional[float] = ..., causal: bool = ..., window_size: Sequence[int] = ...,
    softcap: float = ..., alibi_slopes: Optional[Array] = ..., deterministic: bool = ...,
    return_attn_probs: Literal[False] = ..., block_table: Optional[Array] = ...,
) -> ArrayT: ...  # fmt: skip
@overload
def flash_attn_varlen_func(
    q: ArrayT, k: ArrayT, v: ArrayT, cu_seqlens_q: Array, cu_seqlens_k: Array, max_seqlen_q: int, max_seqlen_k: int,
    dropout_p: float = ..., softmax_scale: Optional[float] = ..., causal: bool = ..., window_size: Sequence[int] = ...,
    softcap: float = ..., alibi_slopes: Optional[Array] = ..., deterministic: bool = ..., *,
    return_attn_probs: Literal[True], block_table: Optional[Array] = ...,
) -> tuple[ArrayT, ArrayT, None]: ...  # fmt: skip
@overload
def flash_attn_varlen_func(
    q: ArrayT, k: ArrayT, v: ArrayT, cu_seqlens_q: Array, cu_seqlens_k: Array, max_seqlen_q: int, max_seqlen_k: int,
    dropout_p: float = ..., softmax_scale: Optional[float] = ..., causal: bool = ..., window_size: Sequence[int] = ...,
    softcap: float = ..., alibi_slopes: Optional[Array] = ..., deterministic: bool = ..., return_attn_probs: bool = ...,
    block_table: Optional[Array] = ...,
) -> Union[ArrayT, tuple[ArrayT, ArrayT, None]]: ...  # fmt: skip
def flash_attn_varlen_func(
    q: Array, k: Array, v: Array, cu_seqlens_q: Array, cu_seqlens_k: Array, max_seqlen_q: int, max_seqlen_k: int,
    dropout_p: float = 0.0, softmax_scale: Optional[float] = None, causal: bool = False,
    window_size: Sequence[int] = (-1, -1), softcap: float = 0.0, alibi_slopes: Optional[Array] = None,
    deterministic: bool = False, return_attn_probs: bool = False, block_table: Optional[Array] = None,
) -> Any:  # fmt: skip
    """Attention of packed sequences, q (total_q, heads_q, head_dim). See `attend.attention_varlen`.

    block_table: i32 (sequences, pages of a sequence). With a block_table, k and v are (pages, page_size, heads_k,
    head_dim), and `attend.decode` computes the result. Sequence s then has cu_seqlens_k[s + 1] - cu_seqlens_k[s] keys,
    max_seqlen_k is ignored, dropout is refused, and there are no gradients: a tensor that requires grad is refused
    outside of torch.no_grad().
    """
    if block_table is not None:
        refuse_unless(dropout_p, (0.0, 0), "dropout_p with block_table")
        out, lse = varlen_with_pages(
            q, k, v, cu_seqlens_q=cu_seqlens_q, max_seqlen_q=max_seqlen_q, cu_seqlens_k=cu_seqlens_k,
            page_table=("block_table", block_table), causal=causal, window_size=window_size,
            softmax_scale=softmax_scale, softcap=softcap, alibi_slopes=alibi_slopes,
        )  # fmt: skip
        return (out, lse, None) if return_attn_probs else out
    packed = (q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
    rest = (dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs)
    return _attend(attention_varlen, packed, *rest)


@overload
def flash_attn_varlen_qkvpacked_func(
    qkv: ArrayT, cu_seqlens: Array, max_seqlen: int, dropout_p: float = ..., softmax_scale: Optional[float] = ...,
    causal: bool = ..., window_size: Sequence[int] = ..., softcap: float = ..., alibi_slopes: Optional[Array] = ...,
    deterministic: bool = ..., return_attn_probs: Literal[False] = ...,
) -> ArrayT: ...  # fmt: skip
@overload
def flash_attn_varlen_qkvpacked_func(
    qkv: ArrayT, cu_seqlens: Array, max_seqlen: int, dropout_p: float = ..., softmax_scale: Optional[float] = ...,
    causal: bool = ..., window_size: Sequence[int] = ..., softcap: float = ..., alibi_slopes: Optional[Array] = ...,
    deterministic: bool = ..., *, return_attn_probs: Literal[True],
) -> tuple[ArrayT, ArrayT, None]: ...  # fmt: skip
@overload
def flash_attn_varlen_qkvpacked_func(
    qkv: ArrayT, cu_seqlens: Array, max_seqlen: int, dropout_p: float = ..., softmax_scale: Optional[float] = ...,
    causal: bool = ..., window_size: Sequence[int] = ..., softcap: float = ..., alibi_slopes: Optional[Array] = ...,
    deterministic: bool = ..., return_attn_probs: bool = ...,
) -> Union[ArrayT, tuple[ArrayT, ArrayT, None]]: ...  # fmt: skip
def flash_attn_varlen_qkvpacked_func(
    qkv: Array, cu_seqlens: Array, max_seqlen: int, dropout_p: float = 0.0, softmax_scale: Optional[float] = None,
    causal: bool = False, window_size: Sequence[int] = (-1, -1), softcap: float = 0.0,
    alibi_slopes: Optional[Array] = None, deterministic: bool = False, return_attn_probs: bool = False,
) -> Any:  # fmt: skip
    """`flash_attn_varlen_func` of a packed qkv (tokens, 3, heads, head_dim). The call does not copy qkv."""
    q, k, v = parts(qkv, 1, 3, "qkv")
    rest = (dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs)
    return flash_attn_varlen_func(q, k, v, cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, *rest)


@overload
def flash_attn_varlen_kvpacked_func(
    q: ArrayT, kv: ArrayT, cu_seqlens_q: Array, cu_seqlens_k: Array, max_seqlen_q: int, max_seqlen_k: int,
    dropout_p: float = ..., softmax_scale: Optional[float] = ..., causal: bool = ..., window_size: Sequence[int] = ...,
    softcap: float = ..., alibi_slopes: Optional[Array] = ..., deterministic: bool = ...,
    return_attn_probs: Literal[False] = ...,
) -> ArrayT: ...  # fmt: skip
@overload
def flash_attn_varlen_kvpacked_func(
    q: ArrayT, kv: ArrayT, cu_seqlens_q: Array, cu_seqlens_k: Array, max_seqlen_q: int, max_seqlen_k: int,
    dropout_p: float = ..., softmax_scale: Optional[float] = ..., causal: bool = ..., window_size: Sequence[int] = ...,
    softcap: float = ..., alibi_slopes: Optional[Array] = ..., deterministic: bool = ..., *,
    return_attn_probs: Literal[True],
) -> tuple[ArrayT, ArrayT, None]: ...  # fmt: skip
@overload
def flash_attn_varlen_kvpacked_func(
    q: ArrayT, kv: ArrayT, cu_seqlens_q: Array, cu_seqlens_k: Array, max_seqlen_q: int, max_seqlen_k: int,
    dropout_p: float = ..., softmax_scale: Optional[float] = ..., causal: bool = ..., window_size: Sequence[int] = ...,
    softcap: float = ..., alibi_slopes: Optional[Array] = ..., deterministic: bool = ..., return_attn_probs: bool = ...,
) -> Union[ArrayT, tuple[ArrayT, ArrayT, None]]: ...  # fmt: skip
def flash_attn_varlen_kvpacked_func(
    q: Array, kv: Array, cu_seqlens_q: Array, cu_seqlens_k: Array, max_seqlen_q: int, max_seqlen_k: int,
    dropout_p: float = 0.0, softmax_scale: Optional[float] = None, causal: bool = False,
    window_size: Sequence[int] = (-1, -1), softcap: float = 0.0, alibi_slopes: Optional[Array] = None,
    deterministic: bool = False, return_attn_probs: bool = False,
) -> Any:  # fmt: skip
    """`flash_attn_varlen_func` of q and a packed kv (total_k, 2, heads_k, head_dim). The call does not copy kv."""
    k, v = parts(kv, 1, 2, "kv")
    rest = (dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs)
    return flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, *rest)


@overload
def flash_attn_with_kvcache(
    q: ArrayT, k_cache: Array, v_cache: Array, k: Optional[Array] = ..., v: Optional[Array] = ...,
    rotary_cos: Optional[Array] = ..., rotary_sin: Optional[Array] = ..., cache_seqlens: Optional[WholeNumber] = ...,
    cache_batch_idx: Optional[Array] = ..., cache_leftpad: Optional[Array] = ..., block_table: Optional[Array] = ...,
    softmax_scale: Optional[float] = ..., causal: bool = ..., window_size: Sequence[int] = ..., softcap: float = ...,
    rotary_interleaved: bool = ..., alibi_slopes: Optional[Array] = ..., num_splits: int = ...,
    return_softmax_lse: Literal[False] = ...,
) -> ArrayT: ...  # fmt: skip
@overload
def flash_attn_with_kvcache(
    q: ArrayT, k_cache: Array, v_cache: Array, k: Optional[Array] = ..., v: Optional[Array] = ...,
    rotary_cos: Optional[Array] = ..., rotary_sin: Optional[Array] = ..., cache_seqlens: Optional[WholeNumber] = ...,
    cache_batch_idx: Optional[Array] = ..., cache_leftpad: Optional[Array] = ..., block_table: Optional[Array] = ...,
    softmax_scale: Optional[float] = ..., causal: bool = ..., window_size: Sequence[int] = ..., softcap: float = ...,
    rotary_interleaved: bool = ..., alibi_slopes: Optional[Array] = ..., num_splits: int = ..., *,
    return_softmax_lse: Literal[True],
) -> tuple[ArrayT, ArrayT]: ...  # fmt: skip
@overload
def flash_attn_with_kvcache(
    q: ArrayT, k_cache: Array, v_cache: Array, k: Optional[Array] = ..., v: Optional[Array] = ...,
    rotary_cos: Optional[Array] = ..., rotary_sin: Optional[Array] = ..., cache_seqlens: Optional[WholeNumber] = ...,
    cache_batch_idx: Optional[Array] = ..., cache_leftpad: Optional[Array] = ..., block_table: Optional[Array] = ...,
    softmax_scale: Optional[float] = ..., causal: bool = ..., window_size: Sequence[int] = ..., softcap: float = ...,
    rotary_interleaved: bool = ..., alibi_slopes: Optional[Array] = ..., num_splits: int = ...,
    return_softmax_lse: bool = ...,
) -> Union[ArrayT, tuple[ArrayT, ArrayT]]: ...  # fmt: skip
def flash_attn_with_kvcache(
    q: Array, k_cache: Array, v_cache: Array, k: Optional[Array] = None, v: Optional[Array] = None,
    rotary_cos: Optional[Array] = None, rotary_sin: Optional[Array] = None, cache_seqlens: Optional[WholeNumber] = None,
    cache_batch_idx: Optional[Array] = None, cache_leftpad: Optional[Array] = None, block_table: Optional[Array] = None,
    softmax_scale: Optional[float] = None, causal: bool = False, window_size: Sequence[int] = OPEN,
    softcap: float = NO_SOFTCAP, rotary_interleaved: bool = True, alibi_slopes: Optional[Array] = None,
    num_splits: int = 0, return_softmax_lse: bool = False,
) -> Any:  # fmt: skip
    """Attention of q (batch, seqlen_q, heads_q, head_dim) with a cache of keys and values. See `attend.decode`.

    Arguments:
        k_cache: (batch_cache, capacity, heads_k, head_dim), or with block_table (pages, page_size, heads_k, head_dim).
            v_cache has the same form. If k and v are given, both caches change in place.
        k, v: (batch, seqlen_new, heads_k, head_dim), appended to the cache before it is read. See `attend.append`.
        rotary_cos, rotary_sin: tables (positions, rotary_dim / 2), allowed only with k and v. New keys are rotated at
            the positions cache_seqlens, cache_seqlens + 1 and so on. With `causal` or a window of any width, the rows
            of q have the same positions. Otherwise all rows of q are rotated at cache_seqlens.
        cache_seqlens: i32 (batch), or one number for all sequences: the number of cached keys before k and v are
            appended. None, allowed only without k and v, means the full capacity.
        cache_batch_idx: i32 (batch), the row of the cache of each sequence.
        cache_leftpad: i32 (batch), the index of the first key that each sequence sees.
        block_table: i32 (batch, pages of a sequence), the pages of each sequence.
        num_splits: ignored, because in flash-attn it only divides the work and does not change results. All other
        arguments are as in `flash_attn_func`.

    Returns:
        out, or (out, softmax_lse) with return_softmax_lse. softmax_lse is f32 (batch, heads_q, seqlen_q).

    In addition to flash-attn's inputs, this function accepts float32, any page size and rotary_dim, block_table with
    cache_batch_idx and cache_leftpad, and v with a different head_dim. The function has no gradients: a tensor that
    requires grad is refused outside of torch.no_grad().

    Raises:
        attend.Error, whose message has flash-attn's name of the argument, the value found and the allowed values. No
        tensor has been written when it is raised.
    """
    out, lse = with_kvcache(
        q, k_cache, v_cache, k, v, rotary=(rotary_cos, rotary_sin, rotary_interleaved, None),
        cache_seqlens=cache_seqlens, causal=causal, window_size=window_size, softmax_scale=softmax_scale,
        return_lse=return_softmax_lse, names={"page_table": "block_table"},
        cache_batch_idx=cache_batch_idx, cache_leftpad=cache_leftpad,
        page_table=block_table, softcap=softcap, alibi_slopes=alibi_slopes,
    )  # fmt: skip
    return (out, lse) if return_softmax_lse else out


def _attend(
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    dropout_p: float,
    softmax_scale: Optional[float],
    causal: bool,
    window_size: Sequence[int],
    softcap: float,
    alibi_slopes: Any,
    deterministic: bool,
    return_attn_probs: bool,
    **layout: str,
) -> Any:
    """Calls attend's `function` and returns flash-attn's results. Errors use flash-attn's argument names."""
    refuse_pattern(return_attn_probs, dropout_p)
    try:
        results = function(
            *arguments,
            causal=causal,
            window=window_size,
            scale=softmax_scale,
            softcap=softcap,
            alibi_slopes=alibi_slopes,
            dropout_p=dropout_p,
            deterministic=deterministic,
            return_lse=return_attn_probs,
            **layout,
        )
    except Error as error:
        raise renamed(error, FLASH_NAMES) from None
    return (*results, None) if return_attn_probs else results


def refuse_pattern(return_attn_probs: bool, dropout_p: float) -> None:
    """Refuses a request for the dropout pattern, a (seqlen_q, seqlen_k) matrix that attend never stores."""
    if drops(dropout_p):
        refuse_unless(bool(return_attn_probs), (False,), "return_attn_probs with dropout_p > 0")
