"""Defines the types of public signatures, without importing a framework at run time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Optional, Protocol, TypedDict, TypeVar, Union

from attend._core import BlockMask


class Array(Protocol):
    """An array of any framework: NumPy, torch, JAX, or another one with ``__dlpack__``."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> object: ...


class IndexedArray(Array, Protocol):
    """An array that a function slices or writes: NumPy or torch."""

    def __getitem__(self, key: Any, /) -> Any: ...
    def __setitem__(self, key: Any, value: Any, /) -> None: ...


# The type of a call's arrays and results. Type checkers refuse arrays of two frameworks in one call, because they have
# no common type.
ArrayT = TypeVar("ArrayT", bound=Array)


class TorchDevice(Protocol):
    """An object like torch.device."""

    @property
    def type(self) -> str: ...
    @property
    def index(self) -> Optional[int]: ...


Device = Union[str, TorchDevice]
Layout = Literal["bhsd", "bshd"]
Window = Sequence[Optional[int]]  # (left, right); -1 or None leaves a side open
Number = Union[float, Array]  # a tensor of one element is accepted as a number
WholeNumber = Union[int, Array]
Captures = Mapping[str, Union[Array, float]]


class VarlenOptions(TypedDict, total=False):
    """The options of `attention_varlen`, which are also options of all other attention calls."""

    causal: bool
    window: Window
    scale: Optional[Number]
    softcap: Number
    alibi_slopes: Optional[Array]
    sinks: Optional[Array]
    dropout_p: float
    seed: Optional[WholeNumber]
    offset: WholeNumber
    deterministic: bool
    compute: str


class JaxOptions(VarlenOptions, total=False):
    """The options of `attend.jax.attention`."""

    layout: Layout
    bias: Optional[Array]
    mask: Optional[Array]


class AttentionOptions(JaxOptions, total=False):
    """The options of `attention`."""

    score: Optional[str]
    captures: Optional[Captures]
    block_mask: Optional[BlockMask]


class PassOptions(JaxOptions, total=False):
    """The options of `forward` and `backward`, without a score."""

    block_mask: Optional[BlockMask]
    cu_seqlens_q: Optional[Array]
    cu_seqlens_k: Optional[Array]
    max_seqlen_q: int
    max_seqlen_k: int


class RingOptions(VarlenOptions, total=False):
    """The options of the calls of `attend.ring`."""

    sharding: str
    algorithm: str
    layout: Optional[Layout]
    bias: Optional[Array]
    mask: Optional[Array]
    cu_seqlens_q: Optional[Array]
    cu_seqlens_k: Optional[Array]
    max_seqlen_q: Optional[int]
    max_seqlen_k: Optional[int]
