"""Masks of the caller's own: a line of text becomes tiles. docs/custom_scores.md has the language."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any, Optional

from attend import _core
from attend._core import BlockMask
from attend._errors import ArgumentError
from attend._frameworks import is_torch
from attend._score import check_captures, check_text, view_of_capture


def make_block_mask(
    mask: str,
    seqlen_q: int,
    seqlen_k: int,
    *,
    batch: int = 1,
    num_heads: int = 1,
    captures: Optional[Mapping[str, Any]] = None,
) -> BlockMask:
    """Which keys each row sees, for `attention(..., block_mask=...)`, which leaves out tiles in which no row sees a key.

        mask = attend.make_block_mask("k <= q && doc[q] == doc[k]", 8192, 8192, captures={"doc": doc})

    Arguments:
        mask: text of a condition on b (sequence), h (query head), q (row), k (key), q_len, k_len and captures. Rows and
            keys count from the first one: row q is beside key q.
        seqlen_q, seqlen_k: lengths of the calls that it is for, 0 to 2^31 - 1.
        batch, num_heads: where the text asks for b (or h): the number of sequences (or query heads) of the calls. A text
            that does not ask for them gives a mask for any number.
        captures: {"doc": array, ...}, on a CPU, what the text reads: 0 to 4 dimensions, or numbers. They are read here,
            once.

    Returns:
        A `BlockMask`, which never changes. `shape`: (batch, num_heads, seqlen_q, seqlen_k). `tiles`: a dictionary of
        the numbers of tiles of 64 rows and 64 keys: all, full, partial, and the number of different patterns of partial
        ones. `density`: part of all pairs that are seen. `nbytes`. `sees(batch, head, row, key)`.

    Tiles that are decided by bounds of the condition are not evaluated: causal masks and sorted documents take time
    that grows with the lengths, not with their product. The mask may be copied and shared between threads.

    Raises:
        attend.ArgumentError naming the column of the text, the capture or the size.
    """
    check_text("mask", mask)
    check_captures(captures)
    given = captures or {}
    views = tuple(_view(name, x) for name, x in given.items())
    sizes = [_size(name, n) for name, n in (("batch", batch), ("num_heads", num_heads), ("seqlen_q", seqlen_q),
                                            ("seqlen_k", seqlen_k))]  # fmt: skip
    return _core.make_block_mask(mask, tuple(given), views, *sizes)


def _size(name: str, n: Any) -> int:
    try:
        size = operator.index(n)
    except TypeError:
        raise ArgumentError(f"{name}: {type(n).__name__}, allowed an integer") from None
    if not -(2**63) <= size < 2**63:
        raise ArgumentError(f"{name}: {size}, allowed 0 to {2**31 - 1}")
    return size


def _view(name: str, x: Any) -> Any:
    if is_torch(x):
        from attend.torch._score import view_of_host_capture

        return view_of_host_capture(name, x)
    from attend import _arrays

    return view_of_capture(_arrays.space_of(x) if hasattr(x, "__dlpack_device__") else None, name, x)
