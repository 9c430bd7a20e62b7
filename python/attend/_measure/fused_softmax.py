"""Computes attention as two batched products with one fused kernel between them, as in Megatron-LM.

The kernel (kernels/baseline/scaled_softmax.cuh) applies scale, causal mask and softmax in one pass over the scores,
which stay in memory. The unfused path needs three passes. The kernel runs on a GPU in half precision, and seqlen_k must
be a multiple of 8 up to 16384. The kernel of the gradient reads p and overwrites dp with ds.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from attend import _core

_DTYPES = {torch.float16: "f16", torch.bfloat16: "bf16"}


def _launch(source: torch.Tensor, p: Any, target: torch.Tensor, scale: float, causal: bool) -> None:
    """Runs the kernel on dense (matrices, seqlen_q, seqlen_k) tensors of one dtype on one GPU."""
    if not source.is_cuda or source.dtype not in _DTYPES:
        raise NotImplementedError(f"fused_softmax: {source.dtype} on {source.device}, allowed f16 and bf16 on a GPU")
    index = source.device.index
    _core.scaled_softmax(
        source.data_ptr(), 0 if p is None else p.data_ptr(), target.data_ptr(), _DTYPES[source.dtype],
        tuple(source.shape), scale, causal, index, torch.cuda.current_stream(index).cuda_stream,
    )  # fmt: skip


class ScaledSoftmax(torch.autograd.Function):
    """Computes p = softmax(scale * s) for s (matrices, seqlen_q, seqlen_k). Causal masks align bottom right."""

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
        ds = dp.contiguous()  # ds may overwrite dp, because no other code uses dp afterwards
        _launch(ds, p, ds, *ctx.settings)
        return ds, None, None


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    """Computes o from q, k and v, all (batch, heads, seqlen, head_dim)."""
    b, h, s, d = q.shape
    q, k, v = (x.reshape(b * h, s, d) for x in (q, k, v))
    p = ScaledSoftmax.apply(torch.bmm(q, k.transpose(1, 2)), 1 / math.sqrt(d), causal)
    return torch.bmm(p, v).reshape(b, h, s, d)
