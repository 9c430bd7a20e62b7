"""Computes decode, append and merge of NumPy arrays, and of other arrays that support DLPack, on a CPU or a GPU."""

from __future__ import annotations

from typing import Any, Optional

from attend import _core
from attend._errors import UnsupportedError
from attend._host_space import HostSpace
from attend._serving import (
    CACHES,
    DENSE,
    IN_PLACE,
    NAMES,
    Numbers,
    Tensors,
    check_out,
    layout_of_q,
    layout_of_state,
    result_shapes,
    sequences_of,
    whole_number,
)
from attend._settings import output_shapes
from attend._spaces import KDL_CPU, KDL_CUDA, ServingSpace, refuse_tracer


def decode(tensors: Tensors, numbers: Numbers, head_dim_v: Optional[int], return_lse: bool) -> tuple[Any, Any]:
    """Returns o, and lse or None."""
    space = _space_of("q", tensors.q, "decode")
    written = () if tensors.k is None else CACHES
    views = _views(space, tensors, written, "q", "cu_seqlens_q")
    layout = layout_of_q(tensors, numbers)
    v_shape = None if views.v_cache is None else views.v_cache.shape
    o_shape, lse_shape = result_shapes(views.q.shape, views.k_cache.shape, v_shape, head_dim_v, layout)
    o = _result(space, "out", tensors.out, "q", o_shape, views.q.dtype)
    lse = space.empty("lse", lse_shape, "f32") if return_lse else None
    views = views._replace(out=_view_of(space, "out", o, tensors.out), lse=_view_of(space, "lse", lse))
    _core.decode(views, numbers, space.stream)
    space.finish()
    return o if tensors.out is not None else space.hand_over(o), None if lse is None else space.hand_over(lse)


def append(tensors: Tensors, numbers: Numbers) -> Any:
    """Returns q_out, or None without q."""
    space = _space_of("k", tensors.k, "append")
    views = _views(space, tensors, CACHES, "k", "cu_seqlens_new")
    q_out = None
    if tensors.q is not None:
        q_out = _result(space, "q_out", tensors.out, "q", views.q.shape, views.q.dtype)
        views = views._replace(out=_view_of(space, "q_out", q_out, tensors.out))
    _core.append(views, numbers, space.stream)
    space.finish()
    return q_out if tensors.out is not None or q_out is None else space.hand_over(q_out)


def merge(
    states: list[tuple[Any, Any]], sinks: Any, out: Any, layout: str, lse_base2: bool, return_lse: bool
) -> tuple[Any, Any]:
    """Returns o, and lse or None."""
    space = _space_of("states[0].o", states[0][0], "merge")
    named = [(f"states[{n}]", o, lse) for n, (o, lse) in enumerate(states)]
    views = [(space.view(f"{name}.o", o), space.view(f"{name}.lse", lse)) for name, o, lse in named]
    first = views[0][0]
    order = layout_of_state(first, layout)
    o_shape, lse_shape = output_shapes(first.shape, first.shape, order)
    o = _result(space, "out", out, "states[0].o", o_shape, first.dtype)
    lse = space.empty("lse", lse_shape, "f32") if return_lse else None
    sinks_in = None if sinks is None else space.view("sinks", sinks)
    results = _view_of(space, "out", o, out), _view_of(space, "lse", lse)
    _core.merge(views, *results, sinks_in, order, lse_base2, space.stream)
    space.finish()
    return o if out is not None else space.hand_over(o), None if lse is None else space.hand_over(lse)


def _space_of(name: str, x: Any, call: str) -> ServingSpace:
    refuse_tracer(name, x)
    if hasattr(x, "__dlpack_device__"):
        device_type, index = (int(part) for part in x.__dlpack_device__())
        if device_type == KDL_CUDA:
            from attend._cuda_space import CudaSpace

            return CudaSpace(x, index, name)
        if device_type != KDL_CPU:
            raise UnsupportedError(f"{name}: on DLPack device {device_type}, {call} allows cpu and cuda")
    return HostSpace(x, name)


def _views(space: ServingSpace, tensors: Tensors, written: tuple[str, ...], rows: str, offsets: str) -> Tensors:
    """Returns the library's views of all arrays except the results. A single length becomes an array, see
    Space.lengths.
    """
    views: dict[str, Any] = {}
    for field, name, x in zip(Tensors._fields, NAMES, tensors):
        if x is None or field in ("out", "lse", "seqlens_k"):
            continue
        if field in IN_PLACE:
            views[field] = space.view_in_place(name, x, field in written)
        else:
            views[field] = space.view(name, x, is_dense=field in DENSE)
    if tensors.seqlens_k is not None:
        number = whole_number("seqlens_k", tensors.seqlens_k)
        if number is None:
            views["seqlens_k"] = space.view("seqlens_k", tensors.seqlens_k)
        else:
            offsets_shape = views[offsets].shape if offsets in views else None
            views["seqlens_k"] = space.lengths(sequences_of(views[rows].shape, offsets_shape), number)
    return Tensors(**views)


def _result(space: ServingSpace, name: str, out: Any, like: str, shape: tuple[int, ...], dtype: str) -> Any:
    """Returns `out` after checking it, or a new array of the space if `out` is None."""
    if out is None:
        return space.empty(like, shape, dtype)
    check_out(name, space.view_in_place(name, out, True), shape)
    return out


def _view_of(space: ServingSpace, name: str, result: Any, out: Any = None) -> Any:
    if result is None:
        return None
    return space.result_view(result) if out is None else space.view_in_place(name, out, True)
