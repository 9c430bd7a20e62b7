"""The types of public signatures. Nothing is imported for them when a program runs: no framework has to be there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, Optional, Protocol, TypedDict, TypeVar, Union

from attend._core import BlockMask

if TYPE_CHECKING:
    from attend._serving import Rotary


class Array(Protocol):
    """An array of any framework: NumPy's, torch's, JAX's, or another's with ``__dlpack__``."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> object: ...


# The kind of array of a call: results are of it. Arrays of two frameworks in one call have no kind in common.
ArrayT = TypeVar("ArrayT", bound=Array)


class TorchDevice(Protocol):
    """torch.device."""

    @property
    def type(self) -> str: ...
    @property
    def index(self) -> Optional[int]: ...


Device = Union[str, TorchDevice]
Layout = Literal["bhsd", "bshd"]
Window = Sequence[Optional[int]]  # (left, right); -1 or None leaves a side open
Number = Union[float, Array]  # a tensor of one element counts as its number
WholeNumber = Union[int, Array]
Captures = Mapping[str, Union[Array, float]]


class VarlenOptions(TypedDict, total=False):
    """The options of `attention_varlen`, and those that all calls of attention have."""

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


class CacheOptions(TypedDict, total=False):
    """What `append` and `decode` are told of a cache and of new keys."""

    layout: Layout
    seqlens_k: Optional[WholeNumber]
    page_table: Optional[Array]
    cache_batch_idx: Optional[Array]
    cu_seqlens_new: Optional[Array]
    max_seqlen_new: Optional[int]
    slot_mapping: Optional[Array]
    positions: Optional[Array]
    rotary: Optional[Rotary]
    cu_seqlens_q: Optional[Array]
    max_seqlen_q: Optional[int]
    query_positions: Literal["last", "first", "one"]
    q_norm: Optional[Array]
    k_norm: Optional[Array]
    norm_eps: float
    k_descale: Optional[Array]
    v_descale: Optional[Array]


class DecodeOptions(CacheOptions, total=False):
    """The options of `decode`."""

    cache_leftpad: Optional[Array]
    causal: bool
    window: Window
    scale: Optional[Number]
    softcap: Number
    alibi_slopes: Optional[Array]
    sinks: Optional[Array]
    tree_mask: Optional[Array]
    head_dim_v: Optional[int]
    k: Optional[Array]
    v: Optional[Array]
    lse_base2: bool
    out: Optional[Array]
    compute: str
