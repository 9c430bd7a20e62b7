"""Sends SIGINT to this process, as Ctrl-C does, some time after the targeted calls have begun."""

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

SHORTEST_S = 1e-3  # after this delay the calls have begun
_PACKAGE = str(pathlib.Path(attend.__file__).parent)
# Functions that run at the beginning or the end of a ring call. In these functions the call may not have begun yet, or
# may be over.
_EDGES = ("_forward", "_backward", "_run", "call", "calls_begun")
_MOST_BETWEEN = 3


class Interrupt:
    """Sends the signal after a delay, which begin() starts. A threading.Timer is not used, because it could fire before
    its start() has returned.
    """

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
    """Calls a ring repeatedly until a signal arrives, `after` seconds later.

    The interrupt may occur between two calls, in code of torch or of the test. The ring then does not notice it, and no
    rank waits for this rank's call. In this case another interrupt follows soon.

    Raises:
        KeyboardInterrupt, if the ring has noticed the interrupt. AssertionError, if an interrupt occurred within a call
        and the ring has not noticed it.
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
