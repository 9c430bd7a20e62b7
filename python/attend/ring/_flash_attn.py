"""Makes ring-flash-attention's functions, with their names and argument order, see attend.ring_flash_attn."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Optional

from attend._errors import ArgumentError
from attend._packed import parts
from attend.ring._attention import ring_attention
from attend.ring._contexts import door_of_group, group_name, process_group
from attend.ring._flash_attn_types import (
    Dense,
    DenseKvPacked,
    DenseQkvPacked,
    Varlen,
    VarlenKvPacked,
    VarlenQkvPacked,
)
from attend.ring._telling import told

_Function = Callable[..., Any]
_told = told(door_of_group, "group", traceable=True)

_DENSE = """Attention of a sequence that is distributed over the ranks of a group.

    q (batch, rows, heads_q, head_dim), k and v (batch, rows, heads_k, head_dim) are the rows of this rank. {how} The
    options are those of `attend.ring.ring_attention`; softmax_scale is scale, and window_size is window. Masks apply
    to positions in the full sequence. With dropout_p > 0, rank 0 draws the seed.

    Returns:
        out, or with return_attn_probs (out, softmax_lse f32 (batch, heads_q, rows), None).
    """
_VARLEN = """Attention of packed sequences, q (rows, heads_q, head_dim). Each sequence is distributed over the ranks.

    Arguments:
        cu_seqlens: i32 (sequences + 1): offsets of the sequences in the **rank's** rows. These are the offsets in the
            full sequences divided by the number of ranks, so they are the same on every rank.
        max_seqlen: upper bound of the sequence lengths on a rank, also divided by the number of ranks.
        All other arguments are those of `{dense}`.

    Returns:
        out, or with return_attn_probs (out, softmax_lse f32 (heads_q, rows), None).
    """
_HOW = {
    "contiguous": "Each rank has one contiguous piece of the sequence.",
    "zigzag": "The sequence has 2 N pieces on N ranks. Rank r has the pieces r and 2 N - 1 - r.",
    "striped": "On N ranks, rank r has every N-th token, starting at token r.",
}


def dense_functions(prefix: str, sharding: str) -> tuple[Dense, DenseKvPacked, DenseQkvPacked]:
    """Makes PREFIX_func, PREFIX_kvpacked_func and PREFIX_qkvpacked_func."""

    @_told
    def func(
        q: Any,
        k: Any,
        v: Any,
        dropout_p: float = 0.0,
        softmax_scale: Optional[float] = None,
        causal: bool = False,
        window_size: Sequence[int] = (-1, -1),
        alibi_slopes: Any = None,
        deterministic: bool = False,
        return_attn_probs: bool = False,
        group: Any = None,
    ) -> Any:
        name = group_name(group)
        out, lse = ring_attention(
            q, k, v, group=name, sharding=sharding, layout="bshd", causal=causal, window=window_size,
            scale=softmax_scale, alibi_slopes=alibi_slopes, dropout_p=dropout_p, deterministic=deterministic,
            return_lse=True,
        )  # fmt: skip
        return (out, lse, None) if return_attn_probs else out

    _name(func, f"{prefix}_func", _DENSE.format(how=_HOW[sharding]))
    return func, *_packed(func, prefix, "batch, rows", 2)


def varlen_functions(prefix: str, sharding: str) -> tuple[Varlen, VarlenKvPacked, VarlenQkvPacked]:
    """Makes PREFIX_varlen_func, PREFIX_varlen_kvpacked_func and PREFIX_varlen_qkvpacked_func."""

    @_told
    def func(
        q: Any,
        k: Any,
        v: Any,
        cu_seqlens: Any,
        max_seqlen: int,
        dropout_p: float = 0.0,
        softmax_scale: Optional[float] = None,
        causal: bool = False,
        window_size: Sequence[int] = (-1, -1),
        alibi_slopes: Any = None,
        deterministic: bool = False,
        return_attn_probs: bool = False,
        group: Any = None,
    ) -> Any:
        import torch.distributed as dist

        name = group_name(group)
        size = dist.get_world_size(process_group(name) if group is None or isinstance(group, str) else group)
        if not hasattr(cu_seqlens, "numel"):
            raise ArgumentError(f"cu_seqlens: {type(cu_seqlens).__name__}, allowed a torch.Tensor i32 (sequences + 1)")
        whole, longest = cu_seqlens * size, max_seqlen * size
        out, lse = ring_attention(
            q, k, v, group=name, sharding=sharding, causal=causal, window=window_size, scale=softmax_scale,
            alibi_slopes=alibi_slopes, dropout_p=dropout_p, cu_seqlens_q=whole, cu_seqlens_k=whole,
            max_seqlen_q=longest, max_seqlen_k=longest, deterministic=deterministic, return_lse=True,
        )  # fmt: skip
        return (out, lse, None) if return_attn_probs else out

    _name(func, f"{prefix}_varlen_func", _VARLEN.format(dense=f"{prefix}_func"))
    return func, *_packed(func, f"{prefix}_varlen", "rows", 1)


def _packed(func: _Function, prefix: str, rows: str, axis: int) -> tuple[_Function, _Function]:
    """Makes PREFIX_kvpacked_func and PREFIX_qkvpacked_func, which call `func` with tensors that are stacked along
    `axis`.
    """

    def kvpacked(q: Any, kv: Any, *arguments: Any, **options: Any) -> Any:
        k, v = parts(kv, axis, 2, "kv")
        return func(q, k, v, *arguments, **options)

    def qkvpacked(qkv: Any, *arguments: Any, **options: Any) -> Any:
        q, k, v = parts(qkv, axis, 3, "qkv")
        return func(q, k, v, *arguments, **options)

    of_kv, of_qkv = f"q and kv ({rows}, 2, heads_k, head_dim)", f"qkv ({rows}, 3, heads, head_dim)"
    return (
        _packed_form(func, kvpacked, ("q", "kv"), prefix, "kvpacked", of_kv),
        _packed_form(func, qkvpacked, ("qkv",), prefix, "qkvpacked", of_qkv),
    )


def _packed_form(
    func: _Function, packed: _Function, tensors: tuple[str, ...], prefix: str, form: str, what: str
) -> _Function:
    """Gives `packed` a name, a docstring, and the signature of `func` with these tensors instead of q, k and v."""
    packed.__signature__ = _with_tensors(func, tensors)  # type: ignore[attr-defined]
    function: _Function = _told(packed)
    _name(function, f"{prefix}_{form}_func", f"`{prefix}_func` with {what}. No tensor is copied.")
    return function


def _with_tensors(func: _Function, names: tuple[str, ...]) -> inspect.Signature:
    signature = inspect.signature(func)
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    tensors = [inspect.Parameter(name, kind, annotation="Any") for name in names]
    return signature.replace(parameters=[*tensors, *list(signature.parameters.values())[3:]])


def _name(function: _Function, name: str, text: str) -> None:
    function.__name__ = function.__qualname__ = name
    function.__module__ = "attend.ring_flash_attn"
    function.__doc__ = text
