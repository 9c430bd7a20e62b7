"""`attend.decode`: a few query rows of each sequence against a cache of keys and values."""

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
    """o = softmax(scale * q k^T + options) v over the cached keys of each sequence.

    Decoding, verification of drafts, chunked prefill, and any mixture of them in one call, on a CPU or an NVIDIA GPU
    of compute capability 8.0 or higher.

    Where the keys of a sequence lie, with layout="bhsd":

    - contiguous: k_cache is (cache rows, heads_k, capacity, head_dim). Key j of a sequence is row j of its cache row.
    - paged: k_cache is (pages, heads_k, page_size, head_dim). Key j is row j % page_size of the page that entry
      j // page_size of the sequence's row of page_table names. The capacity is pages_per_row * page_size. page_size is
      any number from 1 on. Sequences may share pages.

    A sequence with a negative length is dead: nothing of it is read, and its rows of o are 0 and of lse -inf. So is one
    whose cache row, or table row, does not exist. A length above the capacity counts as the capacity. A key whose page
    does not exist (-1, say) is not seen. Nothing beyond a length, in a page that does not exist, or left of the window
    of all rows is read: it may be NaN. With the environment variable ATTEND_CHECK=1 a row, length or page that does not
    exist is refused, by its entry.

    Masks align bottom right in each sequence, with off = seqlen_k - seqlen_q: as in `attend.attention`, which draws
    them.

    Arguments:
        q: f32, f16, bf16 (or f64: `reference`, slow) (sequences, heads_q, seqlen_q, head_dim), head_dim 1 to 1024; with
            layout="bshd" (sequences, seqlen_q, heads_q, head_dim); packed, with cu_seqlens_q, (total_q, heads_q,
            head_dim). NumPy array, torch tensor, or any array with ``__dlpack__`` on the CPU; all of a call are of one
            framework and on one device.
        k_cache: dtype of q, or one of 8 bits (float8_e4m3fn of torch or ml_dtypes, int8), see above; with layout="bshd"
            (cache rows or pages, keys, heads_k, head_dim). heads_q is a multiple of heads_k, and query head h reads
            head h // (heads_q // heads_k). Any strides that are not negative, the last one 1: a cache is read in place,
            and refused if it would have to be copied. k_cache and v_cache may share memory.
        v_cache: like k_cache, of its dtype, with head_dim_v columns, 1 to 512. None: the values are the first
            head_dim_v columns of the keys (multi-head latent attention).
        layout: "bhsd" or "bshd": the order of the dimensions of the caches, and of q, k, v and o where these are not
            packed.
        seqlens_k: i32 (sequences), the keys in the cache, or a number for all sequences. None: all are at capacity.
        page_table: i32 (rows, pages_per_row), any stride between rows. None: the cache is contiguous.
        cache_batch_idx: i32 (sequences): the sequence's cache row, or its row of the table. None: sequence s has row s.
        cache_leftpad: i32 (sequences): keys before it are not seen. None: 0.
        cu_seqlens_q: i32 (sequences + 1), starts at 0, never decreases: sequence s owns the rows cu_seqlens_q[s] to
            cu_seqlens_q[s + 1] of q. Rows behind the last are not written.
        max_seqlen_q: with cu_seqlens_q only: an upper bound of the rows of a sequence. None: total_q.
        causal: keep j <= i + off.
        window: (left, right): keep i + off - left <= j <= i + off + right; -1 or None leaves a side open.
        scale: None: 1 / sqrt(head_dim). Any finite number.
        softcap: >= 0; 0: off.
        alibi_slopes: f32 (heads_q) or (sequences, heads_q).
        sinks: float (heads_q) or (sequences, heads_q): adds exp(sink) to the sum of each row's softmax.
        tree_mask: u64 or i64, a word for each query row, (sequences, seqlen_q), packed (total_q): a tree of drafts. Row
            i of a sequence sees key off + j where bit j of its word is 1, and all keys before off. It takes the place
            of `causal`; at most 64 rows a sequence.
        head_dim_v: the columns of the values if v_cache is None.
        k, v, and the arguments behind them: new keys and values, which go into the cache before it is read, as
            `attend.append` puts them there. seqlens_k are the lengths before, and is needed unless slot_mapping is
            given. q is normalised and rotated as append does it, in memory of the call.
        return_lse: give (o, lse).
        lse_base2: lse is the logarithm to the base 2.
        out: the array for o, of dtype and shape of o. It is written and returned, and shares memory with nothing else
            of the call. None: a new one.
        k_descale, v_descale: with caches of 8 bits only, whose element x stands for the number x * descale: f32, (),
            (heads_k), (sequences, heads_k), or for each row of the cache, of its dimensions but for head_dim, in the
            order of layout. None: 1. Factors of rows that are not read may be NaN. Without v_cache the values have the
            factors of the keys.
        compute: "cpu", "reference" (float64 on one thread), or "auto". On a GPU "auto" (on Hopper sequences with many
            rows are computed by the kernel for training, where it takes them: with more than 64 rows, or more where
            there are fewer than 16 query heads), "decode" (all rows by the kernel for few rows) or "sm90_forward" (as
            "auto", from 65 rows on).

    Returns:
        o: like q with head_dim_v columns, or (o, lse).
        lse: f32 (sequences, heads_q, seqlen_q), packed (heads_q, total_q): natural log of sum_j exp(s), with exp(sink)
            in the sum if there are sinks.
        A row that sees no key gives o = 0 and lse = -inf, or its sink. NaN and infinity reach the rows that see them,
        and no others; where the kernel for training computes a sequence, those of a value may reach rows of the same
        tile of 64.

    Deterministic and batch-invariant: the bits of a row are the same alone and in any batch, for any page size and any
    number of threads, and whichever other rows of its sequence the call has. On Hopper the last holds with compute
    "decode"; with "auto" it holds among all calls in which the kernel for training computes the sequence, and among all
    others. No gradients: a torch tensor that requires grad is refused outside of torch.no_grad(). The GIL is released.
    Thread-safe, also with new keys as long as no two calls write the same rows of a cache.

    Raises:
        attend.Error naming the argument, the value found and the allowed ones; nothing has been written then. It is
        also a ValueError if an argument is wrong, and a NotImplementedError if attend lacks something.

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
    """o, or (o, lse), by the front end of the framework of q."""
    try:
        if is_torch(tensors.q):
            from attend.torch import _serving

            o, lse = _serving.decode(tensors, numbers, head_dim_v, return_lse)
        else:
            from attend import _serving_arrays

            o, lse = _serving_arrays.decode(tensors, numbers, head_dim_v, return_lse)
        return (o, lse) if return_lse else o
    except Error as error:
        # What the library calls o is `out`, or has the width of the values.
        width = "head_dim_v" if tensors.v_cache is None else "v_cache"
        raise renamed(error, {"o": width if tensors.out is None else "out"}) from None
