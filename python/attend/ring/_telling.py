"""A refusal on one rank is one on all: an error of a front end, before the library has the call, is told to the others.

They wait in what ranks tell each other before a call, where the refusal takes the call's place.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from attend import _core
from attend._errors import ArgumentError, Error, UnsupportedError

_Function = TypeVar("_Function", bound=Callable[..., Any])


class _Thread(threading.local):
    begun = 0  # calls that the library has had from this thread, which tells the others of its errors by itself


_here = _Thread()


def begins() -> None:
    """To be called right before the library is: what is raised from now on, the front ends tell nobody."""
    _here.begun += 1


def told(door: Callable[[Any], _core.RingContext], argument: str, traceable: bool = False) -> Callable[..., Any]:
    """A decorator: what the function raises before the library has the call, all ranks raise.

    Arguments:
        door: gives this rank of the ring that the others wait in, from the value of `argument`. Where that fails there
            is nobody to tell.
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
            begun = _here.begun
            try:
                return function(*args, **named)
            except BaseException as error:
                if _here.begun == begun:
                    _tell(error, door, named.get(argument, args[position] if len(args) > position else None))
                raise

        return call  # type: ignore[return-value]

    return decorate


def told_of(error: BaseException, door: Callable[[Any], _core.RingContext], ranks: Any, begun: int) -> None:
    """For a function that is its own decorator: `begun` is what calls_begun() gave before."""
    if _here.begun == begun:
        _tell(error, door, ranks)


def calls_begun() -> int:
    return _here.begun


def _tell(error: BaseException, door: Callable[[Any], _core.RingContext], ranks: Any) -> None:
    try:
        context = door(ranks)
    except Exception:  # noqa: BLE001 (what is wrong is the group, or its ring is gone: the caller raises the first error)
        return
    begins()
    if not isinstance(error, Exception):  # KeyboardInterrupt
        _core.ring_fail(context, _core.RING_INTERRUPTED)
        return
    is_own = isinstance(error, Error)
    text = str(error) if is_own else f"{type(error).__name__}: {error}"
    try:
        _core.ring_refuse(context, _kind_of(error), text)
    except Error as agreed:
        if is_own:
            raise agreed from error


def _kind_of(error: Exception) -> str:
    if isinstance(error, UnsupportedError):
        return UnsupportedError.__name__
    if isinstance(error, (ArgumentError, TypeError, ValueError)):
        return ArgumentError.__name__
    return "RunError"
