"""The problems of bench/decode_vs_peers.py: a few query rows of each sequence over a cache, for attend and its peers.

Every side reads the same numbers from the same memory: q as (sequences, rows, heads, head_dim), and caches of (cache
rows or pages, keys, heads, head_dim) or, with heads before keys, views of the same shape. Peers that want another order
get transposed views, which costs them no copy.
"""

import dataclasses
import fnmatch
import random
from collections.abc import Callable, Iterator
from typing import Any, Optional

import torch
import torch.nn.functional as F
from torch.nn.attention import sdpa_kernel

import attend
import peer_cases

CACHE_DTYPES = {"f8e4m3": torch.float8_e4m3fn, "i8": torch.int8}
DESCALE = 0.03  # of 8-bit caches: normal numbers fill the range of i8
SEED = 1


@dataclasses.dataclass(frozen=True)
class Shape:
    """A problem. `head_dim_v`: the values are so many columns of the keys."""

    lengths: tuple[int, ...]
    heads: int = 32
    heads_k: int = 8
    head_dim: int = 128
    rows: int = 1
    head_dim_v: Optional[int] = None
    note: str = ""

    @property
    def name(self) -> str:
        """As --cases takes it: 16x8192, 16x8192-32:1, 64x4096-d96, 64x4096-r4, 32x4096-16:1-d576/512."""
        found = self.note or f"{len(self.lengths)}x{self.lengths[0]}"
        if (self.heads, self.heads_k) != (32, 8):
            found += f"-{self.heads}:{self.heads_k}"
        if self.head_dim_v is not None:
            found += f"-d{self.head_dim}/{self.head_dim_v}"
        elif self.head_dim != 128:
            found += f"-d{self.head_dim}"
        return found + (f"-r{self.rows}" if self.rows > 1 else "")

    @property
    def is_uniform(self) -> bool:
        return len(set(self.lengths)) == 1

    def elements(self) -> int:
        """Of the cache that a call has to read, once."""
        columns = self.head_dim if self.head_dim_v is not None else 2 * self.head_dim
        return sum(self.lengths) * self.heads_k * columns

    def flops(self) -> float:
        """Of the products, without what a causal mask hides of the last few keys."""
        columns = self.head_dim + (self.head_dim_v or self.head_dim)
        return 2.0 * sum(self.lengths) * self.rows * self.heads * columns


def shape(batch: int, seqlen: int, **more: Any) -> Shape:
    return Shape((seqlen,) * batch, **more)


def uniform_lengths() -> tuple[int, ...]:
    draw = random.Random(SEED)
    return tuple(draw.randint(128, 8127) for _ in range(64))


def sets() -> dict[str, list[Shape]]:
    """Named sets of problems. Ragged ones stand beside a uniform one of as many keys."""
    drawn = uniform_lengths()
    large = {"batch": 16, "seqlen": 8192}
    return {
        "table": [
            shape(1, 131072), shape(16, 8192), shape(64, 4096), shape(128, 1024), shape(16, 8192, heads_k=32),
            shape(16, 8192, heads=64, head_dim=64), shape(64, 4096, rows=4), shape(1, 1024), shape(1, 4096),
            shape(1, 32768), shape(8, 4096), shape(16, 8192, heads_k=1), shape(1, 32768, rows=4),
        ],
        "ragged": [
            Shape((*(1024,) * 63, 32768), note="ragged-63x1024+32768"),
            shape(64, 1520), Shape(drawn, note="ragged-64x128..8127"), shape(64, sum(drawn) // 64),
        ],
        "rows": [shape(64, 4096), *(shape(64, 4096, rows=rows) for rows in (2, 4, 16))],
        "groups": [shape(**large), *(shape(**large, heads=8 * group) for group in (5, 7, 16))],
        "dims": [shape(**large), *(shape(**large, head_dim=d) for d in (80, 96, 256))],
        "mla": [shape(32, 4096, heads=heads, heads_k=1, head_dim=576, head_dim_v=512) for heads in (16, 128)],
    }  # fmt: skip


def chosen(patterns: str) -> list[Shape]:
    """The problems of a comma list of sets and of names, which may have wildcards; each once."""
    known = sets()
    everything = [one for group in known.values() for one in group]
    found: dict[str, Shape] = {}
    for pattern in patterns.split(","):
        matching = known.get(pattern) or [x for x in everything if fnmatch.fnmatch(x.name, pattern)]
        if not matching:
            raise ValueError(f"{pattern!r} names no case, allowed {', '.join(known)} or names: "
                             f"{', '.join(dict.fromkeys(x.name for x in everything))}")  # fmt: skip
        found |= {x.name: x for x in matching}
    return list(found.values())


@dataclasses.dataclass(frozen=True)
class Setting:
    """What all problems of a run have in common."""

    dtype: str = "bf16"
    cache: Optional[str] = None  # f8e4m3 or i8; None: the dtype of q
    page_size: int = 0  # 0: contiguous
    heads_first: bool = False  # memory of a cache: heads before keys
    device: str = "cuda"

    @property
    def element_bytes(self) -> int:
        return 1 if self.cache else torch.finfo(peer_cases.TORCH_DTYPES[self.dtype]).bits // 8


@dataclasses.dataclass
class Cache:
    """Keys and values. `v` is None where the values lie in the keys."""

    k: Any
    v: Any
    k_descale: Any = None
    v_descale: Any = None

    def copy(self) -> "Cache":
        return dataclasses.replace(self, **{name: _clone(x) for name, x in (("k", self.k), ("v", self.v))})


Side = Callable[[Cache], Any]  # gives o as (sequences, rows, heads, head_dim_v)


@dataclasses.dataclass
class Problem:
    """q, lengths and table of a problem, a cache of each kind, and what computes o of it, by name.

    The sides called attend_* are attend with what `caches` has under the same name.
    """

    shape: Shape
    setting: Setting
    q: Any
    lengths: Any
    page_table: Any
    caches: dict[str, Cache]
    sides: dict[str, Side]

    @property
    def bytes_moved(self) -> int:
        return self.shape.elements() * self.setting.element_bytes

    def cache_of(self, side: str) -> Cache:
        return self.caches.get(side, self.caches["attend"])


def problem(one: Shape, setting: Setting) -> Problem:
    generator = torch.Generator(setting.device).manual_seed(SEED)
    dtype = peer_cases.TORCH_DTYPES[setting.dtype]
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
    caches = {"attend": wide} if setting.cache is None else {"attend": _narrowed(wide, setting), "attend_wide": wide}
    found = Problem(one, setting, q, lengths, table, caches, {})
    found.sides = dict(_sides(found))
    return found


def _table(one: Shape, setting: Setting) -> tuple[Any, int, int]:
    """(page table or None, pages or cache rows, their keys). Pages lie in random order."""
    longest = max(one.lengths)
    if setting.page_size == 0:
        return None, len(one.lengths), longest
    counts = [-(-length // setting.page_size) for length in one.lengths]
    order = torch.randperm(sum(counts), generator=torch.Generator().manual_seed(SEED)).to(torch.int32)
    table = torch.zeros(len(counts), max(counts), dtype=torch.int32)
    for row, pages in zip(table, order.split(counts)):
        row[: len(pages)] = pages
    return table.to(setting.device), sum(counts), setting.page_size


def _narrowed(wide: Cache, setting: Setting) -> Cache:
    """The cache in 8 bits, one factor for each head."""
    largest = 127 if setting.cache == "i8" else 448

    def narrow(x: Any) -> Any:
        if x is None:
            return None
        parts = []
        for part in x.split(max(1, (1 << 26) // max(x[0].numel(), 1))):  # float32 of all of it would be large
            scaled = (part.float() / DESCALE).clamp(-largest, largest)
            parts.append((scaled.round() if setting.cache == "i8" else scaled).to(CACHE_DTYPES[setting.cache]))
        if len(parts) == 1:
            return parts[0]
        return torch.cat([y.view(torch.int8) for y in parts]).view(parts[0].dtype)

    factors = torch.full((wide.k.shape[2],), DESCALE, device=setting.device)
    return Cache(narrow(wide.k), narrow(wide.v), factors, None if wide.v is None else factors)


def _clone(x: Any) -> Any:
    return None if x is None else x.clone(memory_format=torch.preserve_format)


def _sides(one: Problem) -> Iterator[tuple[str, Side]]:
    """attend, then the peers that have what the problem needs: cuDNN no pages, rows or lengths, none of them 8 bits."""
    for name in one.caches:
        yield name, _attend(one)
    if one.setting.cache is not None or one.shape.head_dim_v is not None:
        return
    if one.setting.page_size == 0 and one.shape.rows == 1 and one.shape.is_uniform:
        yield "cudnn", _sdpa(one)
    module = peer_cases.flash_attention_3()
    if hasattr(module, "flash_attn_with_kvcache"):
        yield "fa3", _flash_attention_3(one, module)


def _attend(one: Problem) -> Side:
    def side(cache: Cache) -> Any:
        return attend.decode(
            one.q, cache.k, cache.v, layout="bshd", seqlens_k=one.lengths, page_table=one.page_table,
            head_dim_v=one.shape.head_dim_v, k_descale=cache.k_descale, v_descale=cache.v_descale,
        )  # fmt: skip

    return side


def _sdpa(one: Problem) -> Side:
    q = one.q.transpose(1, 2)

    def side(cache: Cache) -> Any:
        with sdpa_kernel([peer_cases.SDP["cudnn"]]):
            o = F.scaled_dot_product_attention(q, cache.k.transpose(1, 2), cache.v.transpose(1, 2), enable_gqa=True)
        return o.transpose(1, 2)

    return side


def _flash_attention_3(one: Problem, module: Any) -> Side:
    """It gives (o, lse, ...) or o alone, by its version."""

    def side(cache: Cache) -> Any:
        found = module.flash_attn_with_kvcache(
            one.q, cache.k, cache.v, cache_seqlens=one.lengths, page_table=one.page_table, causal=one.shape.rows > 1
        )
        return found[0] if isinstance(found, tuple) else found

    return side
