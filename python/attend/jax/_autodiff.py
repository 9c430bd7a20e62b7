"""Implements forward and backward under JAX's transformations. The outermost function defines gradients. Inside it, a
second function defines a vmap rule, and a third function defines shardings. The innermost function makes the custom
call.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from attend._errors import ArgumentError, UnsupportedError
from attend._settings import NO_GRADIENT_TENSORS, OPTION_GRADIENTS
from attend.jax import _call, _sharding
from attend.jax._call import Call
from attend.jax._vmap import Folding


@functools.lru_cache(maxsize=1024)
def attention(call: Call, wants_lse: bool) -> Any:
    """Returns the compiled function that computes o, or (o, lse). Its arguments are the arrays named by
    `call.operands`.

    Policies of jax.checkpoint can refer to the results that backward needs by the names attend_o and attend_lse.
    """
    results = ("o", "lse") if wants_lse else ("o",)

    @jax.custom_vjp
    def run(*tensors: Any) -> Any:
        return forward_of(call, results)(*tensors)

    def forward(*tensors: Any) -> tuple[Any, Any]:
        for name, x in zip(call.operands, tensors):
            if name in NO_GRADIENT_TENSORS and x.perturbed and jnp.issubdtype(x.value.dtype, jnp.floating):
                raise ArgumentError(f"{name}: differentiated, allowed jax.lax.stop_gradient of it")
        values = tuple(x.value for x in tensors)
        o, lse = forward_of(call, ("o", "lse"))(*values)
        o, lse = checkpoint_name(o, "attend_o"), checkpoint_name(lse, "attend_lse")
        # The set of requested gradients is not an array, so it is encoded in the pytree structure of the residuals.
        asked = tuple(() if x.perturbed else None for x in tensors)
        return (o, lse)[: len(results)], (values, o, lse, asked)

    def backward(kept: Any, cotangents: Any) -> tuple[Any, ...]:
        values, o, lse, asked = kept
        wanted = {name for name, x in zip(call.operands, asked) if x is not None}
        gradients = tuple(y for x, y in OPTION_GRADIENTS if x in wanted)
        dout = _array(cotangents[0])
        operands, tensors = (*call.operands, "o", "lse", "dout"), (*values, o, lse, dout)
        if wants_lse and not _is_zero(cotangents[1]):
            operands, tensors = (*operands, "dlse"), (*tensors, cotangents[1])
        results = ("dq", "dk", "dv", *gradients)
        found = dict(zip(results, backward_of(call, operands, results)(*tensors)))
        # JAX 0.7 requires the same structure each time. Gradients that were not requested are therefore zeros, which
        # XLA removes.
        return tuple(found.get("d" + name, _no_gradient(x)) for name, x in zip(call.operands, values))

    named: Any = run
    named.__name__ = named.__qualname__ = "attend_attention"
    run.defvjp(forward, backward, symbolic_zeros=True)
    return jax.jit(run)


def _no_gradient(x: Any) -> Any:
    return jnp.zeros_like(x) if jnp.issubdtype(x.dtype, jnp.floating) else None


def _is_zero(cotangent: Any) -> bool:
    return isinstance(cotangent, jax.custom_derivatives.SymbolicZero)


def _array(cotangent: Any) -> Any:
    return jnp.zeros(cotangent.shape, cotangent.dtype) if _is_zero(cotangent) else cotangent


@functools.lru_cache(maxsize=1024)
def forward_of(call: Call, results: tuple[str, ...]) -> Any:
    """Returns a function whose arguments are the arrays named by `call.operands` and whose results are those named by
    `results`.
    """
    return _once("forward", functools.partial(_call.forward, call, results), call, call.operands, results)


@functools.lru_cache(maxsize=1024)
def backward_of(call: Call, operands: tuple[str, ...], results: tuple[str, ...]) -> Any:
    """Returns a function whose arguments are the arrays named by `operands` and whose results are the gradients named
    by `results`.
    """
    return _once("backward", functools.partial(_call.backward, call, operands, results), call, operands, results)


def _once(name: str, function: Any, call: Call, operands: tuple[str, ...], results: tuple[str, ...]) -> Any:
    """Wraps `function` with support for vmap and sharding. Differentiating the result is refused as a second
    derivative.
    """

    def run(*tensors: Any) -> Any:
        return function(*tensors)

    run.__name__ = run.__qualname__ = f"attend_{name}"  # profilers show this name
    mapped = _mapped(_sharding.partitioned(run, call, operands, results), call, operands, results)

    @jax.custom_jvp
    def once(*tensors: Any) -> Any:
        return mapped(*tensors)

    @once.defjvp
    def twice(primals: Any, tangents: Any) -> Any:
        raise UnsupportedError("attend.jax: derivative of a gradient, attend gives first derivatives only")

    return once


def _mapped(function: Any, call: Call, operands: tuple[str, ...], results: tuple[str, ...]) -> Any:
    """Wraps `function` with a rule for vmap. The vmap may be nested."""
    run = jax.custom_batching.custom_vmap(function)

    @run.def_vmap
    def rule(size: int, are_mapped: Any, *tensors: Any) -> tuple[Any, Any]:
        fold = Folding(size, call, tensors[0], are_mapped[0])
        batches = {name: x.shape[1 if is_mapped else 0] for name, x, is_mapped in zip(operands, tensors, are_mapped)}
        folded = [
            fold.into(name, x, is_mapped, "d" + name in results)
            for name, x, is_mapped in zip(operands, tensors, are_mapped)
        ]
        found = run(*folded)
        unfolded = tuple(fold.out_of(name, x, batches.get(name[1:], 0)) for name, x in zip(results, found))
        return unfolded, (True,) * len(results)

    return run
