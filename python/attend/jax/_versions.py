"""What releases of JAX name differently."""

from __future__ import annotations

import inspect
from typing import Any

import jax
from jax.experimental import custom_partitioning as partitioning

try:
    from jax import ffi
except ImportError:  # 0.4.35
    from jax.extend import ffi

# Shardy, JAX's partitioner since 0.7, propagates shardings by a rule. Older ones ask a function.
HAS_SHARDING_RULES = "sharding_rule" in inspect.signature(
    partitioning.custom_partitioning.def_partition
).parameters and hasattr(partitioning, "SdyShardingRule")


def register(name: str, handler: Any, platform: str) -> None:
    """Registers a custom call. `handler`: a capsule, or one for each stage of a run."""
    try:
        ffi.register_ffi_target(name, handler, platform=platform, api_version=1)
    except (TypeError, RuntimeError):
        if not isinstance(handler, dict):
            raise
        ffi.register_ffi_target(name, handler["execute"], platform=platform, api_version=1)  # which compiles, too


def is_key(x: Any) -> bool:
    """Whether it is a key of jax.random, with a type of its own or as two words."""
    dtype = getattr(x, "dtype", None)
    if dtype is None:
        return False
    if jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key):
        return True
    return str(dtype) == "uint32" and x.shape == (2,)
