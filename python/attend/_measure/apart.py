"""Long calls on threads of their own, which a signal's exception leaves behind: no library but attend would end one."""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import sys
import threading
from collections.abc import Callable
from typing import NoReturn, TypeVar

T = TypeVar("T")
_left_behind: list[threading.Thread] = []


def on_a_fresh_thread(call: Callable[[], T]) -> T:
    """What `call` returns or raises. A signal's exception comes at once, and leaves the call to end by itself.

    The handlers of signals run on the main thread alone, which must not wait for the end of what they are to end.
    """
    outcome: concurrent.futures.Future[T] = concurrent.futures.Future()

    def work() -> None:
        try:
            outcome.set_result(call())
        except BaseException as error:  # noqa: BLE001 - the caller gets it
            outcome.set_exception(error)

    thread = threading.Thread(target=work, daemon=True)  # not an executor's: they are waited for, at the latest at exit
    thread.start()
    try:
        result = outcome.result()
    except BaseException:
        if not outcome.done():
            _left_behind.append(thread)
        raise
    thread.join()  # its scratch is gone then
    return result


def end(status: int) -> NoReturn:
    """Leaves the process with this status; where a thread left behind still computes, nothing it uses is torn down."""
    if any(thread.is_alive() for thread in _left_behind):
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(status)
    sys.exit(status)
