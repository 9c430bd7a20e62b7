"""ring-flash-attention's llama3 functions, which gather the keys and values of packed sequences.

Each rank has an equal piece of all tokens, independent of sequence boundaries. The rank gathers the keys of all
sequences that its rows belong to, and then computes attention like a single device. Llama 3 was trained in this way
(Grattafiori et al., The Llama 3 Herd of Models, 2024, section 3.3.2).
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, Optional, Union, overload

from attend._drop_in import dropout_seed
from attend._errors import ArgumentError, UnsupportedError
from attend._packed import parts
from attend._settings import NO_EXTRAS, window_of
from attend.ring._contexts import agree, door_of_group, group_name, process_group
from attend.ring._telling import told

if TYPE_CHECKING:
    from torch import Tensor

    from attend.ring._contexts import Group

_told = told(door_of_group, "group", traceable=True)


def llama3_flash_attn_prepare_cu_seqlens(
    cu_seqlens: Tensor, causal: bool, rank: int, world_size: int
) -> tuple[Tensor, Tensor, int, int, slice]:
    """Returns the arguments of `llama3_flash_attn_varlen_func` for the rank's piece of the tokens.

    Arguments:
        cu_seqlens: integer tensor (sequences + 1) on any device: the offsets of the sequences among all tokens.
        causal: the same as in the attention call. Without causal, the rank's last sequence needs all of its keys.
        rank, world_size: this rank's number and the number of ranks of the group. world_size divides the number of
            tokens.

    Returns:
        cu_seqlens_q, cu_seqlens_k: offsets of the sequences in the rank's rows, and in the keys that these rows see;
            dtype and device of cu_seqlens.
        max_seqlen_q, max_seqlen_k: the largest number of rows and of keys of a sequence.
        local_k_slice: the range of the rank's keys among all keys.
    """
    offsets = [int(n) for n in cu_seqlens.tolist()]
    rows, rest = divmod(offsets[-1], world_size)
    if rest:
        raise ArgumentError(f"cu_seqlens: {offsets[-1]} tokens, allowed a multiple of world_size, {world_size}")
    begin, end = rank * rows, (rank + 1) * rows
    # `first` is the sequence in which the rank's piece begins. `last` is the index of the first offset at or after its
    # end.
    first, last = bisect.bisect_right(offsets, begin) - 1, bisect.bisect_left(offsets, end)
    bounds = offsets[first : last + 1]
    q = [min(max(n, begin), end) - begin for n in bounds]
    k = [(min(n, end) if causal else n) - bounds[0] for n in bounds]
    longest_q, longest_k = (max(b - a for a, b in itertools.pairwise(x)) for x in (q, k))
    return cu_seqlens.new_tensor(q), cu_seqlens.new_tensor(k), longest_q, longest_k, slice(bounds[0], bounds[0] + k[-1])


@overload
def llama3_flash_attn_varlen_func(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int,
    heads_k_stride: int, local_k_slice: slice, dropout_p: float = ..., softmax_scale: Optional[float] = ...,
    causal: bool = ..., window_size: Sequence[int] = ..., alibi_slopes: Optional[Tensor] = ...,
    deterministic: bool = ..., return_attn_probs: Literal[False] = ..., group: Optional[Group] = ...,
) -> Tensor: ...  # fmt: skip
@overload
def llama3_flash_attn_varlen_func(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int,
    heads_k_stride: int, local_k_slice: slice, dropout_p: float = ..., softmax_scale: Optional[float] = ...,
    causal: bool = ..., window_size: Sequence[int] = ..., alibi_slopes: Optional[Tensor] = ...,
    deterministic: bool = ..., *, return_attn_probs: Literal[True], group: Optional[Group] = ...,
) -> tuple[Tensor, Tensor, None]: ...  # fmt: skip
@overload
def llama3_flash_attn_varlen_func(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int,
    heads_k_stride: int, local_k_slice: slice, dropout_p: float = ..., softmax_scale: Optional[float] = ...,
    causal: bool = ..., window_size: Sequence[int] = ..., alibi_slopes: Optional[Tensor] = ...,
    deterministic: bool = ..., return_attn_probs: bool = ..., group: Optional[Group] = ...,
) -> Union[Tensor, tuple[Tensor, Tensor, None]]: ...  # fmt: skip
@_told
def llama3_flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    heads_k_stride: int,
    local_k_slice: slice,
    dropout_p: float = 0.0,
    softmax_scale: Optional[float] = None,
    causal: bool = False,
    window_size: Sequence[int] = (-1, -1),
    alibi_slopes: Optional[Tensor] = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    group: Optional[Group] = None,
) -> Any:
    """Computes attention of the rank's rows with all keys. q is (rows, heads_q, head_dim), k and v are (rows, heads_k,
    head_dim).

    Arguments:
        cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, local_k_slice: results of
            `llama3_flash_attn_prepare_cu_seqlens`.
        heads_k_stride: number of heads of k and v that are gathered at a time. It divides heads_k. Each rank needs
            memory for the gathered keys and values of this number of heads.
        window_size: allowed only with causal. With causal, the rows and the gathered keys of a sequence end at the same
            token, as the alignment of the window requires.
        alibi_slopes: f32 (heads_q), allowed only with causal.
        dropout_p: probability of dropping an entry. The dropped entries depend on the number of ranks, unlike in other
            functions of attend.

    Returns:
        out, or with return_attn_probs (out, softmax_lse f32 (heads_q, rows), None). Differentiable. dk and dv are
        summed over the ranks in float32 and rounded twice.

    Raises:
        as `attend.ring.ring_attention`, the same on every rank. Before keys are gathered, the ranks compare dtypes and
        shapes. After each rank has computed its first heads, the ranks exchange whether this succeeded. The host waits
        for both exchanges.
    """
    import torch

    from attend.ring._gathered import GatheredAttention, Settings

    _check(q, k, v, cu_seqlens_q, cu_seqlens_k)
    window_of(window_size)
    _check_causal(causal, window_size, alibi_slopes)
    if heads_k_stride < 1 or k.shape[1] % heads_k_stride:
        raise ArgumentError(f"heads_k_stride: {heads_k_stride}, allowed a divisor of {k.shape[1]} heads of k")
    if not isinstance(local_k_slice, slice):
        raise ArgumentError(f"local_k_slice: {type(local_k_slice).__name__}, allowed a slice of all ranks' keys")
    if alibi_slopes is not None and tuple(alibi_slopes.shape) != (q.shape[1],):
        raise ArgumentError(f"alibi_slopes: shape {tuple(alibi_slopes.shape)}, allowed ({q.shape[1]},)")
    settings = Settings(
        process_group(group_name(group)), heads_k_stride, local_k_slice,
        dict(
            cu_seqlens_q=cu_seqlens_q.to(torch.int32), cu_seqlens_k=cu_seqlens_k.to(torch.int32),
            max_seqlen_q=max_seqlen_q, max_seqlen_k=max_seqlen_k, dropout_p=dropout_p, scale=softmax_scale,
            causal=causal, window=window_size, deterministic=deterministic, seed=dropout_seed(dropout_p),
        ),
        alibi_slopes,
    )  # fmt: skip
    if not torch.compiler.is_compiling():
        _agree(q, k, v, settings)
    out, lse = GatheredAttention.apply(q, k, v, settings)
    return (out, lse, None) if return_attn_probs else out


def _check(q: Any, k: Any, v: Any, cu_seqlens_q: Any, cu_seqlens_k: Any) -> None:
    from attend.torch._front import check_tensors

    check_tensors(q, k, v, NO_EXTRAS, {"cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k})
    if q.is_meta:
        raise UnsupportedError("q: on meta, attend.ring runs on cpu and cuda")
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.dim() != 3:
            raise ArgumentError(f"{name}: {x.dim()} dimensions, allowed 3 (rows, heads, head_dim)")


def _check_causal(causal: bool, window_size: Sequence[int], alibi_slopes: Any) -> None:
    if causal:
        return
    for name, x, off in (("window_size", tuple(window_size), (-1, -1)), ("alibi_slopes", alibi_slopes, None)):
        if x is not off and x != off:
            shown = type(x).__name__ if hasattr(x, "shape") else repr(x)
            raise UnsupportedError(f"{name}: {shown} without causal, attend supports {off!r} only")


def _agree(q: Any, k: Any, v: Any, settings: Any) -> None:
    """Refuses tensors whose dtypes or shapes differ between ranks, because the ranks gather each other's tensors."""
    named = (("q", q), ("k", k), ("v", v))
    said = ", ".join(f"{name} {str(x.dtype).removeprefix('torch.')} {tuple(x.shape)}" for name, x in named)
    agree(settings.group, "llama3_flash_attn_varlen_func", f"{said}, heads_k_stride {settings.heads_k_stride}")


@overload
def llama3_flash_attn_varlen_kvpacked_func(
    q: Tensor, kv: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int,
    heads_k_stride: int, local_k_slice: slice, dropout_p: float = ..., softmax_scale: Optional[float] = ...,
    causal: bool = ..., window_size: Sequence[int] = ..., alibi_slopes: Optional[Tensor] = ...,
    deterministic: bool = ..., return_attn_probs: Literal[False] = ..., group: Optional[Group] = ...,
) -> Tensor: ...  # fmt: skip
@overload
def llama3_flash_attn_varlen_kvpacked_func(
    q: Tensor, kv: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int,
    heads_k_stride: int, local_k_slice: slice, dropout_p: float = ..., softmax_scale: Optional[float] = ...,
    causal: bool = ..., window_size: Sequence[int] = ..., alibi_slopes: Optional[Tensor] = ...,
    deterministic: bool = ..., *, return_attn_probs: Literal[True], group: Optional[Group] = ...,
) -> tuple[Tensor, Tensor, None]: ...  # fmt: skip
@overload
def llama3_flash_attn_varlen_kvpacked_func(
    q: Tensor, kv: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int,
    heads_k_stride: int, local_k_slice: slice, dropout_p: float = ..., softmax_scale: Optional[float] = ...,
    causal: bool = ..., window_size: Sequence[int] = ..., alibi_slopes: Optional[Tensor] = ...,
    deterministic: bool = ..., return_attn_probs: bool = ..., group: Optional[Group] = ...,
) -> Union[Tensor, tuple[Tensor, Tensor, None]]: ...  # fmt: skip
@_told
def llama3_flash_attn_varlen_kvpacked_func(
    q: Tensor,
    kv: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    heads_k_stride: int,
    local_k_slice: slice,
    dropout_p: float = 0.0,
    softmax_scale: Optional[float] = None,
    causal: bool = False,
    window_size: Sequence[int] = (-1, -1),
    alibi_slopes: Optional[Tensor] = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    group: Optional[Group] = None,
) -> Any:
    """`llama3_flash_attn_varlen_func` of q and a packed kv (rows, 2, heads_k, head_dim)."""
    k, v = parts(kv, 1, 2, "kv")
    return llama3_flash_attn_varlen_func(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, heads_k_stride, local_k_slice, dropout_p,
        softmax_scale, causal, window_size, alibi_slopes, deterministic, return_attn_probs, group,
    )  # fmt: skip


@overload
def llama3_flash_attn_varlen_qkvpacked_func(
    qkv: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int, heads_k_stride: int,
    local_k_slice: slice, dropout_p: float = ..., softmax_scale: Optional[float] = ..., causal: bool = ...,
    window_size: Sequence[int] = ..., alibi_slopes: Optional[Tensor] = ..., deterministic: bool = ...,
    return_attn_probs: Literal[False] = ..., group: Optional[Group] = ...,
) -> Tensor: ...  # fmt: skip
@overload
def llama3_flash_attn_varlen_qkvpacked_func(
    qkv: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int, heads_k_stride: int,
    local_k_slice: slice, dropout_p: float = ..., softmax_scale: Optional[float] = ..., causal: bool = ...,
    window_size: Sequence[int] = ..., alibi_slopes: Optional[Tensor] = ..., deterministic: bool = ..., *,
    return_attn_probs: Literal[True], group: Optional[Group] = ...,
) -> tuple[Tensor, Tensor, None]: ...  # fmt: skip
@overload
def llama3_flash_attn_varlen_qkvpacked_func(
    qkv: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int, heads_k_stride: int,
    local_k_slice: slice, dropout_p: float = ..., softmax_scale: Optional[float] = ..., causal: bool = ...,
    window_size: Sequence[int] = ..., alibi_slopes: Optional[Tensor] = ..., deterministic: bool = ...,
    return_attn_probs: bool = ..., group: Optional[Group] = ...,
) -> Union[Tensor, tuple[Tensor, Tensor, None]]: ...  # fmt: skip
@_told
def llama3_flash_attn_varlen_qkvpacked_func(
    qkv: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    heads_k_stride: int,
    local_k_slice: slice,
    dropout_p: float = 0.0,
    softmax_scale: Optional[float] = None,
    causal: bool = False,
    window_size: Sequence[int] = (-1, -1),
    alibi_slopes: Optional[Tensor] = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    group: Optional[Group] = None,
) -> Any:
    """`llama3_flash_attn_varlen_func` of a packed qkv (rows, 3, heads, head_dim)."""
    q, k, v = parts(qkv, 1, 3, "qkv")
    return llama3_flash_attn_varlen_func(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, heads_k_stride, local_k_slice, dropout_p,
        softmax_scale, causal, window_size, alibi_slopes, deterministic, return_attn_probs, group,
    )  # fmt: skip
