"""What a space is: a kind of memory, how it is read, allocated, and handed back to the framework of `q`.

There are two: attend._host_space and attend._cuda_space.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Protocol

from attend import _core
from attend._errors import ArgumentError, UnsupportedError
from attend._frameworks import framework_of

KDL_CPU, KDL_CUDA = 1, 2  # DLPack's numbers of devices


class Space(Protocol):
    """The memory that the arrays of a call are in."""

    stream: int  # what the work is put on; 0 on the CPU

    def view(self, name: str, x: Any) -> _core.Array:
        """`x` as the library reads it, for `name` in what is refused. Holds the memory."""
        ...

    def plain(self, name: str, x: Any) -> Any:
        """`x` as the functions of `hand_over_edited` take it."""
        ...

    def empty(self, name: str, shape: tuple[int, ...], dtype: str) -> Any:
        """An uninitialised result; `name` is the input whose dtype it has."""
        ...

    def result_view(self, result: Any) -> _core.Array:
        """A result as the library writes it."""
        ...

    def finish(self) -> None:
        """Called once the work is submitted: the inputs may go when it returns."""
        ...

    def hand_over(self, result: Any) -> Any:
        """A result as an array of the framework of `q`."""
        ...

    def hand_over_edited(self, results: list[Any], edit: Callable[..., tuple[Any, ...]]) -> list[Any]:
        """What `edit(module, *results)` makes of them with a module's functions on arrays, handed over."""
        ...


class ServingSpace(Space, Protocol):
    """What decode, append and merge need of it too: caches are never copied, and append writes them."""

    def view(self, name: str, x: Any, is_dense: bool = False) -> _core.Array:
        """With `is_dense` without any gaps."""
        ...

    def view_in_place(self, name: str, x: Any, is_written: bool) -> _core.Array:
        """The memory of `x` itself. What would have to be copied is refused, and to be written what is read-only."""
        ...

    def lengths(self, count: int, length: int) -> _core.Array:
        """i32 (count), all of them `length`."""
        ...


def namespace_of(x: Any) -> Any:
    """The module with the functions of x's framework, or None."""
    found: Any = getattr(x, "__array_namespace__", lambda: None)()
    return sys.modules.get(type(x).__module__.partition(".")[0]) if found is None else found


def kind_of(x: Any) -> str:
    return f"{type(x).__module__}.{type(x).__name__}"


def refuse_tracer(name: str, x: Any) -> None:
    """What JAX traces has no memory to read."""
    if any(kind.__name__ == "Tracer" and kind.__module__.startswith("jax") for kind in type(x).__mro__):
        raise UnsupportedError(
            f"{name}: {kind_of(x)}, attend.jax.attention runs inside of jax.jit, jax.grad and jax.vmap"
        )


def refuse_other_kind(name: str, x: Any, q: Any, owner: str = "q") -> None:
    """A call takes arrays of one framework: the results are of that of q, and others' gradients would be lost."""
    if framework_of(x) != framework_of(q):
        raise ArgumentError(f"{name}: {kind_of(x)}, allowed an array of the kind of {owner}, {kind_of(q)}")
