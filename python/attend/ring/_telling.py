"""Makes all ranks raise an error that the Python code of one rank raises before the library receives the call.

At the beginning of a call, the library's ranks exchange a message. A rank with an error sends the error in place of
this message, for which the other ranks wait.
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
    # Number of this thread's calls that the library has received. The library itself reports the errors of these calls
    # to the other ranks.
    begun = 0


_here = _Thread()


def begins() -> None:
    """Must be called immediately before the library is called. From then on the library, not Python, reports errors to
    other ranks.
    """
    _here.begun += 1


@contextlib.contextmanager
def connecting() -> Iterator[None]:
    """Within this context, in which ranks connect, errors are not reported to other ranks."""
    try:
        yield
    except BaseException:
        begins()
        raise


# A function of a group or communicator and a flag. The function returns this rank's ring, in which the other ranks
# wait. If there is no ring yet, the flag decides whether it connects or returns None.
Door = Callable[[Any, bool], Optional[_core.RingContext]]


def told(door: Door, argument: str, traceable: bool = False) -> Callable[..., Any]:
    """Returns a decorator. If the decorated function raises an error before the library receives the call, all ranks
    raise it.

    An interrupt is always reported, because the other ranks would otherwise wait for the rank's next call.

    Arguments:
        door: finds the ring of the group or communicator. If `door` fails, no other rank can be notified.
        argument: name of the function's argument that is the group or communicator.
        traceable: True if torch.compile may trace the function. While it is traced, errors are not reported.
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
    """Reports an exception to the other ranks. `begun` is the value of calls_begun() before the function was called.

    Raises:
        attend.Error, which all ranks raise, if `error` is an attend.Error or exactly a RuntimeError or ValueError.
    """
    is_interrupt = not isinstance(error, Exception)
    if _here.begun != begun and not is_interrupt:
        return
    try:
        context = door(ranks, not is_interrupt)
    except Exception:  # noqa: BLE001 (the group is invalid or its ring is closed; the original error is more useful)
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
