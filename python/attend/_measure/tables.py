"""Makes text tables from rows, with one line for each implementation and one column for each problem."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Optional

from attend._measure.files import number
from attend._measure.measurement import Row

Table = tuple[list[str], list[list[str]]]  # header, lines


def label(row: Row) -> str:
    return ",".join(map(str, (row.B, row.H, row.S, row.D)))


NOISY = 0.2  # quartiles that are further apart than this fraction of the median
NOISE_NOTE = "~: noisy, the quartiles differ by more than 20 % of the median"


def is_noisy(row: Row) -> bool:
    return is_spread(row.ms, row.ms_p25, row.ms_p75)


def is_spread(median: Optional[float], low: Optional[float], high: Optional[float]) -> bool:
    """Returns whether the distance of the quartiles `low` and `high` exceeds NOISY times the median."""
    if median is None or low is None or high is None:
        return False
    return high - low > NOISY * median


def over_problems(rows: Sequence[Row], field: str) -> Table:
    """Returns a table of one field of each implementation on each problem, with "-" for missing values. All rows have
    the same mode and mask.
    """
    return _cells(rows, lambda row: _marked(row, getattr(row, field)))


def quartiles(rows: Sequence[Row]) -> Table:
    """Returns a table of the quartiles of the times."""
    return _cells(rows, lambda row: "-" if row.ms is None else f"{number(row.ms_p25)}-{number(row.ms_p75)}")


def _marked(row: Row, value: Any) -> str:
    return "-" if value is None else number(value) + "~" * is_noisy(row)


def _cells(rows: Sequence[Row], text: Callable[[Row], str]) -> Table:
    problems = list(dict.fromkeys(label(r) for r in rows))
    found = {(r.implementation, label(r)): text(r) for r in rows}
    lines = []
    for name, device, dtype in dict.fromkeys((r.implementation, r.device, r.dtype) for r in rows):
        lines.append([name, device, dtype, *(found.get((name, problem), "-") for problem in problems)])
    return ["implementation", "device", "dtype", *problems], lines


def overview(rows: Sequence[Row]) -> Table:
    """Returns a table with the best values, the geometric mean of the speed-up, and the largest error of each
    implementation.
    """
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


def means(rows: Sequence[Row]) -> Table:
    """Returns a table with the arithmetic means over the timed configurations of each implementation. The table also
    contains the number of these configurations.
    """
    header = ["implementation", "device", "dtype", "configurations", "ms", "TFLOP/s", "GB/s", "speed-up"]
    total = len({label(r) for r in rows})
    lines = []
    for key in dict.fromkeys((r.implementation, r.device, r.dtype) for r in rows):
        own = [r for r in rows if (r.implementation, r.device, r.dtype) == key and r.ms is not None]
        figures = [_mean([getattr(r, field) for r in own]) for field in ("ms", "tflops", "gbps")]
        faster = geometric_mean([r.speedup for r in own if r.speedup])
        lines.append([*key, f"{len(own)}/{total}", *map(number, figures), number(faster)])
    return header, lines


def _mean(values: Sequence[Optional[float]]) -> Optional[float]:
    known = [x for x in values if x is not None]
    return sum(known) / len(known) if known else None


def geometric_mean(values: Sequence[float]) -> Optional[float]:
    return math.exp(sum(map(math.log, values)) / len(values)) if values else None


def _scientific(value: Any) -> str:
    return "" if value is None else f"{value:.1e}"


def _largest(rows: Sequence[Row], field: str) -> Any:
    values = [getattr(r, field) for r in rows if getattr(r, field) is not None]
    return max(values, default=None)
