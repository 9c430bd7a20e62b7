"""`attend.attention`, `attend.forward` and `attend.backward` of torch tensors.

`_core.direct_attention` computes a call directly, or returns None if it does not support the call. In that case the
call uses torch.ops.attend: operators that support autograd, fake tensors, vmap and DTensors by torch's dispatcher.
"""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch.autograd import forward_ad

from attend import _core
from attend._errors import ArgumentError, UnsupportedError
from attend._packed import parts
from attend._settings import NO_EXTRAS, OF_BIAS, OPTION_GRADIENTS, Extras, Gradients, Needs, Settings, as_int64
from attend.torch import _columns, _dtensor, _transforms
from attend.torch._meta import check, check_devices
from attend.torch._operators import compute_gradients
from attend.torch._tracing import is_traced, one_node

_KEYS_AXIS = {"bhsd": -2, "bshd": -3, "thd": -3}


def attention(
    q: Any, k: Any, v: Any, extras: Extras, settings: Settings, return_lse: bool = True
) -> tuple[torch.Tensor, Any]:
    """Returns (o, lse), differentiable. Without `return_lse`, lse may be None."""
    if torch.compiler.is_compiling():
        check_tensors(q, k, v, extras)
        run = _operator()
    else:
        results = _core.direct_attention(q, k, v, extras, settings, return_lse)
        if results is not None:
            if not return_lse:
                return results, None
            return results if extras is NO_EXTRAS else _with_column(results[0], results[1], extras.bias, k, settings)
        given = (q, k, v, *(x for x in extras if x is not None))
        if is_traced(given):
            both = one_node(attention, q, k, v, extras, settings, return_lse)
            return both[0], both[1]
        check_tensors(q, k, v, extras)
        run = _operator()
        refuse_tangents(*given)
    _dtensor.refuse_dropout(settings.dropout_p, q, k, v)
    o, lse = _by_an_operator(run, q, k, v, extras, settings)
    return _with_column(o, lse, extras.bias, k, settings) if return_lse else (o, lse)


def _by_an_operator(
    run: Any, q: Any, k: Any, v: Any, extras: Extras, settings: Settings
) -> tuple[torch.Tensor, torch.Tensor]:
    try:
        o, lse = run(q, k, v, *extras, *settings)
    except RuntimeError:
        if not torch.compiler.is_compiling():
            _core.check_settings(settings)  # this error names the setting; torch's error contains the full schema
        raise
    return o, lse


def _with_column(o: Any, lse: Any, bias: Any, k: torch.Tensor, settings: Settings) -> tuple[Any, Any]:
    """Adds a bias of one column to lse, because the lse of the operators does not contain it."""
    return o, _columns.shifted(lse, bias) if _is_column(bias, k, settings) else lse


def _is_column(bias: Any, k: torch.Tensor, settings: Settings) -> bool:
    return bias is not None and bias.dim() > 0 and bias.shape[-1] == 1 and k.shape[_KEYS_AXIS[settings.layout]] != 1


def attention_qkvpacked(qkv: Any, extras: Extras, settings: Settings, return_lse: bool) -> Any:
    """Returns o, or (o, lse), for one tensor (batch, seqlen, 3, heads, head_dim). Differentiable."""
    if extras is NO_EXTRAS and not torch.compiler.is_compiling():
        results = _core.direct_attention_qkvpacked(qkv, settings, return_lse)
        if results is not None:
            return results
    q, k, v = qkv.unbind(2) if is_traced((qkv,)) else parts(qkv, 2, 3, "qkv")
    both = attention(q, k, v, extras, settings, return_lse)
    return (both[0], both[1]) if return_lse else both[0]


def random_numbers(q: Any, seed: Any, offset: Any) -> tuple[Any, Any, Optional[torch.Tensor]]:
    """Implements `random_numbers` of attend._api. Does not read the values of traced tensors or of tensors on the GPU
    of q.
    """
    is_compiling = torch.compiler.is_compiling()
    tensors = [x for x in (seed, offset) if isinstance(x, torch.Tensor)]
    if tensors and (is_compiling or any(x.is_cuda and x.device == q.device for x in tensors)):
        on_gpu = any(x.is_cuda for x in tensors)
        device = q.device if on_gpu else torch.device("cpu")
        return 0, 0, torch.stack([_one_number("seed", seed, device), _one_number("offset", offset, device)])
    if is_compiling:
        return _traced_int64("seed", seed), _traced_int64("offset", offset), None
    return _int64_of("seed", seed), _int64_of("offset", offset), None


def _one_number(name: str, x: Any, device: torch.device) -> torch.Tensor:
    """Returns `x`, a number or a tensor of one element, as an i64 tensor without dimensions."""
    if not isinstance(x, torch.Tensor):
        bits = _traced_int64(name, x) if torch.compiler.is_compiling() else as_int64(name, x)
        return torch.full((), bits, dtype=torch.int64, device=device)
    _check_one_number(name, x)
    bits = x.view(torch.int64) if x.dtype == torch.uint64 else x.to(torch.int64)
    return bits.reshape(()).to(device)


def number_of(name: str, x: Any) -> Any:
    """Converts a setting that may be a tensor of one element to a number. Refuses a tensor that requires grad."""
    if not isinstance(x, torch.Tensor):
        return x
    if x.requires_grad:
        raise UnsupportedError(
            f"{name}: requires grad; attend gives no gradient for it. Detach it, or multiply q by it"
        )
    if x.numel() != 1:
        raise ArgumentError(f"{name}: {tuple(x.shape)}, allowed a number")
    return x.item()


def _int64_of(name: str, x: Any) -> int:
    """Returns the int64 that has the bits of the unsigned number `x`. The element of an int64 tensor already has this
    form.
    """
    if not isinstance(x, torch.Tensor):
        return as_int64(name, x)
    _check_one_number(name, x)
    return as_int64(name, int(x.item()) % 2**64)


def _check_one_number(name: str, x: torch.Tensor) -> None:
    if x.numel() != 1 or x.is_floating_point() or x.is_complex() or x.dtype == torch.bool:
        raise ArgumentError(f"{name}: {x.dtype} {tuple(x.shape)}, allowed a whole number from 0 to 2^64 - 1")


def _traced_int64(name: str, value: Any) -> Any:
    """Like `as_int64`, but adds no guards on symbolic integers."""
    # This imports a compiler, which has already been loaded if it traces this call.
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    if statically_known_true(value >= 2**63) or statically_known_true(value < 0):
        return as_int64(name, value)
    return value


def _operator() -> Any:
    return _transforms.forward if _transforms.are_active() else torch.ops.attend.forward


def refuse_tangents(*tensors: Optional[torch.Tensor]) -> None:
    """Refuses forward-mode derivatives, which would be lost silently."""
    if any(x is not None and forward_ad.unpack_dual(x).tangent is not None for x in tensors):
        raise UnsupportedError("forward-mode derivatives: attend has none; use torch.autograd, or attend.backward")


def forward(q: Any, k: Any, v: Any, extras: Extras, settings: Settings) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns (o, lse) without autograd."""
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
    needs: Needs,
    extras: Extras,
    settings: Settings,
) -> tuple[torch.Tensor, ...]:
    """Returns (dq, dk, dv) and the requested gradients of options, without autograd."""
    is_direct = False
    if not torch.compiler.is_compiling():
        others = (dout, o, lse, *[x for x in (dlse, *extras) if x is not None])
        is_direct, *_ = _core.route_of((q, k, v), others)
    run = compute_gradients if is_direct else _gradients_by_the_operator
    if not is_direct:
        check_tensors(q, k, v, extras, {"dout": dout, "o": o, "lse": lse} | ({} if dlse is None else {"dlse": dlse}))
    has_column = _is_column(extras.bias, k, settings) if k.dim() > 2 else False
    with torch.no_grad():
        if has_column:
            # The caller's lse includes the bias. A large bias has rounded away the digits that backward needs, so lse
            # is recomputed without the bias. The caller's lse is still checked.
            if not torch.compiler.is_compiling():
                named = zip(OPTION_GRADIENTS, needs)
                like_options = (getattr(extras, name) if is_needed else None for (name, _), is_needed in named)
                gradients = Gradients(dout, dlse, q, k, v, *like_options)
                check(q, k, v, o, lse, gradients, extras, settings)
            _, lse = _by_an_operator(torch.ops.attend.forward, q, k, v, extras, settings)
        dq, dk, dv, *of_options = run(q, k, v, o, lse, dout, dlse, needs, extras, settings)
        if has_column and needs[OF_BIAS]:
            of_column = _columns.gradient_of_bias(lse, dlse, extras.bias.shape)
            of_options[OF_BIAS] = of_column.to(of_options[OF_BIAS].dtype)
    if True not in needs:
        return dq, dk, dv
    return dq, dk, dv, *[x for x, is_needed in zip(of_options, needs) if is_needed]


def _gradients_by_the_operator(
    q: Any, k: Any, v: Any, o: Any, lse: Any, dout: Any, dlse: Any, needs: Needs, extras: Extras, settings: Settings
) -> tuple[Any, ...]:
    """Like `compute_gradients`, but by the operator attend::backward, and with empty tensors instead of None."""
    results: tuple[Any, ...] = torch.ops.attend.backward(q, k, v, o, lse, dout, dlse, *needs, *extras, *settings)
    return results


def check_tensors(q: Any, k: Any, v: Any, extras: Extras, others: Optional[dict[str, Any]] = None) -> None:
    """Refuses arguments that are not tensors, and names them. The errors of the operators would contain the full
    schema.
    """
    named = {"q": q, "k": k, "v": v, **(others or {})}
    if extras is not NO_EXTRAS:
        named |= {name: x for name, x in extras._asdict().items() if x is not None and name != "philox_state"}
    for name, x in named.items():
        check_tensor(name, x)
    check_devices(q, named.items())


def check_tensor(name: str, x: Any, owner: str = "q") -> None:
    """Refuses an argument that is not a tensor with memory, or is on another device than the argument `owner`."""
    if not isinstance(x, torch.Tensor):
        raise ArgumentError(f"{name}: {type(x).__name__}, allowed a torch.Tensor like {owner}")
    if _dtensor.is_dtensor(x):
        _dtensor.learn()
    if x.is_nested:
        raise UnsupportedError(
            f"{name}: a nested tensor, allowed dense ones; attend.sdpa takes nested tensors of layout torch.jagged"
        )
    if x.device.type not in ("cpu", "cuda", "meta"):
        raise UnsupportedError(f"{name}: on {x.device}, attend runs on cpu and cuda")
    if x.is_quantized:
        raise UnsupportedError(f"{name}: dtype {x.dtype}, attend supports no quantized tensors; dequantize() it")
    if x.layout != torch.strided:
        raise UnsupportedError(f"{name}: layout {x.layout}, attend supports dense strided tensors")
