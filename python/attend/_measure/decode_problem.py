"""Makes q and the caches of a decode problem, and computes o by the definition. Needs torch.

Every side reads the same numbers from the same memory. q is (sequences, rows, heads, head_dim), and a cache is (cache
rows or pages, keys, heads, head_dim). If heads precede keys in memory, the caches are views of the same shape.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import torch

from attend._measure.decode_shapes import Setting, Shape
from attend._measure.inputs import torch_dtype

CACHE_DTYPES = {"f8e4m3": torch.float8_e4m3fn, "i8": torch.int8}
DESCALE = 0.03  # factor of 8-bit caches, with which normally distributed numbers fill the range of i8
SEED = 1
PART_ELEMENTS = 1 << 26  # elements that are converted at a time, because a float32 copy of a full cache would be large


@dataclasses.dataclass
class Cache:
    """The keys and values of a cache. `v` is None if the values are the first columns of the keys."""

    k: Any
    v: Any
    k_descale: Any = None
    v_descale: Any = None

    @property
    def nbytes(self) -> int:
        return int(self.k.nbytes + (0 if self.v is None else self.v.nbytes))

    def copy(self) -> Cache:
        return dataclasses.replace(self, k=_clone(self.k), v=_clone(self.v))


Side = Callable[[Cache], Any]  # returns o as (sequences, rows, heads, head_dim_v)


@dataclasses.dataclass
class Problem:
    """The q, lengths and page table of a problem, its caches by name, and its sides: functions that compute o, by name.

    A side reads the cache with the same name if there is one, otherwise the cache "attend". If that is an 8-bit cache,
    there is also a cache "attend_wide" with the same numbers in the dtype of q.
    """

    shape: Shape
    setting: Setting
    q: Any
    lengths: Any
    page_table: Any
    caches: dict[str, Cache]
    sides: dict[str, Side] = dataclasses.field(default_factory=dict)

    @property
    def bytes_moved(self) -> int:
        """Returns the number of bytes of the keys and values that a call must read, each counted once."""
        return self.shape.elements() * self.setting.element_bytes

    def bytes_of(self, side: str) -> int:
        """Returns the number of bytes of the cache that this side must read, each counted once."""
        return self.shape.elements() * int(self.cache_of(side).k.element_size())

    def cache_of(self, side: str) -> Cache:
        return self.caches.get(side, self.caches["attend"])


def problem(one: Shape, setting: Setting) -> Problem:
    """Returns a problem without sides. The problem's numbers are normally distributed and the same in every call."""
    generator = torch.Generator(setting.device).manual_seed(SEED)
    dtype = torch_dtype(setting.dtype)
    table, blocks, block_rows = _table(one, setting)

    def normal(*sizes: int) -> Any:
        return torch.randn(sizes, generator=generator, device=setting.device).to(dtype)

    def memory(columns: int) -> Any:
        if setting.heads_first:
            return normal(blocks, one.heads_k, block_rows, columns).transpose(1, 2)
        return normal(blocks, block_rows, one.heads_k, columns)

    q = normal(len(one.lengths), one.rows, one.heads, one.head_dim)
    lengths = torch.tensor(one.lengths, dtype=torch.int32, device=setting.device)
    wide = Cache(memory(one.head_dim), None if one.head_dim_v is not None else memory(one.head_dim))
    caches = {"attend": wide} if setting.cache is None else {"attend": narrowed(wide, setting), "attend_wide": wide}
    return Problem(one, setting, q, lengths, table, caches)


def _table(one: Shape, setting: Setting) -> tuple[Any, int, int]:
    """Returns the page table or None, the number of pages or cache rows, and the number of keys of each. Pages are in
    random order.
    """
    longest = max(one.lengths)
    if setting.page_size == 0:
        return None, len(one.lengths), longest
    counts = page_counts(one, setting.page_size)
    order = torch.randperm(sum(counts), generator=torch.Generator().manual_seed(SEED)).to(torch.int32)
    table = torch.zeros(len(counts), max(counts), dtype=torch.int32)
    for row, pages in zip(table, order.split(counts)):
        row[: len(pages)] = pages
    return table.to(setting.device), sum(counts), setting.page_size


def page_counts(one: Shape, page_size: int) -> list[int]:
    """Returns the number of pages of each sequence."""
    return [-(-length // page_size) for length in one.lengths]


def narrowed(wide: Cache, setting: Setting) -> Cache:
    """Returns the cache in 8 bits, with one factor for each head."""
    assert setting.cache is not None
    dtype = CACHE_DTYPES[setting.cache]
    largest = 127 if setting.cache == "i8" else 448

    def narrow(x: Any) -> Any:
        if x is None:
            return None
        parts = []
        for part in x.split(max(1, PART_ELEMENTS // max(x[0].numel(), 1))):
            scaled = (part.float() / DESCALE).clamp(-largest, largest)
            parts.append((scaled.round() if setting.cache == "i8" else scaled).to(dtype))
        if len(parts) == 1:
            return parts[0]
        return torch.cat([y.view(torch.int8) for y in parts]).view(parts[0].dtype)

    factors = torch.full((wide.k.shape[2],), DESCALE, device=setting.device)
    return Cache(narrow(wide.k), narrow(wide.v), factors, None if wide.v is None else factors)


def _clone(x: Any) -> Any:
    return None if x is None else x.clone(memory_format=torch.preserve_format)


def by_definition(one: Problem, sequence: int) -> Any:
    """Computes o of one sequence in float32, (rows, heads, head_dim_v), by an explicit softmax for each head."""
    shape, cache = one.shape, one.caches["attend"]
    length, group = shape.lengths[sequence], shape.heads // shape.heads_k
    row, key = torch.arange(shape.rows)[:, None], torch.arange(length)
    hidden = (key > row + length - shape.rows).to(one.q.device)
    o = []
    for head in range(shape.heads_k):
        keys = _keys_of(one, cache.k, cache.k_descale, sequence, head)
        if cache.v is None:
            values = keys[:, : shape.head_dim_v]
        else:
            values = _keys_of(one, cache.v, cache.v_descale, sequence, head)
        q = one.q[sequence, :, head * group : (head + 1) * group].float().transpose(0, 1)  # (group, rows, head_dim)
        scores = (q @ keys.T / math.sqrt(shape.head_dim)).masked_fill(hidden, -math.inf)
        o.append((scores.softmax(-1) @ values).transpose(0, 1))
    return torch.cat(o, 1)


def _keys_of(one: Problem, x: Any, descale: Any, sequence: int, head: int) -> Any:
    """Returns the keys or values of one head of a sequence, float32 (length, head_dim), from its cache row or its
    pages.
    """
    length = one.shape.lengths[sequence]
    if one.page_table is None:
        found = x[sequence, :length, head]
    else:
        pages = one.page_table[sequence, : page_counts(one.shape, one.setting.page_size)[sequence]].long()
        # torch does not support indexing of float8, so the bytes are indexed as int8.
        plain = x[:, :, head].view(torch.int8) if x.element_size() == 1 else x[:, :, head]
        found = plain[pages].flatten(0, 1)[:length].view(x.dtype)
    return found.float() if descale is None else found.float() * descale[head]
