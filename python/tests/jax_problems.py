"""Computes a test problem with attend.jax under one of JAX's transformations."""

from __future__ import annotations

from typing import Any

import attend.jax
import jax
import jax.numpy as jnp
import numpy as np
import problems
from oracle import Problem

DIFFERENTIATED = ("q", "k", "v", "bias", "sinks")
TRANSFORMS = ["eager", "jit", "vmap", "vmap_of_grad", "vmap_twice", "scan"]

OPTIONS: dict[str, list[Any]] = {
    **{x: problems.OPTIONS[x] for x in ("layout", "visible", "softcap", "scale", "mask", "alibi", "sinks", "dlse")},
    "dtype": ["f32", "f16", "bf16"],
    "bias": [None, "full", "heads", "keys"],
    "heads": [(1, 1), (4, 4), (6, 2), (4, 1)],
    "seqlens": [(1, 1), (17, 33), (33, 17), (1, 50), (5, 0), (0, 5)],
    "head_dims": [(40, 40), (64, 24), (80, 80), (128, 128), (256, 256), (1, 3)],
    "batch": [1, 4],
    "transform": TRANSFORMS,
}  # fmt: skip


class Split:
    """The arrays of a problem: those with a batch, split into `parts`, and those that all parts share."""

    def __init__(self, p: Problem, layout: str, parts: tuple[int, ...]) -> None:
        turned = {name: problems.laid_out(getattr(p, name), layout, "dense") for name in ("q", "k", "v", "dout")}
        options = {name: getattr(p, name) for name in ("bias", "mask", "alibi_slopes", "sinks")}
        given = {name: x for name, x in (turned | {"dlse": p.dlse} | options).items() if x is not None}
        self.batch = p.q.shape[0]
        self.mapped = {name: self._cut(x, parts) for name, x in given.items() if self._has_batch(name, x)}
        self.shared = {name: jnp.asarray(x) for name, x in given.items() if name not in self.mapped}
        self.parts = parts

    def _has_batch(self, name: str, x: Any) -> bool:
        whole = {"bias": 4, "mask": 4, "alibi_slopes": 2, "sinks": 2, "dlse": 3}.get(name, 4)
        return x.ndim == whole and x.shape[0] == self.batch

    def _cut(self, x: Any, parts: tuple[int, ...]) -> Any:
        return jnp.asarray(x).reshape(*parts, self.batch // int(np.prod(parts)), *x.shape[1:])

    def whole(self, x: Any) -> np.ndarray:
        """Converts a result of all parts to an array with the batch dimension of the problem."""
        return np.asarray(x).reshape(self.batch, *x.shape[len(self.parts) + 1 :])


def run(p: Problem, case: dict[str, Any]) -> dict[str, np.ndarray]:
    """Returns o, lse and the gradients, in the layout of the problem."""
    transform, batch = case["transform"], p.q.shape[0]
    parts = {"eager": (), "jit": (), "vmap_twice": (2, 2) if batch == 4 else (1, 1)}.get(
        transform, (2,) if batch == 4 else (1,)
    )
    split = Split(p, case["layout"], parts)

    def attention(x: dict[str, Any]) -> Any:
        options = {name: x[name] for name in ("bias", "mask", "alibi_slopes", "sinks") if name in x}
        return attend.jax.attention(
            x["q"], x["k"], x["v"], layout=case["layout"], causal=p.causal, window=p.window, scale=p.scale,
            softcap=p.softcap, return_lse=True, **options,
        )  # fmt: skip

    def loss(mapped: Any, shared: Any) -> Any:
        x = {**mapped, **shared}
        o, lse = attention(x)
        total = jnp.sum(o.astype(jnp.float32) * x["dout"].astype(jnp.float32))
        if case["dlse"]:
            total += jnp.sum(jnp.where(jnp.isinf(lse), 0, lse) * x["dlse"])
        return total, (o, lse)

    if transform == "eager":
        gradients, (o, lse) = _eager(attention, split, case["dlse"])
    else:
        gradients, (o, lse) = _transformed(loss, transform, split)
    results = {"o": split.whole(o), "lse": split.whole(lse)}
    for group, is_mapped in zip(gradients, (True, False)):
        for name, x in group.items():
            results["d" + name] = split.whole(x) if is_mapped else np.asarray(x)
    return {
        name: problems.from_layout(x, case["layout"]) if name in ("o", "dq", "dk", "dv") else x
        for name, x in results.items()
    }


def _eager(attention: Any, split: Split, has_dlse: bool) -> Any:
    """Like `_transformed`, but without jit. There is no loss function, because each operation of it would be compiled
    separately.
    """
    everything = {**split.mapped, **split.shared}
    of = {name: x for name, x in everything.items() if name in DIFFERENTIATED}
    run = lambda wanted: attention({**everything, **wanted})
    if has_dlse:
        (o, lse), pull = jax.vjp(run, of)
        (gradients,) = pull((everything["dout"], everything["dlse"]))
    else:
        o, pull, lse = jax.vjp(run, of, has_aux=True)
        (gradients,) = pull(everything["dout"])
    of_mapped, of_shared = (
        {n: x for n, x in gradients.items() if n in group} for group in (split.mapped, split.shared)
    )
    return (of_mapped, of_shared), (o, lse)


def _transformed(loss: Any, transform: str, split: Split) -> Any:
    """Returns ((gradients of mapped arrays, gradients of shared arrays), (o, lse))."""
    groups = (split.mapped, split.shared)
    of = tuple({n: x for n, x in group.items() if n in DIFFERENTIATED} for group in groups)
    rest = tuple({n: x for n, x in group.items() if n not in have} for group, have in zip(groups, of))
    axes = ((0, None), (0, None))

    def one(wanted: Any, others: Any) -> Any:
        return loss({**wanted[0], **others[0]}, {**wanted[1], **others[1]})

    if transform == "vmap_of_grad":
        found = jax.vmap(jax.grad(one, has_aux=True), in_axes=axes)
        (mapped, shared), results = jax.jit(found)(of, rest)
        return (mapped, {name: x.sum(axis=0) for name, x in shared.items()}), results

    def total(wanted: Any, others: Any) -> Any:
        if transform == "jit":
            return one(wanted, others)
        if transform == "scan":
            return _scanned(one, wanted, others)
        mapped = jax.vmap(one, in_axes=axes)
        if transform == "vmap_twice":
            mapped = jax.vmap(mapped, in_axes=axes)
        losses, results = mapped(wanted, others)
        return losses.sum(), results

    return jax.jit(jax.grad(total, has_aux=True))(of, rest)


def _scanned(one: Any, wanted: Any, others: Any) -> Any:
    """Computes the parts one after another in a scan. Backward recomputes each part."""

    def step(sum_so_far: Any, part: Any) -> Any:
        value, results = jax.checkpoint(one)((part[0], wanted[1]), (part[1], others[1]))
        return sum_so_far + value, results

    return jax.lax.scan(step, jnp.float32(0), (wanted[0], others[0]))
