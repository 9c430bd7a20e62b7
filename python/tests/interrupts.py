"""SIGINT for this process, as Ctrl-C sends it, some time after the calls that it is meant for have begun."""

from __future__ import annotations

import os
import signal
import threading
import time

SHORTEST_S = 1e-3  # the calls are under way by then


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
