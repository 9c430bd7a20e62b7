"""What the experiments found, as files and as text."""

from __future__ import annotations

import math
import pathlib
from collections.abc import Sequence
from typing import Any

from attend._measure import files, machine
from attend._measure.session import COLUMNS, Row, failures, left_out_lines

JSON, CSV, TEXT = "results.json", "results.csv", "summary.txt"


def save(data: dict[str, Any], folder: pathlib.Path) -> list[pathlib.Path]:
    """Writes results.json, results.csv and summary.txt."""
    paths = [folder / JSON, folder / CSV, folder / TEXT]
    files.write_json(paths[0], data)
    files.write_csv(paths[1], COLUMNS, data["rows"])
    files.write_text(paths[2], text(data))
    return paths


def rows_of(data: dict[str, Any]) -> list[Row]:
    return [Row(**row) for row in data["rows"]]


def text(data: dict[str, Any]) -> str:
    """For each experiment and pass a table of times, then a line for each implementation; then what was left out."""
    rows = rows_of(data)
    lines = [machine.title(data["machine"]), *data["notes"]]
    for experiment, mode in sections(rows):
        some = [r for r in rows if (r.experiment, r.mode) == (experiment, mode)]
        header, cells = time_table(some)
        lines += ["", f"{experiment}, {mode}: ms, median", *files.aligned(header, cells), ""]
        lines += files.aligned(*overview_table(some))
    left_out = left_out_lines(rows)
    lines += ["", "left out:", *(f"  {line}" for line in left_out)] if left_out else []
    failed = failures(rows)
    lines += ["", "FAILED:", *(f"  {line}" for line in failed)] if failed else []
    checked = sum(r.passed is not None for r in rows)
    passed = f"{checked - len(failed)} of {checked} checks against float64 passed"
    lines += ["", f"{passed} (tolerance {data['tolerance']:g})"]
    if data["stopped"]:
        lines.append(f"stopped at the first failed check; --no-stop-on-failure goes on: {data['stopped']}")
    return "\n".join(lines) + "\n"


def sections(rows: Sequence[Row]) -> list[tuple[str, str]]:
    """(experiment, mode) in the order in which they were measured."""
    return list(dict.fromkeys((r.experiment, r.mode) for r in rows))


def time_table(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Header and lines: milliseconds of each implementation (lines) on each problem (columns)."""
    shapes = list(dict.fromkeys((r.B, r.H, r.S, r.D) for r in rows))
    found = {(r.implementation, r.B, r.H, r.S, r.D): r for r in rows}
    header = ["implementation", "device", "dtype", *(",".join(map(str, shape)) for shape in shapes)]
    lines = []
    for name, device, dtype in dict.fromkeys((r.implementation, r.device, r.dtype) for r in rows):
        cells = (found.get((name, *shape)) for shape in shapes)
        lines.append([name, device, dtype, *("-" if r is None or r.ms is None else files.number(r.ms) for r in cells)])
    return header, lines


def overview_table(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Header and lines: for each implementation what it reaches at best, and its largest error."""
    header = ["implementation", "speed-up", "TFLOP/s", "GB/s", "max abs err", "max rel err", "passed"]
    lines = []
    for name in dict.fromkeys(r.implementation for r in rows):
        own = [r for r in rows if r.implementation == name]
        checked = [r for r in own if r.passed is not None]
        lines.append(
            [
                name,
                files.number(geometric_mean([r.speedup for r in own if r.speedup])),
                *(files.number(_largest(own, field)) for field in ("tflops", "gbps")),
                *(_scientific(_largest(own, field)) for field in ("max_abs_err", "max_rel_err")),
                f"{sum(bool(r.passed) for r in checked)}/{len(checked)}",
            ]
        )
    return header, lines


def geometric_mean(values: Sequence[float]) -> Any:
    return math.exp(sum(map(math.log, values)) / len(values)) if values else None


def _scientific(value: Any) -> str:
    return "" if value is None else f"{value:.1e}"


def _largest(rows: Sequence[Row], field: str) -> Any:
    values = [getattr(r, field) for r in rows if getattr(r, field) is not None]
    return max(values, default=None)
