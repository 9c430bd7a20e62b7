"""Writes the results of the experiments as files and as text."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import Any

from attend._measure import files, machine, tables
from attend._measure.measurement import COLUMNS, Row, failures, left_out_lines

INTERRUPTED = "interrupted"  # value of data["stopped"] after Ctrl-C; its other values name a failed check
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
    """Returns for each experiment and pass the times, with a line for each implementation, and the means. A list of
    skipped problems follows.
    """
    rows = rows_of(data)
    lines = [machine.title(data["machine"]), *data["notes"]]
    for experiment, mode in sections(rows):
        some = [r for r in rows if (r.experiment, r.mode) == (experiment, mode)]
        lines += ["", f"{experiment}, {mode}: ms, median", *files.aligned(*tables.over_problems(some, "ms")), ""]
        lines += ["ms, quartiles", *files.aligned(*tables.quartiles(some)), ""]
        lines += [*files.aligned(*tables.overview(some)), ""]
        lines += ["means over the configurations", *files.aligned(*tables.means(some))]
    lines += ["", tables.NOISE_NOTE] if any(map(tables.is_noisy, rows)) else []
    left_out = left_out_lines(rows)
    lines += ["", "left out:", *(f"  {line}" for line in left_out)] if left_out else []
    failed = failures(rows)
    lines += ["", "FAILED:", *(f"  {line}" for line in failed)] if failed else []
    checked = sum(r.passed is not None for r in rows)
    passed = f"{checked - len(failed)} of {checked} checks against float64 passed"
    lines += ["", f"{passed} (tolerance {data['tolerance']:g})"]
    if data["stopped"] == INTERRUPTED:
        lines.append("interrupted: the results so far are here")
    elif data["stopped"]:
        lines.append(f"stopped at the first failed check (--no-stop-on-failure continues): {data['stopped']}")
    return "\n".join(lines) + "\n"


def sections(rows: Sequence[Row]) -> list[tuple[str, str]]:
    """Returns the pairs (experiment, mode) in the order in which they were measured."""
    return list(dict.fromkeys((r.experiment, r.mode) for r in rows))
