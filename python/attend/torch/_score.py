"""Computes attention with custom scores and masks on torch tensors, as one autograd function. `_score_operators`
computes it in graphs of compilers.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

from attend import _core
from attend._errors import ArgumentError, UnsupportedError
from attend._settings import GRADIENT_POSITIONS, NO_EXTRAS, Extras, Gradients, Needs, Settings, output_shapes
from attend.torch import _ahead, _operators, _transforms
from attend.torch._autograd import refuse_double_backward, refuse_lacking_gradients
from attend.torch._front import check_tensors, refuse_tangents
from attend.torch._operators import compute_gradients, view_of_rows
from attend.torch._tracing import is_traced

_interpreters = getattr(getattr(torch._C, "_functorch", None), "get_interpreter_stack", lambda: None)
_NUM_EXTRAS = len(Extras._fields)
# Selects the settings that affect the choice of kernels. All other settings are lengths, or change from call to call.
_OF_KERNELS = operator.itemgetter(
    *[i for i, x in enumerate(Settings._fields) if x not in ("max_seqlen_q", "max_seqlen_k", "seed", "offset")]
)


def attention(
    score: Any, q: Any, k: Any, v: Any, extras: Extras, settings: Settings, with_autograd: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns (o, lse). With autograd they are differentiable with respect to q, k, v, some options, and float
    captures.
    """
    if torch.compiler.is_compiling() and score.block_mask is None and not _transforms.are_active():
        check_tensors(q, k, v, extras)
        captures = _tensors(score, q.device)
        both: tuple[torch.Tensor, torch.Tensor] = torch.ops.attend.score_forward(
            q, k, v, *extras, *settings, list(captures), list(score.names), score.text
        )
        return both
    captures = _tensors(score, q.device)
    given = (q, k, v, *captures, *(x for x in extras if x is not None))
    refuse_tracers(score.what, given)
    for x in given:
        if type(x) not in (torch.Tensor, torch.nn.Parameter):
            raise UnsupportedError(f"{score.what}: given with a {type(x).__name__}, allowed with ordinary tensors only")
    refuse_tangents(*given)
    with_autograd = with_autograd and torch.is_grad_enabled()
    if with_autograd and q.is_cuda:
        _compile_ahead(score, q, k, v, extras, settings, captures)
    with torch.set_grad_enabled(with_autograd):
        o, lse = _Attention.apply(score, settings, q, k, v, *extras, *captures)
    return o, lse


def run_forward(
    score: Any, q: Any, k: Any, v: Any, extras: Extras, settings: Settings, captures: tuple[torch.Tensor, ...]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns (o, lse), computed by the library without torch's dispatcher."""
    views = tuple(view_of_rows(x) for x in _in_rows(captures))
    call = functools.partial(_core.forward_with_own, score.function(views), score.block_mask)
    return _operators.run_forward(q, k, v, extras, settings, call=call)


def has_transforms() -> bool:
    """Returns whether transforms of torch.func are active."""
    return bool(_interpreters())


def refuse_tracers(what: str, given: tuple[Any, ...]) -> None:
    """Raises an error under a compiler, a tracer or a transform. The error message names the argument `what`."""
    if torch.compiler.is_compiling() or is_traced(given) or has_transforms():
        raise UnsupportedError(f"{what}: under torch.compile, torch.func or a tracer, allowed outside of them only")


def _compile_ahead(
    score: Any, q: Any, k: Any, v: Any, extras: Extras, settings: Settings, captures: tuple[torch.Tensor, ...]
) -> None:
    """Starts to compile backward's kernels if there will be a backward pass.

    The compilation is done once for each key. The key does not contain the lengths. If other lengths need other
    kernels, backward compiles them.
    """
    of_captures = tuple([x.requires_grad for x in captures])
    of_extras = () if extras is NO_EXTRAS else tuple([None if x is None else x.requires_grad for x in extras])
    if q.requires_grad or k.requires_grad or v.requires_grad or True in of_captures or True in of_extras:
        dims = q.get_device(), q.dtype, q.shape[-1:], v.shape[-1:]
        key = score.text, score.block_mask is None, dims, of_captures, of_extras, _OF_KERNELS(settings)
        _ahead.begin(key, lambda: preparation(score, q, k, v, extras, settings, captures))


def preparation(
    score: Any, q: Any, k: Any, v: Any, extras: Extras, settings: Settings, captures: tuple[torch.Tensor, ...]
) -> Callable[[], None]:
    """Returns a function that compiles and loads the kernels of `gradients`. The function stores the layouts of the
    tensors, but no reference to them.
    """
    places = _ahead.TensorPlaces(q.get_device())
    o_shape, lse_shape = output_shapes(q.shape, v.shape, settings.layout)
    o, dout = (places.like(q) if q.shape[-1] == v.shape[-1] else places.dense(q.dtype, o_shape) for _ in range(2))
    of_options = [extras[i] for i in GRADIENT_POSITIONS]
    wanted = [x if x is not None and x.requires_grad else None for x in of_options]
    positions = _with_gradient(captures, [x.requires_grad for x in captures])
    return functools.partial(
        _core.prepare_backward_with_own,
        score.function(tuple(map(places.of, captures))),
        score.block_mask,
        tuple(score.names[i] for i in positions),
        tuple(places.dense(_dtype_of_sums(q), captures[i].shape) for i in positions),
        places.of(q),
        places.of(k),
        places.of(v),
        o,
        places.dense(_dtype_of_sums(q), lse_shape),
        Gradients(
            dout,
            None,
            *map(places.like, (q, k, v)),
            *[None if x is None else places.dense(x.dtype, x.shape) for x in wanted],
        ),
        Extras(*map(places.of, extras)),
        _operators.with_required_determinism(settings),
    )


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, score: Any, settings: Settings, *tensors: Any) -> tuple[torch.Tensor, torch.Tensor]:
        q, k, v, extras, captures = _split(tensors)
        refuse_lacking_gradients([x is not None and x.requires_grad for x in extras])
        o, lse = run_forward(score, q, k, v, extras, settings, captures)
        ctx.save_for_backward(*tensors, o, lse)
        ctx.score, ctx.settings = score, settings
        ctx.set_materialize_grads(False)
        return o, lse

    @staticmethod
    def backward(ctx: Any, dout: Any, dlse: Any) -> tuple[Any, ...]:
        *tensors, o, lse = ctx.saved_tensors
        q, k, v, extras, captures = _split(tuple(tensors))
        needed = ctx.needs_input_grad[2:]  # the first two entries belong to score and settings
        needs = tuple(needed[3 + i] for i in GRADIENT_POSITIONS)
        dout = torch.zeros_like(o) if dout is None else dout
        dq, dk, dv, *of_options, of_captures = gradients(
            ctx.score, dout, q, k, v, o, lse, dlse, needs, extras, ctx.settings, needed[3 + _NUM_EXTRAS :], captures
        )
        of_extras: list[Any] = [None] * _NUM_EXTRAS
        for i, gradient in zip(GRADIENT_POSITIONS, of_options):
            of_extras[i] = gradient
        found = (dq, dk, dv, *of_extras, *of_captures)
        if torch.is_grad_enabled():  # true if backward was called with create_graph=True
            known = tuple(x for x in (dout, dlse, *tensors) if x is not None)
            found = tuple(None if x is None else _Once.apply(x, *known) for x in found)
        return None, None, *found


class _Once(torch.autograd.Function):
    """An identity that makes autograd treat a gradient as a function of `tensors`. Differentiating the gradient again
    then raises an error instead of returning zero.
    """

    @staticmethod
    def forward(ctx: Any, gradient: torch.Tensor, *tensors: Any) -> torch.Tensor:
        return gradient.detach()

    backward = staticmethod(refuse_double_backward)


@torch.no_grad()
def gradients(
    score: Any, dout: Any, q: Any, k: Any, v: Any, o: Any, lse: Any, dlse: Any, needs: Needs, extras: Extras,
    settings: Settings, needs_captures: Any, captures: Any = None,
) -> tuple[Any, ...]:  # fmt: skip
    """Returns dq, dk, dv, a gradient or None for each of OPTION_GRADIENTS, and a tuple of the captures' gradients."""
    captures = _tensors(score, q.device) if captures is None else captures
    rows = _in_rows(captures)
    views = tuple(view_of_rows(x) for x in rows)
    results = {
        i: torch.empty(captures[i].shape, dtype=_dtype_of_sums(q), device=captures[i].device)
        for i in _with_gradient(captures, needs_captures)
    }
    names = tuple(score.names[i] for i in results)
    places = tuple(map(view_of_rows, results.values()))
    call = functools.partial(_core.backward_with_own, score.function(views), score.block_mask, names, places)
    found = compute_gradients(q, k, v, o, lse, dout, dlse, needs, extras, settings, call)
    of_captures = tuple(results[i].to(x.dtype) if i in results else None for i, x in enumerate(captures))
    return (*found, of_captures)


def _with_gradient(captures: Sequence[Any], needs: Sequence[bool]) -> list[int]:
    """Returns the positions of the captures for which backward computes a gradient."""
    return [i for i, x in enumerate(captures) if x.dtype.is_floating_point and needs[i]]


def _dtype_of_sums(q: Any) -> torch.dtype:
    """Returns the dtype of lse and of the captures' gradients."""
    return torch.float64 if q.dtype == torch.float64 else torch.float32


def wanted(score: Any, q: torch.Tensor) -> tuple[bool, ...]:
    """Returns a flag for each capture: whether `backward` computes its gradient. On a GPU, backward computes the
    gradients of captures with requires_grad.
    """
    return tuple(not q.is_cuda or getattr(x, "requires_grad", False) for x in score.captures)


def _split(tensors: tuple[Any, ...]) -> tuple[Any, Any, Any, Extras, tuple[Any, ...]]:
    """Splits the arguments of the autograd function into q, k, v, extras and captures."""
    extras = tensors[3 : 3 + _NUM_EXTRAS]
    given = any(x is not None for x in extras)
    return (*tensors[:3], Extras(*extras) if given else NO_EXTRAS, tensors[3 + _NUM_EXTRAS :])


def _in_rows(captures: tuple[Any, ...]) -> tuple[Any, ...]:
    """Copies captures that torch negates lazily: for some views, torch stores a sign separately from the memory."""
    return tuple(x.detach().resolve_neg() for x in captures)


def view_of_host_capture(name: str, x: torch.Tensor) -> Any:
    """Returns the library's view of a tensor that a mask function reads. The tensor must be in CPU memory."""
    if type(x) not in (torch.Tensor, torch.nn.Parameter):
        raise UnsupportedError(f"captures: '{name}': a {type(x).__name__}, allowed ordinary tensors only")
    if x.device.type != "cpu":
        raise ArgumentError(f"captures: '{name}': on {x.device}, allowed on the CPU; or device={str(x.device)!r}")
    return view_of_rows(_in_rows((_tensor(name, x, x.device),))[0])


def view_of_near_capture(name: str, x: torch.Tensor, index: int) -> Any:
    """Returns the library's view of a tensor that a mask function reads on GPU `index`. The tensor must be on that GPU
    or in CPU memory.
    """
    if not x.is_cuda:
        return view_of_host_capture(name, x)
    if type(x) not in (torch.Tensor, torch.nn.Parameter):
        raise UnsupportedError(f"captures: '{name}': a {type(x).__name__}, allowed ordinary tensors only")
    if x.get_device() != index:
        raise ArgumentError(f"captures: '{name}': on {x.device}, allowed on cuda:{index} or the CPU")
    return view_of_rows(_in_rows((_tensor(name, x, x.device),))[0])


def _tensors(score: Any, device: torch.device) -> tuple[torch.Tensor, ...]:
    return tuple(_tensor(name, x, device) for name, x in zip(score.names, score.captures))


def _tensor(name: str, x: Any, device: torch.device) -> torch.Tensor:
    """Returns a tensor unchanged. Copies a number or a CPU array to the device and waits for the copy."""
    if isinstance(x, torch.Tensor):
        if x.layout != torch.strided:
            raise ArgumentError(f"captures: '{name}': layout {x.layout}, allowed torch.strided")
        return x
    is_number = isinstance(x, (bool, int, float))  # Dynamo cannot trace `type(x).__module__` of a number
    if not is_number and type(x).__module__.startswith("numpy.ma"):
        raise UnsupportedError(f"captures: '{name}': {type(x).__name__}, attend does not support masked elements")
    try:
        if isinstance(x, float):
            here = torch.tensor(x, dtype=torch.float64)
        elif not is_number and type(x).__module__ == "numpy":
            import numpy as np

            here = torch.as_tensor(np.array(x, order="C"))  # torch does not accept negative strides
        else:
            here = torch.as_tensor(x)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        why = (str(error).splitlines() or [type(error).__name__])[0]
        raise ArgumentError(
            f"captures: '{name}': {type(x).__name__}, allowed a value that torch.as_tensor accepts: {why}"
        ) from error
    return here.to(device)
