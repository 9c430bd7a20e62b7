"""Defines the torch operators of rings, with fake implementations, autograd and autocast.

    attend::ring_forward(q, k, v, extras, settings, spread) -> (o, lse)
    attend::ring_backward(q, k, v, o, lse, dout, dlse?, extras, settings, spread) -> (dq, dk, dv)

The tensors contain the rank's rows. `spread` is expanded into group, sharding, algorithm and seed_of_rank_0. `group` is
the name of a process group, or "" for the default group. All ranks of the group must make their calls in the same
order. Compiled programs keep this order, because ranks that run the same program compile it in the same way. If
seed_of_rank_0 is True, the seeds of the ranks may differ, and forward and backward both use the seed of rank 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.flop_counter import register_flop_formula

from attend import _core
from attend._errors import UnsupportedError
from attend._settings import NEEDS_NONE, OPTION_GRADIENTS, Extras, Settings
from attend.ring._contexts import door_of_group, of_group, process_group
from attend.ring._telling import begins, calls_begun, tell
from attend.torch import _flops
from attend.torch._autograd import autocast_to, refuse_lacking_gradients
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

_NUM_RING = 4
_RING = f"{EXTRAS_SCHEMA}, {SETTINGS_SCHEMA}, str group, str sharding, str algorithm, bool seed_of_rank_0"
library.define(f"ring_forward(Tensor q, Tensor k, Tensor v, {_RING}) -> (Tensor o, Tensor lse)", tags=TAGS)
library.define(
    "ring_backward(Tensor q, Tensor k, Tensor v, Tensor o, Tensor lse, Tensor dout, Tensor? dlse, "
    f"{_RING}) -> (Tensor dq, Tensor dk, Tensor dv)",
    tags=TAGS,
)


def _run(function: Callable[..., None], compute: Callable[..., Any], q: Any, rest: tuple[Any, ...]) -> Any:
    """Runs compute(extras, settings, call). If an error occurs before it calls `call`, all ranks raise the error."""
    *options, group, sharding, algorithm, seed_of_rank_0 = rest
    begun = calls_begun()
    try:
        extras, settings = split(tuple(options))
        if seed_of_rank_0:
            extras, settings = _with_numbers(extras, settings)
        context = of_group(group, q.get_device())

        def call(*arguments: Any) -> None:
            begins()
            function(context, (sharding, algorithm, seed_of_rank_0), *arguments)

        return compute(extras, _with_lengths(extras, settings), call)
    except BaseException as error:
        tell(error, door_of_group, group, begun)
        raise


def _with_numbers(extras: Extras, settings: Settings) -> tuple[Extras, Settings]:
    """A compiler passes seed and offset as a tensor. Converts them to numbers, which ranks can exchange."""
    if extras.philox_state is None:
        return extras, settings
    seed, offset = extras.philox_state.tolist()
    return extras._replace(philox_state=None), settings._replace(seed=seed, offset=offset)


def _with_lengths(extras: Extras, settings: Settings) -> Settings:
    """Computes max_seqlen_q and max_seqlen_k from the offsets if they are not given."""
    found: dict[str, Any] = {}
    for name, cu_seqlens in (("max_seqlen_q", extras.cu_seqlens_q), ("max_seqlen_k", extras.cu_seqlens_k)):
        if cu_seqlens is not None and getattr(settings, name) == 0 and cu_seqlens.numel() > 1:
            found[name] = int(cu_seqlens.diff().max())
    return settings._replace(**found)


def _forward(q: Any, k: Any, v: Any, *rest: Any) -> tuple[torch.Tensor, torch.Tensor]:
    def compute(extras: Extras, settings: Settings, call: Callable[..., None]) -> tuple[torch.Tensor, Any]:
        return run_forward(q, k, v, extras, settings, call=call)

    found: tuple[torch.Tensor, torch.Tensor] = _run(_core.ring_forward, compute, q, rest)
    return found


def _backward(q: Any, k: Any, v: Any, o: Any, lse: Any, dout: Any, dlse: Any, *rest: Any) -> tuple[torch.Tensor, ...]:
    def compute(extras: Extras, settings: Settings, call: Callable[..., None]) -> tuple[Any, ...]:
        return compute_gradients(q, k, v, o, lse, dout, dlse, NEEDS_NONE, extras, settings, call)

    found: tuple[torch.Tensor, ...] = _run(_core.ring_backward, compute, q, rest)[:3]
    return found


# Only shapes are computed here. The library checks shapes and options in the call, because they must also agree with
# those of other ranks.
def _forward_fake(q: Any, k: Any, v: Any, *rest: Any) -> tuple[torch.Tensor, torch.Tensor]:
    extras, settings = split(rest[:-_NUM_RING])
    named = {"k": k, "v": v, **extras._replace(philox_state=None)._asdict()}
    check_devices(q, ((name, x) for name, x in named.items() if x is not None))
    return empty_results(q, v, settings.layout)


def _backward_fake(q: Any, k: Any, v: Any, *rest: Any) -> tuple[torch.Tensor, ...]:
    return empty_like(q), empty_like(k), empty_like(v)


def _share_of_scores(q: Any, k: Any, rest: tuple[Any, ...]) -> float:
    """Returns the number of scores that a rank computes if the work is balanced."""
    *options, group, _, _, _ = rest
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
torch.library.register_fake("attend::ring_forward", _forward_fake, lib=library)
torch.library.register_fake("attend::ring_backward", _backward_fake, lib=library)

register_flop_formula(torch.ops.attend.ring_forward)(_forward_flops)
register_flop_formula(torch.ops.attend.ring_backward)(_backward_flops)

_NUM_TENSORS = 3 + len(Extras._fields)
_NUM_OTHERS = len(Settings._fields) + _NUM_RING


def refuse_gradients(wanted: Sequence[bool]) -> None:
    """Raises an error if a gradient of an option is requested. `wanted` has a flag for each field of Extras."""
    refuse_lacking_gradients(wanted)
    for name, _ in OPTION_GRADIENTS:
        if wanted[Extras._fields.index(name)]:
            raise UnsupportedError(f"{name}: requires grad; a ring gives no gradient for it. Detach it")


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
    refuse_gradients(ctx.needs_input_grad[3:_NUM_TENSORS])
    ctx.save_for_backward(*inputs[:_NUM_TENSORS], *output)
    ctx.others = inputs[_NUM_TENSORS:]
    ctx.set_materialize_grads(False)


def _gradients(ctx: Any, dout: Any, dlse: Any) -> tuple[Any, ...]:
    if torch.compiler.is_compiling():
        return _call_backward(ctx, dout, dlse)
    begun = calls_begun()
    try:
        return _call_backward(ctx, dout, dlse)
    except BaseException as error:
        tell(error, door_of_group, ctx.others[-_NUM_RING], begun)
        raise


def _call_backward(ctx: Any, dout: Any, dlse: Any) -> tuple[Any, ...]:
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
