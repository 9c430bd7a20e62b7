"""Explains or prepares a call from its sizes alone, without tensors."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, Optional

from attend import _core
from attend._errors import ArgumentError
from attend._settings import OPTION_GRADIENTS, Extras, Gradients, Settings, dense_layout, window_of

_MOST = 2**31 - 1  # largest size of a dimension that the library accepts
_DTYPES = ("f32", "f16", "bf16", "f64")
_FAR = 1 << 62  # limit of strides: the library refuses a tensor that is this large
_APART = 1 << 44  # bytes between the addresses of two tensors; no tensor is larger
# Maps the boolean keyword of each tensor option to the option's row in TENSOR_OPTIONS.
_TENSOR_FLAGS = {row["flag"].removeprefix("--"): row for row in _core.TENSOR_OPTIONS}


class Places:
    """Makes tensors that have addresses but no memory. No code reads their contents."""

    def __init__(self, cuda_index: int) -> None:
        self._cuda_index = cuda_index
        self._next = 0

    def array(self, dtype: str, *shape: int) -> _core.Array:
        strides = [1] * len(shape)
        for i in reversed(range(len(shape) - 1)):
            strides[i] = min(strides[i + 1] * shape[i + 1], _FAR)
        return self.strided(dtype, shape, strides)

    def strided(self, dtype: str, shape: Sequence[int], strides: Sequence[int]) -> _core.Array:
        self._next += _APART
        return _core.Array.at(self, self._next, dtype, self._cuda_index, shape, strides)


def _cuda_index(device: Optional[str]) -> int:
    """Returns the CUDA index, or -1 for the CPU. None means the first GPU, or the CPU if that GPU is unusable."""
    if device is None:
        gpus = _core.gpus()
        return 0 if gpus and gpus[0]["lack"] is None else -1
    name, _, index = device.partition(":") if isinstance(device, str) else ("", "", "")
    if name == "cpu" and not index:
        return -1
    if name == "cuda" and (not index or index.isdigit()):
        return int(index or 0)
    raise ArgumentError(f"device: {device!r}, allowed None, 'cpu', 'cuda', 'cuda:N'")


def _size(name: str, value: Any) -> int:
    try:
        size = operator.index(value)
    except TypeError as error:
        raise ArgumentError(f"{name}: {value!r}, allowed a whole number") from error
    if not 0 <= size <= _MOST:
        raise ArgumentError(f"{name}: {size}, allowed 0 to {_MOST}")
    return size


def _dtype(value: Any) -> str:
    if not isinstance(value, str) or value not in _DTYPES:
        raise ArgumentError(f"dtype: {value!r}, allowed {', '.join(map(repr, _DTYPES))}")
    return str(value)


def _flag(name: str, value: Any) -> bool:
    """Converts a flag to a bool. The flag states whether the call has a tensor. NumPy's bool has a different type name
    in NumPy 1 and 2.
    """
    if value is None or isinstance(value, int) or type(value).__name__ in ("bool", "bool_"):
        return bool(value)
    raise ArgumentError(f"{name}: {type(value).__name__}, allowed True or False")


def _arguments(function: str, sizes: tuple[int, ...], options: dict[str, Any]) -> tuple[Any, ...]:
    """Checks the option names and returns the result of `_call`."""
    for name in options:
        if name not in (_call.__kwdefaults__ or {}) and name not in _TENSOR_FLAGS:
            raise TypeError(f"{function}() got an unexpected keyword argument {name!r}")
    return _call(*sizes, **options)


def _call(
    batch: int,
    heads: int,
    seqlen: int,
    head_dim: int,
    *,
    dtype: str = "bf16",
    heads_kv: Optional[int] = None,
    seqlen_k: Optional[int] = None,
    head_dim_v: Optional[int] = None,
    layout: str = "bhsd",
    causal: bool = False,
    window: Sequence[Optional[int]] = (-1, -1),
    scale: Optional[float] = None,
    softcap: float = 0.0,
    dropout_p: float = 0.0,
    deterministic: bool = False,
    backward: bool = False,
    device: Optional[str] = None,
    compute: str = "auto",
    **flags: Any,
) -> tuple[Any, ...]:
    """Returns the arguments of `_core.explain` and `_core.prepare`. `flags` are keywords of _TENSOR_FLAGS."""
    batch, heads, seqlen = _size("batch", batch), _size("heads", heads), _size("seqlen", seqlen)
    head_dim = _size("head_dim", head_dim)
    keys = seqlen if seqlen_k is None else _size("seqlen_k", seqlen_k)
    values = head_dim if head_dim_v is None else _size("head_dim_v", head_dim_v)
    kv_heads = heads if heads_kv is None else _size("heads_kv", heads_kv)
    dtype = _dtype(dtype)
    given = [row for flag, row in _TENSOR_FLAGS.items() if _flag(flag, flags.get(flag))]
    backward = _flag("backward", backward)
    places = Places(_cuda_index(device))

    def tensor(heads_of: int, rows: int, columns: int) -> _core.Array:
        order = (heads_of, rows) if dense_layout(layout) == "bhsd" else (rows, heads_of)
        return places.array(dtype, batch, *order, columns)

    q, k, v = tensor(heads, seqlen, head_dim), tensor(kv_heads, keys, head_dim), tensor(kv_heads, keys, values)
    o = tensor(heads, seqlen, values)
    lse = places.array("f64" if dtype == "f64" else "f32", batch, heads, seqlen)

    def option(row: _core.TensorOption) -> _core.Array:
        sizes = (1, heads, seqlen, keys) if row["shape"] == "scores" else (heads,)
        return places.array(row["dtype"] or dtype, *sizes)

    extras = Extras(**{row["name"]: option(row) for row in given})
    left, right = window_of(window)
    settings = Settings(
        0, 0, layout, scale, causal, left, right, softcap, dropout_p, deterministic=deterministic, compute=compute
    )
    gradients = None
    if backward:
        of_options = {row["gradient"]: option(row) for row in given if row["gradient"] is not None}
        dq, dk = tensor(heads, seqlen, head_dim), tensor(kv_heads, keys, head_dim)
        named = {name: of_options.get(name) for _, name in OPTION_GRADIENTS}
        gradients = Gradients(tensor(heads, seqlen, values), None, dq, dk, tensor(kv_heads, keys, values), **named)
    return q, k, v, o, lse, gradients, extras, settings


def explain(batch: int, heads: int, seqlen: int, head_dim: int, **options: Any) -> list[dict[str, Any]]:
    """Reports for each backend whether and how it would compute a call. Does not compute, compile or allocate anything.

    Arguments:
        batch, heads, seqlen, head_dim: sizes of q.
        dtype: "f32", "f16", "bf16" or "f64"; default "bf16".
        heads_kv, seqlen_k, head_dim_v: sizes of k and v if they differ from those of q.
        layout, causal, window, scale, softcap, dropout_p, deterministic, compute: as in `attention`.
        bias, mask, alibi, sinks: True if the call has this tensor, with an entry for every head.
        backward: True if the call computes gradients.
        device: "cpu", "cuda", "cuda:N", or None, which means a GPU if there is one. Tensors are assumed to be
        contiguous and aligned.

    Returns:
        A list of dicts, one for each backend, in the order in which "auto" prefers them. The keys are compute (the
        backend's name), chosen (whether this backend runs the call), lack (the one-line reason why the backend does not
        support the call, or ""), why, variant, steps (one line for each kernel, with grid, threads and shared memory),
        estimated_us (the estimate that "auto" compares, or inf if "auto" never chooses this backend) and
        workspace_bytes.

    Raises:
        attend.Error if the arguments are invalid for every backend. TypeError for an unknown option.
    """
    return _core.explain(*_arguments("explain", (batch, heads, seqlen, head_dim), options))


def prepare(batch: int, heads: int, seqlen: int, head_dim: int, **options: Any) -> None:
    """Compiles and loads the kernels of a call, before a graph is captured or a server handles its first request.

    The arguments are those of `explain`. Compiled kernels are specific to the chosen kernels and their tiles (which
    depend on the sizes), the dtypes, the head_dims, the mask (none, causal or window), the enabled options, the sign of
    the scale, and whether all tensors are aligned to 16 bytes. A call with a new combination compiles its kernels,
    which takes seconds, or loads machine code from disk, which takes milliseconds. Kernels are also compiled or loaded
    while the call's stream is being captured. On a CPU this function does nothing.

    Raises:
        attend.Error as the call would.
    """
    _core.prepare(*_arguments("prepare", (batch, heads, seqlen, head_dim), options))
