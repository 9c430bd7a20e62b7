"""Makes custom calls of attend's library in XLA, with their attributes and the shapes of their results.

Each dimension of a tensor has a role: "b" is the batch, "h" the heads, and "" any other dimension. attend.jax._vmap
makes a mapped dimension part of the batch or the heads. attend.jax._sharding splits tensors along these two dimensions.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from attend import _core
from attend._errors import Error
from attend._settings import HEAD_TENSORS, SCORE_TENSORS, Extras, Gradients, output_shapes
from attend.jax import _versions

# XLA finds the library's code by these names, and JAX's cache of compiled programs stores them. If the meaning of a
# call's attributes or operands changes, the number in the name must change.
TARGETS = {"forward": "attend_forward_1", "backward": "attend_backward_1"}

_DTYPES = {"float32": "f32", "float16": "f16", "bfloat16": "bf16", "float64": "f64", "int32": "i32", "int64": "i64"}
_APART = 1 << 52  # bytes between the placeholder addresses of two arrays; no array is larger
_PRETENDED_GPU = 0  # checks assume this GPU, because on a GPU they do not read cu_seqlens
_WORD = 4  # bytes of a word of the workspace


class Call(NamedTuple):
    """The parameters of a call, without its arrays."""

    extras: tuple[str, ...]  # the names, in attend._settings.Extras, of the arrays that follow q, k and v
    settings: Any  # attend._settings.Settings

    @property
    def operands(self) -> tuple[str, ...]:
        return ("q", "k", "v", *self.extras)


def register() -> None:
    """Registers attend's code with XLA."""
    for name, handlers in _core.xla_handlers().items():
        for platform, handler in handlers.items():
            _versions.register(TARGETS[name], handler, platform)


def forward(call: Call, results: tuple[str, ...], *tensors: Any) -> tuple[Any, ...]:
    """Returns the arrays named by `results`: o, or o and lse."""
    shapes = output_shapes(tensors[0].shape, tensors[2].shape, call.settings.layout)
    dtype = tensors[0].dtype
    made = [_versions.struct(*x, tensors[0]) for x in zip(shapes, (dtype, _lse_dtype(dtype)))]
    return _run("forward", call, call.operands, tensors, results, made[: len(results)])


def backward(call: Call, operands: tuple[str, ...], results: tuple[str, ...], *tensors: Any) -> tuple[Any, ...]:
    """Returns the gradients named by `results`: dq, dk, dv, and those of options."""
    named = dict(zip(operands, tensors))
    made = [_versions.struct(named[x[1:]].shape, named[x[1:]].dtype, named[x[1:]]) for x in results]
    return _run("backward", call, operands, tensors, results, made)


def _run(
    name: str, call: Call, operands: tuple[str, ...], tensors: Any, results: tuple[str, ...], made: list[Any]
) -> tuple[Any, ...]:
    words = _workspace_words(name, call, dict(zip(operands, tensors)), dict(zip(results, made)))
    if words:
        made, results = [*made, _versions.struct((words,), jnp.uint32, tensors[0])], (*results, "workspace")
    attributes = _attributes(call.settings) | {"operands": " ".join(operands), "results": " ".join(results)}
    found = _versions.ffi.ffi_call(TARGETS[name], made)(*tensors, **attributes)
    return tuple(found[:-1] if words else found)


def _attributes(settings: Any) -> dict[str, Any]:
    attributes: dict[str, Any] = {}
    for field, value in settings._asdict().items():
        if isinstance(value, str):
            attributes[field] = value
        elif isinstance(value, (bool, int)):
            attributes[field] = np.int64(value)
        elif value is not None:
            attributes[field] = np.float64(value)
    del attributes["seed"], attributes["offset"]  # they are operands, so that other values need no new program
    return attributes


def check(call: Call, tensors: dict[str, Any]) -> None:
    """Raises ArgumentError for shapes, dtypes and settings that the library refuses. If sizes are symbolic, shapes are
    checked at run time.
    """
    # Checks only dtypes and settings, because the symbols are replaced by consistent sizes.
    if _has_symbols(tensors.values()):
        sizes = {name: (1,) * tensors[name].ndim for name in "qkv"}
        sizes |= {name: (2,) for name in ("cu_seqlens_q", "cu_seqlens_k") if name in tensors}
        tensors = {name: jax.ShapeDtypeStruct(shape, tensors[name].dtype) for name, shape in sizes.items()}
    q, v = tensors["q"], tensors["v"]
    o_shape, lse_shape = output_shapes(q.shape, v.shape, call.settings.layout)
    o, lse = jax.ShapeDtypeStruct(o_shape, q.dtype), jax.ShapeDtypeStruct(lse_shape, _lse_dtype(q.dtype))
    extras = {name: x for name, x in tensors.items() if name in Extras._fields and name != "philox_state"}
    named = _views({**{name: tensors[name] for name in "qkv"}, "o": o, "lse": lse, **extras})
    of_extras = Extras(**{name: named[name] for name in extras})
    _core.check(named["q"], named["k"], named["v"], named["o"], named["lse"], None, of_extras, call.settings)


def _workspace_words(name: str, call: Call, operands: dict[str, Any], results: dict[str, Any]) -> int:
    """Returns the size in words of the workspace that XLA must allocate for a call on the GPU, or 0 without a GPU."""
    everything = operands | results
    if jax.default_backend() != "gpu" or _has_symbols(everything.values()) or not _core.gpus():
        return 0
    named = _views(everything)
    gradients = None
    if name == "backward":
        fields = {x: named[x] for x in Gradients._fields if x in named}
        gradients = Gradients(**{"dlse": None, **fields})
    extras = Extras(**{x: named[x] for x in call.extras if x != "philox_state"})
    try:
        found = _core.workspace_bytes(
            named["q"], named["k"], named["v"], named["o"], named.get("lse"), gradients, extras, call.settings
        )
    except Error:  # the program may be for a CPU; if it is not, the run reports the error
        return 0
    # The 256 bytes are room to align the start, because XLA's memory has a lower alignment.
    return 0 if found == 0 else -(-(found + 256) // _WORD)


def _lse_dtype(dtype: Any) -> Any:
    return jnp.float64 if str(dtype) == "float64" else jnp.float32


def _has_symbols(tensors: Any) -> bool:
    """Returns whether a size is symbolic, as in jax.export."""
    return any(not isinstance(n, int) for x in tensors for n in x.shape)


def _views(tensors: dict[str, Any]) -> dict[str, Any]:
    """Returns the library's views of dense arrays with these shapes and dtypes, at distinct placeholder addresses."""
    views = {}
    for i, (name, x) in enumerate(tensors.items()):
        strides = [1] * len(x.shape)
        for d in reversed(range(len(x.shape) - 1)):
            strides[d] = strides[d + 1] * max(x.shape[d + 1], 1)
        dtype = _DTYPES.get(str(x.dtype), str(x.dtype))
        views[name] = _core.Array.at(x, (i + 1) * _APART, dtype, _PRETENDED_GPU, tuple(x.shape), strides)
    return views


def roles(name: str, shape: tuple[int, ...], layout: str) -> tuple[str, ...]:
    """Returns the roles of the dimensions of an operand or result. A broadcast dimension has no role."""
    if name in ("cu_seqlens_q", "cu_seqlens_k", "philox_state"):
        return ("",) * len(shape)
    if name in ("lse", "dlse"):
        return ("h", "") if layout == "thd" else ("b", "h", "")
    option = name.removeprefix("d") if name.removeprefix("d") in SCORE_TENSORS + HEAD_TENSORS else name
    if option in SCORE_TENSORS:
        return tuple(role if n != 1 else "" for role, n in zip(("b", "h", "", ""), shape))
    if option in HEAD_TENSORS:
        return ("b" if shape[0] != 1 and layout != "thd" else "", "h")
    return {"bhsd": ("b", "h", "", ""), "bshd": ("b", "", "h", ""), "thd": ("", "h", "")}[layout]
