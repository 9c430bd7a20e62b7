"""Defines the torch operators: their schemas, implementations and fake implementations.

    attend::forward(q, k, v, extras, settings) -> (o, lse)
    attend::backward(q, k, v, o, lse, dout, dlse?, needs, extras, settings) -> (dq, dk, dv, gradients of options)

`extras` and `settings` are expanded into the fields of attend._settings, in their order. `needs` (needs_dbias) and the
gradients of options (dbias) are expanded in the order of OPTION_GRADIENTS. A gradient that is not requested is an empty
tensor of shape (0), because operators cannot return None.

A large bias of one column, added to lse, would round away the other digits of lse. The operators therefore return an
lse without such a bias, and 0 as its gradient. attend.torch._front adds the bias to lse afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Optional

import torch

from attend import _core
from attend._errors import ArgumentError
from attend._settings import (
    GRADIENT_POSITIONS,
    NO_EXTRAS,
    OPTION_GRADIENTS,
    SCORE_TENSORS,
    Extras,
    Gradients,
    Needs,
    Settings,
    output_shapes,
)
from attend.torch import _columns, _meta

_TYPES = {
    "max_seqlen_q": "SymInt", "max_seqlen_k": "SymInt", "layout": "str", "scale": "float?", "causal": "bool",
    "window_left": "SymInt", "window_right": "SymInt", "seed": "SymInt", "offset": "SymInt", "deterministic": "bool",
    "compute": "str",
}  # fmt: skip
EXTRAS_SCHEMA = ", ".join(f"Tensor? {name}" for name in Extras._fields)
SETTINGS_SCHEMA = ", ".join(f"{_TYPES.get(name, 'float')} {name}" for name in Settings._fields)
NEEDS_SCHEMA = ", ".join(f"bool needs_{gradient}" for _, gradient in OPTION_GRADIENTS)
RESULTS_SCHEMA = ", ".join(f"Tensor {name}" for name in ("dq", "dk", "dv", *(name for _, name in OPTION_GRADIENTS)))
_FORWARD = f"forward(Tensor q, Tensor k, Tensor v, {EXTRAS_SCHEMA}, {SETTINGS_SCHEMA}) -> (Tensor o, Tensor lse)"
_BACKWARD = (
    "backward(Tensor q, Tensor k, Tensor v, Tensor o, Tensor lse, Tensor dout, Tensor? dlse, "
    f"{NEEDS_SCHEMA}, {EXTRAS_SCHEMA}, {SETTINGS_SCHEMA}) -> ({RESULTS_SCHEMA})"
)
# These tags forbid a compiler to change the strides. The kernels need a contiguous last dimension, and o has the layout
# of q.
TAGS = (torch.Tag.pt2_compliant_tag, getattr(torch.Tag, "needs_exact_strides", torch.Tag.needs_fixed_stride_order))

library = torch.library.Library("attend", "DEF")
library.define(_FORWARD, tags=TAGS)
library.define(_BACKWARD, tags=TAGS)


def run_forward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    extras: Extras,
    settings: Settings,
    return_lse: bool = True,
    call: Optional[Callable[..., None]] = None,
) -> tuple[torch.Tensor, Any]:
    """Returns o and lse (or None), computed by the library without torch's dispatcher."""
    o, lse = empty_results(q, v, settings.layout, return_lse)
    fill_forward(q, k, v, o, lse, extras, settings, call)
    return o, lse


def fill_forward(
    q: Any,
    k: Any,
    v: Any,
    o: Any,
    lse: Any,
    extras: Extras,
    settings: Settings,
    call: Optional[Callable[..., None]] = None,
) -> None:
    """Writes o, and also lse if lse is not None. If `call` is given, it replaces _core.forward."""
    columns = None
    if call is None and extras is not NO_EXTRAS:
        extras, columns = _columns.split(extras, q, k, settings.layout)
        if columns is not None and lse is None and columns.bias is not None:
            lse = empty_lse(q, o.shape, settings.layout)
    (_core.forward if call is None else call)(
        _view(_rows(q)),
        _view(_rows(k)),
        _view(_rows(v)),
        _view(o),
        view_in_place(lse),
        _view_extras(extras, q.device),
        settings,
        _stream(q),
    )
    if columns is not None:
        _columns.finish(o, lse, columns, settings.layout)


def fill_backward(
    q: Any,
    k: Any,
    v: Any,
    o: Any,
    lse: Any,
    gradients: Gradients,
    extras: Extras,
    settings: Settings,
    call: Optional[Callable[..., None]] = None,
) -> None:
    """Computes the fields of `gradients` that are not None, from its dout and dlse: dq, dk, dv and the gradients of
    options.
    """
    settings = with_required_determinism(settings)
    if call is None and extras is not NO_EXTRAS:
        extras, columns = _columns.split(extras, q, k, settings.layout)
        if columns is not None and columns.bias is not None and gradients.dbias is not None:
            gradients.dbias.copy_(_columns.gradient_of_bias(lse, None, gradients.dbias.shape))
            gradients = gradients._replace(dbias=None)
    dout = _rows(gradients.dout)
    if dout is not gradients.dout:
        gradients = gradients._replace(dout=dout)
    (_core.backward if call is None else call)(
        _view(_rows(q)),
        _view(_rows(k)),
        _view(_rows(v)),
        _view(_rows(o)),
        _view(lse),
        _views(gradients),
        _view_extras(extras, q.device),
        settings,
        _stream(q),
    )


def with_required_determinism(settings: Settings) -> Settings:
    """Returns the settings of backward, with `deterministic` set if torch.use_deterministic_algorithms requires it.

    With warn_only, a backend that is requested by name runs even if it is not deterministic, like torch's own
    operators.
    """
    if settings.deterministic or not torch.are_deterministic_algorithms_enabled():
        return settings
    if settings.compute != "auto" and torch.is_deterministic_algorithms_warn_only_enabled():
        return settings
    return settings._replace(deterministic=True)


def _forward(q: Any, k: Any, v: Any, *rest: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return run_forward(q, k, v, *split(rest))


def _forward_fake(q: Any, k: Any, v: Any, *rest: Any) -> tuple[torch.Tensor, torch.Tensor]:
    extras, settings = split(rest)
    o, lse = empty_results(q, v, settings.layout)
    _meta.check(q, k, v, o, lse, None, extras, settings)
    return o, lse


def run_backward(
    q: Any, k: Any, v: Any, o: Any, lse: Any, dout: Any, dlse: Any, *rest: Any
) -> tuple[torch.Tensor, ...]:
    """Returns the results of attend::backward, computed by the library without torch's dispatcher."""
    return without_none(q, compute_gradients(q, k, v, o, lse, dout, dlse, *split_needs(rest)))


def compute_gradients(
    q: Any,
    k: Any,
    v: Any,
    o: Any,
    lse: Any,
    dout: Any,
    dlse: Any,
    needs: Needs,
    extras: Extras,
    settings: Settings,
    call: Optional[Callable[..., None]] = None,
) -> tuple[Any, ...]:
    """Returns dq, dk, dv, and a gradient or None for each of OPTION_GRADIENTS, computed without torch's dispatcher."""
    dtype = q.dtype
    if o.dtype != dtype or dout.dtype != dtype:
        # After a forward pass under autocast, o and dout may have another dtype than q. The call would then use the
        # slow reference backend.
        o, dout = o.to(dtype), dout.to(dtype)
    results = _backward_results(q, k, v, extras, needs)
    fill_backward(q, k, v, o, lse, Gradients(dout, dlse, *results), extras, settings, call)
    return results


def backward_fake(
    q: Any, k: Any, v: Any, o: Any, lse: Any, dout: Any, dlse: Any, *rest: Any
) -> tuple[torch.Tensor, ...]:
    needs, extras, settings = split_needs(rest)
    results = _backward_results(q, k, v, extras, needs)
    _meta.check(q, k, v, o, lse, Gradients(dout, dlse, *results), extras, settings)
    return without_none(q, results)


for _key in ("CPU", "CUDA"):
    library.impl("forward", _forward, _key)
    library.impl("backward", run_backward, _key)
torch.library.register_fake("attend::forward", _forward_fake, lib=library)
torch.library.register_fake("attend::backward", backward_fake, lib=library)


def split_needs(rest: tuple[Any, ...]) -> tuple[Needs, Extras, Settings]:
    """Converts the arguments of attend::backward after dlse to needs, extras and settings."""
    count = len(OPTION_GRADIENTS)
    return rest[:count], *split(rest[count:])


def split(rest: tuple[Any, ...]) -> tuple[Extras, Settings]:
    """Converts the arguments of attend::forward after v to extras and settings."""
    count = len(Extras._fields)
    tensors = rest[:count]
    extras = Extras(*tensors) if [x for x in tensors if x is not None] else NO_EXTRAS
    return extras, Settings(*rest[count:])


def empty_results(q: torch.Tensor, v: torch.Tensor, layout: str, return_lse: bool = True) -> tuple[torch.Tensor, Any]:
    """Returns uninitialised tensors for o and lse. lse can be None."""
    q_shape = q.shape
    o_shape, lse_shape = output_shapes(q_shape, v.shape, layout)
    o = empty_like(q) if q_shape[-1] == o_shape[-1] else q.new_empty(o_shape)
    if not return_lse:
        return o, None
    return o, q.new_empty(lse_shape, dtype=_lse_dtype(q))


def empty_lse(q: torch.Tensor, o_shape: Any, layout: str) -> torch.Tensor:
    return q.new_empty(output_shapes(q.shape, o_shape, layout)[1], dtype=_lse_dtype(q))


def _lse_dtype(q: torch.Tensor) -> torch.dtype:
    return torch.float64 if q.dtype == torch.float64 else torch.float32


def wide(option: Any) -> Any:
    """Converts a 16-bit option to float32. The gradient of the option is then float32 too, can be summed further, and
    is rounded only once.
    """
    return option.float() if option.dtype in (torch.float16, torch.bfloat16) else option


_NO_GRADIENTS = (None,) * len(OPTION_GRADIENTS)


def _backward_results(q: Any, k: Any, v: Any, extras: Extras, needs: Needs) -> tuple[Any, ...]:
    """Returns uninitialised tensors for dq, dk and dv, and for each of OPTION_GRADIENTS an uninitialised tensor or
    None.
    """
    results = empty_like(q), empty_like(k), empty_like(v)
    if True not in needs:
        return *results, *_NO_GRADIENTS
    return *results, *[_gradient_like(extras, i) if is_needed else None for i, is_needed in enumerate(needs)]


def _gradient_like(extras: Extras, i: int) -> torch.Tensor:
    """Returns an uninitialised tensor for the gradient of entry i of OPTION_GRADIENTS."""
    option = extras[GRADIENT_POSITIONS[i]]
    if option is None:
        name, gradient = OPTION_GRADIENTS[i]
        raise ArgumentError(f"needs_{gradient}: True without a {name}, allowed with one only")
    return torch.empty_like(option, memory_format=torch.contiguous_format)


def without_none(q: torch.Tensor, results: tuple[Any, ...]) -> tuple[torch.Tensor, ...]:
    """Replaces each None in `results` by an empty tensor, because operators cannot return None."""
    dq, dk, dv, *of_options = results
    return dq, dk, dv, *[q.new_empty(0) if x is None else x for x in of_options]


def empty_like(x: torch.Tensor) -> torch.Tensor:
    """Returns an uninitialised dense tensor with the dimension order of x, and the last dimension innermost."""
    if x.is_contiguous() or _has_rows(x):
        result = torch.empty_like(x)
        if _has_rows(result):  # False if elements of x share memory, because torch then chooses the order
            return result
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _has_rows(x: torch.Tensor) -> bool:
    return x.dim() == 0 or x.stride(-1) == 1


def _rows(x: torch.Tensor) -> torch.Tensor:
    # Is_contiguous is the cheaper test and is usually true.
    return x if x.is_contiguous() or _has_rows(x) else x.contiguous()


def _view_by_public_names(x: torch.Tensor) -> Any:
    dtype = _meta.dtype_name(x.dtype)
    return _core.Array.at(x, x.data_ptr(), dtype, x.get_device(), x.shape, x.stride())


def _as_it_is(x: torch.Tensor) -> Any:
    return x


# If torch has DLPack's table of C functions, the library reads tensors through it, in a tenth of the time.
_view = _as_it_is if _core.has_exchange_table(torch.empty(0)) else _view_by_public_names


def view_in_place(x: Optional[torch.Tensor]) -> Any:
    """Returns the library's view of a tensor, or None for None."""
    return None if x is None else _view(x)


def view_of_rows(x: Optional[torch.Tensor]) -> Any:
    """Like `view_in_place`, but copies a tensor whose last dimension is not dense."""
    return None if x is None else _view(_rows(x))


def _views(tensors: Any) -> Any:
    """Returns the views of a named tuple of tensors."""
    return tensors if _view is _as_it_is else type(tensors)(*map(view_in_place, tensors))


_OF_SCORES = tuple((name, Extras._fields.index(name)) for name in SCORE_TENSORS)


def _view_extras(extras: Extras, device: torch.device) -> Any:
    if extras is NO_EXTRAS:
        return extras
    for name, i in _OF_SCORES:
        x = extras[i]
        if x is not None and not (x.is_contiguous() or _has_rows(x)):
            extras = extras._replace(**{name: x.contiguous()})
    if extras.philox_state is not None:
        extras = extras._replace(philox_state=extras.philox_state.to(device))
    return _views(extras)


def _stream(x: torch.Tensor) -> int:
    return raw_stream(x.get_device()) if x.is_cuda else 0


def _raw_stream_by_public_names(index: int) -> int:
    return torch.cuda.current_stream(index).cuda_stream


# Returns the address of the current CUDA stream. If torch has this private function, it needs a fifth of the time.
raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", _raw_stream_by_public_names)
