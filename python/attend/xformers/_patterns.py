"""Determines the visible keys of an xFormers bias from its class name and fields. xFormers is not imported.

The classes of attend.xformers.attn_bias have the same names and fields.
"""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple, Optional

import torch

from attend._errors import ArgumentError, UnsupportedError


class Kind(NamedTuple):
    """The properties of a bias class: the storage of its keys, and the keys that a row can see."""

    keys: str  # storage of the keys: dense, packed, padded, gappy, pages or gappy_pages
    reach: str  # the keys that a row can see: all, causal, causal_local or local
    is_top_left: bool = False  # masks align with the top left corner of the sequence, otherwise bottom right


KINDS = {
    "LowerTriangularMask": Kind("dense", "causal", True),
    "LowerTriangularMaskWithTensorBias": Kind("dense", "causal", True),
    "LowerTriangularFromBottomRightMask": Kind("dense", "causal"),
    "LowerTriangularFromBottomRightLocalAttentionMask": Kind("dense", "causal_local"),
    "LocalAttentionFromBottomRightMask": Kind("dense", "local"),
    "BlockDiagonalMask": Kind("packed", "all"),
    "BlockDiagonalCausalMask": Kind("packed", "causal", True),
    "BlockDiagonalCausalFromBottomRightMask": Kind("packed", "causal"),
    "BlockDiagonalCausalLocalAttentionMask": Kind("packed", "causal_local", True),
    "BlockDiagonalCausalLocalAttentionFromBottomRightMask": Kind("packed", "causal_local"),
    "BlockDiagonalPaddedKeysMask": Kind("padded", "all"),
    "BlockDiagonalCausalWithOffsetPaddedKeysMask": Kind("padded", "causal"),
    "BlockDiagonalLocalAttentionPaddedKeysMask": Kind("padded", "local"),
    "BlockDiagonalCausalLocalAttentionPaddedKeysMask": Kind("padded", "causal_local"),
    "BlockDiagonalGappyKeysMask": Kind("gappy", "all"),
    "BlockDiagonalCausalWithOffsetGappyKeysMask": Kind("gappy", "causal"),
    "PagedBlockDiagonalPaddedKeysMask": Kind("pages", "all"),
    "PagedBlockDiagonalCausalWithOffsetPaddedKeysMask": Kind("pages", "causal"),
    "PagedBlockDiagonalGappyKeysMask": Kind("gappy_pages", "all"),
    "PagedBlockDiagonalCausalWithOffsetGappyKeysMask": Kind("gappy_pages", "causal"),
}


class Pattern(NamedTuple):
    """A bias, described by its kind and its window. The window is the number of keys that a row sees to its left and to
    its right. -1 means all.
    """

    kind: Kind
    window: tuple[int, int]
    fields: Any  # the bias itself

    @property
    def q_bounds(self) -> list[tuple[int, int]]:
        """The (first, last + 1) row of each sequence."""
        return list(itertools.pairwise(self.fields.q_seqinfo.seqstart_py))

    @property
    def k_bounds(self) -> list[tuple[int, int]]:
        """The (first, last + 1) key of each sequence. Without pages these are indices in the tensor of all keys, with
        pages they are indices in the sequence.
        """
        info, keys = self.fields.k_seqinfo, self.kind.keys
        if keys == "packed":
            return list(itertools.pairwise(info.seqstart_py))
        if keys == "pages":
            return [(0, end) for end in info.seqlen_py]
        if keys == "gappy_pages":
            return list(zip(info.seqstart_py, info.seqlen_py))
        return [(start, start + n) for start, n in zip(info.seqstart_py, info.seqlen_py)]

    def window_of(self, num_rows: int, num_keys: int) -> tuple[int, int]:
        """Converts the window of a sequence to attend's window, which is aligned bottom right."""
        left, right = self.window
        shift = num_rows - num_keys if self.kind.is_top_left else 0
        # In attend's form, a negative left distance would mean that the window begins after the row. attend does not
        # support this, and xFormers' classes refuse it as well.
        if left >= 0 and left - shift < 0:
            raise ArgumentError(
                f"attn_bias: a window that hides all {num_keys} keys from some rows, allowed one that does not"
            )
        return left if left < 0 else left - shift, right if right < 0 else right + shift


def pattern_of(attn_bias: Any) -> Optional[Pattern]:
    """Returns the pattern of a bias object. Returns None for None and for a tensor, because then all keys are
    visible.
    """
    if attn_bias is None or isinstance(attn_bias, torch.Tensor):
        return None
    name = type(attn_bias).__name__
    if name not in KINDS:
        raise UnsupportedError(f"attn_bias: {name}, attend supports None, a tensor, or one of {', '.join(KINDS)}")
    kind = KINDS[name]
    windows = {
        "all": lambda: (-1, -1),
        "causal": lambda: (-1, 0),
        "causal_local": lambda: (attn_bias._window_size - 1, 0),
        "local": lambda: (attn_bias.window_left, attn_bias.window_right),
    }
    return Pattern(kind, windows[kind.reach](), attn_bias)


def places(pattern: Pattern, bounds: list[tuple[int, int]], device: Any) -> torch.Tensor:
    """Returns an i64 tensor with the indices, in the tensor of keys, of the keys of all sequences, one sequence after
    another.
    """
    of_sequence = [torch.arange(*each) for each in bounds]
    keys = torch.cat(of_sequence).to(device)
    if "pages" not in pattern.kind.keys:
        return keys
    table, size = pattern.fields.block_tables.to(device), pattern.fields.page_size
    rows = torch.cat([torch.full_like(x, s) for s, x in enumerate(of_sequence)]).to(device)
    places_in_pages: torch.Tensor = table[rows, keys // size].long() * size + keys % size
    return places_in_pages


def visible(pattern: Pattern, num_rows: int, num_keys: int) -> torch.Tensor:
    """Returns bool (num_rows, num_keys): True if the row sees the key, for the full packed tensors or, if keys are
    dense, for each sequence.
    """
    if pattern.kind.keys == "dense":
        return _band(pattern, num_rows, num_keys)
    seen = torch.zeros(num_rows, num_keys, dtype=torch.bool)
    keys = places(pattern, pattern.k_bounds, "cpu").split([end - start for start, end in pattern.k_bounds])
    for (start, end), of_sequence in zip(pattern.q_bounds, keys):
        seen[start:end, of_sequence] = _band(pattern, end - start, len(of_sequence))
    return seen


def _band(pattern: Pattern, num_rows: int, num_keys: int) -> torch.Tensor:
    left, right = pattern.window
    offset = 0 if pattern.kind.is_top_left else num_keys - num_rows
    i, j = torch.arange(num_rows)[:, None] + offset, torch.arange(num_keys)
    seen = torch.ones(num_rows, num_keys, dtype=torch.bool)
    seen = seen if left < 0 else seen & (j >= i - left)
    return seen if right < 0 else seen & (j <= i + right)
