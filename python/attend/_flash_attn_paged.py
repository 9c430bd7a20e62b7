"""Computes flash-attn's attention of packed rows with paged keys and values, by `attend.decode`."""

from __future__ import annotations

from typing import Any, Optional

from attend._decode import decode
from attend._drop_in import FLASH_NAMES, renamed
from attend._errors import ArgumentError, Error
from attend._flash_attn_3_inputs import rows_cut_in_two
from attend._frameworks import framework_of, is_torch

# Maps attend's argument names to those of flash-attn.
_NAMES = {**FLASH_NAMES, "k_cache": "k", "v_cache": "v"}


def varlen_with_pages(
    q: Any,
    k: Any,
    v: Any,
    *,
    cu_seqlens_q: Any,
    max_seqlen_q: Optional[int],
    cu_seqlens_k: Any,
    page_table: tuple[str, Any],
    seqused_q: Any = None,
    seqused_k: Any = None,
    window_size: Any,
    softmax_scale: Optional[float],
    names: Optional[dict[str, str]] = None,
    **options: Any,
) -> tuple[Any, Any]:
    """Returns (out, softmax_lse) for q (total_q, heads_q, head_dim) and k, v (pages, page_size, heads_k, head_dim).

    `page_table` is the name of the argument in the calling function, and the table. If the table is None, k and v are
    (sequences, capacity, heads_k, head_dim). `seqused_k` contains the number of keys of each sequence. Without it,
    these numbers are the differences of `cu_seqlens_k`. `names` maps names of additional arguments to those of
    flash-attn, and `options` contains additional options of decode.
    """
    for name, x in (("k", k), ("v", v)):
        if x is None:
            raise ArgumentError(f"{name}: None, allowed an array")
    table_name, table = page_table
    if cu_seqlens_q is None:
        raise ArgumentError("cu_seqlens_q: None, allowed an array i32 (sequences + 1)")
    lengths_name = "cu_seqlens_k" if seqused_k is None else "seqused_k"
    lengths = _differences(cu_seqlens_k, cu_seqlens_q, table_name) if seqused_k is None else seqused_k
    if seqused_q is not None:
        cu_seqlens_q, lengths, rows = rows_cut_in_two(cu_seqlens_q, seqused_q, lengths_name, lengths)
        options["cache_batch_idx"] = rows
    try:
        out, lse = decode(
            q, k, v, layout="bshd", seqlens_k=lengths, page_table=table, cu_seqlens_q=cu_seqlens_q,
            max_seqlen_q=max_seqlen_q, window=window_size, scale=softmax_scale, return_lse=True, **options,
        )  # fmt: skip
    except Error as error:
        named = {**_NAMES, "seqlens_k": lengths_name, "page_table": table_name, **(names or {})}
        raise renamed(error, named) from None
    return out, lse


def no_metadata(cache_seqlens: Any) -> Any:
    """Returns an empty i32 array of the framework and device of `cache_seqlens`, because attend needs no scheduler
    metadata.
    """
    if is_torch(cache_seqlens):
        import torch

        return cache_seqlens.new_empty(0, dtype=torch.int32)
    if not hasattr(cache_seqlens, "shape"):
        raise ArgumentError(f"cache_seqlens: {type(cache_seqlens).__name__}, allowed an array i32 (batch)")
    import numpy

    return numpy.empty(0, numpy.int32)


def _differences(cu_seqlens_k: Any, cu_seqlens_q: Any, table_name: str) -> Any:
    """Returns the length of each sequence, the difference of neighbouring offsets."""
    if cu_seqlens_k is None:
        raise ArgumentError(f"cu_seqlens_k: None with {table_name}, allowed an array i32 (sequences + 1)")
    if not hasattr(cu_seqlens_k, "shape"):
        raise ArgumentError(f"cu_seqlens_k: {type(cu_seqlens_k).__name__}, allowed an array i32 (sequences + 1)")
    if framework_of(cu_seqlens_k) != framework_of(cu_seqlens_q):
        wanted = f"an array of the framework of cu_seqlens_q, {type(cu_seqlens_q).__name__}"
        raise ArgumentError(f"cu_seqlens_k: {type(cu_seqlens_k).__name__}, allowed {wanted}")
    if tuple(cu_seqlens_k.shape) != tuple(cu_seqlens_q.shape) or len(cu_seqlens_k.shape) != 1:
        shapes = f"shape {tuple(cu_seqlens_k.shape)}, allowed that of cu_seqlens_q, {tuple(cu_seqlens_q.shape)}"
        raise ArgumentError(f"cu_seqlens_k: {shapes}, with 1 dimension")
    return cu_seqlens_k[1:] - cu_seqlens_k[:-1]
