"""Raises an error of one rank's front end on all ranks, if it occurs before the library receives the call.

Before a call the ranks exchange a message, for which the other ranks wait. The error is sent in its place.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
from collections.abc import Callable, Iterator
from typing import Any, Optional, TypeVar

from attend import _core
from attend._errors import ArgumentError, Error, UnsupportedError

_Function = TypeVar("_Function", bound=Callable[..., Any])


class _Thread(threading.local):
    begun = 0  # calls that this thread has passed to the library, which reports their errors to the other ranks itself


_here = _Thread()


def begins() -> None:
    """Must be called immediately before the library. Later errors are no longer reported by the front ends."""
    _here.begun += 1


@contextlib.contextmanager
def connecting() -> Iterator[None]:
    """While ranks connect, the front ends do not report errors to other ranks."""
    try:
        yield
    except BaseException:
        begins()
        raise


# Returns this rank's ring, in which the other ranks wait, for a group or communicator. Returns None if there is no ring
# yet and the second argument (whether to connect) is False.
Door = Callable[[Any, bool], Optional[_core.RingContext]]


def told(door: Door, argument: str, traceable: bool = False) -> Callable[..., Any]:
    """Returns a decorator: all ranks raise the errors that the function raises before the library receives the call.

    An interrupt is always reported, because the other ranks would otherwise wait for the rank's next call.

    Arguments:
        door: called with `argument`. If it fails, no other rank can be notified.
        argument: name of the function's group or communicator argument.
        traceable: torch.compile may trace the function. Errors are not reported then.
    """

    def decorate(function: _Function) -> _Function:
        position = list(inspect.signature(function).parameters).index(argument)

        @functools.wraps(function)
        def call(*args: Any, **named: Any) -> Any:
            if traceable:
                import torch

                if torch.compiler.is_compiling():
                    return function(*args, **named)
            begun = calls_begun()
            try:
                return function(*args, **named)
            except BaseException as error:
                tell(error, door, named.get(argument, args[position] if len(args) > position else None), begun)
                raise

        return call  # type: ignore[return-value]

    return decorate


def calls_begun() -> int:
    return _here.begun


def tell(error: BaseException, door: Door, ranks: Any, begun: int) -> None:
    """Reports an exception to the other ranks. `begun`: calls_begun() before the function.

    Raises:
        attend.Error, which all ranks raise, if `error` is an attend.Error or exactly a RuntimeError or ValueError.
    """
    is_interrupt = not isinstance(error, Exception)
    if _here.begun != begun and not is_interrupt:
        return
    try:
        context = door(ranks, not is_interrupt)
    except Exception:  # noqa: BLE001 (the group is what is wrong, or its ring is gone: the first error says more)
        return
    if context is None:
        return
    if is_interrupt:
        _core.ring_fail(context, _core.RING_INTERRUPTED)
        return
    begins()
    is_own = isinstance(error, Error)
    try:
        _core.ring_refuse(context, _kind_of(error), str(error) if is_own else f"{type(error).__name__}: {error}")
    except Error as agreed:
        if is_own or type(error) in (RuntimeError, ValueError):
            raise agreed from error


def _kind_of(error: BaseException) -> str:
    if isinstance(error, UnsupportedError):
        return UnsupportedError.__name__
    if isinstance(error, (ArgumentError, TypeError, ValueError)):
        return ArgumentError.__name__
    return "RunError"
