"""Reads and makes arrays in GPU memory, for any framework with DLPack. Results are allocated in the library's memory
pool.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from attend import _core
from attend._errors import ArgumentError, UnsupportedError
from attend._spaces import KDL_CUDA, kind_of, namespace_of, refuse_other_kind, refuse_tracer

_ELEMENT_BYTES = {"f32": 4, "f16": 2, "bf16": 2}
_READ_ONLY = ("jax", "jaxlib")  # frameworks with immutable arrays
_DEFAULT_STREAM = 1  # CUDA's legacy default stream; DLPack's number and CUDA's handle are both 1


class CudaSpace:
    """Implements attend._spaces.Space for GPU memory. With CuPy the work runs in CuPy's current stream, with JAX and
    other frameworks in the default stream.

    CuPy frees memory in stream order, and attend frees the memory of a CuPy result in the order of the stream that
    produced it. The streams of other frameworks are unknown. With them a call waits until the GPU has finished, and the
    memory of a result is freed after all work on the GPU is done.
    """

    def __init__(self, q: Any, index: int, owner: str = "q") -> None:
        """`owner` is the name of the argument `q` in error messages."""
        self._q, self._index, self._owner = q, index, owner
        self._namespace = namespace_of(q)
        if not hasattr(self._namespace, "from_dlpack"):
            raise UnsupportedError(f"{owner}: {kind_of(q)}, whose framework has no from_dlpack to receive the result")
        self._stream_owner = None
        self.stream = _DEFAULT_STREAM
        if type(q).__module__.partition(".")[0] == "cupy":
            self._stream_owner = self._namespace.cuda.get_current_stream()
            self.stream = int(self._stream_owner.ptr) or _DEFAULT_STREAM

    def view(self, name: str, x: Any, is_dense: bool = False) -> _core.Array:
        """Returns a view of `x`. An array whose last dimension is not contiguous is copied first. If `is_dense` is
        True, every array that is not contiguous is copied.
        """
        self._check(name, x)
        strides = getattr(x, "strides", None)
        if strides and x.ndim and (is_dense or (x.shape[-1] > 1 and strides[-1] != x.dtype.itemsize)):
            x = namespace_of(x).ascontiguousarray(x)
        return _core.Array.of(x.__dlpack__(stream=self.stream))

    def view_in_place(self, name: str, x: Any, is_written: bool) -> _core.Array:
        self._check(name, x)
        if is_written and type(x).__module__.partition(".")[0] in _READ_ONLY:
            raise ArgumentError(f"{name}: {kind_of(x)}, which is read-only, allowed an array that can be written")
        strides = getattr(x, "strides", None)
        if strides and x.ndim and ((x.shape[-1] > 1 and strides[-1] != x.dtype.itemsize) or min(strides) < 0):
            raise ArgumentError(
                f"{name}: strides {tuple(strides)} bytes, allowed a dense last dimension, none negative: never copied"
            )
        return _core.Array.of(x.__dlpack__(stream=self.stream))

    def lengths(self, count: int, length: int) -> _core.Array:
        return self.view("seqlens_k", self._namespace.full((count,), length, dtype=self._namespace.int32))

    def _check(self, name: str, x: Any) -> None:
        """Refuses a value that is not an array of the framework and device of q."""
        refuse_tracer(name, x)
        if not hasattr(x, "__dlpack__"):
            raise ArgumentError(f"{name}: {kind_of(x)}, allowed a GPU array with __dlpack__, like {self._owner}")
        refuse_other_kind(name, x, self._q, self._owner)
        device = tuple(int(n) for n in x.__dlpack_device__())
        if device != (KDL_CUDA, self._index):
            allowed = f"{(KDL_CUDA, self._index)} as {self._owner}"
            raise ArgumentError(f"{name}: on DLPack device {device}, allowed {allowed}")

    def plain(self, name: str, x: Any) -> Any:
        return x

    def empty(self, name: str, shape: tuple[int, ...], dtype: str) -> Any:
        if dtype not in _ELEMENT_BYTES:
            raise UnsupportedError(f"{name}: dtype {dtype} on a GPU, attend supports f32, f16, bf16")
        count = math.prod(shape) * _ELEMENT_BYTES[dtype]
        return _core.cuda_empty(shape, dtype, count, self._index, self.stream, self._stream_owner)

    def result_view(self, result: Any) -> _core.Array:
        if isinstance(result, type(self._q)):  # an array of the framework, which may use another stream
            return self.view("lse", result)
        return _core.Array.of(result)

    def finish(self) -> None:
        if self._stream_owner is None:
            _core.synchronize(self._index, self.stream)

    def hand_over(self, result: Any) -> Any:
        return self._namespace.from_dlpack(_Result(result, self._index, self.stream))

    def hand_over_edited(self, results: list[Any], edit: Callable[..., tuple[Any, ...]]) -> list[Any]:
        return list(edit(self._namespace, *(self.hand_over(x) for x in results)))


class _Result:
    """A result that is passed to a framework through DLPack. The framework's stream waits for the library's stream."""

    def __init__(self, array: Any, index: int, stream: int) -> None:
        self._array, self._index, self._stream = array, index, stream

    def __dlpack_device__(self) -> tuple[int, int]:
        return KDL_CUDA, self._index

    def __dlpack__(self, *, stream: Any = None, **options: Any) -> Any:
        options.pop("dl_device", None)
        options.pop("copy", None)
        if stream != -1:  # -1 means that the consumer orders the streams itself
            _core.order_streams(self._index, self._stream, int(stream or _DEFAULT_STREAM))
        return self._array.__dlpack__(**options)
