"""Defines how XLA may shard attention: along the batch and the heads, attention needs no communication.

Sharded dimensions other than batch and heads are gathered first. Batch and heads are also gathered in three cases. With
dropout both are gathered, because the pattern depends on the position in the entire tensor. The batch or the heads are
gathered if the gradient of an option sums over them. The heads are gathered if a device would otherwise hold query
heads without the key head that they read.
"""

from __future__ import annotations

from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from attend.jax import _versions
from attend.jax._call import Call, roles


def placed(call: Call, tensors: dict[str, Any]) -> dict[str, Any]:
    """Shards all operands like q, if shardings are part of JAX's types (jax.sharding.AxisType.Explicit)."""
    mesh = _explicit_mesh()
    if mesh is None:
        return tensors
    specs = _Cuts(call, call.operands, ()).specs(mesh, tensors["q"], tuple(tensors.values()))
    return {name: _versions.sharding.reshard(x, spec) for (name, x), spec in zip(tensors.items(), specs)}


def partitioned(function: Any, call: Call, operands: tuple[str, ...], results: tuple[str, ...]) -> Any:
    """Wraps `function` so that each device runs it on its part of the batch and the heads."""
    by_partitioner = _by_partitioner(function, call, operands, results)
    cuts = _Cuts(call, operands, results)

    def run(*tensors: Any) -> Any:
        mesh = _explicit_mesh()
        if mesh is None:
            return by_partitioner(*tensors)
        found = jax.eval_shape(function, *(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in tensors))
        specs = cuts.specs(mesh, tensors[0], tensors, found)
        of_operands, of_results = specs[: len(tensors)], specs[len(tensors) :]
        tensors = tuple(_versions.sharding.reshard(x, spec) for x, spec in zip(tensors, of_operands))
        return jax.shard_map(function, mesh=mesh, in_specs=of_operands, out_specs=of_results)(*tensors)

    return run


def _explicit_mesh() -> Any:
    """Returns the mesh of `jax.set_mesh` if its axes are explicit, otherwise None."""
    if not hasattr(jax.sharding, "get_abstract_mesh") or not hasattr(jax, "shard_map"):
        return None
    mesh = jax.sharding.get_abstract_mesh()
    return mesh if any(kind.name == "Explicit" for kind in getattr(mesh, "axis_types", None) or ()) else None


def _by_partitioner(function: Any, call: Call, operands: tuple[str, ...], results: tuple[str, ...]) -> Any:
    whole = _versions.partitioning.custom_partitioning(function)
    cuts = _Cuts(call, operands, results)

    def infer(mesh: Any, arguments: Any, found: Any) -> Any:
        return cuts.shardings(mesh, arguments, found)[1]

    def partition(mesh: Any, arguments: Any, found: Any) -> Any:
        of_operands, of_results = cuts.shardings(mesh, arguments, found)
        return mesh, function, of_results, of_operands

    rules = {"sharding_rule": cuts.rule} if _versions.HAS_SHARDING_RULES else {}
    whole.def_partition(partition=partition, infer_sharding_from_operands=infer, **rules)
    return whole


class _Cuts:
    def __init__(self, call: Call, operands: tuple[str, ...], results: tuple[str, ...]) -> None:
        self._call, self._operands, self._results = call, operands, results

    def shardings(self, mesh: Any, arguments: Any, found: Any) -> tuple[Any, Any]:
        """Returns the shardings of the operands and of the results, derived from the sharding of q."""
        shapes = [x.shape for x in arguments]
        q = arguments[0].sharding
        if not isinstance(q, NamedSharding):  # only a NamedSharding contains the mesh
            whole = _versions.sharding.GSPMDSharding.get_replicated(list(q._device_assignment))
            return (whole,) * len(arguments), (whole,) * len(found)
        axes = self._axes(mesh, q.spec, shapes)
        of_operands = tuple(NamedSharding(mesh, self._spec(*x, axes)) for x in zip(self._operands, shapes))
        of_results = ((name, x.shape) for name, x in zip(self._results, found))
        return of_operands, tuple(NamedSharding(mesh, self._spec(*x, axes)) for x in of_results)

    def specs(self, mesh: Any, q: Any, tensors: Any, found: Any = ()) -> tuple[Any, ...]:
        """Returns the partition specs of the operands and the results, derived from the type of q."""
        shapes = [x.shape for x in tensors]
        axes = self._axes(mesh, jax.typeof(q).sharding.spec, shapes)
        named = zip((*self._operands, *self._results), (*shapes, *(x.shape for x in found)))
        return tuple(self._spec(*x, axes) for x in named)

    def _spec(self, name: str, shape: Any, axes: dict[str, Any]) -> PartitionSpec:
        return PartitionSpec(*(axes.get(role) for role in self._roles(name, shape)))

    def _roles(self, name: str, shape: Any) -> tuple[str, ...]:
        return roles(name, tuple(shape), self._call.settings.layout)

    def _axes(self, mesh: Any, spec: Any, shapes: list[Any]) -> dict[str, Any]:
        """Returns the mesh axes that split the batch and the heads of q."""
        q_roles = self._roles("q", shapes[0])
        axes = {}
        for d, (role, axis) in enumerate(zip(q_roles, (*spec, *(None,) * len(q_roles)))):
            if role in self._free(shapes) and axis is not None:
                parts = 1
                for x in axis if isinstance(axis, tuple) else (axis,):
                    parts *= mesh.shape[x]
                if all(shape[d] % parts == 0 for shape in shapes[:3]):
                    axes[role] = axis
        return axes

    def _free(self, shapes: list[Any]) -> set[str]:
        """Returns the roles along which a call can be split into independent parts: "b", "h", both or none."""
        if self._call.settings.dropout_p:
            return set()
        free = {"b", "h"}
        for name, shape in zip(self._operands, shapes):
            if "d" + name in self._results and name not in "qkv":
                # The option's gradient is a sum over dimensions that the option does not have.
                free -= {"b", "h"} - set(self._roles(name, shape))
        return free

    def rule(self, mesh: Any, operand_types: Any, result_types: Any) -> Any:
        """Returns the same information in the form of a sharding rule for Shardy."""
        shapes = [tuple(x.shape) for x in operand_types]
        free = self._free(shapes)
        heads = self._roles("q", shapes[0]).index("h")
        num_q, num_k = shapes[0][heads], shapes[1][heads]
        is_grouped = num_q != num_k
        if num_k == 1 or num_q == 0 or num_k == 0:
            free.discard("h")
        # `g` is the number of query heads per key head.
        sizes = {"g": num_q // num_k} if is_grouped and "h" in free else {}
        own = iter(range(1000))

        def factors(name: str, shape: Any) -> Any:
            of_keys = name in ("k", "v", "dk", "dv")
            found: list[Any] = []
            for role in self._roles(name, shape):
                if role not in free:
                    found.append(f"x{next(own)}")
                elif role == "h" and is_grouped and not of_keys:
                    found.append(_versions.partitioning.CompoundFactor("h", "g"))
                else:
                    found.append(role)
            return _versions.partitioning.ArrayMapping(*found)

        of_operands = tuple(factors(name, shape) for name, shape in zip(self._operands, shapes))
        of_results = tuple(factors(name, tuple(x.shape)) for name, x in zip(self._results, result_types))
        return _versions.partitioning.SdyShardingRule(of_operands, of_results, **sizes)
