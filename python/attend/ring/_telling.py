"""A refusal on one rank is one on all: an error of a front end, before the library has the call, is told to the others.

They wait in what ranks tell each other before a call, where the refusal takes the call's place.
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
    begun = 0  # calls that the library has had from this thread, which tells the others of its errors by itself


_here = _Thread()


def begins() -> None:
    """To be called right before the library is: what is raised from now on, the front ends tell nobody."""
    _here.begun += 1


@contextlib.contextmanager
def connecting() -> Iterator[None]:
    """What is raised while ranks connect, the front ends tell nobody. What is raised after that, they do."""
    try:
        yield
    except BaseException:
        begins()
        raise


# This rank of the ring that the others wait in, from a group or communicator. None where there is none yet and the
# second argument, whether to connect it, is False.
Door = Callable[[Any, bool], Optional[_core.RingContext]]


def told(door: Door, argument: str, traceable: bool = False) -> Callable[..., Any]:
    """A decorator: what the function raises before the library has the call, all ranks raise.

    An interrupt is told whenever it comes: the others would wait for the rank's next call.

    Arguments:
        door: asked for `argument`. Where that fails there is nobody to tell.
        argument: of the function: the group or communicator.
        traceable: torch.compile may follow the function, which then tells nobody.
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
    """What the decorator does with an exception. `begun`: calls_begun() before.

    Raises:
        attend.Error, which all ranks raise, where `error` is one too, or no more than a RuntimeError or ValueError.
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
