"""`attend.append`, which writes keys and values into a cache, and `attend.merge`, which merges partial results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, Optional, Union, overload

from attend import _core
from attend._drop_in import renamed
from attend._errors import ArgumentError, Error
from attend._frameworks import is_torch
from attend._serving import Numbers, Rotary, Tensors, appended, most, refuse_given, require

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from attend._serving import CacheOptions
    from attend._types import Array, ArrayT, Layout


@overload
def append(
    k: Array, v: Optional[Array], k_cache: Array, v_cache: Optional[Array] = None, *, q: None = None,
    **options: Unpack[CacheOptions],
) -> None: ...  # fmt: skip
@overload
def append(
    k: Array, v: Optional[Array], k_cache: Array, v_cache: Optional[Array] = None, *, q: ArrayT,
    q_out: Optional[ArrayT] = None, **options: Unpack[CacheOptions],
) -> ArrayT: ...  # fmt: skip
def append(
    k: Any,
    v: Any,
    k_cache: Any,
    v_cache: Any = None,
    *,
    layout: str = "bhsd",
    seqlens_k: Any = None,
    page_table: Any = None,
    cache_batch_idx: Any = None,
    cu_seqlens_new: Any = None,
    max_seqlen_new: Optional[int] = None,
    slot_mapping: Any = None,
    positions: Any = None,
    rotary: Optional[Rotary] = None,
    q: Any = None,
    q_out: Any = None,
    cu_seqlens_q: Any = None,
    max_seqlen_q: Optional[int] = None,
    query_positions: str = "last",
    q_norm: Any = None,
    k_norm: Any = None,
    norm_eps: float = 1e-6,
    k_descale: Any = None,
    v_descale: Any = None,
) -> Any:
    """Writes new keys and values into a cache. The new keys are first normalised, then rotated, then rounded to the
    dtype of the cache.

    New row i of sequence s becomes key seqlens_k[s] + i, or is written to the slot that slot_mapping names. Rows beyond
    the capacity, and rows whose page does not exist, are dropped. With the environment variable ATTEND_CHECK=1 they are
    refused. The call reads and writes nothing of a dead sequence (defined in `attend.decode`), and changes no other
    byte of the cache. The call does not change seqlens_k. Before the next `attend.decode` call, the caller must add the
    number of new keys to the lengths.

    Arguments:
        k: f32, f16 or bf16. The shape is (sequences, heads_k, seqlen_new, head_dim), with layout="bshd" (sequences,
            seqlen_new, heads_k, head_dim), and with cu_seqlens_new (total_new, heads_k, head_dim), which is called
            packed. head_dim is 1 to 1024. `attend.decode` lists the supported arrays and devices.
        v: like k, with head_dim_v columns, 1 to 512. None means that only keys are written, and there is no v_cache.
        k_cache, v_cache: written in place, see `attend.decode`. f32, f16, bf16 or an 8-bit dtype. The dtype may differ
            from that of k. The two caches may overlap if no written row lies in both. The caches must not overlap other
            arrays of the call.
        layout, page_table, cache_batch_idx: as in `attend.decode`.
        seqlens_k: i32 (sequences), the number of cached keys before the call, or one number for all sequences. Required
            unless slot_mapping is given.
        cu_seqlens_new: i32 (sequences + 1): sequence s has the rows cu_seqlens_new[s] to cu_seqlens_new[s + 1] of k and
            v.
        max_seqlen_new: an upper bound of the number of new rows of a sequence, allowed only with cu_seqlens_new. None
            means total_new.
        slot_mapping: i64 (sequences, seqlen_new), flattened or not; packed (total_new): one slot for each new row. In a
            paged cache, slot n is row n % page_size of page n // page_size. In a contiguous cache, the capacity
            replaces page_size. A negative slot is skipped. A slot beyond the cache is also skipped, or refused with
            ATTEND_CHECK=1.
        positions: i32, shaped like slot_mapping: the position at which each new row is rotated. If q is given, each
            query row needs a new row with the same position. None means seqlens_k[s] + i, or rotary.seqlens[s] + i.
        rotary: `attend.Rotary`, applied to k and q. None means no rotation.
        q: query rows, which are also normalised and rotated. The dtype is that of k. The shape is (sequences, heads_q,
            seqlen_q, head_dim) in the order of layout or, with cu_seqlens_q, (total_q, heads_q, head_dim).
        q_out: the array for the processed query rows, dtype and shape of q. It may be q. None means a new array.
        cu_seqlens_q, max_seqlen_q: as in `attend.decode`.
        query_positions: the new row whose position a query row has. "last": query row i has the position of new row i +
            seqlen_new - seqlen_q. "first": query row i has the position of new row i. "one": all query rows have the
            position of new row 0. flash-attn uses "first" with a mask and "one" without a mask.
        q_norm, k_norm: float (head_dim), weights of an RMS norm over all columns, applied before the rotation: x /
            sqrt(mean(x^2) + norm_eps) * weight.
        norm_eps: finite, >= 0.
        k_descale, v_descale: the given factors of 8-bit caches, see `attend.decode`. The cache stores x / descale,
            rounded to nearest even. Values out of range become the nearest representable value (448 or -448 in
            float8_e4m3fn, 127 or -128 in int8). NaN stays NaN in float8_e4m3fn and becomes 0 in int8.

    Returns:
        q_out, or None without q. The call does not write rows of dead sequences, or packed rows after the last
        sequence, in q_out.

    All arithmetic is in float32, and a row that is only copied keeps its bits. The bits of a row depend only on the
    row, its position and the tables. If two new rows have the same destination, the cache may afterwards contain either
    row, or parts of each. ATTEND_CHECK=1 refuses such rows. There are no gradients: a torch tensor that requires grad
    is refused outside of torch.no_grad(). The call releases the GIL. Thread-safe for calls that write different rows.

    Raises:
        attend.Error, whose message names the argument, the value found and the allowed values. Nothing has been written
        in that case.
    """
    if is_torch(k):
        import torch  # as in `attention`

        if not torch.compiler.is_dynamo_compiling():
            options = (
                layout, seqlens_k, page_table, cache_batch_idx, cu_seqlens_new, max_seqlen_new, slot_mapping, positions,
                rotary, q, q_out, cu_seqlens_q, max_seqlen_q, query_positions, q_norm, k_norm, norm_eps, k_descale,
                v_descale,
            )  # fmt: skip
            results = _core.append_of_options(k, v, k_cache, v_cache, options)
            if results is not None:
                return results[0]
    require(k=k, k_cache=k_cache)
    if q is None:
        refuse_given(
            "q", q_out=q_out, cu_seqlens_q=cu_seqlens_q, max_seqlen_q=max_seqlen_q, q_norm=q_norm,
            query_positions=None if query_positions == "last" else query_positions,
        )  # fmt: skip
    new_tensors, new_numbers = appended(
        k, v, cu_seqlens_new, max_seqlen_new, slot_mapping, positions, rotary, query_positions, q_norm, k_norm, norm_eps
    )
    tensors = Tensors(
        q, k_cache, v_cache, q_out, None, seqlens_k, page_table, cache_batch_idx, cu_seqlens_q=cu_seqlens_q,
        k_descale=k_descale, v_descale=v_descale, **new_tensors,
    )  # fmt: skip
    numbers = Numbers(layout, most("q", q, cu_seqlens_q, max_seqlen_q), **new_numbers)
    if is_torch(k):
        from attend.torch import _serving

        return _serving.append(tensors, numbers)
    from attend import _serving_arrays

    return _serving_arrays.append(tensors, numbers)


_core.learn_append(append.__kwdefaults__ or {})


@overload
def merge(
    states: Sequence[tuple[ArrayT, ArrayT]], *, layout: Layout = "bhsd", sinks: Optional[Array] = None,
    return_lse: Literal[False] = False, lse_base2: bool = False, out: Optional[ArrayT] = None,
) -> ArrayT: ...  # fmt: skip
@overload
def merge(
    states: Sequence[tuple[ArrayT, ArrayT]], *, layout: Layout = "bhsd", sinks: Optional[Array] = None,
    return_lse: Literal[True], lse_base2: bool = False, out: Optional[ArrayT] = None,
) -> tuple[ArrayT, ArrayT]: ...  # fmt: skip
@overload
def merge(
    states: Sequence[tuple[ArrayT, ArrayT]], *, layout: Layout = "bhsd", sinks: Optional[Array] = None,
    return_lse: bool, lse_base2: bool = False, out: Optional[ArrayT] = None,
) -> Union[ArrayT, tuple[ArrayT, ArrayT]]: ...  # fmt: skip
def merge(
    states: Sequence[tuple[Any, Any]],
    *,
    layout: str = "bhsd",
    sinks: Any = None,
    return_lse: bool = False,
    lse_base2: bool = False,
    out: Any = None,
) -> Any:
    """Merges results of attention over disjoint parts of the keys into attention over all keys.

    ::

        lse = log(sum_n exp(lse_n) + exp(sink)),   o = sum_n exp(lse_n - lse) o_n

    Arguments:
        states: at least one (o, lse), as `attend.decode` or `attend.attention` returns them without sinks. o is f32,
            f16 or bf16 (batch, heads_q, seqlen_q, head_dim_v), packed (total_q, heads_q, head_dim_v). lse is f32
            (batch, heads_q, seqlen_q), packed (heads_q, total_q). head_dim_v is 1 to 512. The states may differ in
            dtype. They are NumPy arrays, torch tensors, or any arrays with ``__dlpack__``, on the CPU or on a CUDA GPU.
            All belong to one framework and one device.
        layout: "bhsd" or "bshd": the order of the dimensions of o.
        sinks: float (heads_q) or (batch, heads_q): exp(sink) is added once to the softmax sum of each row. Therefore no
            state may already include the sink.
        return_lse: return (o, lse).
        lse_base2: True means that the lse of the states and of the result are logarithms to base 2. Sinks stay natural
            logarithms.
        out: the array for o, with the shape of o, f32, f16 or bf16. It may be the o of a state. None means a new array
            with the dtype of the first state.

    Returns:
        o, or (o, lse). A state with an lse of -inf has weight 0, whatever its o is. A row whose states all have an lse
        of -inf gives o = 0 and lse = -inf, or lse = its sink. Any other NaN or infinity propagates to the result of its
        row.

    The sums are in float64 and in the order of the states, so the result is deterministic. Gradients and thread safety
    are as in `attend.decode`.

    Raises:
        attend.Error, whose message names the argument, the value found and the allowed values. Nothing has been written
        in that case.
    """
    pairs = []
    if not hasattr(states, "__iter__"):
        raise ArgumentError(f"states: {type(states).__name__}, allowed a sequence of (o, lse)")
    for n, state in enumerate(states):
        if not isinstance(state, (tuple, list)) or len(state) != 2:
            raise ArgumentError(f"states[{n}]: {type(state).__name__}, allowed a tuple (o, lse)")
        pairs.append((state[0], state[1]))
    if not pairs:
        raise ArgumentError("states: 0, allowed at least 1")
    try:
        if is_torch(pairs[0][0]):
            from attend.torch import _serving

            o, lse = _serving.merge(pairs, sinks, out, layout, lse_base2, return_lse)
        else:
            from attend import _serving_arrays

            o, lse = _serving_arrays.merge(pairs, sinks, out, layout, lse_base2, return_lse)
    except Error as error:
        raise renamed(error, {"o": "states[0].o" if out is None else "out", "q": "states[0].o"}) from None
    return (o, lse) if return_lse else o
