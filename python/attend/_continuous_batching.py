"""Implements attention for continuous batching in transformers, and enables its page tables on a CPU."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator
from typing import Any, Optional

from attend._api import attention_varlen
from attend._decode import decode
from attend._drop_in import renamed
from attend._errors import ArgumentError, Error

# The function of transformers that disables page tables if it finds no GPU.
_TABLES = "ensure_decode_fast_path_is_available"
# transformers' names of attend's arguments.
_NAMES = {
    "sinks": "s_aux", "scale": "scaling", "window": "sliding_window", "page_table": "block_table",
    "seqlens_k": "cu_seq_lens_k", "cu_seqlens_q": "cu_seq_lens_q", "cu_seqlens_k": "cu_seq_lens_k",
}  # fmt: skip

_lock = threading.Lock()
_open: list[Any] = []  # one reference to transformers' original function for each open context


def packed_attention(
    query: Any,
    key: Any,
    value: Any,
    cu_seq_lens_q: Any,
    cu_seq_lens_k: Any,
    max_length_q: Any,
    max_length_k: Any,
    pages: Optional[tuple[Any, Any, Any]],
    *,
    scaling: Optional[float],
    causal: bool,
    sliding_window: Optional[int],
    softcap: Optional[float],
    s_aux: Any,
) -> Any:
    """Computes attention of packed sequences. query is (batch, heads, tokens / batch, head_dim), and the result is
    (batch, tokens / batch, heads, head_dim_v).

    `pages` contains k_cache and v_cache (pages, page_size, heads_k, head_dim), and the page table. With pages, each
    sequence has one new key, which the call appends. The differences of cu_seq_lens_k include the new key. A sequence
    without keys is padding, and its row of the result is 0. If `pages` is None, key and value contain all keys.
    """
    if cu_seq_lens_k is None:
        raise ArgumentError("cu_seq_lens_k: None with cu_seq_lens_q, allowed a tensor i32 (sequences + 1)")
    q, k, v = (x.transpose(1, 2).flatten(0, 1) for x in (query, key, value))  # (tokens, heads, head_dim)
    side = -1 if sliding_window is None else sliding_window - 1
    options = {
        "causal": causal, "window": (side, -1 if causal else side), "scale": scaling, "softcap": softcap or 0.0,
        "sinks": s_aux,
    }  # fmt: skip
    try:
        if pages is None:
            o = _of_all_keys(q, k, v, cu_seq_lens_q, cu_seq_lens_k, max_length_q, max_length_k, options)
        else:
            k_cache, v_cache, table = pages
            lengths = cu_seq_lens_k[1:] - cu_seq_lens_k[:-1] - 1
            o = decode(
                q[:, None], k_cache, v_cache, layout="bshd", seqlens_k=lengths, page_table=table, k=k[:, None],
                v=v[:, None], **options,
            )  # fmt: skip
    except Error as error:
        raise renamed(error, _NAMES) from None
    return o.reshape(query.shape[0], query.shape[2], *o.shape[-2:])


def _of_all_keys(
    q: Any, k: Any, v: Any, offsets_q: Any, offsets_k: Any, max_length_q: Any, max_length_k: Any, options: Any
) -> Any:
    """Computes packed sequences whose keys are all in k and v. Returns (tokens, heads, head_dim_v). Padding rows after
    the last sequence are 0.
    """
    rows, keys = int(offsets_q[-1]), int(offsets_k[-1])
    o = attention_varlen(
        q[:rows], k[:keys], v[:keys], offsets_q, offsets_k, int(max_length_q), int(max_length_k), **options
    )
    if rows == q.shape[0]:
        return o
    padded = o.new_zeros((q.shape[0], *o.shape[1:]))
    padded[:rows] = o
    return padded


@contextlib.contextmanager
def tables_of_pages(name: str) -> Iterator[None]:
    """Within this context, transformers keeps page tables for models whose attention implementation is `name`.

    The context only has an effect on models in which every layer can have a page table. Other models, and versions of
    transformers without the check _TABLES, are not affected.
    """
    try:
        from transformers.generation.continuous_batching import initialization
    except ImportError:
        yield
        return
    if not hasattr(initialization, _TABLES):
        yield
        return
    with _lock:
        plain = _open[0] if _open else getattr(initialization, _TABLES)
        if not _open:
            setattr(initialization, _TABLES, _asking(plain, name))
        _open.append(plain)
    try:
        yield
    finally:
        with _lock:
            _open.pop()
            if not _open:
                setattr(initialization, _TABLES, plain)


def _asking(plain: Any, name: str) -> Any:
    """Wraps transformers' check `plain`. The wrapper skips the check for models that use `name` and can have page
    tables in all layers.
    """

    @functools.wraps(plain)
    def checked(config: Any, *rest: Any, **more: Any) -> Any:
        from transformers.generation.continuous_batching.cache import ATTN_TYPE_TO_ALLOCATOR, group_layers_by_attn_type

        if getattr(config, "_attn_implementation", None) == name:
            kinds = group_layers_by_attn_type(config)
            if all(ATTN_TYPE_TO_ALLOCATOR[kind].supports_block_table for kind in kinds):
                return None
        return plain(config, *rest, **more)

    return checked
