"""flash-attn 2's private forward and backward functions, which other packages such as ring-flash-attention call.

The functions are for torch tensors and have no autograd. Their public names are `attend.flash_attn._flash_attn_forward`
and so on. The argument order is that of flash-attn 2.7 and later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional

from attend import _api
from attend._drop_in import FLASH_NAMES, refuse_unless, renamed
from attend._errors import ArgumentError, Error
from attend._settings import drops

if TYPE_CHECKING:
    from torch import Tensor


def flash_attn_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float,
    softmax_scale: Optional[float],
    causal: bool,
    window_size_left: int = -1,
    window_size_right: int = -1,
    softcap: float = 0.0,
    alibi_slopes: Optional[Tensor] = None,
    return_softmax: bool = False,
) -> tuple[Tensor, Tensor, None, Tensor]:
    """Returns (out, softmax_lse, None, rng_state) for q (batch, seqlen_q, heads_q, head_dim).

    softmax_lse is f32 (batch, heads_q, seqlen_q). rng_state, i64 (2), is the seed and offset of dropout for
    `flash_attn_backward`. rng_state is on the CPU, or on the device of q while a CUDA graph is captured.
    """
    window = (window_size_left, window_size_right)
    return _forward(
        q, k, v, dropout_p, return_softmax, layout="bshd", scale=softmax_scale, causal=causal, window=window,
        softcap=softcap, alibi_slopes=alibi_slopes,
    )  # fmt: skip


def flash_attn_varlen_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float,
    softmax_scale: Optional[float],
    causal: bool,
    window_size_left: int = -1,
    window_size_right: int = -1,
    softcap: float = 0.0,
    alibi_slopes: Optional[Tensor] = None,
    return_softmax: bool = False,
    block_table: Optional[Tensor] = None,
    leftpad_k: Optional[Tensor] = None,
    seqused_k: Optional[Tensor] = None,
    zero_tensors: bool = False,
) -> tuple[Tensor, Tensor, None, Tensor]:
    """`flash_attn_forward` of packed q (total_q, heads_q, head_dim). softmax_lse is (heads_q, total_q)."""
    refuse_unless(block_table, (None,), "block_table")
    refuse_unless(leftpad_k, (None,), "leftpad_k")
    refuse_unless(seqused_k, (None,), "seqused_k")
    window = (window_size_left, window_size_right)
    return _forward(
        q, k, v, dropout_p, return_softmax, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k,
        max_seqlen_q=max_seqlen_q, max_seqlen_k=max_seqlen_k, scale=softmax_scale, causal=causal, window=window,
        softcap=softcap, alibi_slopes=alibi_slopes,
    )  # fmt: skip


def flash_attn_backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    softmax_lse: Tensor,
    dq: Tensor,
    dk: Tensor,
    dv: Tensor,
    dropout_p: float,
    softmax_scale: Optional[float],
    causal: bool,
    window_size_left: int = -1,
    window_size_right: int = -1,
    softcap: float = 0.0,
    alibi_slopes: Optional[Tensor] = None,
    deterministic: bool = False,
    rng_state: Optional[Tensor] = None,
) -> Tensor:
    """Writes dq, dk, dv. Returns softmax_d, the sums of dout * out over head_dim, f32 (batch, heads_q, seqlen_q)."""
    window = (window_size_left, window_size_right)
    _backward(
        (dout, q, k, v, out, softmax_lse), (dq, dk, dv), dropout_p, rng_state, layout="bshd", scale=softmax_scale,
        causal=causal, window=window, softcap=softcap, alibi_slopes=alibi_slopes, deterministic=deterministic,
    )  # fmt: skip
    return _row_sums(dout, out).transpose(1, 2)


def flash_attn_varlen_backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    softmax_lse: Tensor,
    dq: Tensor,
    dk: Tensor,
    dv: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float,
    softmax_scale: Optional[float],
    causal: bool,
    window_size_left: int = -1,
    window_size_right: int = -1,
    softcap: float = 0.0,
    alibi_slopes: Optional[Tensor] = None,
    deterministic: bool = False,
    rng_state: Optional[Tensor] = None,
    zero_tensors: bool = False,
) -> Tensor:
    """`flash_attn_backward` of packed tensors. softmax_d is (heads_q, total_q)."""
    window = (window_size_left, window_size_right)
    _backward(
        (dout, q, k, v, out, softmax_lse), (dq, dk, dv), dropout_p, rng_state, cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=cu_seqlens_k, max_seqlen_q=max_seqlen_q, max_seqlen_k=max_seqlen_k, scale=softmax_scale,
        causal=causal, window=window, softcap=softcap, alibi_slopes=alibi_slopes, deterministic=deterministic,
    )  # fmt: skip
    return _row_sums(dout, out).transpose(0, 1)


def _forward(
    q: Tensor, k: Tensor, v: Tensor, dropout_p: float, return_softmax: bool, **options: Any
) -> tuple[Tensor, Tensor, None, Tensor]:
    import torch

    from attend.torch import drawn_numbers

    refuse_unless(bool(return_softmax), (False,), "return_softmax")
    seed, offset, state = drawn_numbers(q) if drops(dropout_p) else (0, 0, None)
    if state is None:
        state = torch.tensor([seed, offset], dtype=torch.int64)
    try:
        out, lse = _api.forward(q, k, v, dropout_p=dropout_p, seed=state[0], offset=state[1], **options)
    except Error as error:
        raise renamed(error, FLASH_NAMES) from None
    return out, lse, None, state


def _backward(
    inputs: tuple[Tensor, ...],
    results: tuple[Tensor, ...],
    dropout_p: float,
    rng_state: Optional[Tensor],
    **options: Any,
) -> None:
    seed, offset = _numbers_of(rng_state) if drops(dropout_p) else (0, 0)
    try:
        found = _api.backward(*inputs, dropout_p=dropout_p, seed=seed, offset=offset, **options)
    except Error as error:
        raise renamed(error, FLASH_NAMES) from None
    for result, gradient in zip(results, found):
        result.copy_(gradient)


def _numbers_of(rng_state: Any) -> Any:
    """Returns the seed and offset that are stored in `rng_state`, a result of the forward pass."""
    if tuple(getattr(rng_state, "shape", ())) != (2,) or str(getattr(rng_state, "dtype", "")) != "torch.int64":
        shape = f" {tuple(rng_state.shape)}" if hasattr(rng_state, "shape") else ""
        found = "None" if rng_state is None else f"{type(rng_state).__name__}{shape}"
        raise ArgumentError(f"rng_state: {found} with dropout_p > 0, allowed the int64 (2,) that the forward pass gave")
    return rng_state.unbind()


def _row_sums(dout: Tensor, out: Tensor) -> Tensor:
    return (dout.float() * out.float()).sum(-1)
