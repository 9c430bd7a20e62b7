"""`attend.append` and `attend.merge`: what goes into a cache, and results over parts of one."""

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
    """Writes new keys and values into a cache: normalised, rotated, then rounded to the dtype of the cache.

    New row i of sequence s becomes key seqlens_k[s] + i, or goes where slot_mapping says. Rows beyond the capacity, and
    rows whose page does not exist, are dropped; with the environment variable ATTEND_CHECK=1 they are refused. Of a
    dead sequence (`attend.decode` says what that is) nothing is read or written. No other byte of the cache is written.
    seqlens_k does not change: whoever decodes next counts the new keys.

    Arguments:
        k: f32, f16 or bf16 (sequences, heads_k, seqlen_new, head_dim), head_dim 1 to 1024; with layout="bshd"
            (sequences, seqlen_new, heads_k, head_dim); packed, with cu_seqlens_new, (total_new, heads_k, head_dim).
            Kinds of arrays as in `attend.decode`, on the CPU; torch tensors also on a CUDA device.
        v: like k, with head_dim_v columns, 1 to 512. None: keys only, and no v_cache.
        k_cache, v_cache: written in place, see `attend.decode`. f32, f16, bf16 or 8 bits, also another dtype than
            that of k. They may overlap as long as no written row lies in both, and overlap nothing else of the call.
        layout, page_table, cache_batch_idx: as in `attend.decode`.
        seqlens_k: i32 (sequences), the keys in the cache before, or a number for all. Needed unless slot_mapping is
            given.
        cu_seqlens_new: i32 (sequences + 1): sequence s owns the rows cu_seqlens_new[s] to cu_seqlens_new[s + 1] of k
            and v.
        max_seqlen_new: with cu_seqlens_new only: an upper bound of the new rows of a sequence. None: total_new.
        slot_mapping: i64, an entry for each new row, (sequences, seqlen_new), or in a row; packed (total_new). Slot n
            is row n % page_size of page n // page_size; of a contiguous cache likewise with its capacity. A negative
            slot is skipped, and so is one that does not exist, which ATTEND_CHECK=1 refuses.
        positions: i32, likewise: the rows' positions, which the rotation takes. With q, each query row needs a new row
            whose position it has. None: seqlens_k[s] + i, or rotary.seqlens[s] + i.
        rotary: `attend.Rotary`, of k and q. None: nothing is rotated.
        q: query rows, which are normalised and rotated too: dtype as k, (sequences, heads_q, seqlen_q, head_dim) in the
            order of layout; packed, with cu_seqlens_q, (total_q, heads_q, head_dim).
        q_out: the array for them, dtype and shape of q; may be q. None: a new one.
        cu_seqlens_q, max_seqlen_q: as in `attend.decode`.
        query_positions: "last": query row i has the position of new row i + seqlen_new - seqlen_q. "first": that of new
            row i. "one": all have that of new row 0. The last two are flash-attn's rules, with a mask and without one.
        q_norm, k_norm: float (head_dim), weights of an RMS norm over all columns, before the rotation:
            x / sqrt(mean(x^2) + norm_eps) * weight.
        norm_eps: finite, >= 0.
        k_descale, v_descale: of caches of 8 bits, see `attend.decode`; read, not chosen. A cache gets x / descale,
            rounded to nearest even; what lies beyond the largest number becomes that (448 or -448; 127 or -128), and
            NaN becomes NaN, in int8 0.

    Returns:
        q_out, or None without q. Rows of dead sequences, and packed rows behind the last sequence's, are not written.

    All is computed in float32, and a row that is only copied keeps its bits: the bits of a row depend on nothing but
    the row, its position and the tables. Two new rows that go to one place leave either of them, or parts of both;
    ATTEND_CHECK=1 refuses them. No gradients: a torch tensor that requires grad is refused outside of torch.no_grad().
    The GIL is released. Thread-safe for calls that write different rows.

    Raises:
        attend.Error naming the argument, the value found and the allowed ones; nothing has been written then.
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
    """Attention over all keys from attention over parts of them that share no key.

    ::

        lse = log(sum_n exp(lse_n) + exp(sink)),   o = sum_n exp(lse_n - lse) o_n

    Arguments:
        states: at least one (o, lse), as `attend.decode` or `attend.attention` gives them without sinks. o: f32, f16 or
            bf16 (batch, heads_q, seqlen_q, head_dim_v), lse: f32 (batch, heads_q, seqlen_q). Packed: o (total_q,
            heads_q, head_dim_v), lse (heads_q, total_q). head_dim_v 1 to 512. They may differ in dtype. NumPy arrays,
            torch tensors, or any arrays with ``__dlpack__``, all of one framework, on the CPU; torch tensors also on a
            CUDA device.
        layout: "bhsd" or "bshd": the order of the dimensions of o.
        sinks: float (heads_q) or (batch, heads_q): counts once in the sum of each row, so that no state has it.
        return_lse: give (o, lse).
        lse_base2: every lse, of states and result, is the logarithm to the base 2. Sinks stay natural.
        out: the array for o, of its shape, f32, f16 or bf16; may be the o of a state. None: a new one, of the dtype of
            the first state.

    Returns:
        o, or (o, lse). A state with an lse of -inf counts for nothing, whatever its o is. A row of which that is all
        gives o = 0 and lse = -inf, or its sink. Another NaN or infinity reaches the row.

    Summed up in float64, in the order of the states: deterministic. No gradients, and thread-safe, as `attend.decode`.

    Raises:
        attend.Error naming the argument, the value found and the allowed ones; nothing has been written then.
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
