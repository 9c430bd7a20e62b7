"""Provides functions of JAX whose names differ between releases."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import jax

partitioning: Any = importlib.import_module("jax.experimental.custom_partitioning")
try:
    ffi: Any = importlib.import_module("jax.ffi")
except ImportError:  # JAX 0.4.35 does not have this name
    ffi = importlib.import_module("jax.extend.ffi")
# These modules have type Any, because some of their names are missing in some releases.
lax: Any = jax.lax
sharding: Any = jax.sharding
dtypes: Any = jax.dtypes

# Shardy, JAX's partitioner since 0.7, propagates shardings by a rule. Older partitioners call a function instead.
HAS_SHARDING_RULES = "sharding_rule" in inspect.signature(
    partitioning.custom_partitioning.def_partition
).parameters and hasattr(partitioning, "SdyShardingRule")


# The name of the field, in the type of an array, with the mesh axes over which the array varies inside shard_map.
_AXES_FIELD = next(
    (x for x in ("manual_axis_type", "vma") if x in inspect.signature(jax.ShapeDtypeStruct).parameters), None
)


def struct(shape: Any, dtype: Any, like: Any) -> Any:
    """Returns the type of a result that varies over the same mesh axes as `like` inside shard_map."""
    if not (isinstance(like, jax.Array) and _axes(like)):
        return jax.ShapeDtypeStruct(shape, dtype)
    kind = jax.typeof(like)
    whole = jax.sharding.NamedSharding(kind.sharding.mesh, jax.sharding.PartitionSpec())
    return jax.ShapeDtypeStruct(shape, dtype, sharding=whole, **{str(_AXES_FIELD): getattr(kind, str(_AXES_FIELD))})


def alike(tensors: dict[str, Any], *more: str) -> dict[str, Any]:
    """Converts arrays so that all vary over the same mesh axes, the union of their axes and `more`, as shard_map
    requires.
    """
    if _AXES_FIELD is None:
        return tensors
    axes = {name: _axes(x) for name, x in tensors.items()}
    union = frozenset(more).union(*axes.values())
    return {name: _vary(x, tuple(sorted(union - axes[name]))) for name, x in tensors.items()}


def is_cut(x: Any, dimension: int) -> bool:
    """Returns whether the type of `x` shards the dimension."""
    spec = getattr(getattr(jax.typeof(x), "sharding", None), "spec", None) if hasattr(jax, "typeof") else None
    return spec is not None and dimension < len(spec) and spec[dimension] is not None


def _axes(x: Any) -> frozenset[str]:
    if _AXES_FIELD is None:
        return frozenset()
    found = getattr(jax.typeof(x), _AXES_FIELD, None)
    return frozenset(getattr(found, "varying", found) or ())


def _vary(x: Any, axes: tuple[str, ...]) -> Any:
    if not axes:
        return x
    return lax.pcast(x, axes, to="varying") if hasattr(lax, "pcast") else lax.pvary(x, axes)


def register(name: str, handler: Any, platform: str) -> None:
    """Registers a custom call. `handler` is a capsule, or a dict with one capsule for each stage of a run."""
    if isinstance(handler, dict) and ffi.__name__ != "jax.ffi":
        handler = handler["execute"]  # the first call of this stage does the work of the earlier stages
    ffi.register_ffi_target(name, handler, platform=platform, api_version=1)


def is_key(x: Any) -> bool:
    """Returns whether `x` is a key of jax.random. A key has a key dtype, or is an array of two 32-bit words."""
    dtype = getattr(x, "dtype", None)
    if dtype is None:
        return False
    if dtypes.issubdtype(dtype, dtypes.prng_key):
        return True
    return str(dtype) == "uint32" and x.shape == (2,)
