"""Runs long calls on separate threads. If a signal raises an exception, the thread is left behind, because calls of
other libraries cannot be aborted.
"""

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
    """Returns or raises the outcome of `call`. If a signal handler raises an exception, it is raised immediately, and
    the call continues to run.

    Signal handlers run only on the main thread, so the main thread must not block in the call.
    """
    outcome: concurrent.futures.Future[T] = concurrent.futures.Future()

    def work() -> None:
        try:
            outcome.set_result(call())
        except BaseException as error:  # noqa: BLE001 - it is raised in the caller's thread
            outcome.set_exception(error)

    thread = threading.Thread(target=work, daemon=True)  # not an executor, whose threads would be joined at exit
    thread.start()
    try:
        result = outcome.result()
    except BaseException:
        if not outcome.done():
            _left_behind.append(thread)
        raise
    thread.join()  # after the thread has ended, its workspace is freed
    return result


def end(status: int) -> NoReturn:
    """Exits with this status. If a thread that was left behind still computes, exits without destroying objects that it
    uses.
    """
    if any(thread.is_alive() for thread in _left_behind):
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(status)
    sys.exit(status)
