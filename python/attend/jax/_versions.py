"""What releases of JAX name differently."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import jax

partitioning: Any = importlib.import_module("jax.experimental.custom_partitioning")
try:
    ffi: Any = importlib.import_module("jax.ffi")
except ImportError:  # 0.4.35
    ffi = importlib.import_module("jax.extend.ffi")
# Names of these that some releases lack.
lax: Any = jax.lax
sharding: Any = jax.sharding
dtypes: Any = jax.dtypes

# Shardy, JAX's partitioner since 0.7, propagates shardings by a rule. Older ones ask a function.
HAS_SHARDING_RULES = "sharding_rule" in inspect.signature(
    partitioning.custom_partitioning.def_partition
).parameters and hasattr(partitioning, "SdyShardingRule")


# How types say which axes of a mesh they vary over, inside of shard_map.
_AXES_FIELD = next(
    (x for x in ("manual_axis_type", "vma") if x in inspect.signature(jax.ShapeDtypeStruct).parameters), None
)


def struct(shape: Any, dtype: Any, like: Any) -> Any:
    """The type of a result, which varies inside of shard_map as `like` does."""
    if not (isinstance(like, jax.Array) and _axes(like)):
        return jax.ShapeDtypeStruct(shape, dtype)
    kind = jax.typeof(like)
    whole = jax.sharding.NamedSharding(kind.sharding.mesh, jax.sharding.PartitionSpec())
    return jax.ShapeDtypeStruct(shape, dtype, sharding=whole, **{str(_AXES_FIELD): getattr(kind, str(_AXES_FIELD))})


def alike(tensors: dict[str, Any], *more: str) -> dict[str, Any]:
    """The same arrays, which inside of shard_map all vary over the axes that one of them varies over, and over more."""
    if _AXES_FIELD is None:
        return tensors
    axes = {name: _axes(x) for name, x in tensors.items()}
    union = frozenset(more).union(*axes.values())
    return {name: _vary(x, tuple(sorted(union - axes[name]))) for name, x in tensors.items()}


def is_cut(x: Any, dimension: int) -> bool:
    """Whether the type of `x` says that the dimension is sharded."""
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
    """Registers a custom call. `handler`: a capsule, or one for each stage of a run."""
    if isinstance(handler, dict) and ffi.__name__ != "jax.ffi":
        handler = handler["execute"]  # whose first call does what an earlier stage would have done
    ffi.register_ffi_target(name, handler, platform=platform, api_version=1)


def is_key(x: Any) -> bool:
    """Whether it is a key of jax.random, with a type of its own or as two words."""
    dtype = getattr(x, "dtype", None)
    if dtype is None:
        return False
    if dtypes.issubdtype(dtype, dtypes.prng_key):
        return True
    return str(dtype) == "uint32" and x.shape == (2,)
