"""xFormers' classes for `attn_bias` under their names, for machines without xFormers. attend also accepts instances of
xFormers' own classes.

A block is one of several packed sequences. A row sees only keys of its own block. Masks whose names contain
FromBottomRight, WithOffset, PaddedKeys or GappyKeys align with the bottom right corner of their block. All other masks
align with the top left corner.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Optional, TypeVar

import torch

from attend._errors import ArgumentError
from attend.xformers._lengths import Device
from attend.xformers._lengths import GappySeqInfo as _GappySeqInfo
from attend.xformers._lengths import PaddedSeqLenInfo as _PaddedSeqLenInfo
from attend.xformers._lengths import SeqLenInfo as _SeqLenInfo
from attend.xformers._patterns import pattern_of, visible

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = [
    "AttentionBias",
    "BlockDiagonalCausalFromBottomRightMask",
    "BlockDiagonalCausalLocalAttentionFromBottomRightMask",
    "BlockDiagonalCausalLocalAttentionMask",
    "BlockDiagonalCausalLocalAttentionPaddedKeysMask",
    "BlockDiagonalCausalMask",
    "BlockDiagonalCausalWithOffsetGappyKeysMask",
    "BlockDiagonalCausalWithOffsetPaddedKeysMask",
    "BlockDiagonalGappyKeysMask",
    "BlockDiagonalLocalAttentionPaddedKeysMask",
    "BlockDiagonalMask",
    "BlockDiagonalPaddedKeysMask",
    "LocalAttentionFromBottomRightMask",
    "LowerTriangularFromBottomRightLocalAttentionMask",
    "LowerTriangularFromBottomRightMask",
    "LowerTriangularMask",
    "LowerTriangularMaskWithTensorBias",
    "PagedBlockDiagonalCausalWithOffsetGappyKeysMask",
    "PagedBlockDiagonalCausalWithOffsetPaddedKeysMask",
    "PagedBlockDiagonalGappyKeysMask",
    "PagedBlockDiagonalPaddedKeysMask",
]


_Paged = TypeVar("_Paged")  # the class of a mask with pages


class AttentionBias:
    """The base class of all masks and biases."""

    def materialize(
        self, shape: Sequence[int], dtype: torch.dtype = torch.float32, device: Device = "cpu"
    ) -> torch.Tensor:
        """Returns the bias as a tensor (..., seqlen_q, seqlen_k): 0 for a visible key, otherwise -inf. Used in tests.

        With pages, the last dimension of the result covers the pages in use.
        """
        pattern = pattern_of(self)
        assert pattern is not None
        num_keys = shape[-1]
        if pattern.kind.keys != "dense":
            starts = pattern.fields.q_seqinfo.seqstart_py
            if shape[-2] != starts[-1]:
                raise ArgumentError(f"shape: {shape[-2]} rows, allowed {starts[-1]}")
        if "pages" in pattern.kind.keys:
            num_keys = (int(pattern.fields.block_tables.max()) + 1) * pattern.fields.page_size
        elif pattern.kind.keys != "dense" and num_keys != pattern.fields.k_seqinfo.seqstart_py[-1]:
            raise ArgumentError(f"shape: {num_keys} keys, allowed {pattern.fields.k_seqinfo.seqstart_py[-1]}")
        bias = torch.zeros(shape[-2], num_keys, dtype=dtype, device=device)
        bias = bias.masked_fill(~visible(pattern, shape[-2], num_keys).to(device), float("-inf"))
        return bias.expand(*shape[:-1], num_keys)

    def to(self, device: Device) -> Self:
        """Returns a copy with its tensors on the device."""
        if not dataclasses.is_dataclass(self):
            return self
        moved = {x.name: getattr(self, x.name) for x in dataclasses.fields(self)}
        return type(self)(**{name: x.to(device) if hasattr(x, "to") else x for name, x in moved.items()})


class LowerTriangularMask(AttentionBias):
    """Row i sees keys up to i."""

    def __init__(self, device: Device = None) -> None:
        pass

    def add_bias(self, bias: torch.Tensor) -> LowerTriangularMaskWithTensorBias:
        return LowerTriangularMaskWithTensorBias(bias)


class LowerTriangularMaskWithTensorBias(LowerTriangularMask):
    """LowerTriangularMask with a tensor (batch, heads, seqlen_q, seqlen_k) that is added to the scores."""

    def __init__(self, bias: torch.Tensor) -> None:
        self._bias = bias

    def to(self, device: Device) -> Self:
        return type(self)(self._bias.to(device))

    def materialize(
        self, shape: Sequence[int], dtype: torch.dtype = torch.float32, device: Device = "cpu"
    ) -> torch.Tensor:
        return super().materialize(shape, dtype, device) + self._bias


@dataclasses.dataclass
class LocalAttentionFromBottomRightMask(AttentionBias):
    """Row i sees the keys i + s - window_left to i + s + window_right, where s = seqlen_k - seqlen_q."""

    window_left: int
    window_right: int

    def __post_init__(self) -> None:
        for name in ("window_left", "window_right"):
            _at_least(name, getattr(self, name), 0)


class LowerTriangularFromBottomRightMask(AttentionBias):
    """Row i sees the keys up to i + s, where s = seqlen_k - seqlen_q."""

    def make_local_attention(self, window_size: int) -> LowerTriangularFromBottomRightLocalAttentionMask:
        return LowerTriangularFromBottomRightLocalAttentionMask(window_size)


@dataclasses.dataclass
class LowerTriangularFromBottomRightLocalAttentionMask(LowerTriangularFromBottomRightMask):
    """LowerTriangularFromBottomRightMask, limited to the last `window_size` keys of each row."""

    _window_size: int

    def __post_init__(self) -> None:
        _at_least("window_size", self._window_size, 1)


@dataclasses.dataclass
class BlockDiagonalMask(AttentionBias):
    """Packed sequences: their rows, and their keys, are concatenated in tensors of batch 1."""

    q_seqinfo: _SeqLenInfo
    k_seqinfo: _SeqLenInfo
    _batch_sizes: Optional[Sequence[int]] = None

    @classmethod
    def from_seqlens(
        cls, q_seqlen: Sequence[int], kv_seqlen: Optional[Sequence[int]] = None, *, device: Device = None
    ) -> Self:
        """Makes the mask from the sequence lengths. A kv_seqlen of None means q_seqlen."""
        of_rows = _SeqLenInfo.from_seqlens(q_seqlen, device=device)
        if kv_seqlen is None or list(kv_seqlen) == list(q_seqlen):
            return cls(of_rows, of_rows)
        _as_many(q_seqlen, kv_seqlen)
        return cls(of_rows, _SeqLenInfo.from_seqlens(kv_seqlen, device=device))

    @classmethod
    def from_tensor_list(cls, tensors: Sequence[torch.Tensor]) -> tuple[Self, torch.Tensor]:
        """Returns the mask of tensors (batch, seqlen, ...), and their concatenation (1, sum of batch * seqlen, ...)."""
        found, packed = _packed(cls, tensors, tensors)
        return found, packed

    @classmethod
    def from_tensor_lists_qkv(
        cls,
        tensors_q: Sequence[torch.Tensor],
        tensors_k: Sequence[torch.Tensor],
        tensors_v: Optional[Sequence[torch.Tensor]] = None,
    ) -> tuple[Self, torch.Tensor, torch.Tensor, Optional[torch.Tensor]]:
        """Like `from_tensor_list`, but with separate lists for rows and keys, whose lengths may differ."""
        found, of_rows = _packed(cls, tensors_q, tensors_k)
        return found, of_rows, _in_a_row(tensors_k), None if tensors_v is None else _in_a_row(tensors_v)

    def split_queries(self, tensor: torch.Tensor) -> Sequence[torch.Tensor]:
        return list(self.q_seqinfo.split(tensor, self._batch_sizes))

    def split_kv(self, tensor: torch.Tensor) -> Sequence[torch.Tensor]:
        return list(self.k_seqinfo.split(tensor, self._batch_sizes))

    def split(self, tensor: torch.Tensor) -> Sequence[torch.Tensor]:
        """Splits a tensor into the tensors that `from_tensor_list` has concatenated."""
        if self.q_seqinfo is not self.k_seqinfo:
            raise ArgumentError("split: rows and keys of different lengths, allowed split_queries and split_kv")
        return self.split_queries(tensor)

    def make_causal(self) -> BlockDiagonalCausalMask:
        return BlockDiagonalCausalMask(self.q_seqinfo, self.k_seqinfo, self._batch_sizes)

    def make_causal_from_bottomright(self) -> BlockDiagonalCausalFromBottomRightMask:
        return BlockDiagonalCausalFromBottomRightMask(self.q_seqinfo, self.k_seqinfo, self._batch_sizes)

    def make_local_attention(self, window_size: int) -> BlockDiagonalCausalLocalAttentionMask:
        return BlockDiagonalCausalLocalAttentionMask(self.q_seqinfo, self.k_seqinfo, self._batch_sizes, window_size)

    def make_local_attention_from_bottomright(
        self, window_size: int
    ) -> BlockDiagonalCausalLocalAttentionFromBottomRightMask:
        parts = (self.q_seqinfo, self.k_seqinfo, self._batch_sizes, window_size)
        return BlockDiagonalCausalLocalAttentionFromBottomRightMask(*parts)


class BlockDiagonalCausalMask(BlockDiagonalMask):
    """Row i of a block sees the keys of its block up to i."""


@dataclasses.dataclass
class BlockDiagonalCausalFromBottomRightMask(BlockDiagonalMask):
    """The last row of a block sees all keys of the block. A block has at least as many keys as rows."""

    def __post_init__(self) -> None:
        for (q_start, q_end), (k_start, k_end) in zip(self.q_seqinfo.intervals(), self.k_seqinfo.intervals()):
            _at_least("kv_seqlen", k_end - k_start, q_end - q_start)


@dataclasses.dataclass
class BlockDiagonalCausalLocalAttentionMask(BlockDiagonalCausalMask):
    """Row i of a block sees the keys i - window_size + 1 to i of its block."""

    _window_size: int = 0

    def __post_init__(self) -> None:
        _at_least("window_size", self._window_size, 1)
        for (q_start, q_end), (k_start, k_end) in zip(self.q_seqinfo.intervals(), self.k_seqinfo.intervals()):
            _at_least("kv_seqlen", k_end - k_start, q_end - q_start - self._window_size + 1)


@dataclasses.dataclass
class BlockDiagonalCausalLocalAttentionFromBottomRightMask(BlockDiagonalCausalFromBottomRightMask):
    """BlockDiagonalCausalLocalAttentionMask, aligned bottom right."""

    _window_size: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        _at_least("window_size", self._window_size, 1)


@dataclasses.dataclass
class BlockDiagonalPaddedKeysMask(AttentionBias):
    """The keys of block s begin at s * kv_padding. The first kv_seqlen[s] of them are valid."""

    q_seqinfo: _SeqLenInfo
    k_seqinfo: _PaddedSeqLenInfo

    @classmethod
    def from_seqlens(
        cls, q_seqlen: Sequence[int], kv_padding: int, kv_seqlen: Sequence[int], causal_diagonal: object = None, *,
        device: Device = None,
    ) -> Self:  # fmt: skip
        return cls(*_padded(q_seqlen, kv_padding, kv_seqlen, device))

    def make_local_attention(self, window_left: int, window_right: int) -> BlockDiagonalLocalAttentionPaddedKeysMask:
        return BlockDiagonalLocalAttentionPaddedKeysMask(self.q_seqinfo, self.k_seqinfo, window_left, window_right)

    def make_paged(self, block_tables: torch.Tensor, page_size: int, paged_type: Callable[..., _Paged]) -> _Paged:
        """Returns a paged mask with the same key lengths."""
        keys = dataclasses.replace(self.k_seqinfo, padding=block_tables.shape[1] * page_size)
        return paged_type(self.q_seqinfo, keys, block_tables, page_size)


@dataclasses.dataclass
class BlockDiagonalCausalWithOffsetPaddedKeysMask(BlockDiagonalPaddedKeysMask):
    """The last row of a block sees all keys of the block, and each earlier row one key less."""

    causal_diagonal: object = None  # accepted for compatibility, has no effect


@dataclasses.dataclass
class BlockDiagonalLocalAttentionPaddedKeysMask(BlockDiagonalPaddedKeysMask):
    """BlockDiagonalPaddedKeysMask with the window of LocalAttentionFromBottomRightMask in each block."""

    window_left: int
    window_right: int

    @classmethod
    def from_seqlens_local(
        cls, q_seqlen: Sequence[int], kv_padding: int, kv_seqlen: Sequence[int], window_left: int, window_right: int
    ) -> Self:
        return cls(*_padded(q_seqlen, kv_padding, kv_seqlen, None), window_left, window_right)


@dataclasses.dataclass
class BlockDiagonalCausalLocalAttentionPaddedKeysMask(BlockDiagonalPaddedKeysMask):
    """BlockDiagonalPaddedKeysMask that is causal in each block and limited to the last `window_size` keys of each
    row.
    """

    _window_size: int

    @classmethod
    def from_seqlens_local(
        cls, q_seqlen: Sequence[int], kv_padding: int, kv_seqlen: Sequence[int], window_size: int
    ) -> Self:
        return cls(*_padded(q_seqlen, kv_padding, kv_seqlen, None), window_size)


@dataclasses.dataclass
class PagedBlockDiagonalPaddedKeysMask(AttentionBias):
    """Key j of block s is key j % page_size of page block_tables[s, j // page_size]."""

    q_seqinfo: _SeqLenInfo
    k_seqinfo: _PaddedSeqLenInfo
    block_tables: torch.Tensor
    page_size: int

    @classmethod
    def from_seqlens(
        cls, q_seqlen: Sequence[int], kv_seqlen: Sequence[int], block_tables: torch.Tensor, page_size: int, *,
        device: Device = None,
    ) -> Self:  # fmt: skip
        capacity = block_tables.shape[1] * page_size
        return cls(*_padded(q_seqlen, capacity, kv_seqlen, device), block_tables, page_size)


class PagedBlockDiagonalCausalWithOffsetPaddedKeysMask(PagedBlockDiagonalPaddedKeysMask):
    """PagedBlockDiagonalPaddedKeysMask, causal: the last row of a block sees all keys of the block."""


@dataclasses.dataclass
class BlockDiagonalGappyKeysMask(AttentionBias):
    """The keys of block s begin at kv_seqstarts[s]. The last entry of kv_seqstarts is the total number of keys."""

    q_seqinfo: _SeqLenInfo
    k_seqinfo: _GappySeqInfo

    @classmethod
    def from_seqlens(
        cls, q_seqlen: Sequence[int], kv_seqstarts: Sequence[int], kv_seqlen: Sequence[int], *, device: Device = None
    ) -> Self:
        _as_many(q_seqlen, kv_seqlen)
        keys = _GappySeqInfo.from_seqlens_gappy(kv_seqstarts, kv_seqlen, False, device=device)
        return cls(_SeqLenInfo.from_seqlens(q_seqlen, device=device), keys)

    def make_paged(
        self, block_tables: torch.Tensor, page_size: int, notional_padding: int, paged_type: Callable[..., _Paged]
    ) -> _Paged:  # fmt: skip
        """Returns a paged mask of the same keys. In the paged mask, the keys of block s begin at s * notional_padding
        or later.
        """
        if notional_padding % page_size:
            raise ArgumentError(f"notional_padding: {notional_padding}, allowed a multiple of page_size, {page_size}")
        info = self.k_seqinfo
        starts = [start - s * notional_padding for s, start in enumerate(info.seqstart_py[:-1])]
        device = info.seqstart.device
        keys = _GappySeqInfo.from_seqlens_gappy(starts, list(info.seqlen_py), True, device=device)
        return paged_type(self.q_seqinfo, keys, block_tables, page_size)


class BlockDiagonalCausalWithOffsetGappyKeysMask(BlockDiagonalGappyKeysMask):
    """BlockDiagonalGappyKeysMask, causal: the last row of a block sees all keys of the block."""


@dataclasses.dataclass
class PagedBlockDiagonalGappyKeysMask(AttentionBias):
    """A mask of keys in pages, which hides the first kv_seqstarts[s] keys of block s."""

    q_seqinfo: _SeqLenInfo
    k_seqinfo: _GappySeqInfo
    block_tables: torch.Tensor
    page_size: int

    @classmethod
    def from_seqlens(
        cls, q_seqlen: Sequence[int], kv_seqstarts: Sequence[int], kv_seqlen: Sequence[int],
        block_tables: torch.Tensor, page_size: int, *, device: Device = None,
    ) -> Self:  # fmt: skip
        _as_many(q_seqlen, kv_seqlen)
        device = block_tables.device if device is None else device
        keys = _GappySeqInfo.from_seqlens_gappy(kv_seqstarts, kv_seqlen, True, device=device)
        return cls(_SeqLenInfo.from_seqlens(q_seqlen, device=device), keys, block_tables, page_size)


class PagedBlockDiagonalCausalWithOffsetGappyKeysMask(PagedBlockDiagonalGappyKeysMask):
    """PagedBlockDiagonalGappyKeysMask, causal: the last row of a block sees all keys of the block."""


def _at_least(name: str, found: int, least: int) -> None:
    if found < least:
        raise ArgumentError(f"{name}: {found}, allowed from {least} on")


def _as_many(q_seqlen: Sequence[int], kv_seqlen: Sequence[int]) -> None:
    if len(q_seqlen) != len(kv_seqlen):
        raise ArgumentError(f"kv_seqlen: {len(kv_seqlen)} entries, allowed {len(q_seqlen)} as q_seqlen")


def _padded(q_seqlen: Sequence[int], kv_padding: int, kv_seqlen: Sequence[int], device: Device) -> tuple[Any, Any]:
    _as_many(q_seqlen, kv_seqlen)
    rows = _SeqLenInfo.from_seqlens(q_seqlen, device=device)
    return rows, _PaddedSeqLenInfo.from_seqlens_padded(kv_seqlen, kv_padding, device=device)


def _in_a_row(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.cat([x.reshape(1, -1, *x.shape[2:]) for x in tensors], dim=1)


def _packed(cls: Any, of_rows: Sequence[torch.Tensor], of_keys: Sequence[torch.Tensor]) -> tuple[Any, torch.Tensor]:
    """Returns the mask of tensors (batch, seqlen, ...), and the concatenated rows. The mask stores how to split
    them.
    """
    lengths = [[n for x in tensors for n in [x.shape[1]] * x.shape[0]] for tensors in (of_rows, of_keys)]
    found = cls.from_seqlens(*lengths, device=of_rows[0].device)
    found._batch_sizes = [x.shape[0] for x in of_rows]
    return found, _in_a_row(of_rows)
