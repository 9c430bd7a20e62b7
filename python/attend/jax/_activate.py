"""Replaces jax.nn.dot_product_attention by attend."""

from __future__ import annotations

import functools
import warnings
from typing import Any, Optional

import jax

from attend import _core
from attend._errors import Error, UnsupportedError
from attend.jax._dot_product import dot_product_attention

_of_jax: Any = None  # JAX's own function while attend is active, otherwise None
_told: set[str] = set()
_KNOWN = frozenset(dot_product_attention.__kwdefaults__ or ())


def activate() -> None:
    """Replaces `jax.nn.dot_product_attention` by attend until `restore()`, for all code that calls it by this name.

    Code that has already imported the function itself keeps JAX's function. Calls with an `implementation` use JAX's
    function too. If attend refuses a call while it is traced, JAX computes it, with one warning for each reason. JAX
    also computes forward-mode and second derivatives. Such derivatives are refused only for a function that jax.jit has
    traced earlier. A row that sees no key gives 0.
    """
    global _of_jax
    if _of_jax is not None:
        return
    _of_jax = jax.nn.dot_product_attention
    _put(functools.wraps(_of_jax)(_attention))


def restore() -> None:
    """Restores JAX's own function. Does nothing if attend is not active."""
    global _of_jax
    if _of_jax is not None:
        _put(_of_jax)
        _of_jax = None


def _put(function: Any) -> None:
    jax.nn.dot_product_attention = function


def _attention(query: Any, key: Any, value: Any, bias: Any = None, mask: Any = None, **options: Any) -> Any:
    of_jax = _of_jax or jax.nn.dot_product_attention
    if options.get("implementation") is not None:
        return of_jax(query, key, value, bias, mask, **options)
    try:
        _check_device(query)
        for name in options:
            if name not in _KNOWN:
                raise UnsupportedError(f"{name}: attend's function has no such argument")
        return dot_product_attention(query, key, value, bias, mask, **options)
    except Error as error:
        reason = str(error)
    except TypeError as error:
        if "forward-mode" not in str(error):  # JAX raises such an error for a function with custom gradients
            raise
        reason = "forward-mode derivatives, attend gives reverse-mode ones only"
    _tell(reason)
    return of_jax(query, key, value, bias, mask, **options)


def _check_device(query: Any) -> None:
    """Refuses an unsupported device while the call is traced. After an error at run time, JAX could not compute the
    call instead.
    """
    backend = jax.default_backend()
    if backend == "cpu":
        return
    lack: Optional[str] = f"backend {backend}"
    if backend == "gpu":
        gpus = _core.gpus()
        lack = gpus[0]["lack"] if gpus else "no NVIDIA GPU"
    if lack is not None:
        raise UnsupportedError(f"query: {lack}, attend runs on CPUs and CUDA")
    if str(query.dtype) == "float64":
        raise UnsupportedError("query: float64, attend's GPU backends take f32, f16, bf16")


def _tell(reason: str) -> None:
    if reason not in _told:
        _told.add(reason)
        warnings.warn(f"attend.jax.activate(): JAX's own attention runs: {reason}", stacklevel=3)
