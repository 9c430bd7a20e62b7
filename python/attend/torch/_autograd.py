"""Autograd, autocast and vmap of the operators."""

from __future__ import annotations

import functools
from typing import Any

import torch

from attend import _core
from attend._errors import UnsupportedError
from attend._settings import NO_EXTRAS, Extras, Settings, plain_settings
from attend.torch import _shortcut, _vmap
from attend.torch._operators import compute_gradients, library, run_forward
from attend.torch._shortcut import nothing_stands_between

_NUM_EXTRAS = len(Extras._fields)
_NUM_SETTINGS = len(Settings._fields)


def refuse_gradient_of_slopes(is_wanted: bool) -> None:
    if is_wanted:
        raise UnsupportedError("alibi_slopes: requires grad; attend gives no gradient for it. Detach it")


def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
    tensors, settings = inputs[: 3 + _NUM_EXTRAS], inputs[3 + _NUM_EXTRAS :]
    refuse_gradient_of_slopes(ctx.needs_input_grad[3 + Extras._fields.index("alibi_slopes")])
    ctx.save_for_backward(*tensors, *output)
    ctx.settings = settings
    # A gradient that nobody asked for stays None: not every backend takes one for lse.
    ctx.set_materialize_grads(False)


def gradients(ctx: Any, dout: Any, dlse: Any, operator: Any = torch.ops.attend.backward) -> tuple[Any, ...]:
    """What autograd wants for the inputs of attend::forward. `operator`: attend::backward, or what stands for it."""
    q, k, v, *extras, o, lse = ctx.saved_tensors
    dout = torch.zeros_like(o) if dout is None else dout
    rest = (*extras, *ctx.settings)
    results = _by_an_operator(operator, q, k, v, o, lse, dout, dlse, ctx.needs_input_grad[3], rest)
    return *results, *[None] * (_NUM_EXTRAS - 1 + _NUM_SETTINGS)


def _by_an_operator(
    operator: Any, q: Any, k: Any, v: Any, o: Any, lse: Any, dout: Any, dlse: Any, needs_dbias: bool, rest: Any
) -> tuple[Any, ...]:
    """dq, dk, dv and, where it is wanted, dbias."""
    dq, dk, dv, dbias = operator(q, k, v, o, lse, dout, dlse, needs_dbias, *rest)
    return dq, dk, dv, dbias if needs_dbias else None


# Torch's older vmap, by which autograd maps over gradients, shows in the tensors only.
_is_mapped = getattr(torch._C._functorch, "is_legacy_batchedtensor", lambda x: False)

_CAST = (torch.float32, torch.float16, torch.bfloat16)


class EagerAttention(torch.autograd.Function):
    """The same gradients without the way through the dispatcher: o, or (o, lse), of q, k, v, bias, ... return_lse.

    Each argument and each result costs, whatever it is: of `extras` autograd is shown the bias alone, and no lse where
    nobody asks for it.
    """

    # One function for the context and the results: with two, torch inspects the signature at every call.
    @staticmethod
    def forward(
        ctx: Any, q: Any, k: Any, v: Any, bias: Any, extras: Extras, settings: Settings, return_lse: bool
    ) -> Any:
        o, lse = _shortcut.forward(q, k, v, extras, settings)
        if extras is NO_EXTRAS:
            ctx.save_for_backward(q, k, v, o, lse)
        else:
            slopes = extras.alibi_slopes
            refuse_gradient_of_slopes(slopes is not None and slopes.requires_grad)
            ctx.given = tuple(x is not None for x in extras)
            ctx.save_for_backward(q, k, v, o, lse, *(x for x in extras if x is not None))
        ctx.settings = settings
        if not return_lse:
            return o
        ctx.set_materialize_grads(False)
        return o, lse

    @staticmethod
    def backward(ctx: Any, dout: Any, dlse: Any = None) -> Any:
        saved = ctx.saved_tensors  # once: checkpointing unpacks them once only
        results = _shortcut.short_backward(saved, dout, dlse, ctx.settings)
        return _backward_in_python(ctx, saved, dout, dlse) if results is None else results


class PlainAttention(torch.autograd.Function):
    """o, or (o, lse), of q, k, v, settings and return_lse: EagerAttention without extras, and with hardly any Python.

    Between the kernels of a small model everything that the host runs is cold, and each Python function costs
    microseconds.
    """

    forward = staticmethod(_core.plain_forward)

    @staticmethod
    def backward(ctx: Any, dout: Any, dlse: Any = None) -> Any:  # a function of Python's: compiled autograd traces it
        return _core.plain_backward(ctx, dout, dlse)


class PackedAttention(torch.autograd.Function):
    """The same of qkv, settings and return_lse: the gradient of one tensor is one tensor."""

    forward = staticmethod(_core.packed_forward)

    @staticmethod
    def backward(ctx: Any, dout: Any, dlse: Any = None) -> Any:
        return _core.packed_backward(ctx, dout, dlse)


def _backward_in_python(ctx: Any, saved: tuple[Any, ...], dout: Any, dlse: Any) -> tuple[Any, ...]:
    rest = saved[5:]
    extras = _spread(rest, ctx.given) if rest else NO_EXTRAS
    results = _gradients_in_python(saved[:5], dout, dlse, ctx.needs_input_grad[3], extras, ctx.settings, rest)
    return *results, None, None, None


def _packed_backward_in_python(ctx: Any, saved: tuple[Any, ...], dout: Any, dlse: Any) -> torch.Tensor:
    qkv, o, lse = saved
    dq, dk, dv, _ = _gradients_in_python((*qkv.unbind(2), o, lse), dout, dlse, False, NO_EXTRAS, ctx.settings)
    return torch.stack((dq, dk, dv), 2)


def _gradients_in_python(
    saved: tuple[Any, ...],
    dout: Any,
    dlse: Any,
    needs_dbias: bool,
    extras: Extras,
    settings: Settings,
    rest: tuple[Any, ...] = (),
) -> tuple[Any, ...]:
    """dq, dk, dv, dbias or None. `saved`: q, k, v, o, lse; `rest`: tensors of the extras."""
    q, k, v, o, lse = saved
    dout = torch.zeros_like(o) if dout is None else dout
    if _is_plain(dout, dlse, (*saved, *rest)):
        return compute_gradients(q, k, v, o, lse, dout, dlse, needs_dbias, extras, settings)
    rest = (*extras, *settings)
    return _by_an_operator(torch.ops.attend.backward, q, k, v, o, lse, dout, dlse, needs_dbias, rest)


# Past the wrapper, which looks for transforms of functorch and what is left of them: the library's way_of has.
apply_eagerly = (
    EagerAttention.apply
    if _shortcut.way_of is _shortcut.way_in_python
    else super(torch.autograd.Function, EagerAttention).apply
)


if _shortcut.way_of is not _shortcut.way_in_python:
    _core.learn_ways(
        {
            "apply": super(torch.autograd.Function, PlainAttention).apply,
            "apply_packed": super(torch.autograd.Function, PackedAttention).apply,
            "run_forward": run_forward,
            "run_backward": _backward_in_python,
            "run_packed_backward": _packed_backward_in_python,
            "plain_settings": plain_settings,
        }
    )
    _shortcut.short_attention, _shortcut.plain_attention = _core.short_attention, _core.plain_attention
    _shortcut.short_packed, _shortcut.plain_packed = _core.short_packed, _core.plain_packed


def _spread(tensors: tuple[Any, ...], given: tuple[bool, ...]) -> Extras:
    """Extras of the tensors that there are, and None."""
    left = iter(tensors)
    return Extras(*(next(left) if there else None for there in given))


def _is_plain(dout: Any, dlse: Any, saved: tuple[Any, ...]) -> bool:
    """Whether the gradients can be computed without the dispatcher."""
    if torch.is_grad_enabled():  # a graph of the gradients is wanted: the operator refuses that
        return False
    if _is_mapped(dout) or (dlse is not None and _is_mapped(dlse)):  # is_grads_batched
        return False
    # Hooks of torch.autograd.graph may have put anything into the place of what was saved.
    return nothing_stands_between((dout, *saved) if dlse is None else (dout, dlse, *saved))


def _remember_nothing(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    pass


def refuse_double_backward(ctx: Any, *gradients: Any) -> None:
    raise UnsupportedError("attend::backward: double backward, attend gives first derivatives only")


torch.library.register_autograd("attend::forward", gradients, setup_context=setup_context, lib=library)
torch.library.register_autograd(
    "attend::backward", refuse_double_backward, setup_context=_remember_nothing, lib=library
)


for _name, _rule in (("forward", _vmap.forward), ("backward", _vmap.backward)):
    _run = getattr(torch.ops.attend, _name)
    torch.library.register_vmap(f"attend::{_name}", functools.partial(_rule, _run), lib=library)


def autocast(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """q, k and v in the dtype of the autocast region, as matrix products are; float64, asked for on purpose, stays."""
    dtype = torch.get_autocast_dtype(tensors[0].device.type)
    return tuple(x.to(dtype) if x.dtype in _CAST else x for x in tensors)


def autocast_to(device_type: str, operator: Any) -> Any:
    """The operator with q, k and v cast; the others keep their dtype (slopes and lse are float32)."""
    key = torch._C.DispatchKey.AutocastCUDA if device_type == "cuda" else torch._C.DispatchKey.AutocastCPU
    below = torch._C.DispatchKeySet(key)

    def forward(q: Any, k: Any, v: Any, *rest: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(below):
            return operator(*autocast(q, k, v), *rest)

    return forward


for _type, _key in (("cpu", "AutocastCPU"), ("cuda", "AutocastCUDA")):
    library.impl("forward", autocast_to(_type, torch.ops.attend.forward), _key)
