"""Measures attend and its peers on every problem of the `decode` command, and makes tables of the results."""

from __future__ import annotations

import dataclasses
import functools
import gc
from collections.abc import Sequence
from typing import Any, Optional

from attend._measure import files, machine, tables
from attend._measure.apart import on_a_fresh_thread
from attend._measure.decode_shapes import COLD, WARM, Setting, Shape
from attend._measure.implementations import refusal
from attend._measure.timing import Limits, Timing

ALLOWED = {"f32": 1e-3}  # largest relative difference, by the dtype of q; default: LARGEST_DIFFERENCE
ALLOWED_NARROW = 0.1  # limit for attend_wide, whose difference from attend includes the 8-bit rounding


@dataclasses.dataclass
class Row:
    """The measurement of one side on one problem with warm or cold caches. If the side was skipped or failed, `us` is
    None and `remark` contains the reason.

    `implementation` is attend, attend_wide or a library, and `variant` is the fastest variant of that library. `us` is
    the median in microseconds. `difference` is a relative norm: attend's result is compared with the definition, other
    results are compared with attend's. `passed` is None if there is no result.
    """

    implementation: str
    library: str
    variant: str
    state: str
    B: int
    S: int
    page_size: int
    cache: str
    bytes: int = 0
    us: Optional[float] = None
    us_min: Optional[float] = None
    us_p25: Optional[float] = None
    us_p75: Optional[float] = None
    samples: int = 0
    gbps: Optional[float] = None
    difference: Optional[float] = None
    allowed: Optional[float] = None
    passed: Optional[bool] = None
    remark: str = ""

    @property
    def place(self) -> str:
        pages = f" pages of {self.page_size}" if self.page_size else ""
        return f"{self.B}x{self.S}{pages}"

    @property
    def line(self) -> str:
        if self.us is None:
            return f"{self.place} {self.implementation}: {self.remark}"
        name = f"{self.implementation} ({self.variant})" if self.variant else self.implementation
        figures = f"{files.number(self.us)} us, {files.number(self.gbps)} GB/s"
        return f"{self.place} {self.state} {name}: {figures}{': ' * bool(self.remark)}{self.remark}"


def as_dicts(rows: Sequence[Row]) -> list[dict[str, Any]]:
    return [dataclasses.asdict(row) for row in rows]


def notes(settings: Sequence[Setting], rows_of_q: int) -> list[str]:
    """Returns one line for each reason why peers are not measured on any problem of a setting."""
    from attend._measure import decode_sides

    found, first = [], settings[0]
    of_gpus = list(decode_sides.MODULES)
    if first.device == "cpu":
        found.append(f"left out, on a GPU only: {', '.join(of_gpus)}")
        of_gpus = []
    elif first.dtype == "f32":
        found.append(f"left out, 16 bits only: {', '.join(of_gpus)}")
        of_gpus = []
    elif decode_sides.absent():
        found.append(f"left out, not installed: {', '.join(decode_sides.absent())}")
        of_gpus = [name for name in of_gpus if name not in decode_sides.absent()]
    if first.cache is not None:
        names = ["torch", *(name for name in of_gpus if name in decode_sides.without(first.cache))]
        found.append(f"left out, no {first.cache} caches with a q of {first.dtype}: {', '.join(names)}")
    elif any(setting.page_size for setting in settings):
        found.append("left out, no pages: torch")
    if rows_of_q > 1 and "flashinfer" in of_gpus:
        found.append("left out, one query row only: flashinfer")
    return found


def measure(shape: Shape, setting: Setting, limits: Limits, with_peers: bool) -> list[Row]:
    """Compares the results of all sides on a problem, then times the sides in alternation. Returns the rows."""
    import torch

    gc.collect()
    if setting.device == "cuda":
        torch.cuda.empty_cache()
    try:
        with torch.no_grad():
            return _measure(shape, setting, limits, with_peers)
    except Exception as error:  # noqa: BLE001 (an error in one problem must not lose the others)
        from attend._measure.differences import first_line

        refused = refusal(error)
        row = _row("attend", shape, setting)
        row.remark, row.passed = refused or first_line(error), None if refused else False
        return [row]


def _measure(shape: Shape, setting: Setting, limits: Limits, with_peers: bool) -> list[Row]:
    from attend._measure import decode_problem, decode_sides, decode_turns

    one = decode_problem.problem(shape, setting)
    one.sides = decode_sides.ours(one) | (decode_sides.theirs(one) if with_peers else {})
    difference, refused = decode_turns.compare(one)
    if "attend" in one.sides:
        difference["attend"] = _from_the_definition(one)
    sampling = decode_turns.Sampling(rounds=limits.samples, sample_ms=limits.sample_ms)
    decode_turns.keep_the_fastest(one, sampling, refused)
    taken = decode_turns.timings(one, limits, sampling, refused)
    rows = []
    for name in one.sides:
        if (name, WARM) not in taken:
            continue
        warm = taken[name, WARM]
        states = {WARM: warm, COLD: taken.get((name, COLD), warm)} if setting.device == "cuda" else {WARM: warm}
        for state, timing in states.items():
            rows.append(_timed(_row(name, shape, setting, state), one.bytes_of(name), timing))
            _judge(rows[-1], difference.get(name), setting)
    seen = {row.implementation for row in rows}
    for name, text in refused.items():
        row = _row(name, shape, setting)
        if row.implementation not in seen:  # if it was seen, another variant of the library has computed the problem
            row.remark, row.passed = text, False if row.library == "attend" else None
            rows.append(row)
    return rows


def _from_the_definition(one: Any) -> float:
    """Returns the relative difference between attend's o and the definition, for the first and the last sequence."""
    from attend._measure.decode_problem import by_definition
    from attend._measure.differences import relative_difference

    o = one.sides["attend"](one.cache_of("attend"))
    found = []
    for sequence in {0, len(one.shape.lengths) - 1}:
        want = on_a_fresh_thread(functools.partial(by_definition, one, sequence))
        found.append(relative_difference(o[sequence], want))
    return float("nan") if any(x != x for x in found) else max(found)  # noqa: PLR0124 (max may lose a NaN)


def _row(name: str, shape: Shape, setting: Setting, state: str = WARM) -> Row:
    side, _, variant = name.partition(" ")
    library = "attend" if side.startswith("attend") else side
    cache = setting.dtype if side == "attend_wide" else setting.cache or setting.dtype
    return Row(side, library, variant, state, len(shape.lengths), max(shape.lengths), setting.page_size, cache)


def _timed(row: Row, moved: int, timing: Timing) -> Row:
    row.bytes, row.samples = moved, timing.samples
    row.us, row.us_min, row.us_p25, row.us_p75 = (
        1e3 * ms for ms in (timing.ms, timing.ms_min, timing.ms_p25, timing.ms_p75)
    )
    row.gbps = moved / row.us / 1e3
    return row


def _judge(row: Row, difference: Optional[float], setting: Setting) -> None:
    """Sets `passed`: whether the difference is within its limit. NaN never passes."""
    from attend._measure.differences import LARGEST_DIFFERENCE

    row.allowed = (
        ALLOWED_NARROW if row.implementation == "attend_wide" else ALLOWED.get(setting.dtype, LARGEST_DIFFERENCE)
    )
    row.difference = difference
    if difference is None:  # attend has no result to compare with
        return
    row.passed = difference <= row.allowed
    if not row.passed:
        than = "the definition" if row.implementation == "attend" else "attend"
        row.remark = f"differs from {than} by {difference:.3g} of the norm, allowed {row.allowed:.3g}"


def failures(rows: Sequence[Row]) -> list[str]:
    return [f"{row.implementation} {row.place} {row.state}: {row.remark}" for row in rows if row.passed is False]


def left_out(rows: Sequence[Row]) -> list[str]:
    """Returns one line for each combination of side and reason. The line lists the skipped problems."""
    found: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if row.us is None and row.passed is not False:
            name = f"{row.implementation} {row.variant}".strip()
            found.setdefault((name, row.remark), []).append(row.place)
    return [f"{name} at {', '.join(places)}: {remark}" for (name, remark), places in found.items()]


def text(data: dict[str, Any]) -> str:
    """Returns the text output. For each page size and cache state it contains a table of times in microseconds, a table
    of GB/s, and the geometric mean of the best peer's time divided by attend's time.
    """
    rows = [Row(**row) for row in data["rows"]]
    cache = f", cache {data['cache']}" if data["cache"] != data["dtype"] else ""
    what = f"{data['H']}:{data['Hkv']} heads, head_dim {data['D']}, rows {data['rows_of_q']}, {data['dtype']}{cache}"
    lines = [machine.title(data["machine"]), what, *data["notes"]]
    timed = [row for row in rows if row.us is not None]
    for page_size, state in dict.fromkeys((row.page_size, row.state) for row in timed):
        some = [row for row in timed if (row.page_size, row.state) == (page_size, state)]
        title = f"pages of {page_size}" if page_size else "contiguous"
        title += f", {state} caches" if data["device"] == "cuda" else ""
        lines += ["", f"{title}: us, median", *files.aligned(*_table(some, "us"))]
        lines += ["", f"{title}: GB/s of keys and values, read once", *files.aligned(*_table(some, "gbps"))]
        ratio = tables.geometric_mean([x for x in map(_ratio, _by_place(some).values()) if x is not None])
        if ratio is not None:
            lines.append(f"attend over the best of its peers, geometric mean: {ratio:.2f} times as fast")
    lines += ["", tables.NOISE_NOTE] if any(map(_is_noisy, timed)) else []
    for title, found in (("left out:", left_out(rows)), ("FAILED:", failures(rows))):
        lines += ["", title, *(f"  {line}" for line in found)] if found else []
    return "\n".join(lines)


def _is_noisy(row: Row) -> bool:
    return tables.is_spread(row.us, row.us_p25, row.us_p75)


def _by_place(rows: Sequence[Row]) -> dict[tuple[int, int], list[Row]]:
    found: dict[tuple[int, int], list[Row]] = {}
    for row in rows:
        found.setdefault((row.B, row.S), []).append(row)
    return found


def _table(rows: Sequence[Row], field: str) -> tables.Table:
    """Returns a table with a row for each problem and a column for each side. A table of times also has a column with
    the ratio of the best peer's time to attend's.
    """
    sides = list(dict.fromkeys(row.implementation for row in rows))
    has_ratio = field == "us" and any(row.library != "attend" for row in rows)
    cells = []
    for (batch, length), some in _by_place(rows).items():
        found = {row.implementation: _cell(row, field) for row in some}
        cells.append([f"{batch},{length}", *(found.get(side, "-") for side in sides)])
        if has_ratio:
            ratio = _ratio(some)
            cells[-1].append("-" if ratio is None else f"{ratio:.2f}x")
    return ["B,S", *sides, *(["best peer / attend"] if has_ratio else [])], cells


def _cell(row: Row, field: str) -> str:
    figure = files.number(getattr(row, field)) + "~" * _is_noisy(row)
    return f"{row.variant} {figure}" if row.variant and field == "us" else figure


def _ratio(rows: Sequence[Row]) -> Optional[float]:
    """Returns the best peer's time divided by attend's for one problem, or None if either is missing."""
    own = [row.us for row in rows if row.implementation == "attend" and row.us is not None]
    others = [row.us for row in rows if row.library != "attend" and row.us is not None]
    return min(others) / own[0] if own and others else None
