"""`attend.decode`: attention of a few query rows of each sequence with a cache of keys and values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Optional, Union, overload

from attend import _core
from attend._drop_in import renamed
from attend._errors import Error
from attend._frameworks import is_torch
from attend._resolve import NO_SOFTCAP, OPEN, number
from attend._serving import Numbers, Rotary, Tensors, appended, most, require
from attend._settings import window_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from attend._serving import DecodeOptions
    from attend._types import Array, ArrayT, Number, Window


@overload
def decode(
    q: ArrayT, k_cache: Array, v_cache: Optional[Array] = None, *, return_lse: Literal[False] = False,
    **options: Unpack[DecodeOptions],
) -> ArrayT: ...  # fmt: skip
@overload
def decode(
    q: ArrayT, k_cache: Array, v_cache: Optional[Array] = None, *, return_lse: Literal[True],
    **options: Unpack[DecodeOptions],
) -> tuple[ArrayT, ArrayT]: ...  # fmt: skip
@overload
def decode(
    q: ArrayT, k_cache: Array, v_cache: Optional[Array] = None, *, return_lse: bool, **options: Unpack[DecodeOptions]
) -> Union[ArrayT, tuple[ArrayT, ArrayT]]: ...
def decode(
    q: Any,
    k_cache: Any,
    v_cache: Any = None,
    *,
    layout: str = "bhsd",
    seqlens_k: Any = None,
    page_table: Any = None,
    cache_batch_idx: Any = None,
    cache_leftpad: Any = None,
    cu_seqlens_q: Any = None,
    max_seqlen_q: Optional[int] = None,
    causal: bool = True,
    window: Window = OPEN,
    scale: Optional[Number] = None,
    softcap: Number = NO_SOFTCAP,
    alibi_slopes: Any = None,
    sinks: Any = None,
    tree_mask: Any = None,
    head_dim_v: Optional[int] = None,
    k: Any = None,
    v: Any = None,
    cu_seqlens_new: Any = None,
    max_seqlen_new: Optional[int] = None,
    slot_mapping: Any = None,
    positions: Any = None,
    rotary: Optional[Rotary] = None,
    query_positions: str = "last",
    q_norm: Any = None,
    k_norm: Any = None,
    norm_eps: float = 1e-6,
    return_lse: bool = False,
    lse_base2: bool = False,
    out: Any = None,
    k_descale: Any = None,
    v_descale: Any = None,
    compute: str = "auto",
) -> Any:
    """Computes o = softmax(scale * q k^T + options) v over the cached keys of each sequence.

    One call handles decoding, verification of drafts, chunked prefill, and any mixture of them, on a CPU or an NVIDIA
    GPU of compute capability 8.0 or higher.

    The keys of a sequence are stored in one of two forms. With layout="bhsd":

    - contiguous: k_cache is (cache rows, heads_k, capacity, head_dim). Key j of a sequence is row j of its cache row.

    - paged: k_cache is (pages, heads_k, page_size, head_dim). Each sequence has a row of page_table. Key j is row j %
      page_size of the page in entry j // page_size of that row. The capacity is pages_per_row * page_size. page_size is
      any number >= 1. Sequences may share pages.

    A sequence is dead if its length is negative, or if its cache row or table row does not exist. No key or value of a
    dead sequence is read, and its rows have o = 0 and lse = -inf. A length above the capacity is reduced to the
    capacity. A key whose page does not exist (for example page -1) is not seen. Memory beyond a length, in a page that
    does not exist, or left of the window of all rows is not read, so it may contain NaN. With the environment variable
    ATTEND_CHECK=1, an invalid row, length or page is refused, and the message names its entry.

    Masks align bottom right in each sequence, with off = seqlen_k - seqlen_q, as in `attend.attention`.

    Arguments:
        q: f32, f16, bf16, or f64 in the slow `reference` backend. The shape is (sequences, heads_q, seqlen_q,
            head_dim), with layout="bshd" (sequences, seqlen_q, heads_q, head_dim), and with cu_seqlens_q (total_q,
            heads_q, head_dim), which is called packed. head_dim is 1 to 1024. q is a NumPy array, a torch tensor, or
            any array with ``__dlpack__``, on the CPU or on CUDA. All arrays of a call belong to one framework and one
            device.
        k_cache: dtype of q, or an 8-bit dtype (float8_e4m3fn of torch or ml_dtypes, int8). The shape is given above;
            with layout="bshd" it is (cache rows or pages, keys, heads_k, head_dim). heads_q is a multiple of heads_k,
            and query head h reads key head h // (heads_q // heads_k). The last stride is 1, and the others are not
            negative. A cache is read in place. A cache that would need a copy is refused. k_cache and v_cache may share
            memory.
        v_cache: like k_cache, with the same dtype and with head_dim_v columns, 1 to 512. None means that the values are
            the first head_dim_v columns of the keys (multi-head latent attention).
        layout: "bhsd" or "bshd": the order of the dimensions of the caches and of unpacked q, k, v and o.
        seqlens_k: i32 (sequences), the number of cached keys, or one number for all sequences. None means that the
            length of every sequence is the capacity.
        page_table: i32 (rows, pages_per_row), with any stride between rows. None means that the cache is contiguous.
        cache_batch_idx: i32 (sequences): the cache row, or table row, of each sequence. None means that sequence s has
            row s.
        cache_leftpad: i32 (sequences): the index of the first key that each sequence sees. None means 0.
        cu_seqlens_q: i32 (sequences + 1), offsets that start at 0 and never decrease. Sequence s has the rows
            cu_seqlens_q[s] to cu_seqlens_q[s + 1] of q. Rows after the last sequence are not written.
        max_seqlen_q: an upper bound of the number of rows of a sequence, allowed only with cu_seqlens_q. None means
            total_q.
        causal: keeps the keys j <= i + off.
        window: (left, right): keeps the keys i + off - left <= j <= i + off + right. -1 or None leaves a side open.
        scale: any finite number. None means 1 / sqrt(head_dim).
        softcap: >= 0. 0 disables it.
        alibi_slopes: f32 (heads_q) or (sequences, heads_q).
        sinks: float (heads_q) or (sequences, heads_q): adds exp(sink) to the softmax sum of each row.
        tree_mask: u64 or i64 (sequences, seqlen_q), packed (total_q): one word of 64 bits for each query row, which
            describes a tree of draft tokens. Row i of a sequence sees key off + j if bit j of its word is 1, and all
            keys before off. tree_mask replaces `causal`. A sequence has at most 64 rows.
        head_dim_v: the number of columns of the values if v_cache is None.
        k, v, and the arguments after them: new keys and values, and how to append them. The new keys and values are
            written into the cache, as by `attend.append`, before the cache is read. seqlens_k contains the lengths
            before the append and is required unless slot_mapping is given. q is normalised and rotated as by
            `attend.append`, in temporary memory.
        return_lse: return (o, lse).
        lse_base2: lse is a logarithm to base 2.
        out: the array for o, with the dtype and shape of o. It is written and returned, and must not share memory with
            other arrays of the call. None means a new array.
        k_descale, v_descale: factors of 8-bit caches, allowed only with them. An element x of the cache represents the
            number x * descale. f32 with the shape (), (heads_k) or (sequences, heads_k), or with one factor for each
            row of the cache. In the last case the shape is that of the cache without head_dim, in the order of layout.
            None means 1. Factors of rows that are not read may be NaN. Without v_cache the values use the factors of
            the keys.
        compute: the backend. Allowed on a CPU: "cpu", "reference" (float64 on one thread) and "auto". Allowed on a GPU:
            "auto", "decode" and "sm90_forward". "decode" computes all rows with the kernel for few rows. On Hopper,
            "auto" computes sequences with many rows with the training kernel, if that kernel supports the call. "Many"
            means more than 64 rows. With fewer than 16 query heads the threshold is higher. "sm90_forward" is "auto"
            with a threshold of 64 rows in all cases.

    Returns:
        o: like q with head_dim_v columns. With return_lse the result is (o, lse).
        lse: f32 (sequences, heads_q, seqlen_q), packed (heads_q, total_q): the natural logarithm of sum_j exp(s), which
            includes exp(sink) if there are sinks.
        A row that sees no key gives o = 0 and lse = -inf, or lse = its sink. NaN and infinity affect only the rows that
        see them. If the training kernel computes a sequence, a NaN or infinity in a value may also affect other rows of
        the same tile of 64.

    Deterministic and batch-invariant: the bits of a row do not depend on the batch, the page size, the number of
    threads, or the other rows of its sequence in the call. On Hopper, the bits are independent of the other rows with
    compute "decode". With "auto", two calls give the same bits if the training kernel computes the sequence in both
    calls or in neither. There are no gradients: a torch tensor that requires grad is refused outside of
    torch.no_grad(). The call releases the GIL. Thread-safe. Calls with new keys are thread-safe if no two calls write
    the same rows of a cache.

    Raises:
        attend.Error, whose message names the argument, the value found and the allowed values. Nothing has been written
        if it is raised. It is also a ValueError if an argument is wrong, and a NotImplementedError if attend does not
        support the call.

    Source: Dao, Haziza, Massa & Sizov, Flash-Decoding for long-context inference (2023).
    """
    if is_torch(q):
        import torch  # as in `attention`

        if not torch.compiler.is_dynamo_compiling():
            options = (layout, seqlens_k, page_table, cache_batch_idx, cache_leftpad, cu_seqlens_q, max_seqlen_q,
                       causal, window, scale, softcap, alibi_slopes, sinks, tree_mask, head_dim_v, k, v,
                       cu_seqlens_new, max_seqlen_new, slot_mapping, positions, rotary, query_positions, q_norm, k_norm,
                       norm_eps, return_lse, lse_base2, out, k_descale, v_descale, compute)  # fmt: skip
            results = _core.decode_of_options(q, k_cache, v_cache, options)
            if results is not None:
                return results
    require(q=q, k_cache=k_cache)
    left, right = window_of(window)
    new_tensors, new_numbers = appended(
        k, v, cu_seqlens_new, max_seqlen_new, slot_mapping, positions, rotary, query_positions, q_norm, k_norm, norm_eps
    )
    tensors = Tensors(
        q, k_cache, v_cache, out, None, seqlens_k, page_table, cache_batch_idx, cache_leftpad, cu_seqlens_q, tree_mask,
        alibi_slopes, sinks, k_descale=k_descale, v_descale=v_descale, **new_tensors,
    )  # fmt: skip
    numbers = Numbers(
        layout, most("q", q, cu_seqlens_q, max_seqlen_q), number("scale", scale), causal, left, right,
        number("softcap", softcap), lse_base2, compute=compute, **new_numbers,
    )  # fmt: skip
    return _run(tensors, numbers, head_dim_v, return_lse)


_core.learn_decode(decode.__kwdefaults__ or {})


def _run(tensors: Tensors, numbers: Numbers, head_dim_v: Optional[int], return_lse: bool) -> Any:
    """Returns o, or (o, lse), from the front end of q's framework."""
    try:
        if is_torch(tensors.q):
            from attend.torch import _serving

            o, lse = _serving.decode(tensors, numbers, head_dim_v, return_lse)
        else:
            from attend import _serving_arrays

            o, lse = _serving_arrays.decode(tensors, numbers, head_dim_v, return_lse)
        return (o, lse) if return_lse else o
    except Error as error:
        # In the library's error messages "o" means `out` if `out` is given. Otherwise the error is about the width of
        # the values.
        width = "head_dim_v" if tensors.v_cache is None else "v_cache"
        raise renamed(error, {"o": width if tensors.out is None else "out"}) from None
