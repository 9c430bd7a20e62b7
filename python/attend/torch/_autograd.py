"""Autograd, autocast and vmap of the operators."""

from __future__ import annotations

from typing import Any

import torch

from attend._errors import UnsupportedError
from attend._settings import Extras, Settings
from attend.torch import _vmap
from attend.torch._operators import library, run_backward, run_forward, split
from attend.torch._shortcut import nothing_stands_between

_NUM_EXTRAS = len(Extras._fields)
_NUM_SETTINGS = len(Settings._fields)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
    tensors, settings = inputs[: 3 + _NUM_EXTRAS], inputs[3 + _NUM_EXTRAS :]
    if ctx.needs_input_grad[3 + Extras._fields.index("alibi_slopes")]:
        raise UnsupportedError("alibi_slopes: requires grad; attend gives no gradient for it. Detach it")
    ctx.save_for_backward(*tensors, *output)
    ctx.settings = settings
    # A gradient that nobody asked for stays None: not every backend takes one for lse.
    ctx.set_materialize_grads(False)


def _gradients(ctx: Any, dout: Any, dlse: Any) -> tuple[Any, ...]:
    return _gradients_by(torch.ops.attend.backward, ctx, ctx.saved_tensors, dout, dlse)


def _gradients_by(backward: Any, ctx: Any, saved: tuple[Any, ...], dout: Any, dlse: Any) -> tuple[Any, ...]:
    q, k, v, *extras, o, lse = saved
    if dout is None:
        dout = torch.zeros_like(o)
    needs_dbias = ctx.needs_input_grad[3]
    dq, dk, dv, dbias = backward(q, k, v, o, lse, dout, dlse, needs_dbias, *extras, *ctx.settings)
    return dq, dk, dv, dbias if needs_dbias else None, *[None] * (_NUM_EXTRAS - 1 + _NUM_SETTINGS)


# Torch's older vmap, by which autograd maps over gradients, shows in the tensors only.
_is_mapped = getattr(torch._C._functorch, "is_legacy_batchedtensor", lambda x: False)


class EagerAttention(torch.autograd.Function):
    """The same gradients without the way through the dispatcher: arguments and results of attend::forward."""

    # One function for the context and the results: with two, torch inspects the signature at every call.
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        q, k, v, *rest = inputs
        output = run_forward(q, k, v, *split(tuple(rest)))
        _setup_context(ctx, inputs, output)
        return output

    @staticmethod
    def backward(ctx: Any, dout: Any, dlse: Any) -> tuple[Any, ...]:
        # With grad mode on, a graph of the gradients is wanted: the operator refuses that.
        saved = ctx.saved_tensors  # once: checkpointing unpacks them once only
        given = tuple(x for x in (dout, dlse, *saved) if x is not None)
        is_mapped = any(_is_mapped(x) for x in (dout, dlse) if x is not None)  # is_grads_batched
        is_short = not torch.is_grad_enabled() and not is_mapped and nothing_stands_between(given)
        return _gradients_by(run_backward if is_short else torch.ops.attend.backward, ctx, saved, dout, dlse)


def _remember_nothing(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    pass


def _refuse_double_backward(ctx: Any, *gradients: Any) -> None:
    raise UnsupportedError("attend::backward: double backward, attend gives first derivatives only")


torch.library.register_autograd("attend::forward", _gradients, setup_context=_setup_context, lib=library)
torch.library.register_autograd(
    "attend::backward", _refuse_double_backward, setup_context=_remember_nothing, lib=library
)


torch.library.register_vmap("attend::forward", _vmap.forward, lib=library)
torch.library.register_vmap("attend::backward", _vmap.backward, lib=library)


def _autocast_to(device_type: str) -> Any:
    """q, k and v in the region's dtype, as matrix products are; the others keep theirs (slopes and lse are float32)."""
    key = torch._C.DispatchKey.AutocastCUDA if device_type == "cuda" else torch._C.DispatchKey.AutocastCPU
    below = torch._C.DispatchKeySet(key)

    def forward(q: Any, k: Any, v: Any, *rest: Any) -> Any:
        dtype = torch.get_autocast_dtype(device_type)

        def cast(x: torch.Tensor) -> torch.Tensor:
            # float64 is asked for on purpose; autocast leaves it alone everywhere.
            return x.to(dtype) if x.dtype in (torch.float32, torch.float16, torch.bfloat16) else x

        with torch._C._ExcludeDispatchKeyGuard(below):
            return torch.ops.attend.forward(cast(q), cast(k), cast(v), *rest)

    return forward


library.impl("forward", _autocast_to("cpu"), "AutocastCPU")
library.impl("forward", _autocast_to("cuda"), "AutocastCUDA")
