"""The public functions of attend.jax. These functions resolve and check the options, and call attend.jax._autodiff."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, Optional, Union, overload

import jax
import jax.core
import jax.numpy as jnp
import numpy as np

from attend import _core
from attend._errors import ArgumentError
from attend._frameworks import framework_of
from attend._settings import HEAD_TENSORS, SCORE_TENSORS, Settings, as_int64, dense_layout, drops, window_of
from attend._spaces import kind_of
from attend.jax import _autodiff, _call, _sharding, _versions
from attend.jax._call import Call

_NUMBERS = ("scale", "softcap", "dropout_p")


if TYPE_CHECKING:
    from typing_extensions import Unpack

    from attend._types import JaxOptions, VarlenOptions

Operand = Union[jax.Array, "np.ndarray[Any, Any]"]  # a NumPy array becomes a constant of the compiled program


@overload
def attention(
    q: Operand, k: Operand, v: Operand, *, return_lse: Literal[False] = False, **options: Unpack[JaxOptions]
) -> jax.Array: ...
@overload
def attention(
    q: Operand, k: Operand, v: Operand, *, return_lse: Literal[True], **options: Unpack[JaxOptions]
) -> tuple[jax.Array, jax.Array]: ...
@overload
def attention(
    q: Operand, k: Operand, v: Operand, *, return_lse: bool, **options: Unpack[JaxOptions]
) -> Union[jax.Array, tuple[jax.Array, jax.Array]]: ...
def attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    layout: str = "bhsd",
    causal: bool = False,
    window: Sequence[Optional[int]] = (-1, -1),
    scale: Any = None,
    softcap: Any = 0.0,
    bias: Any = None,
    mask: Any = None,
    alibi_slopes: Any = None,
    sinks: Any = None,
    dropout_p: float = 0.0,
    seed: Any = None,
    offset: Any = 0,
    return_lse: bool = False,
    deterministic: bool = False,
    compute: str = "auto",
) -> Any:
    """`attend.attention` of JAX arrays, inside and outside of jax.jit, grad, vmap, scan, checkpoint and shard_map.

    Arguments:
        q: f32, f16, bf16, or f64 on a CPU (batch, heads_q, seqlen_q, head_dim); with layout="bshd" (batch, seqlen_q,
            heads_q, head_dim).
        k, v: same dtype, (batch, heads_k, seqlen_k, head_dim) and (batch, heads_k, seqlen_k, head_dim_v).
        bias: float (1 or batch, 1 or heads_q, 1 or seqlen_q, 1 or seqlen_k). Leading dimensions may be missing. A last
            dimension of 1 is first expanded over the keys.
        mask: bool, same shapes as bias. True keeps a score.
        alibi_slopes: f32 (heads_q) or (batch, heads_q).
        sinks: float (heads_q) or (batch, heads_q).
        seed: a number, a key of jax.random, or an array of one integer. The array may be traced. Required with
            dropout_p.
            The dropout pattern is a pure function of the seed. There is no default, because with a default seed a
            compiled function would drop the same entries in every run.
        offset: selects another dropout pattern of the same seed. Not allowed with a key.
        All other options are as in `attend.attention`. They are numbers and names, and must be known when the function
        is traced. score, captures and block_mask of `attend.attention` are not available.

    Returns:
        o (batch, heads_q, seqlen_q, head_dim_v) in the order of `layout` and the dtype of q, or (o, lse) with lse f32
        (f64 if q is) (batch, heads_q, seqlen_q). Both are differentiable once with respect to q, k, v, bias and sinks.

    Arrays are read in place in both layouts. Under vmap the mapped dimension becomes part of the batch. Arrays that are
    sharded over batch and heads stay sharded. On a GPU the work runs in XLA's stream. Determinism is as in
    `attend.attention`.

    Raises:
        attend.Error as `attend.attention`, when the function is traced. An error that depends on the device is raised
        at run time, as a JAX error with the same message.
    """
    extras = {"bias": bias, "mask": mask, "alibi_slopes": alibi_slopes, "sinks": sinks}
    left, right = window_of(window)
    settings = Settings(
        layout=dense_layout(layout), scale=scale, causal=causal, window_left=left, window_right=right, softcap=softcap,
        dropout_p=dropout_p, deterministic=deterministic, compute=compute,
    )  # fmt: skip
    return _attention(q, k, v, extras, settings, seed, offset, return_lse)


@overload
def attention_varlen(
    q: Operand, k: Operand, v: Operand, cu_seqlens_q: Operand, cu_seqlens_k: Operand, max_seqlen_q: int,
    max_seqlen_k: int, *, return_lse: Literal[False] = False, **options: Unpack[VarlenOptions],
) -> jax.Array: ...  # fmt: skip
@overload
def attention_varlen(
    q: Operand, k: Operand, v: Operand, cu_seqlens_q: Operand, cu_seqlens_k: Operand, max_seqlen_q: int,
    max_seqlen_k: int, *, return_lse: Literal[True], **options: Unpack[VarlenOptions],
) -> tuple[jax.Array, jax.Array]: ...  # fmt: skip
@overload
def attention_varlen(
    q: Operand, k: Operand, v: Operand, cu_seqlens_q: Operand, cu_seqlens_k: Operand, max_seqlen_q: int,
    max_seqlen_k: int, *, return_lse: bool, **options: Unpack[VarlenOptions],
) -> Union[jax.Array, tuple[jax.Array, jax.Array]]: ...  # fmt: skip
def attention_varlen(
    q: Any,
    k: Any,
    v: Any,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any,
    max_seqlen_q: int,
    max_seqlen_k: int,
    *,
    causal: bool = False,
    window: Sequence[Optional[int]] = (-1, -1),
    scale: Any = None,
    softcap: Any = 0.0,
    alibi_slopes: Any = None,
    sinks: Any = None,
    dropout_p: float = 0.0,
    seed: Any = None,
    offset: Any = 0,
    return_lse: bool = False,
    deterministic: bool = False,
    compute: str = "auto",
) -> Any:
    """`attend.attention_varlen` of JAX arrays: sequences of different lengths, packed one after another.

    Arguments:
        q: (total_q, heads_q, head_dim).
        k: (total_k, heads_k, head_dim).
        v: (total_k, heads_k, head_dim_v).
        cu_seqlens_q, cu_seqlens_k: i32 (sequences + 1), which may be traced. The offsets start at 0, never decrease,
            and end at the total number of tokens. On a CPU, other offsets are refused at run time.
        max_seqlen_q, max_seqlen_k: numbers, upper bounds of the sequence lengths.
        alibi_slopes: f32 (heads_q) or (sequences, heads_q).
        sinks: float (heads_q) or (sequences, heads_q).
        All other arguments are as in `attention`. bias and mask are not available.

    Returns:
        o (total_q, heads_q, head_dim_v), or (o, lse) with lse f32 (f64 if q is) (heads_q, total_q).

    Under vmap the mapped dimension becomes part of the heads. Errors and determinism are as in `attention`.
    """
    left, right = window_of(window)
    for name, x in (("cu_seqlens_q", cu_seqlens_q), ("cu_seqlens_k", cu_seqlens_k)):
        if x is None:
            raise ArgumentError(f"{name}: None, allowed an array i32 (sequences + 1)")
    settings = Settings(
        layout="thd", max_seqlen_q=max_seqlen_q, max_seqlen_k=max_seqlen_k, scale=scale, causal=causal,
        window_left=left, window_right=right, softcap=softcap, dropout_p=dropout_p, deterministic=deterministic,
        compute=compute,
    )  # fmt: skip
    extras = {
        "alibi_slopes": alibi_slopes, "sinks": sinks, "cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k
    }  # fmt: skip
    return _attention(q, k, v, extras, settings, seed, offset, return_lse)


def _attention(
    q: Any, k: Any, v: Any, extras: dict[str, Any], settings: Any, seed: Any, offset: Any, return_lse: bool
) -> Any:
    given = {"q": q, "k": k, "v": v} | {name: x for name, x in extras.items() if x is not None}
    tensors = {name: array(name, x) for name, x in given.items()}
    settings = constant(settings)
    if drops(settings.dropout_p):
        tensors["philox_state"] = _philox_state(seed, offset)
    elif seed is not None:
        _philox_state(seed, offset)  # a wrong seed is refused even if nothing is dropped
    call = Call(tuple(tensors)[3:], settings)
    check(call, tuple((name, x.shape, str(x.dtype)) for name, x in _with_all_columns(tensors, settings).items()))
    operands = _sharding.placed(call, _versions.alike(_whole(tensors, settings)))
    results = _autodiff.attention(call, bool(return_lse))(*operands.values())
    return tuple(results) if return_lse else results[0]


@functools.lru_cache(maxsize=4096)
def check(call: Call, arrays: Any) -> None:
    _core.check_settings(call.settings)
    _check_compute(call.settings.compute)
    _call.check(call, {name: jax.ShapeDtypeStruct(shape, dtype) for name, shape, dtype in arrays})


def _check_compute(name: str) -> None:
    known = [x for backend in _core.backends() for x in (backend["name"], *backend["aliases"])]
    if name != "auto" and name not in known:
        raise ArgumentError(f"compute: '{name}' is unknown, allowed auto, {', '.join(known)}")


def array(name: str, x: Any) -> Any:
    """Converts `x`, a JAX or NumPy array, to a JAX array. Refuses Python numbers, lists, and arrays of other
    frameworks.
    """
    convert = getattr(x, "__jax_array__", None)  # a model's parameters may have this method; JAX's own arrays do not
    if convert is not None:
        x = convert()
    if framework_of(x) not in ("jax", "numpy"):
        raise ArgumentError(f"{name}: {kind_of(x)}, allowed a JAX or NumPy array")
    return jnp.asarray(x)


def constant(settings: Any) -> Any:
    """Converts the settings to Python numbers. The settings must be constants, because the compiled program contains
    them.
    """
    for name, value in settings._asdict().items():
        if isinstance(value, jax.core.Tracer):
            raise ArgumentError(
                f"{name}: traced by JAX, allowed a number that is known at trace time (jax.jit: static_argnames)"
            )
    _core.check_settings(settings)
    numbers = {x: float(getattr(settings, x)) for x in _NUMBERS if getattr(settings, x) is not None}
    flags = {x: bool(getattr(settings, x)) for x in ("causal", "deterministic")}
    lengths = ("max_seqlen_q", "max_seqlen_k", "window_left", "window_right")
    return settings._replace(**numbers, **flags, **{x: int(getattr(settings, x)) for x in lengths})


def _philox_state(seed: Any, offset: Any) -> Any:
    """Returns u32 (4): the halves of seed and offset, the lower half first."""
    if seed is None:
        raise ArgumentError("seed: None with dropout_p, allowed a number, an array of one, or a key of jax.random")
    if _versions.is_key(seed):
        if not isinstance(offset, int) or offset != 0:
            raise ArgumentError(
                "offset: given with a key, allowed with a number only: jax.random.fold_in makes other keys"
            )
        words = jax.random.key_data(seed).reshape(-1).astype(jnp.uint32)  # split keys are already hashes
        return jnp.concatenate([words, jnp.zeros(4, jnp.uint32)])[:4]
    return jnp.concatenate([_words("seed", seed), _words("offset", offset)])


def _words(name: str, x: Any) -> Any:
    if isinstance(x, (jax.Array, np.ndarray)):
        x = jnp.asarray(x)
        if x.size != 1 or not jnp.issubdtype(x.dtype, jnp.integer):
            raise ArgumentError(f"{name}: {x.dtype} {x.shape}, allowed one whole number")
        x = x.reshape(())
        high = x >> 32 if x.dtype.itemsize == 8 else jnp.zeros((), jnp.uint32)
        return jnp.stack([x.astype(jnp.uint32), high.astype(jnp.uint32)])
    value = as_int64(name, x) % 2**64
    return jnp.asarray(np.array([value % 2**32, value >> 32], np.uint32))


def _num_keys(tensors: dict[str, Any], layout: str) -> Any:
    """Returns the number of keys. Returns 1 if k has too few dimensions; later checks refuse such a k."""
    shape, axis = tensors["k"].shape, {"bhsd": 2, "bshd": 1, "thd": 0}[layout]
    return shape[axis] if len(shape) > axis else 1


def _with_all_columns(tensors: dict[str, Any], settings: Any) -> dict[str, Any]:
    """Returns the shapes of all tensors, with one-column biases and masks expanded over the keys, as the library
    requires.
    """
    keys = _num_keys(tensors, settings.layout)
    found = {}
    for name, x in tensors.items():
        shape = tuple(x.shape)
        if name in SCORE_TENSORS and shape and shape[-1] == 1:
            shape = (*shape[:-1], keys)
        found[name] = jax.ShapeDtypeStruct(shape, x.dtype)
    return found


def _whole(tensors: dict[str, Any], settings: Any) -> dict[str, Any]:
    """Adds missing leading dimensions, of size 1, to the options. JAX sums the gradients over expanded dimensions."""
    wide, found = _with_all_columns(tensors, settings), dict(tensors)
    for name, x in tensors.items():
        if name in SCORE_TENSORS:
            found[name] = jnp.broadcast_to(x, wide[name].shape).reshape((1,) * (4 - x.ndim) + tuple(wide[name].shape))
        elif name in HEAD_TENSORS:
            x = x.reshape((1,) * (2 - x.ndim) + tuple(x.shape))
            # If the batch shares the sinks, their gradient is summed over the batch outside of this call. No device
            # then needs data of another device.
            is_shared = name == "sinks" and settings.layout != "thd"
            found[name] = jnp.broadcast_to(x, (tensors["q"].shape[0], x.shape[1])) if is_shared else x
    return found
