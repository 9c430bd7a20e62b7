"""The front end of NumPy arrays, and of any CPU array that speaks DLPack.

The results belong to the framework of `q`: NumPy arrays are allocated, filled by the library, and handed over through
DLPack where q is something else.
"""

from __future__ import annotations

import sys
from typing import Any

from attend import _core
from attend._errors import ArgumentError, UnsupportedError
from attend._settings import Extras, Gradients, Settings, output_shapes

try:
    import numpy as np
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("attend works on CPU arrays through NumPy: pip install numpy") from error

_KDL_CPU = 1  # DLPack's number of the CPU


def forward(q: Any, k: Any, v: Any, extras: Extras, settings: Settings, return_lse: bool = True) -> tuple[Any, Any]:
    """o, and lse or None, arrays of the framework of `q`."""
    q_in, k_in, v_in = (_import(name, x) for name, x in (("q", q), ("k", k), ("v", v)))
    o_shape, lse_shape = output_shapes(q_in.shape, v_in.shape, settings.layout)
    o = np.empty(o_shape, _numpy_dtype("q", q_in.dtype))
    lse = np.empty(lse_shape, _lse_dtype(q_in.dtype)) if return_lse else None
    lse_out = None if lse is None else _export(lse)
    _core.forward(q_in, k_in, v_in, _export(o), lse_out, _import_extras(extras, k_in, settings), settings, 0)
    return _hand_over(q, o), None if lse is None else _hand_over(q, lse)


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
) -> tuple[Any, ...]:
    """(dq, dk, dv), and dbias where it is asked for."""
    named = (("q", q), ("k", k), ("v", v), ("o", o), ("lse", lse), ("dout", dout))
    q_in, k_in, v_in, o_in, lse_in, dout_in = (_import(name, x) for name, x in named)
    dlse_in = None if dlse is None else _import("dlse", dlse)
    imported = _import_extras(extras, k_in, settings)
    inputs = {"q": q_in, "k": k_in, "v": v_in}
    results = [np.empty(a.shape, _numpy_dtype(name, a.dtype)) for name, a in inputs.items()]
    is_repeated = False
    if needs_dbias and imported.bias is not None:
        dtype = _numpy_dtype("bias", imported.bias.dtype)
        is_repeated = imported.bias.shape != tuple(extras.bias.shape)
        # The sum over a repeated column is taken of unrounded terms.
        results.append(np.empty(imported.bias.shape, np.promote_types(dtype, np.float32) if is_repeated else dtype))
    dq, dk, dv, dbias = (*(_export(x) for x in results), None)[:4]
    gradients = Gradients(dout_in, dlse_in, dq, dk, dv, dbias)
    _core.backward(q_in, k_in, v_in, o_in, lse_in, gradients, imported, settings, 0)
    if is_repeated:
        results[3] = results[3].sum(axis=-1, keepdims=True).astype(dtype)
    return tuple(_hand_over(q, x) for x in results)


def _import(name: str, x: Any) -> _core.Array:
    """A view of `x` with a contiguous last dimension; a copy only where it has none or runs backwards."""
    if isinstance(x, np.ndarray):
        if not x.dtype.isnative:
            raise ArgumentError(f"{name}: dtype {x.dtype.str} of foreign byte order, allowed the machine's own")
        return _export(_rows(x))
    if not hasattr(x, "__dlpack__"):
        raise ArgumentError(f"{name}: {type(x).__name__}, allowed an array (NumPy, torch, or one with __dlpack__)")
    device_type = int(x.__dlpack_device__()[0])
    if device_type != _KDL_CPU:
        kind = f"{type(x).__module__}.{type(x).__name__}"
        raise UnsupportedError(f"{name}: {kind} on DLPack device {device_type}; on GPUs attend takes torch tensors")
    return _core.Array.of(x)


def _export(x: np.ndarray) -> _core.Array:
    if x.dtype.name == "bfloat16":  # NumPy exports no types of other packages
        return _core.Array.of(x.view(np.uint16), "bf16")
    return _core.Array.of(x)


def _rows(x: np.ndarray) -> np.ndarray:
    if x.ndim == 0 or x.size == 0:
        return x
    is_plain = x.strides[-1] == x.itemsize or x.shape[-1] == 1
    if is_plain and min(x.strides) >= 0 and all(s % x.itemsize == 0 for s in x.strides) and x.flags.aligned:
        return x
    return np.ascontiguousarray(x)


def _import_extras(extras: Extras, k: _core.Array, settings: Settings) -> Extras:
    seqlen_axis = {"bhsd": 2, "bshd": 1, "thd": 0}[settings.layout]
    # The number of keys; a wrong number of dimensions is the library's to name.
    seqlen_k = k.shape[seqlen_axis] if len(k.shape) > seqlen_axis else 0
    fields = {
        name: None if x is None else _import(name, _all_keys(x, seqlen_k) if name in ("bias", "mask") else x)
        for name, x in zip(Extras._fields, extras)
    }
    return Extras(**fields)


def _all_keys(x: Any, seqlen_k: int) -> Any:
    """A bias or mask of one column, repeated: the library broadcasts every dimension but the keys."""
    if isinstance(x, np.ndarray) and x.ndim > 0 and x.shape[-1] == 1 and seqlen_k != 1:
        return np.repeat(x, seqlen_k, axis=-1)
    return x


def _numpy_dtype(name: str, dtype: str) -> Any:
    if dtype == "bf16":
        try:
            import ml_dtypes
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError("bfloat16 in NumPy needs ml_dtypes: pip install ml_dtypes") from error
        return ml_dtypes.bfloat16
    known = {"f32": np.float32, "f16": np.float16, "f64": np.float64}
    if dtype not in known:
        raise ArgumentError(f"{name}: dtype {dtype}, allowed f32, f16, bf16, f64")
    return known[dtype]


def _lse_dtype(q_dtype: str) -> Any:
    return np.float64 if q_dtype == "f64" else np.float32


def _hand_over(q: Any, result: np.ndarray) -> Any:
    """`result` as an array of the framework of `q`, where that can take it."""
    if isinstance(q, np.ndarray):
        return result
    namespace: Any = getattr(q, "__array_namespace__", lambda: None)()
    if namespace is None:
        namespace = sys.modules.get(type(q).__module__.partition(".")[0])
    if hasattr(namespace, "from_dlpack") and result.dtype.name != "bfloat16":
        return namespace.from_dlpack(result)
    if hasattr(namespace, "asarray"):
        return namespace.asarray(result)
    return result
