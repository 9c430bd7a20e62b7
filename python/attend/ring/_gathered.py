"""Computes attention with keys and values that are gathered from all ranks, some heads at a time, with autograd.
_llama3 uses it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from attend import _api
from attend.ring._contexts import agree, door_of_group
from attend.ring._telling import calls_begun, tell


class Settings(NamedTuple):
    group: Any
    heads_k_stride: int
    local_k_slice: slice
    options: dict[str, Any]  # options of attend.forward except alibi_slopes and offset
    alibi_slopes: Any


class _Heads(NamedTuple):
    """Some heads of k and v, and the query heads that read them."""

    k: slice
    q: slice
    options: dict[str, Any]


class GatheredAttention(torch.autograd.Function):
    """Computes (o, lse) of q, k, v (rows, heads, head_dim) and settings."""

    @staticmethod
    def forward(ctx: Any, q: Any, k: Any, v: Any, settings: Settings) -> tuple[Any, Any]:
        o: list[Any] = []
        lse: list[Any] = []
        for heads in _walk(q, k, settings):
            keys, values = (_gather(x[:, heads.k], settings) for x in (k, v))
            if o or torch.compiler.is_compiling():
                o_part, lse_part = _api.forward(q[:, heads.q], keys, values, **heads.options)
            else:
                o_part, lse_part = _agreed_forward(q[:, heads.q], keys, values, settings.group, heads.options)
            o.append(o_part)
            lse.append(lse_part)
        results = torch.cat(o, 1), torch.cat(lse, 0)
        ctx.save_for_backward(q, k, v, *results)
        ctx.settings = settings
        ctx.set_materialize_grads(False)
        return results

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dout: Any, dlse: Any) -> tuple[Any, ...]:
        q, k, v, o, lse = ctx.saved_tensors
        dout = torch.zeros_like(o) if dout is None else dout
        dq, dk, dv = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v))
        for heads in _walk(q, k, ctx.settings):
            keys, values = (_gather(x[:, heads.k], ctx.settings) for x in (k, v))
            its_dlse = None if dlse is None else dlse[heads.q]
            found = _api.backward(
                dout[:, heads.q], q[:, heads.q], keys, values, o[:, heads.q], lse[heads.q], dlse=its_dlse,
                **heads.options,
            )  # fmt: skip
            dq[:, heads.q] = found[0]
            dk[:, heads.k] = _scatter(found[1], k.shape[0], ctx.settings)
            dv[:, heads.k] = _scatter(found[2], v.shape[0], ctx.settings)
        return dq, dk, dv, None


def _agreed_forward(q: Any, k: Any, v: Any, group: Any, options: dict[str, Any]) -> Any:
    """Computes the first heads. If the library refuses the call on one rank, all ranks raise the error."""
    begun = calls_begun()
    try:
        results = _api.forward(q, k, v, **options)
    except BaseException as error:
        tell(error, door_of_group, group, begun)
        raise
    agree(group, "llama3_flash_attn_varlen_func", "the first heads are computed")
    return results


def _walk(q: Any, k: Any, settings: Settings) -> Iterator[_Heads]:
    heads_q, heads_k = q.shape[1], k.shape[1]
    rank, stride = dist.get_rank(settings.group), settings.heads_k_stride
    for step, begin in enumerate(range(0, heads_k, stride)):
        at_k = slice(begin, begin + stride)
        at_q = slice(begin * heads_q // heads_k, (begin + stride) * heads_q // heads_k)
        slopes = settings.alibi_slopes
        # In each of these calls, rows and heads are numbered from 0. Each call gets a different offset, so that
        # different calls drop different entries.
        options = {**settings.options, "offset": rank * (heads_k // stride) + step}
        if slopes is not None:
            options["alibi_slopes"] = slopes[at_q].contiguous()
        yield _Heads(at_k, at_q, options)


def _gather(x: Any, settings: Settings) -> Any:
    """Gathers x (rows, heads, columns) of all ranks, and returns the keys that the rank's rows need."""
    whole = x.new_empty((dist.get_world_size(settings.group) * x.shape[0], *x.shape[1:]))
    dist.all_gather_into_tensor(whole, x.contiguous(), group=settings.group)
    return whole[settings.local_k_slice]


def _scatter(gradient: Any, rows: int, settings: Settings) -> Any:
    """Each rank has the gradient of the keys that it has gathered. Sums the gradients over the ranks and returns this
    rank's rows.
    """
    size, rank = dist.get_world_size(settings.group), dist.get_rank(settings.group)
    wide = torch.float64 if gradient.dtype == torch.float64 else torch.float32
    whole = gradient.new_zeros((size * rows, *gradient.shape[1:]), dtype=wide)
    whole[settings.local_k_slice] = gradient
    if gradient.is_cuda:
        mine = whole.new_empty((rows, *gradient.shape[1:]))
        dist.reduce_scatter_tensor(mine, whole, group=settings.group)
    else:  # in older releases of torch, gloo has no reduce-scatter
        dist.all_reduce(whole, group=settings.group)
        mine = whole[rank * rows : (rank + 1) * rows]
    return mine.to(gradient.dtype)
