"""Defines the types of ring-flash-attention's functions, which `_flash_attn.py` makes at run time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, Optional, Protocol, Union, overload

if TYPE_CHECKING:
    from torch import Tensor

    from attend.ring._contexts import Group


class Dense(Protocol):
    """The type of PREFIX_func."""

    @overload
    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, dropout_p: float = ..., softmax_scale: Optional[float] = ...,
        causal: bool = ..., window_size: Sequence[int] = ..., alibi_slopes: Optional[Tensor] = ...,
        deterministic: bool = ..., return_attn_probs: Literal[False] = ..., group: Optional[Group] = ...,
    ) -> Tensor: ...  # fmt: skip
    @overload
    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, dropout_p: float = ..., softmax_scale: Optional[float] = ...,
        causal: bool = ..., window_size: Sequence[int] = ..., alibi_slopes: Optional[Tensor] = ...,
        deterministic: bool = ..., *, return_attn_probs: Literal[True], group: Optional[Group] = ...,
    ) -> tuple[Tensor, Tensor, None]: ...  # fmt: skip
    @overload
    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, dropout_p: float = ..., softmax_scale: Optional[float] = ...,
        causal: bool = ..., window_size: Sequence[int] = ..., alibi_slopes: Optional[Tensor] = ...,
        deterministic: bool = ..., return_attn_probs: bool = ..., group: Optional[Group] = ...,
    ) -> Union[Tensor, tuple[Tensor, Tensor, None]]: ...  # fmt: skip


class DenseKvPacked(Protocol):
    """The type of PREFIX_kvpacked_func."""

    @overload
    def __call__(
        self, q: Tensor, kv: Tensor, dropout_p: float = ..., softmax_scale: Optional[float] = ..., causal: bool = ...,
        window_size: Sequence[int] = ..., alibi_slopes: Optional[Tensor] = ..., deterministic: bool = ...,
        return_attn_probs: Literal[False] = ..., group: Optional[Group] = ...,
    ) -> Tensor: ...  # fmt: skip
    @overload
    def __call__(
        self, q: Tensor, kv: Tensor, dropout_p: float = ..., softmax_scale: Optional[float] = ..., causal: bool = ...,
        window_size: Sequence[int] = ..., alibi_slopes: Optional[Tensor] = ..., deterministic: bool = ..., *,
        return_attn_probs: Literal[True], group: Optional[Group] = ...,
    ) -> tuple[Tensor, Tensor, None]: ...  # fmt: skip
    @overload
    def __call__(
        self, q: Tensor, kv: Tensor, dropout_p: float = ..., softmax_scale: Optional[float] = ..., causal: bool = ...,
        window_size: Sequence[int] = ..., alibi_slopes: Optional[Tensor] = ..., deterministic: bool = ...,
        return_attn_probs: bool = ..., group: Optional[Group] = ...,
    ) -> Union[Tensor, tuple[Tensor, Tensor, None]]: ...  # fmt: skip


class DenseQkvPacked(Protocol):
    """The type of PREFIX_qkvpacked_func."""

    @overload
    def __call__(
        self, qkv: Tensor, dropout_p: float = ..., softmax_scale: Optional[float] = ..., causal: bool = ...,
        window_size: Sequence[int] = ..., alibi_slopes: Optional[Tensor] = ..., deterministic: bool = ...,
        return_attn_probs: Literal[False] = ..., group: Optional[Group] = ...,
    ) -> Tensor: ...  # fmt: skip
    @overload
    def __call__(
        self, qkv: Tensor, dropout_p: float = ..., softmax_scale: Optional[float] = ..., causal: bool = ...,
        window_size: Sequence[int] = ..., alibi_slopes: Optional[Tensor] = ..., deterministic: bool = ..., *,
        return_attn_probs: Literal[True], group: Optional[Group] = ...,
    ) -> tuple[Tensor, Tensor, None]: ...  # fmt: skip
    @overload
    def __call__(
        self, qkv: Tensor, dropout_p: float = ..., softmax_scale: Optional[float] = ..., causal: bool = ...,
        window_size: Sequence[int] = ..., alibi_slopes: Optional[Tensor] = ..., deterministic: bool = ...,
        return_attn_probs: bool = ..., group: Optional[Group] = ...,
    ) -> Union[Tensor, tuple[Tensor, Tensor, None]]: ...  # fmt: skip


class Varlen(Protocol):
    """The type of PREFIX_varlen_func."""

    @overload
    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, max_seqlen: int, dropout_p: float = ...,
        softmax_scale: Optional[float] = ..., causal: bool = ..., window_size: Sequence[int] = ...,
        alibi_slopes: Optional[Tensor] = ..., deterministic: bool = ..., return_attn_probs: Literal[False] = ...,
        group: Optional[Group] = ...,
    ) -> Tensor: ...  # fmt: skip
    @overload
    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, max_seqlen: int, dropout_p: float = ...,
        softmax_scale: Optional[float] = ..., causal: bool = ..., window_size: Sequence[int] = ...,
        alibi_slopes: Optional[Tensor] = ..., deterministic: bool = ..., *, return_attn_probs: Literal[True],
        group: Optional[Group] = ...,
    ) -> tuple[Tensor, Tensor, None]: ...  # fmt: skip
    @overload
    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, max_seqlen: int, dropout_p: float = ...,
        softmax_scale: Optional[float] = ..., causal: bool = ..., window_size: Sequence[int] = ...,
        alibi_slopes: Optional[Tensor] = ..., deterministic: bool = ..., return_attn_probs: bool = ...,
        group: Optional[Group] = ...,
    ) -> Union[Tensor, tuple[Tensor, Tensor, None]]: ...  # fmt: skip


class VarlenKvPacked(Protocol):
    """The type of PREFIX_varlen_kvpacked_func."""

    @overload
    def __call__(
        self, q: Tensor, kv: Tensor, cu_seqlens: Tensor, max_seqlen: int, dropout_p: float = ...,
        softmax_scale: Optional[float] = ..., causal: bool = ..., window_size: Sequence[int] = ...,
        alibi_slopes: Optional[Tensor] = ..., deterministic: bool = ..., return_attn_probs: Literal[False] = ...,
        group: Optional[Group] = ...,
    ) -> Tensor: ...  # fmt: skip
    @overload
    def __call__(
        self, q: Tensor, kv: Tensor, cu_seqlens: Tensor, max_seqlen: int, dropout_p: float = ...,
        softmax_scale: Optional[float] = ..., causal: bool = ..., window_size: Sequence[int] = ...,
        alibi_slopes: Optional[Tensor] = ..., deterministic: bool = ..., *, return_attn_probs: Literal[True],
        group: Optional[Group] = ...,
    ) -> tuple[Tensor, Tensor, None]: ...  # fmt: skip
    @overload
    def __call__(
        self, q: Tensor, kv: Tensor, cu_seqlens: Tensor, max_seqlen: int, dropout_p: float = ...,
        softmax_scale: Optional[float] = ..., causal: bool = ..., window_size: Sequence[int] = ...,
        alibi_slopes: Optional[Tensor] = ..., deterministic: bool = ..., return_attn_probs: bool = ...,
        group: Optional[Group] = ...,
    ) -> Union[Tensor, tuple[Tensor, Tensor, None]]: ...  # fmt: skip


class VarlenQkvPacked(Protocol):
    """The type of PREFIX_varlen_qkvpacked_func."""

    @overload
    def __call__(
        self, qkv: Tensor, cu_seqlens: Tensor, max_seqlen: int, dropout_p: float = ...,
        softmax_scale: Optional[float] = ..., causal: bool = ..., window_size: Sequence[int] = ...,
        alibi_slopes: Optional[Tensor] = ..., deterministic: bool = ..., return_attn_probs: Literal[False] = ...,
        group: Optional[Group] = ...,
    ) -> Tensor: ...  # fmt: skip
    @overload
    def __call__(
        self, qkv: Tensor, cu_seqlens: Tensor, max_seqlen: int, dropout_p: float = ...,
        softmax_scale: Optional[float] = ..., causal: bool = ..., window_size: Sequence[int] = ...,
        alibi_slopes: Optional[Tensor] = ..., deterministic: bool = ..., *, return_attn_probs: Literal[True],
        group: Optional[Group] = ...,
    ) -> tuple[Tensor, Tensor, None]: ...  # fmt: skip
    @overload
    def __call__(
        self, qkv: Tensor, cu_seqlens: Tensor, max_seqlen: int, dropout_p: float = ...,
        softmax_scale: Optional[float] = ..., causal: bool = ..., window_size: Sequence[int] = ...,
        alibi_slopes: Optional[Tensor] = ..., deterministic: bool = ..., return_attn_probs: bool = ...,
        group: Optional[Group] = ...,
    ) -> Union[Tensor, tuple[Tensor, Tensor, None]]: ...  # fmt: skip
