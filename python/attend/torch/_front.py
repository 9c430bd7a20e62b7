"""What `attend.attention`, `attend.forward` and `attend.backward` do with torch tensors."""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch.autograd import forward_ad

from attend._errors import ArgumentError, UnsupportedError
from attend._settings import NO_EXTRAS, Extras, Settings
from attend.torch._autograd import EagerAttention
from attend.torch._operators import run_forward
from attend.torch._shortcut import nothing_stands_between

_KEYS_AXIS = {"bhsd": -2, "bshd": -3, "thd": -3}


def attention(
    q: Any, k: Any, v: Any, extras: Extras, settings: Settings, return_lse: bool = True
) -> tuple[torch.Tensor, Any]:
    """(o, lse), differentiable. Without `return_lse`, lse is None where backward does not want it either."""
    if not torch.compiler.is_compiling():
        given = (q, k, v) if extras is NO_EXTRAS else (q, k, v, *(x for x in extras if x is not None))
        if nothing_stands_between(given):
            extras = _all_keys(extras, k, settings)
            if torch.is_grad_enabled() and any(x.requires_grad for x in given):
                o, lse = EagerAttention.apply(q, k, v, *extras, *settings)
                return o, lse
            return run_forward(q, k, v, extras, settings, return_lse)
        _check_tensors(q, k, v, extras)
        _refuse_transforms(*given)
    else:
        _check_tensors(q, k, v, extras)
    extras = _all_keys(extras, k, settings)
    o, lse = torch.ops.attend.forward(q, k, v, *extras, *settings)
    return o, lse


def _refuse_transforms(*tensors: Optional[torch.Tensor]) -> None:
    """torch.func would fail too, with an advice to the author of the operator; tangents would be lost in silence."""
    peek = getattr(getattr(torch._C, "_functorch", None), "peek_interpreter_stack", None)
    transform = None if peek is None else peek()
    if transform is not None and transform.key().name in ("Vmap", "Grad", "Jvp"):
        name = {"Vmap": "vmap", "Grad": "grad", "Jvp": "jvp"}[transform.key().name]
        advice = "use torch.autograd, or attend.backward"
        if name == "vmap":
            advice = "put the mapped dimension into batch or heads, which are independent"
        raise UnsupportedError(f"torch.func.{name}: attend has no rule for it; {advice}")
    if any(x is not None and forward_ad.unpack_dual(x).tangent is not None for x in tensors):
        raise UnsupportedError("forward-mode derivatives: attend has none; use torch.autograd, or attend.backward")


def forward(q: Any, k: Any, v: Any, extras: Extras, settings: Settings) -> tuple[torch.Tensor, torch.Tensor]:
    """(o, lse) without autograd."""
    with torch.no_grad():
        return attention(q, k, v, extras, settings)


def backward(
    dout: Any,
    q: Any,
    k: Any,
    v: Any,
    o: Any,
    lse: Any,
    dlse: Any,
    needs_dbias: bool,
    extras: Extras,
    settings: Settings,
) -> tuple[torch.Tensor, ...]:
    """(dq, dk, dv), and dbias where it is asked for, without autograd."""
    _check_tensors(q, k, v, extras)
    expanded = _all_keys(extras, k, settings)
    with torch.no_grad():
        dq, dk, dv, dbias = torch.ops.attend.backward(q, k, v, o, lse, dout, dlse, needs_dbias, *expanded, *settings)
    if not needs_dbias:
        return dq, dk, dv
    return dq, dk, dv, dbias.sum_to_size(extras.bias.shape)


def _check_tensors(q: Any, k: Any, v: Any, extras: Extras) -> None:
    """The operators would refuse what is no tensor too, but with the text of their whole schema."""
    named = [("q", q), ("k", k), ("v", v)]
    if extras is not NO_EXTRAS:
        named += [(name, x) for name, x in zip(Extras._fields, extras) if x is not None]
    for name, x in named:
        if not isinstance(x, torch.Tensor):
            raise ArgumentError(f"{name}: {type(x).__name__}, allowed a torch.Tensor like q")
        if x.device.type not in ("cpu", "cuda", "meta"):
            raise UnsupportedError(f"{name}: on {x.device}, attend runs on cpu and cuda")
        if x.layout != torch.strided:
            raise UnsupportedError(f"{name}: layout {x.layout}, attend takes dense strided tensors")


def _all_keys(extras: Extras, k: torch.Tensor, settings: Settings) -> Extras:
    """A bias or mask of one column, repeated: the library broadcasts every dimension but the keys."""
    if extras is NO_EXTRAS or (extras.bias is None and extras.mask is None):
        return extras
    if k.dim() < 3:
        return extras
    seqlen_k = k.shape[_KEYS_AXIS[settings.layout]]
    bias, mask, *others = extras
    return Extras(_repeat(bias, seqlen_k), _repeat(mask, seqlen_k), *others)  # older torch cannot trace _replace


def _repeat(x: Optional[torch.Tensor], seqlen_k: int) -> Optional[torch.Tensor]:
    if x is None or x.dim() == 0 or x.shape[-1] != 1 or seqlen_k == 1:
        return x
    return x.expand(*x.shape[:-1], seqlen_k).contiguous()
