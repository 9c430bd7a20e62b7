"""A space is a class of memory: CPU memory, or the memory of a GPU. A space reads and allocates arrays, and converts
results to the framework of `q`.

attend._host_space and attend._cuda_space define the two spaces.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Protocol

from attend import _core
from attend._errors import ArgumentError, UnsupportedError
from attend._frameworks import framework_of

KDL_CPU, KDL_CUDA = 1, 2  # DLPack's device numbers


class Space(Protocol):
    """The memory that contains the arrays of a call."""

    stream: int  # the stream of the work; 0 on the CPU

    def view(self, name: str, x: Any) -> _core.Array:
        """Returns the library's view of `x`, which keeps the memory alive. Error messages call the array `name`."""
        ...

    def plain(self, name: str, x: Any) -> Any:
        """Converts `x` to an array of the module that `hand_over_edited` passes to `edit`."""
        ...

    def empty(self, name: str, shape: tuple[int, ...], dtype: str) -> Any:
        """Returns an uninitialised array for a result. The array has the dtype of the input `name`."""
        ...

    def result_view(self, result: Any) -> _core.Array:
        """Returns the library's view of an array that `empty` has returned."""
        ...

    def finish(self) -> None:
        """Must be called after the work is submitted. When it returns, the caller may free the inputs."""
        ...

    def hand_over(self, result: Any) -> Any:
        """Returns a result as an array of the framework of `q`."""
        ...

    def hand_over_edited(self, results: list[Any], edit: Callable[..., tuple[Any, ...]]) -> list[Any]:
        """Calls `edit(module, *results)`, where `module` has the array functions of NumPy. Returns arrays of q's
        framework.
        """
        ...


class ServingSpace(Space, Protocol):
    """A space that also supports decode, append and merge: caches are never copied, and append writes them."""

    def view(self, name: str, x: Any, is_dense: bool = False) -> _core.Array:
        """Returns the library's view of `x`. If `is_dense` is True, the view is contiguous."""
        ...

    def view_in_place(self, name: str, x: Any, is_written: bool) -> _core.Array:
        """Returns a view of the memory of `x`. Refuses an array that would need a copy, and read-only arrays if
        `is_written`.
        """
        ...

    def lengths(self, count: int, length: int) -> _core.Array:
        """Returns i32 (count), filled with `length`."""
        ...


def namespace_of(x: Any) -> Any:
    """Returns the module with the array functions of x's framework, or None."""
    found: Any = getattr(x, "__array_namespace__", lambda: None)()
    return sys.modules.get(type(x).__module__.partition(".")[0]) if found is None else found


def kind_of(x: Any) -> str:
    return f"{type(x).__module__}.{type(x).__name__}"


def refuse_tracer(name: str, x: Any) -> None:
    """Refuses a JAX tracer, which has no memory to read."""
    if any(kind.__name__ == "Tracer" and kind.__module__.startswith("jax") for kind in type(x).__mro__):
        raise UnsupportedError(
            f"{name}: {kind_of(x)}, attend.jax.attention runs inside of jax.jit, jax.grad and jax.vmap"
        )


def refuse_other_kind(name: str, x: Any, q: Any, owner: str = "q") -> None:
    """Refuses an array of another framework than that of q. All results belong to q's framework, so gradients of the
    array would be lost.
    """
    if framework_of(x) != framework_of(q):
        raise ArgumentError(f"{name}: {kind_of(x)}, allowed an array of the kind of {owner}, {kind_of(q)}")
