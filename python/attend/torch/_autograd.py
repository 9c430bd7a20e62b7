"""Defines autograd, autocast and vmap of the operators."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

from attend import _core
from attend._errors import UnsupportedError
from attend._settings import (
    GRADIENT_POSITIONS,
    NEEDS_NONE,
    NO_EXTRAS,
    NO_GRADIENT_TENSORS,
    Extras,
    Needs,
    Settings,
)
from attend.torch import _vmap
from attend.torch._operators import compute_gradients, library, run_forward

_NUM_EXTRAS = len(Extras._fields)
_NUM_SETTINGS = len(Settings._fields)
_WITHOUT_GRADIENT = tuple(Extras._fields.index(name) for name in NO_GRADIENT_TENSORS)  # positions in Extras


def refuse_lacking_gradients(wanted: Sequence[bool]) -> None:
    """Raises an error if a gradient is requested that attend does not provide. `wanted` has a flag for each field of
    Extras.
    """
    for i in _WITHOUT_GRADIENT:
        if wanted[i]:
            raise UnsupportedError(f"{Extras._fields[i]}: requires grad; attend gives no gradient for it. Detach it")


def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
    tensors, settings = inputs[: 3 + _NUM_EXTRAS], inputs[3 + _NUM_EXTRAS :]
    refuse_lacking_gradients(ctx.needs_input_grad[3 : 3 + _NUM_EXTRAS])
    ctx.save_for_backward(*tensors, *output)
    ctx.settings = settings
    # A gradient of o or lse that autograd does not have stays None, because not every backend supports dlse.
    ctx.set_materialize_grads(False)


def gradients(ctx: Any, dout: Any, dlse: Any, operator: Any = torch.ops.attend.backward) -> tuple[Any, ...]:
    """Returns the gradients of the inputs of attend::forward. `operator` is attend::backward or a replacement."""
    q, k, v, *extras, o, lse = ctx.saved_tensors
    dout = torch.zeros_like(o) if dout is None else dout
    rest = (*extras, *ctx.settings)
    needs = tuple([ctx.needs_input_grad[3 + i] for i in GRADIENT_POSITIONS])
    dq, dk, dv, *of_options = _by_an_operator(operator, q, k, v, o, lse, dout, dlse, needs, rest)
    of_extras = [None] * _NUM_EXTRAS
    for i, gradient in zip(GRADIENT_POSITIONS, of_options):
        of_extras[i] = gradient
    return dq, dk, dv, *of_extras, *[None] * _NUM_SETTINGS


def _by_an_operator(
    operator: Any, q: Any, k: Any, v: Any, o: Any, lse: Any, dout: Any, dlse: Any, needs: Needs, rest: Any
) -> tuple[Any, ...]:
    """Returns dq, dk, dv, and a gradient or None for each of OPTION_GRADIENTS."""
    dq, dk, dv, *of_options = operator(q, k, v, o, lse, dout, dlse, *needs, *rest)
    return dq, dk, dv, *[x if is_needed else None for x, is_needed in zip(of_options, needs)]


_CAST = (torch.float32, torch.float16, torch.bfloat16)


class Attention(torch.autograd.Function):
    """Computes o, or (o, lse). The arguments are q, k, v, settings and return_lse. If extras are given, the extras and
    their tensors of OPTION_GRADIENTS follow.

    The library calls this function after it has checked the tensors (python/src/torch_route.cpp), and the library also
    runs both passes. Both passes therefore call fewer Python functions. Each Python function costs microseconds,
    because the host code between the kernels of a small model is not in the CPU's caches. If extras are given, the
    library calls the functions below.
    """

    # One function both saves tensors in the context and computes. If there were two functions, torch would inspect
    # their signature in every call.
    forward = staticmethod(_core.attention_forward)

    @staticmethod
    # Written in Python, so that compiled autograd can trace it.
    def backward(ctx: Any, dout: Any, dlse: Any = None) -> Any:
        return _core.attention_backward(ctx, dout, dlse)


class PackedAttention(torch.autograd.Function):
    """`Attention` of qkv, settings and return_lse. The gradient is one tensor, like the input."""

    forward = staticmethod(_core.packed_forward)

    @staticmethod
    def backward(ctx: Any, dout: Any, dlse: Any = None) -> Any:
        return _core.packed_backward(ctx, dout, dlse)


def forward_with_extras(ctx: Any, q: Any, k: Any, v: Any, extras: Extras, settings: Settings) -> tuple[Any, Any]:
    """Returns (o, lse). Saves all tensors that backward needs in `ctx`."""
    o, lse = run_forward(q, k, v, extras, settings)
    refuse_lacking_gradients([x is not None and x.requires_grad for x in extras])
    ctx.given = [x is not None for x in extras]
    ctx.save_for_backward(q, k, v, o, lse, *[x for x in extras if x is not None])
    return o, lse


def run_backward(ctx: Any, saved: tuple[Any, ...], dout: Any, dlse: Any, is_direct: bool) -> tuple[Any, ...]:
    """Returns the gradients of the arguments of Attention. `is_direct` is True if the library can be called
    directly.
    """
    rest = saved[5:]
    if not rest:
        dq, dk, dv, *_ = _gradients(saved, dout, dlse, NEEDS_NONE, NO_EXTRAS, ctx.settings, is_direct)
        return dq, dk, dv, None, None
    extras = _spread(rest, ctx.given)
    needs = ctx.needs_input_grad[6:]  # the first six entries belong to q, k, v, settings, return_lse and extras
    dq, dk, dv, *of_options = _gradients(saved[:5], dout, dlse, needs, extras, ctx.settings, is_direct)
    return dq, dk, dv, None, None, None, *of_options


def run_packed_backward(ctx: Any, saved: tuple[Any, ...], dout: Any, dlse: Any, is_direct: bool) -> torch.Tensor:
    """Returns dqkv, the gradient of the packed qkv."""
    qkv, o, lse = saved
    separate = (*qkv.unbind(2), o, lse)
    return torch.stack(_gradients(separate, dout, dlse, NEEDS_NONE, NO_EXTRAS, ctx.settings, is_direct)[:3], 2)


def _gradients(
    saved: tuple[Any, ...],
    dout: Any,
    dlse: Any,
    needs: Needs,
    extras: Extras,
    settings: Settings,
    is_direct: bool,
) -> tuple[Any, ...]:
    """Returns dq, dk, dv, and a gradient or None for each of OPTION_GRADIENTS. `saved` contains q, k, v, o and lse."""
    q, k, v, o, lse = saved
    dout = torch.zeros_like(o) if dout is None else dout
    if is_direct:
        return compute_gradients(q, k, v, o, lse, dout, dlse, needs, extras, settings)
    rest = (*extras, *settings)
    return _by_an_operator(torch.ops.attend.backward, q, k, v, o, lse, dout, dlse, needs, rest)


def _spread(tensors: tuple[Any, ...], given: Sequence[bool]) -> Extras:
    """Returns Extras from a tuple of tensors. `given` has a flag for each field; fields without a tensor are None."""
    left = iter(tensors)
    return Extras(*[next(left) if there else None for there in given])


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
    """Casts q, k and v to the dtype of the autocast region, as torch does for matrix products. float64 is not cast."""
    dtype = torch.get_autocast_dtype(tensors[0].device.type)
    return tuple(x.to(dtype) if x.dtype in _CAST else x for x in tensors)


def autocast_to(device_type: str, operator: Any) -> Any:
    """Returns a function that casts q, k and v and then calls the operator. Other tensors keep their dtype, for example
    alibi_slopes and lse, which are float32.
    """
    key = torch._C.DispatchKey.AutocastCUDA if device_type == "cuda" else torch._C.DispatchKey.AutocastCPU
    below = torch._C.DispatchKeySet(key)

    def forward(q: Any, k: Any, v: Any, *rest: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(below):
            return operator(*autocast(q, k, v), *rest)

    return forward


for _type, _key in (("cpu", "AutocastCPU"), ("cuda", "AutocastCUDA")):
    library.impl("forward", autocast_to(_type, torch.ops.attend.forward), _key)
