"""Reports progress: by a bar on stderr if stderr is a terminal, and by lines on stdout if stdout is not a terminal."""

from __future__ import annotations

import sys

from attend._measure.errors import require
from attend._measure.files import number
from attend._measure.measurement import Progress, Row


class Bar(Progress):
    """A progress bar with one step for each implementation, problem and mode."""

    def __init__(self, total: int) -> None:
        (tqdm,) = require("tqdm", purpose="a bar of progress")
        self._bar = tqdm.tqdm(total=total, disable=None, unit="run", file=sys.stderr, leave=False)

    def found(self, row: Row) -> None:
        """Prints a line immediately if stdout is a file or pipe, so that its reader sees the progress."""
        result = row.remark if row.ms is None else f"{number(row.ms)} ms"
        self.say(f"{row.experiment} {row.mode} {row.shape} {row.implementation} {row.dtype}: {result}")

    def say(self, line: str) -> None:
        """Prints a line of text without damaging the bar."""
        if not sys.stdout.isatty():
            print(line, flush=True)

    def step(self, what: str) -> None:
        self._bar.set_postfix_str(what)
        self._bar.update()

    def close(self) -> None:
        self._bar.close()
