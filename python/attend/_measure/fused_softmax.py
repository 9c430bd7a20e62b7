"""Attention as two batched products with one fused kernel between them, as Megatron-LM computes it.

The kernel (kernels/baseline/scaled_softmax.cuh) takes scale, causal mask and softmax in one pass over the scores, which
stay in memory: what the unfused path needs three passes for. On a GPU, in half precision, seqlen_k a multiple of 8 up
to 16384. Its gradients keep p, and write ds over dp.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from attend import _core

_DTYPES = {torch.float16: "f16", torch.bfloat16: "bf16"}


def _launch(source: torch.Tensor, p: Any, target: torch.Tensor, scale: float, causal: bool) -> None:
    """Dense (matrices, seqlen_q, seqlen_k), of one dtype, on one GPU."""
    if not source.is_cuda or source.dtype not in _DTYPES:
        raise NotImplementedError(f"fused_softmax: {source.dtype} on {source.device}, allowed f16 and bf16 on a GPU")
    index = source.device.index
    _core.scaled_softmax(
        source.data_ptr(), 0 if p is None else p.data_ptr(), target.data_ptr(), _DTYPES[source.dtype],
        tuple(source.shape), scale, causal, index, torch.cuda.current_stream(index).cuda_stream,
    )  # fmt: skip


class ScaledSoftmax(torch.autograd.Function):
    """p = softmax(scale s), s (matrices, seqlen_q, seqlen_k); causal: row i sees keys up to i + seqlen_k - seqlen_q."""

    @staticmethod
    def forward(ctx: Any, s: torch.Tensor, scale: float, causal: bool) -> torch.Tensor:
        p = torch.empty_like(s)
        _launch(s, None, p, scale, causal)
        ctx.save_for_backward(p)
        ctx.settings = scale, causal
        return p

    @staticmethod
    def backward(ctx: Any, dp: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (p,) = ctx.saved_tensors
        ds = dp.contiguous()  # the product that made it is the only one that has it
        _launch(ds, p, ds, *ctx.settings)
        return ds, None, None


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    """q, k, v and o (batch, heads, seqlen, head_dim)."""
    b, h, s, d = q.shape
    q, k, v = (x.reshape(b * h, s, d) for x in (q, k, v))
    p = ScaledSoftmax.apply(torch.bmm(q, k.transpose(1, 2)), 1 / math.sqrt(d), causal)
    return torch.bmm(p, v).reshape(b, h, s, d)
