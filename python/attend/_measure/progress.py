"""A bar on stderr, where that is a terminal."""

from __future__ import annotations

import sys

from attend._measure.errors import require
from attend._measure.measurement import Progress


class Bar(Progress):
    """One step for each implementation, problem and mode."""

    def __init__(self, total: int) -> None:
        (tqdm,) = require("tqdm", purpose="a bar of progress")
        self._bar = tqdm.tqdm(total=total, disable=None, unit="run", file=sys.stderr, leave=False)

    def step(self, what: str) -> None:
        self._bar.set_postfix_str(what)
        self._bar.update()

    def close(self) -> None:
        self._bar.close()
