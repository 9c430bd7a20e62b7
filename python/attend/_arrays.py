"""Computes calls with NumPy arrays, or other arrays that support DLPack, on the CPU or a GPU.

The results belong to the framework of `q`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, Optional

from attend import _columns, _core
from attend._columns import Columns
from attend._errors import ArgumentError, UnsupportedError
from attend._settings import NO_EXTRAS, OF_BIAS, OPTION_GRADIENTS, Extras, Gradients, Needs, Settings, output_shapes
from attend._spaces import KDL_CPU, KDL_CUDA, Space, kind_of, refuse_tracer


def forward(
    q: Any,
    k: Any,
    v: Any,
    extras: Extras,
    settings: Settings,
    return_lse: bool = True,
    call: Optional[Callable[..., None]] = None,
) -> tuple[Any, Any]:
    """Returns o, and lse or None, as arrays of the framework of `q`. If `call` is given, it replaces _core.forward."""
    space = space_of(q)
    viewed = tuple(space.view(name, x) for name, x in (("q", q), ("k", k), ("v", v)))
    rest, columns = _split(space, extras, viewed, settings, call)
    wants_lse = return_lse or (columns is not None and columns.bias is not None)
    results = _run_forward(space, viewed, rest, settings, wants_lse, call)
    if columns is None:
        o, lse = (*(space.hand_over(x) for x in results), None)[:2]
        return o, lse

    def finish(xp: Any, o: Any, lse: Any = None) -> tuple[Any, ...]:
        return _columns.finished(xp, o, lse, columns, settings.layout)[: len(results)]

    o, lse = (*space.hand_over_edited(results, finish), None)[:2]
    return o, lse if return_lse else None


def _run_forward(
    space: Space,
    viewed: tuple[_core.Array, ...],
    extras: Extras,
    settings: Settings,
    wants_lse: bool,
    call: Optional[Callable[..., None]],
) -> list[Any]:
    """Returns o and, if `wants_lse`, lse, in the arrays that the space has allocated. `extras` contains views."""
    q, k, v = viewed
    o_shape, lse_shape = output_shapes(q.shape, v.shape, settings.layout)
    results = [space.empty("q", o_shape, q.dtype)]
    if wants_lse:
        results.append(space.empty("q", lse_shape, _lse_dtype(q.dtype)))
    o, lse = (*(space.result_view(x) for x in results), None)[:2]
    (_core.forward if call is None else call)(q, k, v, o, lse, extras, settings, space.stream)
    space.finish()
    return results


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
    call: Optional[Callable[..., None]] = None,
) -> tuple[Any, ...]:
    """Returns (dq, dk, dv) and the requested gradients of options."""
    space = space_of(q)
    named = (("q", q), ("k", k), ("v", v), ("o", o), ("lse", lse), ("dout", dout))
    q_in, k_in, v_in, o_in, lse_in, dout_in = [space.view(name, x) for name, x in named]
    dlse_in = None if dlse is None else space.view("dlse", dlse)
    rest, columns = _split(space, extras, (q_in, k_in, v_in), settings, call)
    results = [space.empty(name, x.shape, x.dtype) for name, x in (("q", q_in), ("k", k_in), ("v", v_in))]
    for (name, _), is_needed in zip(OPTION_GRADIENTS, needs):
        option = getattr(rest, name) if is_needed else None
        results.append(None if option is None else space.empty(name, option.shape, option.dtype))
    gradients = Gradients(dout_in, dlse_in, *[None if x is None else space.result_view(x) for x in results])
    of_column = None
    if columns is not None and columns.bias is not None:
        # The caller's lse contains the bias, and rounding may have removed the digits that backward needs. lse is
        # therefore recomputed without the bias. This call checks the caller's lse and dlse, because no other call
        # passes them to the library.
        _core.check(q_in, k_in, v_in, o_in, lse_in, gradients, rest, settings)
        raw = _run_forward(space, (q_in, k_in, v_in), rest, settings, True, call)[1]
        lse_in, of_column = _without_column(space, raw, dlse, columns)
    run = _core.backward if call is None else call
    run(q_in, k_in, v_in, o_in, lse_in, gradients, rest, settings, space.stream)
    space.finish()
    handed = [None if x is None else space.hand_over(x) for x in results]
    if of_column is not None:
        handed[3 + OF_BIAS] = of_column
    return tuple(itertools.compress(handed, (True, True, True, *needs)))


def _without_column(space: Space, lse: Any, dlse: Any, columns: Columns) -> tuple[_core.Array, Any]:
    """Returns the lse that backward reads, and the gradient of the bias of one column."""
    edited = []

    def edit(xp: Any, lse: Any) -> tuple[Any, ...]:
        lse = _columns.unshifted(xp, lse, columns)
        edited.append(lse)
        dlse_in = None if dlse is None else space.plain("dlse", dlse)
        return (_columns.gradient_of_bias(xp, lse, dlse_in, columns.bias),)

    (dbias,) = space.hand_over_edited([lse], edit)
    return space.result_view(edited[0]), dbias


def _split(
    space: Space, extras: Extras, viewed: tuple[_core.Array, ...], settings: Settings, call: Any
) -> tuple[Extras, Optional[Columns]]:
    """Returns views of the extras without one-column biases and masks, and the columns. See attend._columns.split. If
    `call` is given, biases and masks of one column are not split off. Rings give a `call`.
    """
    if extras is NO_EXTRAS:
        return extras, None
    views = Extras(*[None if x is None else space.view(name, x) for name, x in zip(Extras._fields, extras)])
    if call is not None:
        return views, None
    rest, found = _columns.split(views, viewed[0].shape, viewed[1].shape, settings.layout)
    if found is None:
        return rest, None
    columns = {}
    for name, view in found._asdict().items():
        if view is not None:
            _check_scores_dtype(name, view.dtype)
            columns[name] = space.plain(name, getattr(extras, name))
    return rest, Columns(**columns)


def _check_scores_dtype(name: str, dtype: str) -> None:
    allowed = ("bool",) if name == "mask" else ("f32", "f16", "bf16", "f64")
    if dtype not in allowed:
        raise ArgumentError(f"{name}: dtype {dtype}, allowed {', '.join(allowed)}")


def space_of(q: Any) -> Space:
    """Returns the space (the CPU memory or GPU memory) that contains `q`. All other arrays of the call must be in the
    same space.
    """
    refuse_tracer("q", q)
    if hasattr(q, "__dlpack_device__"):
        device_type, index = (int(x) for x in q.__dlpack_device__())
        if device_type == KDL_CUDA:
            from attend._cuda_space import CudaSpace

            return CudaSpace(q, index)
        if device_type != KDL_CPU:
            raise UnsupportedError(f"q: {kind_of(q)} on DLPack device {device_type}, attend runs on CPUs and CUDA")
    from attend._host_space import HostSpace

    return HostSpace(q)


def _lse_dtype(q_dtype: str) -> str:
    return "f64" if q_dtype == "f64" else "f32"
