"""Stores the start and end of each sequence of a packed dimension, as the biases of xFormers do.

Each number is stored twice: in a Python list (names that end in _py) and in an i32 tensor.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Optional, Union

import torch

from attend._errors import ArgumentError

if TYPE_CHECKING:
    from typing_extensions import Self

Device = Union[torch.device, str, int, None]


def default_device(device: Device = None) -> torch.device:
    """Returns `device`, or the GPU if there is one."""
    if device is not None:
        return torch.device(device)
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _tensor(numbers: Sequence[int], device: torch.device) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int32, device=device)


def _lengths(name: str, lengths: Any) -> list[int]:
    if isinstance(lengths, torch.Tensor) or not all(isinstance(n, int) and n >= 0 for n in lengths):
        raise ArgumentError(f"{name}: {lengths}, allowed whole numbers of at least 0, on the host")
    if not lengths:
        raise ArgumentError(f"{name}: no sequence, allowed one or more")
    return list(lengths)


@dataclasses.dataclass
class SeqLenInfo:
    """Consecutive sequences without gaps. Sequence s has the entries seqstart[s] to seqstart[s + 1]."""

    seqstart: torch.Tensor
    max_seqlen: int
    min_seqlen: int
    seqstart_py: list[int]

    @classmethod
    def from_seqlens(cls, seqlens: Sequence[int], *, device: Device = None) -> SeqLenInfo:
        lengths = _lengths("seqlens", seqlens)
        starts = [0, *itertools.accumulate(lengths)]
        return cls(_tensor(starts, default_device(device)), max(lengths), min(lengths), starts)

    def to(self, device: Device) -> Self:
        moved: dict[str, Any] = {x.name: getattr(self, x.name) for x in dataclasses.fields(self)}
        moved = {name: x.to(device) if isinstance(x, torch.Tensor) else x for name, x in moved.items()}
        return type(self)(**moved)

    def intervals(self) -> Iterator[tuple[int, int]]:
        """Yields (first, last + 1) of each sequence."""
        yield from itertools.pairwise(self.seqstart_py)

    def split(self, x: torch.Tensor, batch_sizes: Optional[Sequence[int]] = None) -> list[torch.Tensor]:
        """Splits `x` (1, seqstart[-1], ...) into its sequences. `batch_sizes` contains the number of sequences for each
        returned tensor. These sequences have equal lengths.
        """
        if x.shape[0] != 1 or x.shape[1] != self.seqstart_py[-1]:
            raise ArgumentError(f"tensor: shape {tuple(x.shape)}, allowed (1, {self.seqstart_py[-1]}, ...)")
        sizes = [1] * (len(self.seqstart_py) - 1) if batch_sizes is None else batch_sizes
        bounds = [self.seqstart_py[n] for n in (0, *itertools.accumulate(sizes))]
        pieces = x.split([end - start for start, end in itertools.pairwise(bounds)], dim=1)
        return [piece.reshape(size, -1, *x.shape[2:]) for size, piece in zip(sizes, pieces)]


@dataclasses.dataclass
class PaddedSeqLenInfo(SeqLenInfo):
    """Sequence s begins at s * padding and has seqlen[s] entries. The entries after the end of a sequence are padding,
    which is not read.
    """

    seqlen: torch.Tensor
    seqlen_py: Sequence[int]
    padding: int

    @classmethod
    def from_seqlens_padded(cls, seqlens: Sequence[int], padding: int, *, device: Device = None) -> PaddedSeqLenInfo:
        lengths, where = _lengths("kv_seqlen", seqlens), default_device(device)
        if max(lengths) > padding:
            raise ArgumentError(f"kv_seqlen: {max(lengths)}, allowed up to the padding, {padding}")
        starts = [padding * s for s in range(len(lengths) + 1)]
        return cls(
            _tensor(starts, where), max(lengths), min(lengths), starts, _tensor(lengths, where), lengths, padding
        )  # fmt: skip

    def intervals(self) -> Iterator[tuple[int, int]]:
        yield from ((start, start + length) for start, length in zip(self.seqstart_py, self.seqlen_py))


@dataclasses.dataclass
class GappySeqInfo(SeqLenInfo):
    """Sequence s begins at seqstart[s] and has seqlen[s] entries. The last entry of seqstart is the length of the
    dimension.

    With pages, seqstart[s] is an index in the pages of sequence s, and seqlen[s] is the end of the sequence, not its
    length.
    """

    seqlen: torch.Tensor
    seqlen_py: Sequence[int]

    @classmethod
    def from_seqlens_gappy(
        cls, seqstarts: Sequence[int], seqlens: Sequence[int], paged: bool, *, device: Device = None
    ) -> GappySeqInfo:
        lengths, starts, where = _lengths("kv_seqlen", seqlens), list(seqstarts), default_device(device)
        if paged:
            starts.append(-1)
        if len(starts) != len(lengths) + 1:
            allowed = len(lengths) + (0 if paged else 1)
            raise ArgumentError(f"kv_seqstarts: {len(seqstarts)} entries, allowed {allowed}")
        ends = [start + n for start, n in zip(starts, lengths)] if paged else lengths
        return cls(_tensor(starts, where), max(lengths), min(lengths), starts, _tensor(ends, where), ends)

    def intervals(self) -> Iterator[tuple[int, int]]:
        yield from ((start, start + length) for start, length in zip(self.seqstart_py, self.seqlen_py))
