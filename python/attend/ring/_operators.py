"""The torch operators of rings, with autograd, fakes and autocast.

    attend::ring_forward(q, k, v, extras, settings, group, sharding, algorithm) -> (o, lse)
    attend::ring_backward(q, k, v, o, lse, dout, dlse?, extras, settings, group, sharding, algorithm) -> (dq, dk, dv)
    attend::ring_seed(seed, group) -> seed of rank 0

Tensors have the rank's rows; `group` is the name of a process group, "" the default one. Every rank of it has to call,
in the same order: in a compiled program as in an eager one, since ranks that run the same program compile it alike.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.flop_counter import register_flop_formula

from attend import _core
from attend._errors import UnsupportedError
from attend._settings import Extras, Settings
from attend.ring._contexts import of_group, process_group
from attend.torch import _flops
from attend.torch._autograd import autocast_to, refuse_gradient_of_slopes
from attend.torch._meta import check_devices
from attend.torch._operators import (
    EXTRAS_SCHEMA,
    SETTINGS_SCHEMA,
    TAGS,
    compute_gradients,
    empty_like,
    empty_results,
    library,
    run_forward,
    split,
)

_NUM_RING = 3  # group, sharding, algorithm
_RING = f"{EXTRAS_SCHEMA}, {SETTINGS_SCHEMA}, str group, str sharding, str algorithm"
library.define(f"ring_forward(Tensor q, Tensor k, Tensor v, {_RING}) -> (Tensor o, Tensor lse)", tags=TAGS)
library.define(
    "ring_backward(Tensor q, Tensor k, Tensor v, Tensor o, Tensor lse, Tensor dout, Tensor? dlse, "
    f"{_RING}) -> (Tensor dq, Tensor dk, Tensor dv)",
    tags=TAGS,
)
library.define("ring_seed(Tensor seed, str group) -> Tensor", tags=TAGS)


def _split(q: Any, rest: tuple[Any, ...]) -> tuple[Extras, Settings, _core.RingContext, tuple[str, str]]:
    *options, group, sharding, algorithm = rest
    extras, settings = split(tuple(options))
    return extras, _with_lengths(extras, settings), of_group(group, q.get_device()), (sharding, algorithm)


def _with_lengths(extras: Extras, settings: Settings) -> Settings:
    """Where nobody said how long the longest sequence is, the offsets do."""
    found: dict[str, Any] = {}
    for name, cu_seqlens in (("max_seqlen_q", extras.cu_seqlens_q), ("max_seqlen_k", extras.cu_seqlens_k)):
        if cu_seqlens is not None and getattr(settings, name) == 0 and cu_seqlens.numel() > 1:
            found[name] = int(cu_seqlens.diff().max())
    return settings._replace(**found)


def _forward(q: Any, k: Any, v: Any, *rest: Any) -> tuple[torch.Tensor, torch.Tensor]:
    extras, settings, context, spread = _split(q, rest)
    return run_forward(q, k, v, extras, settings, call=functools.partial(_core.ring_forward, context, spread))


def _backward(q: Any, k: Any, v: Any, o: Any, lse: Any, dout: Any, dlse: Any, *rest: Any) -> tuple[torch.Tensor, ...]:
    extras, settings, context, spread = _split(q, rest)
    call = functools.partial(_core.ring_backward, context, spread)
    return compute_gradients(q, k, v, o, lse, dout, dlse, False, extras, settings, call)[:3]


def _seed(seed: torch.Tensor, group: str) -> torch.Tensor:
    found = process_group(group)
    on_gpu = "nccl" in dist.get_backend(found)
    shared = seed.to("cuda" if on_gpu else "cpu", copy=True)
    dist.broadcast(shared, src=dist.get_global_rank(found, 0), group=found)
    return shared.to(seed.device)


# What the shapes and options must fulfil beyond this depends on other ranks: the library checks it when it is called.
def _forward_fake(q: Any, k: Any, v: Any, *rest: Any) -> tuple[torch.Tensor, torch.Tensor]:
    extras, settings = split(rest[:-_NUM_RING])
    named = {"k": k, "v": v, **extras._replace(philox_state=None)._asdict()}
    check_devices(q, ((name, x) for name, x in named.items() if x is not None))
    return empty_results(q, v, settings.layout)


def _backward_fake(q: Any, k: Any, v: Any, *rest: Any) -> tuple[torch.Tensor, ...]:
    return empty_like(q), empty_like(k), empty_like(v)


def _share_of_scores(q: Any, k: Any, rest: tuple[Any, ...]) -> float:
    """Entries of the score matrices that a rank computes, where the work is balanced."""
    *options, group, _, _ = rest
    extras, settings = split(tuple(options))
    size = dist.get_world_size(process_group(group))
    whole = _flops.scores(q, k, extras, settings)
    return whole / size if settings.layout == "thd" else whole * size


def _forward_flops(q: Any, k: Any, v: Any, *rest: Any, **_: Any) -> int:
    return int(2 * _share_of_scores(q, k, rest) * (q[-1] + v[-1]))


def _backward_flops(q: Any, k: Any, v: Any, o: Any, lse: Any, dout: Any, dlse: Any, *rest: Any, **_: Any) -> int:
    return int(2 * _share_of_scores(q, k, rest) * (3 * q[-1] + 2 * v[-1]))


for _key in ("CPU", "CUDA"):
    library.impl("ring_forward", _forward, _key)
    library.impl("ring_backward", _backward, _key)
    library.impl("ring_seed", _seed, _key)
torch.library.register_fake("attend::ring_forward", _forward_fake, lib=library)
torch.library.register_fake("attend::ring_backward", _backward_fake, lib=library)
torch.library.register_fake("attend::ring_seed", lambda seed, group: torch.empty_like(seed), lib=library)

register_flop_formula(torch.ops.attend.ring_forward)(_forward_flops)
register_flop_formula(torch.ops.attend.ring_backward)(_backward_flops)

_NUM_TENSORS = 3 + len(Extras._fields)
_NUM_OTHERS = len(Settings._fields) + _NUM_RING


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
    wants = dict(zip(Extras._fields, ctx.needs_input_grad[3:]))
    refuse_gradient_of_slopes(wants["alibi_slopes"])
    if wants["bias"]:
        raise UnsupportedError("bias: requires grad; a ring gives no gradient for it. Detach it")
    ctx.save_for_backward(*inputs[:_NUM_TENSORS], *output)
    ctx.others = inputs[_NUM_TENSORS:]
    ctx.set_materialize_grads(False)


def _gradients(ctx: Any, dout: Any, dlse: Any) -> tuple[Any, ...]:
    q, k, v, *extras, o, lse = ctx.saved_tensors
    dout = torch.zeros_like(o) if dout is None else dout
    results = torch.ops.attend.ring_backward(q, k, v, o, lse, dout, dlse, *extras, *ctx.others)
    return *results, *[None] * (len(extras) + _NUM_OTHERS)


def _remember_nothing(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    pass


def _refuse_double_backward(ctx: Any, *gradients: Any) -> None:
    raise UnsupportedError("attend::ring_backward: double backward, attend gives first derivatives only")


torch.library.register_autograd("attend::ring_forward", _gradients, setup_context=_setup_context, lib=library)
torch.library.register_autograd(
    "attend::ring_backward", _refuse_double_backward, setup_context=_remember_nothing, lib=library
)
for _type, _key in (("cpu", "AutocastCPU"), ("cuda", "AutocastCUDA")):
    library.impl("ring_forward", autocast_to(_type, torch.ops.attend.ring_forward), _key)
