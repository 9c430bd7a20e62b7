"""Results as files: JSON, CSV, aligned text."""

from __future__ import annotations

import csv
import json
import math
import pathlib
from collections.abc import Iterable, Sequence
from typing import Any

from attend._measure.errors import UsageError


def write_json(path: pathlib.Path, value: Any) -> None:
    write_text(path, json.dumps(finite(value), indent=1, allow_nan=False) + "\n")


def write_csv(path: pathlib.Path, columns: Sequence[str], rows: Iterable[dict[str, Any]]) -> None:
    """One line a row; an empty cell is a figure that was not taken."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(finite(row) for row in rows)


def write_text(path: pathlib.Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def read_json(path: pathlib.Path, kinds: Sequence[str]) -> dict[str, Any]:
    """A result file of one of these kinds.

    Raises:
        UsageError where there is none.
    """
    try:
        data = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: {error}, allowed a JSON file that this package wrote") from error
    kind = data.get("kind") if isinstance(data, dict) else None
    if kind not in kinds:
        raise UsageError(f"{path}: kind {kind!r}, allowed {', '.join(kinds)}")
    return dict(data)


def finite(value: Any) -> Any:
    """The same with None for numbers that JSON does not have."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: finite(x) for key, x in value.items()}
    return [finite(x) for x in value] if isinstance(value, (list, tuple)) else value


def number(value: Any, digits: int = 3) -> str:
    """A figure for a table: so many significant digits, never an exponent for what is of common size."""
    if value is None:
        return ""
    if value == 0 or not 1e-3 <= abs(value) < 1e5:
        return f"{value:.{digits}g}"
    return f"{value:.{max(0, digits - 1 - math.floor(math.log10(abs(value))))}f}"


def aligned(header: Sequence[str], lines: Sequence[Sequence[str]]) -> list[str]:
    """A table as text: the first column to the left, the others to the right."""
    widths = [max(len(row[i]) for row in (header, *lines)) for i in range(len(header))]
    left = [row[0].ljust(widths[0]) for row in (header, *lines)]
    right = [[cell.rjust(width) for cell, width in zip(row[1:], widths[1:])] for row in (header, *lines)]
    return ["  ".join([first, *rest]) for first, rest in zip(left, right)]
