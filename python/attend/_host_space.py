"""Reads and makes arrays in CPU memory: NumPy arrays, and other CPU arrays that support DLPack.

Results are allocated as NumPy arrays. If q is an array of another framework, results are converted to that framework
through DLPack.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attend import _core
from attend._errors import ArgumentError, UnsupportedError
from attend._spaces import KDL_CPU, kind_of, namespace_of, refuse_other_kind, refuse_tracer

try:
    import numpy as np
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("attend works on CPU arrays through NumPy: pip install numpy") from error


_ALLOWED = "f32, f16, bf16, f64; bool for a mask"


class HostSpace:
    """Implements attend._spaces.Space for CPU memory."""

    stream = 0

    def __init__(self, q: Any, owner: str = "q") -> None:
        """`owner` is the name of the argument `q` in error messages."""
        self._q = q
        self._owner = owner

    def view(self, name: str, x: Any, is_dense: bool = False) -> _core.Array:
        """Returns a view of `x`. Arrays whose last dimension is not contiguous, and arrays with negative strides, are
        copied first.

        If `is_dense` is True, all arrays that are not contiguous are copied first.
        """
        array = self._numpy_of(name, x)
        if array is None:
            return _core.Array.of(x)
        return self._view_of_numpy(name, np.ascontiguousarray(array) if is_dense else _rows(array))

    def view_in_place(self, name: str, x: Any, is_written: bool) -> _core.Array:
        """Returns a view of the memory of `x`. Refuses an array that would need a copy, and read-only arrays if
        `is_written`.
        """
        array = self._numpy_of(name, x)
        if is_written and (array is None or not array.flags.writeable):
            raise ArgumentError(f"{name}: read-only, allowed an array that can be written through NumPy")
        if array is None:
            return _core.Array.of(x)
        if not array.flags.aligned:
            raise ArgumentError(f"{name}: unaligned memory, allowed elements at multiples of their size: never copied")
        if not _is_read_in_place(array):
            raise ArgumentError(
                f"{name}: strides {array.strides} bytes, allowed a dense last dimension, none negative: never copied"
            )
        return self._view_of_numpy(name, array)

    def lengths(self, count: int, length: int) -> _core.Array:
        """Returns i32 (count), filled with `length`."""
        return _core.Array.of(np.full(count, length, np.int32))

    def _numpy_of(self, name: str, x: Any) -> Any:
        """Returns a NumPy array with the memory of `x`, or None if NumPy does not have the element type."""
        if isinstance(x, np.ma.MaskedArray):
            raise UnsupportedError(
                f"{name}: numpy.ma.MaskedArray, attend does not support masked elements; give `mask`"
            )
        if isinstance(x, np.ndarray):
            if type(x) is not type(self._q):
                refuse_other_kind(name, x, self._q, self._owner)
            return x
        refuse_tracer(name, x)
        if not hasattr(x, "__dlpack__"):
            raise ArgumentError(f"{name}: {type(x).__name__}, allowed an array (NumPy, torch, or one with __dlpack__)")
        refuse_other_kind(name, x, self._q, self._owner)
        device_type = int(x.__dlpack_device__()[0])
        if device_type != KDL_CPU:
            where = f"{kind_of(x)} on DLPack device {device_type}"
            raise ArgumentError(f"{name}: {where}, allowed the CPU, like {self._owner}")
        return _as_numpy(x)

    def _view_of_numpy(self, name: str, x: np.ndarray) -> _core.Array:
        if not x.dtype.isnative:
            raise ArgumentError(f"{name}: dtype {x.dtype.str} of foreign byte order, allowed the machine's byte order")
        try:
            return self.result_view(x)
        except ArgumentError as error:  # Python's buffer protocol does not have this dtype
            raise ArgumentError(f"{name}: dtype {x.dtype}, allowed {_ALLOWED}") from error

    def plain(self, name: str, x: Any) -> Any:
        array = _as_numpy(x)
        if array is None:
            raise UnsupportedError(f"{name}: one column in a dtype that NumPy does not have, allowed all columns")
        return array

    def empty(self, name: str, shape: tuple[int, ...], dtype: str) -> Any:
        return np.empty(shape, _numpy_dtype(name, dtype))

    def result_view(self, result: Any) -> _core.Array:
        if _is_bfloat16(result.dtype):  # DLPack in NumPy does not support dtypes of other packages
            return _core.Array.of(result.view(np.uint16), "bf16")
        # For a dtype of another package, the library gets the name of the dtype, because its error message contains
        # this name.
        if result.dtype.isbuiltin == 2 and result.dtype.itemsize == 1:
            return _core.Array.of(result.view(np.uint8), result.dtype.name)
        return _core.Array.of(result)

    def finish(self) -> None:
        pass  # the work is already complete

    def hand_over(self, result: Any) -> Any:
        if isinstance(self._q, np.ndarray):
            return result
        namespace = namespace_of(self._q)
        if hasattr(namespace, "from_dlpack") and not _is_bfloat16(result.dtype):
            return namespace.from_dlpack(result)
        if hasattr(namespace, "asarray"):
            return namespace.asarray(result)
        return result

    def hand_over_edited(self, results: list[Any], edit: Callable[..., tuple[Any, ...]]) -> list[Any]:
        return [self.hand_over(x) for x in edit(np, *results)]


def _is_bfloat16(dtype: np.dtype) -> bool:
    """Returns whether dtype is ml_dtypes' bfloat16. Does not read the name of NumPy's own dtypes, because NumPy
    computes it again in each access.
    """
    return dtype.isbuiltin != 1 and dtype.name == "bfloat16"


def _as_numpy(x: Any) -> Any:
    """Returns a NumPy array with the memory of `x`, or None if NumPy does not have the element type, such as
    bfloat16.
    """
    if isinstance(x, np.ndarray):
        return x
    try:
        return np.from_dlpack(x)
    except (BufferError, RuntimeError, TypeError):
        return None


def _rows(x: np.ndarray) -> np.ndarray:
    return x if x.ndim == 0 or _is_read_in_place(x) else np.ascontiguousarray(x)


def _is_read_in_place(x: np.ndarray) -> bool:
    if x.ndim == 0 or x.size == 0:
        return True
    is_plain = x.strides[-1] == x.itemsize or x.shape[-1] == 1
    whole = all(s % x.itemsize == 0 for s in x.strides)
    return bool(is_plain and min(x.strides) >= 0 and whole and x.flags.aligned)


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
