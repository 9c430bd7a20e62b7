"""SIGINT for this process, as Ctrl-C sends it, some time after the calls that it is meant for have begun."""

from __future__ import annotations

import os
import pathlib
import signal
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

import attend
from attend import _core

SHORTEST_S = 1e-3  # the calls are under way by then
_PACKAGE = str(pathlib.Path(attend.__file__).parent)
# The functions that a call of a ring begins and ends with: parts of them lie before it has begun, or after it is over.
_EDGES = ("_forward", "_backward", "_run", "call", "calls_begun")
_MOST_BETWEEN = 3


class Interrupt:
    """begin() starts the time. A timer of threading could fire before its own start() has returned."""

    def __init__(self, after: float) -> None:
        self._after = max(after, SHORTEST_S)
        self._begun = threading.Event()
        threading.Thread(target=self._wait, daemon=True).start()

    def begin(self) -> None:
        self._begun.set()

    def _wait(self) -> None:
        self._begun.wait()
        time.sleep(self._after)
        os.kill(os.getpid(), signal.SIGINT)


def call_until_interrupted(call: Callable[[], Any], after: float) -> None:
    """Calls a ring again and again. The signal comes after so many seconds.

    An interrupt between two calls, in the code of torch or of the test, is told to nobody, and nobody waits for this
    rank's call then. Another one comes soon after it.

    Raises:
        KeyboardInterrupt, of which the ring has been told.
        AssertionError where it has not been told of an interrupt within a call.
    """
    is_told = False
    fail = _core.ring_fail

    def listen(context: Any, why: str) -> None:
        nonlocal is_told
        is_told = True
        fail(context, why)

    _core.ring_fail = listen
    try:
        for _ in range(_MOST_BETWEEN):
            interrupt = Interrupt(after)
            try:
                interrupt.begin()
                while True:
                    call()
            except KeyboardInterrupt as error:
                if is_told:
                    raise
                own = [frame for frame in traceback.extract_tb(error.__traceback__) if _PACKAGE in frame.filename]
                assert not own or own[-1].name in _EDGES, f"nobody was told of an interrupt in {own[-1]}"
            after = SHORTEST_S
        raise AssertionError(f"{_MOST_BETWEEN} interrupts in a row came between two calls")
    finally:
        _core.ring_fail = fail
