"""Reads the CSV output of `ncu --csv --page raw`, which has a header row, a row of units, and one row for each
launch.
"""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass

_FIRST_COLUMN, _KERNEL = "ID", "Kernel Name"
_PREFIXES = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "K": 1e3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "": 1.0}
_UNIT = re.compile(rf"(?P<prefix>[{''.join(_PREFIXES)}]?)(second|s|hz|byte|cycle)$")


class ReportError(Exception):
    """Raised if the report cannot be used. The message is one line."""


@dataclass(frozen=True)
class Launch:
    """One launch of a kernel.

    Attributes:
        values: {Nsight Compute's name: measurement in s, hz, byte, cycle or %, or a number without a unit}. Values that
            were not measured, or are "n/a", are absent.
        texts: values that are not numbers.
    """

    kernel: str
    grid: str
    block: str
    values: dict[str, float]
    texts: dict[str, str]


def scale_of(unit: str) -> float:
    """Returns the factor that converts a value with this unit to base units.

    Examples are 1e-9 for "ns" and "nsecond", and 1e9 for "Gbyte" and "cycle/nsecond". The factor is 1 for a unit
    without a prefix and for an unknown unit.
    """
    above, _, below = unit.partition("/")
    return _factor(above) / _factor(below)


def parse(text: str) -> list[Launch]:
    """Returns the launches of a report, in order.

    Raises:
        ReportError if there is no launch, or if the CSV is not Nsight Compute's page "raw".
    """
    # Lines before the header are messages (==PROF== ...) and output of the profiled program.
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith(f'"{_FIRST_COLUMN}",')), None)
    if start is None:
        raise ReportError('no header row that starts with "ID", allowed the output of `ncu --csv --page raw`')
    rows = [row for row in csv.reader(lines[start:]) if row and not row[0].startswith("==")]
    header = rows[0]
    if "Metric Name" in header:
        raise ReportError("one row for each metric, allowed one row for each launch: `ncu --csv --page raw`")
    if _KERNEL not in header:
        raise ReportError(f'no column "{_KERNEL}", allowed the output of `ncu --csv --page raw`')
    # A row without an ID contains units. A file that combines several reports has several such rows.
    launches, units = [], [""] * len(header)
    for row in rows[1:]:
        if len(row) != len(header):
            raise ReportError(f"a row of {len(row)} fields, allowed {len(header)} as in the header; cut off?")
        if row[0] == "":
            units = row
        elif row != header:
            launches.append(_launch(header, units, row))
    if not launches:
        raise ReportError("no launch in it; was the kernel skipped, or stopped by an error?")
    return launches


def _launch(header: list[str], units: list[str], row: list[str]) -> Launch:
    fields = dict(zip(header, row))
    values, texts = {}, {}
    for name, unit, field in zip(header, units, row):
        number = _number(field)
        if number is not None:
            values[name] = number * scale_of(unit)
        elif field not in ("", "n/a", "N/A"):
            texts[name] = field
    return Launch(fields[_KERNEL], fields.get("Grid Size", ""), fields.get("Block Size", ""), values, texts)


def _number(field: str) -> float | None:
    """Returns the number, which may have commas between thousands, or None."""
    if not re.fullmatch(r"[-+]?(\d[\d,]*\.?\d*|\.\d+)([eE][-+]?\d+)?", field):
        return None
    return float(field.replace(",", ""))


def _factor(unit: str) -> float:
    match = _UNIT.match(unit)
    return _PREFIXES[match["prefix"]] if match else 1.0
