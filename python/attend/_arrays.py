"""The front end of NumPy arrays, and of any array that speaks DLPack, on the CPU or a GPU.

The results belong to the framework of `q`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Optional

from attend import _core
from attend._errors import UnsupportedError
from attend._settings import Extras, Gradients, Settings, output_shapes
from attend._spaces import KDL_CPU, KDL_CUDA, Space, kind_of, refuse_tracer

_SEQLEN_AXIS = {"bhsd": 2, "bshd": 1, "thd": 0}


def forward(
    q: Any,
    k: Any,
    v: Any,
    extras: Extras,
    settings: Settings,
    return_lse: bool = True,
    call: Optional[Callable[..., None]] = None,
) -> tuple[Any, Any]:
    """o, and lse or None, arrays of the framework of `q`. `call`: None, or what stands for _core.forward."""
    space = _space_of(q)
    q_in, k_in, v_in = (space.view(name, x) for name, x in (("q", q), ("k", k), ("v", v)))
    o_shape, lse_shape = output_shapes(q_in.shape, v_in.shape, settings.layout)
    results = [space.empty("q", o_shape, q_in.dtype)]
    if return_lse:
        results.append(space.empty("q", lse_shape, _lse_dtype(q_in.dtype)))
    o, lse = (*(space.result_view(x) for x in results), None)[:2]
    run = _core.forward if call is None else call
    run(q_in, k_in, v_in, o, lse, _view_extras(space, extras, k_in, settings), settings, space.stream)
    space.finish()
    o, lse = (*(space.hand_over(x) for x in results), None)[:2]
    return o, lse


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
    call: Optional[Callable[..., None]] = None,
) -> tuple[Any, ...]:
    """(dq, dk, dv), and dbias where it is asked for."""
    space = _space_of(q)
    named = (("q", q), ("k", k), ("v", v), ("o", o), ("lse", lse), ("dout", dout))
    q_in, k_in, v_in, o_in, lse_in, dout_in = (space.view(name, x) for name, x in named)
    dlse_in = None if dlse is None else space.view("dlse", dlse)
    viewed = _view_extras(space, extras, k_in, settings)
    inputs = {"q": q_in, "k": k_in, "v": v_in}
    results = [space.empty(name, a.shape, a.dtype) for name, a in inputs.items()]
    is_repeated = False
    if needs_dbias and viewed.bias is not None:
        dtype = viewed.bias.dtype
        is_repeated = viewed.bias.shape != space.view("bias", extras.bias).shape
        # The sum over a repeated column is taken of unrounded terms.
        wide = "f32" if is_repeated and dtype in ("f16", "bf16") else dtype
        results.append(space.empty("bias", viewed.bias.shape, wide))
    dq, dk, dv, dbias = (*(space.result_view(x) for x in results), None)[:4]
    gradients = Gradients(dout_in, dlse_in, dq, dk, dv, dbias)
    run = _core.backward if call is None else call
    run(q_in, k_in, v_in, o_in, lse_in, gradients, viewed, settings, space.stream)
    space.finish()
    handed = [space.hand_over(x) for x in results]
    if is_repeated:
        handed[3] = handed[3].sum(axis=-1, keepdims=True).astype(extras.bias.dtype)
    return tuple(handed)


def _space_of(q: Any) -> Space:
    """The space that `q` is in: the other arrays of the call have to be there too."""
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


def _view_extras(space: Space, extras: Extras, k: _core.Array, settings: Settings) -> Extras:
    axis = _SEQLEN_AXIS[settings.layout]
    # The number of keys; a wrong number of dimensions is the library's to name.
    seqlen_k = k.shape[axis] if len(k.shape) > axis else 0
    fields = {}
    for name, x in zip(Extras._fields, extras):
        view = None if x is None else space.view(name, x)
        if view is not None and name in ("bias", "mask") and seqlen_k != 1 and view.shape[-1:] == (1,):
            # The library broadcasts every dimension but the keys.
            view = space.view(name, space.repeat_column(x, seqlen_k))
        fields[name] = view
    return Extras(**fields)


def _lse_dtype(q_dtype: str) -> str:
    return "f64" if q_dtype == "f64" else "f32"
