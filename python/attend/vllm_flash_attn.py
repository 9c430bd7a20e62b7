"""The functions of vLLM's fork of flash-attn, and related functions of vLLM, with the same names and argument order.

    from attend.vllm_flash_attn import flash_attn_varlen_func, reshape_and_cache_flash

These functions replace functions of `vllm.vllm_flash_attn`, functions of `vllm._custom_ops`, and vLLM's
`merge_attn_states`, for tensors on a CPU. Queries are packed, (tokens, heads, head_dim). Caches are (pages, page_size,
heads_k, head_dim) with any strides, so the heads of a page may precede its keys in memory. An option that attend does
not support raises NotImplementedError, which names the argument.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, Optional, Union, overload

from attend._api import attention_varlen
from attend._append import append, merge
from attend._drop_in import FLASH_NAMES, refuse_unless, renamed
from attend._errors import ArgumentError, Error, UnsupportedError
from attend._flash_attn_3_inputs import module_of
from attend._flash_attn_paged import no_metadata, varlen_with_pages
from attend._resolve import NO_SOFTCAP, OPEN
from attend._serving import check_out, require, whole_number

if TYPE_CHECKING:
    from attend._types import Array, ArrayT, IndexedArray

__all__ = [
    "fa_version_unsupported_reason",
    "flash_attn_varlen_func",
    "get_scheduler_metadata",
    "is_fa_version_supported",
    "merge_attn_states",
    "reshape_and_cache_flash",
]

_VERSIONS = (2, 3, 4)
_CACHE_DTYPES = ("auto", "float", "float32", "half", "float16", "bfloat16")
_SINKS = {"sinks": "s_aux"}


@overload
def flash_attn_varlen_func(
    q: ArrayT, k: Array, v: Array, max_seqlen_q: int, cu_seqlens_q: Array, max_seqlen_k: int,
    cu_seqlens_k: Optional[Array] = ..., seqused_k: Optional[Array] = ..., q_v: Optional[Array] = ...,
    dropout_p: float = ..., softmax_scale: Optional[float] = ..., causal: bool = ...,
    window_size: Optional[Sequence[int]] = ..., softcap: float = ..., alibi_slopes: Optional[Array] = ...,
    deterministic: bool = ..., return_attn_probs: bool = ..., block_table: Optional[Array] = ...,
    return_softmax_lse: Literal[False] = ..., out: Optional[Array] = ..., scheduler_metadata: Optional[Array] = ...,
    q_descale: Optional[Array] = ..., k_descale: Optional[Array] = ..., v_descale: Optional[Array] = ...,
    num_splits: int = ..., output_scale: Optional[Array] = ..., fa_version: int = ..., s_aux: Optional[Array] = ...,
    cp_world_size: int = ..., cp_rank: int = ..., cp_tot_seqused_k: Optional[Array] = ..., mask_mod: object = ...,
    block_sparse_tensors: object = ..., aux_tensors: object = ..., aux_tensor_leading_dims: object = ...,
    dynamic_causal: object = ...,
) -> ArrayT: ...  # fmt: skip
@overload
def flash_attn_varlen_func(
    q: ArrayT, k: Array, v: Array, max_seqlen_q: int, cu_seqlens_q: Array, max_seqlen_k: int,
    cu_seqlens_k: Optional[Array] = ..., seqused_k: Optional[Array] = ..., q_v: Optional[Array] = ...,
    dropout_p: float = ..., softmax_scale: Optional[float] = ..., causal: bool = ...,
    window_size: Optional[Sequence[int]] = ..., softcap: float = ..., alibi_slopes: Optional[Array] = ...,
    deterministic: bool = ..., return_attn_probs: bool = ..., block_table: Optional[Array] = ..., *,
    return_softmax_lse: Literal[True], out: Optional[Array] = ..., scheduler_metadata: Optional[Array] = ...,
    q_descale: Optional[Array] = ..., k_descale: Optional[Array] = ..., v_descale: Optional[Array] = ...,
    num_splits: int = ..., output_scale: Optional[Array] = ..., fa_version: int = ..., s_aux: Optional[Array] = ...,
    cp_world_size: int = ..., cp_rank: int = ..., cp_tot_seqused_k: Optional[Array] = ..., mask_mod: object = ...,
    block_sparse_tensors: object = ..., aux_tensors: object = ..., aux_tensor_leading_dims: object = ...,
    dynamic_causal: object = ...,
) -> tuple[ArrayT, ArrayT]: ...  # fmt: skip
@overload
def flash_attn_varlen_func(
    q: ArrayT, k: Array, v: Array, max_seqlen_q: int, cu_seqlens_q: Array, max_seqlen_k: int,
    cu_seqlens_k: Optional[Array] = ..., seqused_k: Optional[Array] = ..., q_v: Optional[Array] = ...,
    dropout_p: float = ..., softmax_scale: Optional[float] = ..., causal: bool = ...,
    window_size: Optional[Sequence[int]] = ..., softcap: float = ..., alibi_slopes: Optional[Array] = ...,
    deterministic: bool = ..., return_attn_probs: bool = ..., block_table: Optional[Array] = ...,
    return_softmax_lse: bool = ..., out: Optional[Array] = ..., scheduler_metadata: Optional[Array] = ...,
    q_descale: Optional[Array] = ..., k_descale: Optional[Array] = ..., v_descale: Optional[Array] = ...,
    num_splits: int = ..., output_scale: Optional[Array] = ..., fa_version: int = ..., s_aux: Optional[Array] = ...,
    cp_world_size: int = ..., cp_rank: int = ..., cp_tot_seqused_k: Optional[Array] = ..., mask_mod: object = ...,
    block_sparse_tensors: object = ..., aux_tensors: object = ..., aux_tensor_leading_dims: object = ...,
    dynamic_causal: object = ...,
) -> Union[ArrayT, tuple[ArrayT, ArrayT]]: ...  # fmt: skip
def flash_attn_varlen_func(
    q: Array, k: Array, v: Array, max_seqlen_q: int, cu_seqlens_q: Array, max_seqlen_k: int,
    cu_seqlens_k: Optional[Array] = None, seqused_k: Optional[Array] = None, q_v: Optional[Array] = None,
    dropout_p: float = 0.0, softmax_scale: Optional[float] = None, causal: bool = False,
    window_size: Optional[Sequence[int]] = None, softcap: float = NO_SOFTCAP, alibi_slopes: Optional[Array] = None,
    deterministic: bool = False, return_attn_probs: bool = False, block_table: Optional[Array] = None,
    return_softmax_lse: bool = False, out: Optional[Array] = None, scheduler_metadata: Optional[Array] = None,
    q_descale: Optional[Array] = None, k_descale: Optional[Array] = None, v_descale: Optional[Array] = None,
    num_splits: int = 0, output_scale: Optional[Array] = None, fa_version: int = 2, s_aux: Optional[Array] = None,
    cp_world_size: int = 1, cp_rank: int = 0, cp_tot_seqused_k: Optional[Array] = None, mask_mod: object = None,
    block_sparse_tensors: object = None, aux_tensors: object = None, aux_tensor_leading_dims: object = None,
    dynamic_causal: object = None,
) -> Any:  # fmt: skip
    """Attention of q (total_q, heads_q, head_dim), packed by cu_seqlens_q, with a cache or with packed keys.

    Arguments:
        k, v: (pages, page_size, heads_k, head_dim) with block_table; (sequences, capacity, heads_k, head_dim) with
            seqused_k but no block_table; (total_k, heads_k, head_dim) with cu_seqlens_k, see `attend.attention_varlen`.
        cu_seqlens_q: i32 (sequences + 1), the offsets of the sequences in q.
        max_seqlen_q: an upper bound of the number of rows of a sequence.
        max_seqlen_k: an upper bound of the number of keys of a sequence. Used only with cu_seqlens_k.
        cu_seqlens_k: i32 (sequences + 1), the offsets of the sequences in packed keys.
        seqused_k: i32 (sequences), the number of keys of each sequence. Required with block_table. Exactly one of
            cu_seqlens_k and seqused_k is given.
        block_table: i32 (sequences, pages of a sequence), the pages of each sequence.
        window_size: (left, right), or None.
        out: the array for the result, which is written and returned. With cu_seqlens_k the result is copied into it.
        s_aux: float (heads_q): `sinks` of `attend.decode`.
        q_descale, k_descale, v_descale: ignored, as in flash-attn if q, k and v have more than 8 bits.
        scheduler_metadata, num_splits, deterministic, fa_version (2, 3 or 4): ignored, because they do not change
        results.
        cp_rank, cp_tot_seqused_k: ignored, because they have no meaning on one rank.
        The call refuses 8-bit tensors, q_v, dropout_p > 0, return_attn_probs, cp_world_size > 1, output_scale, mask_mod
            and the arguments of flash-attn 4 after mask_mod.

    Returns:
        out, or (out, softmax_lse) with return_softmax_lse. softmax_lse is f32 (heads_q, total_q) and contains natural
        logarithms, -inf for a row that sees no key.

    With a cache there are no gradients: a tensor that requires grad is refused outside of torch.no_grad().

    Raises:
        attend.Error, whose message has vLLM's name of the argument, the value found and the allowed values. Nothing has
        been written in that case.
    """
    refused = {
        "q_v": q_v, "output_scale": output_scale, "mask_mod": mask_mod, "block_sparse_tensors": block_sparse_tensors,
        "aux_tensors": aux_tensors, "aux_tensor_leading_dims": aux_tensor_leading_dims,
        "dynamic_causal": dynamic_causal,
    }  # fmt: skip
    for name, x in refused.items():
        refuse_unless(x, (None,), name)
    _refuse(dropout_p, return_attn_probs, cp_world_size, fa_version)
    _refuse_8_bits(q=q, k=k, v=v)
    _check_lengths(cu_seqlens_k, seqused_k, block_table)
    options = {"causal": causal, "softcap": softcap, "alibi_slopes": alibi_slopes, "sinks": s_aux}
    window = OPEN if window_size is None else window_size
    if seqused_k is not None:
        found, lse = varlen_with_pages(
            q, k, v, cu_seqlens_q=cu_seqlens_q, max_seqlen_q=max_seqlen_q, cu_seqlens_k=None, seqused_k=seqused_k,
            page_table=("block_table", block_table), window_size=window, softmax_scale=softmax_scale, out=out,
            names=_SINKS, **options,
        )  # fmt: skip
    else:
        packed = (q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
        found, lse = _packed(packed, out, window=window, scale=softmax_scale, **options)
    return (found, lse) if return_softmax_lse else found


def reshape_and_cache_flash(
    key: IndexedArray,
    value: IndexedArray,
    key_cache: Array,
    value_cache: Array,
    slot_mapping: Array,
    kv_cache_dtype: str,
    k_scale: Optional[Array] = None,
    v_scale: Optional[Array] = None,
) -> None:
    """Writes row i of key and value into slot slot_mapping[i] of the caches. See `attend.append`.

    Arguments:
        key, value: (tokens, heads_k, head_dim). Rows after the last entry of slot_mapping are padding and are not
            written.
        key_cache, value_cache: (pages, page_size, heads_k, head_dim), changed in place.
        slot_mapping: i64 (tokens): slot n is row n % page_size of page n // page_size. A negative slot is skipped.
        kv_cache_dtype: "auto", or the name of a type of more than 8 bits. It has no effect, because key and value are
            converted to the dtype of the caches.
        k_scale, v_scale: ignored, as in vLLM if a cache has more than 8 bits.
    """
    refuse_unless(kv_cache_dtype, _CACHE_DTYPES, "kv_cache_dtype")
    require(key=key, value=value, key_cache=key_cache, value_cache=value_cache, slot_mapping=slot_mapping)
    _refuse_8_bits(key_cache=key_cache, value_cache=value_cache)
    for name, x, dims in (("key", key, 3), ("value", value, 3), ("slot_mapping", slot_mapping, 1)):
        _check_dims(name, x, dims)
    tokens = slot_mapping.shape[0]
    names = {"k": "key", "v": "value", "k_cache": "key_cache", "v_cache": "value_cache"}
    try:
        append(
            key[:tokens][None], value[:tokens][None], key_cache, value_cache, layout="bshd", slot_mapping=slot_mapping
        )
    except Error as error:
        raise renamed(error, names) from None


def merge_attn_states(
    output: IndexedArray,
    prefix_output: IndexedArray,
    prefix_lse: IndexedArray,
    suffix_output: IndexedArray,
    suffix_lse: IndexedArray,
    output_lse: Optional[IndexedArray] = None,
    prefill_tokens_with_context: Optional[int] = None,
    output_scale: Optional[Array] = None,
) -> None:
    """Merges attention over a prefix with attention over the remaining keys. See `attend.merge`.

    Arguments:
        output: (tokens, heads, head_dim), receives the result. It may be prefix_output or suffix_output.
        prefix_output, suffix_output: (tokens, heads, head_dim).
        prefix_lse, suffix_lse: f32 (heads, tokens), natural logarithms. An lse of -inf, or of inf as in flash-attn 2,
            means that the row saw no key of that part.
        output_lse: f32 (heads, tokens), receives the lse of the result; or None.
        prefill_tokens_with_context: the number of leading tokens that have a prefix. The remaining tokens get the
            result of the suffix, and their prefix is not read. None means all tokens.
        output_scale: refused.
    """
    refuse_unless(output_scale, (None,), "output_scale")
    require(
        output=output, prefix_output=prefix_output, prefix_lse=prefix_lse, suffix_output=suffix_output,
        suffix_lse=suffix_lse,
    )  # fmt: skip
    for name, x, dims in (("output", output, 3), ("prefix_output", prefix_output, 3), ("prefix_lse", prefix_lse, 2),
                          ("suffix_output", suffix_output, 3), ("suffix_lse", suffix_lse, 2)):  # fmt: skip
        _check_dims(name, x, dims)
    tokens, heads = suffix_output.shape[:2]
    check_out("output", output, suffix_output.shape)
    check_out("suffix_lse", suffix_lse, (heads, tokens))
    if output_lse is not None:
        check_out("output_lse", output_lse, (heads, tokens))
    count = tokens if prefill_tokens_with_context is None else _count(prefill_tokens_with_context, tokens)
    if count > 0:
        parts = [
            (prefix_output[:count], _without_inf(prefix_lse[:, :count])),
            (suffix_output[:count], _without_inf(suffix_lse[:, :count])),
        ]
        names = {
            "out": "output", "states[0].o": "prefix_output", "states[0].lse": "prefix_lse",
            "states[1].o": "suffix_output", "states[1].lse": "suffix_lse",
        }  # fmt: skip
        try:
            _, lse = merge(parts, out=output[:count], return_lse=True)
        except Error as error:
            raise renamed(error, names) from None
        if output_lse is not None:
            output_lse[:, :count] = lse
    if count < tokens:
        output[count:] = suffix_output[count:]
        if output_lse is not None:
            output_lse[:, count:] = suffix_lse[:, count:]


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
    has_softcap: bool = False,
    num_splits: int = 0,
    pack_gqa: Optional[bool] = None,
    sm_margin: int = 0,
) -> ArrayT:
    """`attend.flash_attn_3.get_scheduler_metadata` with vLLM's argument order. Returns an empty i32 array."""
    empty: ArrayT = no_metadata(cache_seqlens)
    return empty


def is_fa_version_supported(fa_version: int) -> bool:
    """Returns whether fa_version is a version of flash-attn: 2, 3 or 4. attend computes the same for each."""
    return fa_version in _VERSIONS


def fa_version_unsupported_reason(fa_version: int) -> Optional[str]:
    """Returns None if `is_fa_version_supported`, otherwise the reason."""
    return None if is_fa_version_supported(fa_version) else f"fa_version: {fa_version!r}, allowed 2, 3 or 4"


def _refuse(dropout_p: float, return_attn_probs: bool, cp_world_size: int, fa_version: int) -> None:
    refuse_unless(dropout_p, (0.0, 0), "dropout_p")
    refuse_unless(bool(return_attn_probs), (False,), "return_attn_probs")
    refuse_unless(cp_world_size, (1,), "cp_world_size")
    if not is_fa_version_supported(fa_version):
        raise ArgumentError(f"fa_version: {fa_version!r}, allowed 2, 3 or 4")


def _refuse_8_bits(**tensors: Any) -> None:
    for name, x in tensors.items():
        if getattr(getattr(x, "dtype", None), "itemsize", 2) < 2:
            raise UnsupportedError(f"{name}: dtype {x.dtype}, attend supports 16 bits or more only")


def _check_lengths(cu_seqlens_k: Any, seqused_k: Any, block_table: Any) -> None:
    if (cu_seqlens_k is None) == (seqused_k is None):
        found = "None without cu_seqlens_k" if seqused_k is None else "given with cu_seqlens_k"
        raise ArgumentError(f"seqused_k: {found}, allowed one of the two")
    if block_table is not None and seqused_k is None:
        raise ArgumentError("seqused_k: None with block_table, allowed an array i32 (sequences)")


def _packed(arguments: tuple[Any, ...], out: Any, **options: Any) -> tuple[Any, Any]:
    """Returns (out, softmax_lse) for packed keys."""
    if out is not None:
        require(q=arguments[0], v=arguments[2])
        check_out("out", out, (*arguments[0].shape[:-1], arguments[2].shape[-1]))
    try:
        found, lse = attention_varlen(*arguments, return_lse=True, **options)
    except Error as error:
        raise renamed(error, {**FLASH_NAMES, **_SINKS}) from None
    if out is None:
        return found, lse
    out[...] = found
    return out, lse


def _check_dims(name: str, x: Any, dims: int) -> None:
    if not hasattr(x, "shape"):
        raise ArgumentError(f"{name}: {type(x).__name__}, allowed an array")
    if len(x.shape) != dims:
        raise ArgumentError(f"{name}: {len(x.shape)} dimensions, allowed {dims}")


def _count(value: Any, tokens: int) -> int:
    count = whole_number("prefill_tokens_with_context", value)
    if count is None or not 0 <= count <= tokens:
        shown = type(value).__name__ if count is None else count
        raise ArgumentError(f"prefill_tokens_with_context: {shown}, allowed 0 to the number of tokens, {tokens}")
    return count


def _without_inf(lse: Any) -> Any:
    """Replaces inf, which marks a row without keys in flash-attn 2, by attend's -inf."""
    return module_of(lse).where(lse == float("inf"), float("-inf"), lse)
