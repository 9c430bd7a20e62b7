"""What `attend.attention`, `attend.forward` and `attend.backward` do with torch tensors."""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch.autograd import forward_ad

from attend import _core
from attend._errors import ArgumentError, UnsupportedError
from attend._packed import parts
from attend._settings import NO_EXTRAS, Extras, Gradients, Settings, signed_bits
from attend.torch import _columns, _dtensor, _shortcut, _transforms
from attend.torch._autograd import apply_eagerly, autocast
from attend.torch._meta import check, check_devices
from attend.torch._shortcut import AUTOCAST, AUTOGRAD, way_of
from attend.torch._shortcut import forward as compute_forward
from attend.torch._tracing import is_traced, one_node

_KEYS_AXIS = {"bhsd": -2, "bshd": -3, "thd": -3}


def attention(
    q: Any, k: Any, v: Any, extras: Extras, settings: Settings, return_lse: bool = True
) -> tuple[torch.Tensor, Any]:
    """(o, lse), differentiable. Without `return_lse`, lse is None where backward does not want it either."""
    if not torch.compiler.is_compiling():
        if extras is NO_EXTRAS:
            short = _shortcut.short_attention(q, k, v, settings, return_lse)
            if short is not None:
                return short if return_lse else (short, None)
        given = (q, k, v) if extras is NO_EXTRAS else (q, k, v, *(x for x in extras if x is not None))
        way = way_of(given)
        if way:
            if way & AUTOCAST:
                q, k, v = autocast(q, k, v)
            if way & AUTOGRAD:
                results = apply_eagerly(q, k, v, extras.bias, extras, settings, return_lse)
                o, lse = results if return_lse else (results, None)
            else:
                o, lse = compute_forward(q, k, v, extras, settings, return_lse)
            return o, _with_column(lse, extras.bias, k, settings) if return_lse else lse
        if is_traced(given):
            both = one_node(attention, q, k, v, extras, settings, return_lse)
            return both[0], both[1]
        check_tensors(q, k, v, extras)
        run = _operator()
        _refuse_tangents(*given)
    else:
        check_tensors(q, k, v, extras)
        run = _operator()
    _dtensor.refuse_dropout(settings.dropout_p, q, k, v)
    o, lse = _by_an_operator(run, q, k, v, extras, settings)
    return o, _with_column(lse, extras.bias, k, settings) if return_lse else lse


def _by_an_operator(
    run: Any, q: Any, k: Any, v: Any, extras: Extras, settings: Settings
) -> tuple[torch.Tensor, torch.Tensor]:
    try:
        o, lse = run(q, k, v, *extras, *settings)
    except RuntimeError:
        if not torch.compiler.is_compiling():
            _core.check_settings(settings)  # torch would show the whole schema for an option of a wrong type
        raise
    return o, lse


def _with_column(lse: Any, bias: Any, k: torch.Tensor, settings: Settings) -> Any:
    """lse with a bias of one column, which is no part of the operators' lse."""
    return _columns.shifted(lse, bias) if _is_column(bias, k, settings) else lse


def _is_column(bias: Any, k: torch.Tensor, settings: Settings) -> bool:
    return bias is not None and bias.dim() > 0 and bias.shape[-1] == 1 and k.shape[_KEYS_AXIS[settings.layout]] != 1


def attention_qkvpacked(qkv: Any, extras: Extras, settings: Settings, return_lse: bool) -> Any:
    """o, or (o, lse), of one tensor (batch, seqlen, 3, heads, head_dim); differentiable."""
    if extras is NO_EXTRAS and not torch.compiler.is_compiling():
        short = _shortcut.short_packed(qkv, settings, return_lse)
        if short is None and way_of((qkv,)) & AUTOCAST:
            short = _shortcut.short_packed(*autocast(qkv), settings, return_lse)
        if short is not None:
            return short
    q, k, v = qkv.unbind(2) if is_traced((qkv,)) else parts(qkv, 2, 3, "qkv")
    both = attention(q, k, v, extras, settings, return_lse)
    return (both[0], both[1]) if return_lse else both[0]


def random_numbers(q: Any, seed: Any, offset: Any) -> tuple[Any, Any, Optional[torch.Tensor]]:
    """See attend._api: what a compiler traces is not asked for its value, nor what is on the GPU of q."""
    is_compiling = torch.compiler.is_compiling()
    tensors = [x for x in (seed, offset) if isinstance(x, torch.Tensor)]
    if tensors and (is_compiling or any(x.is_cuda and x.device == q.device for x in tensors)):
        on_gpu = any(x.is_cuda for x in tensors)
        device = q.device if on_gpu else torch.device("cpu")
        return 0, 0, torch.stack([_one_number("seed", seed, device), _one_number("offset", offset, device)])
    if is_compiling:
        return _traced_bits("seed", seed), _traced_bits("offset", offset), None
    return _bits("seed", seed), _bits("offset", offset), None


def _one_number(name: str, x: Any, device: torch.device) -> torch.Tensor:
    """i64 ()."""
    if not isinstance(x, torch.Tensor):
        bits = _traced_bits(name, x) if torch.compiler.is_compiling() else signed_bits(name, x)
        return torch.full((), bits, dtype=torch.int64, device=device)
    _check_one_number(name, x)
    bits = x.view(torch.int64) if x.dtype == torch.uint64 else x.to(torch.int64)
    return bits.reshape(()).to(device)


def number_of(name: str, x: Any) -> Any:
    """A setting that may be a tensor of one element, but not one that a gradient is expected for."""
    if not isinstance(x, torch.Tensor):
        return x
    if x.requires_grad:
        raise UnsupportedError(
            f"{name}: requires grad; attend gives no gradient for it. Detach it, or multiply q by it"
        )
    if x.numel() != 1:
        raise ArgumentError(f"{name}: {tuple(x.shape)}, allowed a number")
    return x.item()


def _bits(name: str, x: Any) -> int:
    """The signed number of 64 bits. A tensor of signed numbers holds bits already, as one on a GPU does."""
    if not isinstance(x, torch.Tensor):
        return signed_bits(name, x)
    _check_one_number(name, x)
    return signed_bits(name, int(x.item()) % 2**64)


def _check_one_number(name: str, x: torch.Tensor) -> None:
    if x.numel() != 1 or x.is_floating_point() or x.is_complex() or x.dtype == torch.bool:
        raise ArgumentError(f"{name}: {x.dtype} {tuple(x.shape)}, allowed a whole number from 0 to 2^64 - 1")


def _traced_bits(name: str, value: Any) -> Any:
    """signed_bits, but of a number that the compiled program draws nothing is asked that it would have to guard."""
    from torch.fx.experimental.symbolic_shapes import statically_known_true  # costs a compiler, which is here then

    if statically_known_true(value >= 2**63) or statically_known_true(value < 0):
        return signed_bits(name, value)
    return value


def _operator() -> Any:
    return _transforms.forward if _transforms.are_active() else torch.ops.attend.forward


def _refuse_tangents(*tensors: Optional[torch.Tensor]) -> None:
    """They would be lost in silence."""
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
    check_tensors(q, k, v, extras, {"dout": dout, "o": o, "lse": lse} | ({} if dlse is None else {"dlse": dlse}))
    has_column = _is_column(extras.bias, k, settings) if k.dim() > 2 else False
    with torch.no_grad():
        if has_column:
            # lse holds the bias, beside which what backward needs may have been rounded away; the
            # caller's lse, which is not read then, is checked all the same.
            if not torch.compiler.is_compiling():
                gradients = Gradients(dout, dlse, q, k, v, extras.bias if needs_dbias else None)
                check(q, k, v, o, lse, gradients, extras, settings)
            _, lse = _by_an_operator(torch.ops.attend.forward, q, k, v, extras, settings)
        dq, dk, dv, dbias = torch.ops.attend.backward(q, k, v, o, lse, dout, dlse, needs_dbias, *extras, *settings)
        if has_column and needs_dbias:
            dbias = _columns.gradient_of_bias(lse, dlse, extras.bias.shape).to(dbias.dtype)
    return (dq, dk, dv, dbias) if needs_dbias else (dq, dk, dv)


def check_tensors(q: Any, k: Any, v: Any, extras: Extras, others: Optional[dict[str, Any]] = None) -> None:
    """The operators would refuse what is no tensor too, but with the text of their whole schema."""
    named = {"q": q, "k": k, "v": v, **(others or {})}
    if extras is not NO_EXTRAS:
        named |= {name: x for name, x in extras._asdict().items() if x is not None and name != "philox_state"}
    for name, x in named.items():
        if not isinstance(x, torch.Tensor):
            raise ArgumentError(f"{name}: {type(x).__name__}, allowed a torch.Tensor like q")
        if _dtensor.is_dtensor(x):
            _dtensor.learn()
        if x.is_nested:
            raise UnsupportedError(
                f"{name}: a nested tensor, allowed dense ones; attend.sdpa takes nested tensors of layout torch.jagged"
            )
        if x.device.type not in ("cpu", "cuda", "meta"):
            raise UnsupportedError(f"{name}: on {x.device}, attend runs on cpu and cuda")
        if x.is_quantized:
            raise UnsupportedError(f"{name}: dtype {x.dtype}, attend takes no quantized tensors; dequantize() it")
        if x.layout != torch.strided:
            raise UnsupportedError(f"{name}: layout {x.layout}, attend takes dense strided tensors")
    check_devices(q, named.items())
