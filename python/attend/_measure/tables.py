"""Rows as tables of text: implementations downwards, problems across."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Optional

from attend._measure.files import number
from attend._measure.measurement import Row

Table = tuple[list[str], list[list[str]]]  # header, lines


def label(row: Row) -> str:
    return ",".join(map(str, (row.B, row.H, row.S, row.D)))


def over_problems(rows: Sequence[Row], field: str) -> Table:
    """A figure of each implementation on each problem; "-" where it was not taken. Rows of one mode and one mask."""
    problems = list(dict.fromkeys(label(r) for r in rows))
    found = {(r.implementation, label(r)): getattr(r, field) for r in rows}
    lines = []
    for name, device, dtype in dict.fromkeys((r.implementation, r.device, r.dtype) for r in rows):
        values = (found.get((name, problem)) for problem in problems)
        lines.append([name, device, dtype, *("-" if value is None else number(value) for value in values)])
    return ["implementation", "device", "dtype", *problems], lines


def overview(rows: Sequence[Row]) -> Table:
    """For each implementation what it reaches at best, its speed-up's geometric mean, and its largest error."""
    header = ["implementation", "speed-up", "TFLOP/s", "GB/s", "max abs err", "max rel err", "passed"]
    lines = []
    for name in dict.fromkeys(r.implementation for r in rows):
        own = [r for r in rows if r.implementation == name]
        checked = [r for r in own if r.passed is not None]
        lines.append(
            [
                name,
                number(geometric_mean([r.speedup for r in own if r.speedup])),
                *(number(_largest(own, field)) for field in ("tflops", "gbps")),
                *(_scientific(_largest(own, field)) for field in ("max_abs_err", "max_rel_err")),
                f"{sum(bool(r.passed) for r in checked)}/{len(checked)}",
            ]
        )
    return header, lines


def geometric_mean(values: Sequence[float]) -> Optional[float]:
    return math.exp(sum(map(math.log, values)) / len(values)) if values else None


def _scientific(value: Any) -> str:
    return "" if value is None else f"{value:.1e}"


def _largest(rows: Sequence[Row], field: str) -> Any:
    values = [getattr(r, field) for r in rows if getattr(r, field) is not None]
    return max(values, default=None)
