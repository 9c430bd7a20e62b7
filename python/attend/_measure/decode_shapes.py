"""The decode problems that are measured, and their theoretical costs."""

from __future__ import annotations

import dataclasses
from typing import Optional

from attend._measure.problems import DTYPE_BYTES

WARM, COLD = "warm", "cold"  # whether a GPU reads the KV cache from L2 (warm) or from memory (cold)
NARROW = ("f8e4m3", "i8")  # 8-bit dtypes of caches


@dataclasses.dataclass(frozen=True)
class Shape:
    """A problem: a few query rows of each sequence, which see the keys up to their own position.

    `lengths` contains the number of keys of each sequence. If `head_dim_v` is set, the values are the first
    `head_dim_v` columns of the keys.
    """

    lengths: tuple[int, ...]
    heads: int = 32
    heads_k: int = 8
    head_dim: int = 128
    rows: int = 1
    head_dim_v: Optional[int] = None
    note: str = ""

    @property
    def name(self) -> str:
        """The problem's name, such as 16x8192, 16x8192-32:1, 64x4096-d96, 64x4096-r4, 32x4096-16:1-d576/512.

        32:8 heads, d128 and r1 are omitted.
        """
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
        """Returns the number of cache elements that a call must read, counted once."""
        columns = self.head_dim if self.head_dim_v is not None else 2 * self.head_dim
        return sum(self.lengths) * self.heads_k * columns

    def flops(self) -> float:
        """Returns the number of floating-point operations of the two products for visible keys."""
        columns = self.head_dim + (self.head_dim_v or self.head_dim)
        pairs = sum(self.rows * length - self.rows * (self.rows - 1) // 2 for length in self.lengths)
        return 2.0 * pairs * self.heads * columns


@dataclasses.dataclass(frozen=True)
class Setting:
    """Settings that all problems of a run share."""

    dtype: str = "bf16"  # dtype of q
    cache: Optional[str] = None  # one of NARROW, or None for the dtype of q
    page_size: int = 0  # 0 for a contiguous cache
    heads_first: bool = False  # heads precede keys in the memory of a cache
    device: str = "cuda"

    @property
    def element_bytes(self) -> int:
        """Returns the number of bytes of a cache element."""
        return 1 if self.cache else DTYPE_BYTES[self.dtype]

    def held_bytes(self, shape: Shape) -> int:
        """Returns the peak memory in bytes while the inputs of a problem are drawn. Each input is drawn in float32 and
        rounded before the next.
        """
        page = self.page_size
        places = sum(-(-length // page) * page if page else max(shape.lengths) for length in shape.lengths)
        one = places * shape.heads_k * shape.head_dim  # number of elements of the keys
        both = one if shape.head_dim_v is not None else 2 * one
        rows = len(shape.lengths) * shape.rows * shape.heads * shape.head_dim
        return both * (DTYPE_BYTES[self.dtype] + (1 if self.cache else 0)) + 4 * max(one, rows)
