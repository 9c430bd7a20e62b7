"""Draws the pictures of the experiments: colour tables over the configurations, and lines over the sequence length."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

from attend._measure import machine, plotting, style
from attend._measure.measurement import Row
from attend.experiments.report import sections


class Figure(NamedTuple):
    field: str
    title: str
    best_is_low: bool


TABLES = {
    "time": Figure("ms", "ms, median", True),
    "speedup": Figure("speedup", "times as fast as PyTorch on the CPU", False),
    "tflops": Figure("tflops", "TFLOP/s", False),
    "bandwidth": Figure("gbps", "GB/s of inputs and outputs, each once", False),
    "memory": Figure("peak_mib", "peak memory beyond the inputs, MiB", True),
}
# The line pictures over the sequence length: {name: (experiment, figure)}.
LINES = {
    "scaling": ("seqlen", TABLES["time"]),
    "scaling_memory": ("seqlen", TABLES["memory"]),
    "gpt3": ("gpt3", TABLES["tflops"]),
}


def draw(
    rows: Sequence[Row],
    about: dict[str, Any],
    folder: pathlib.Path,
    suffix: str,
    all_lines: bool = False,
    sources: Sequence[pathlib.Path] = (),
) -> list[pathlib.Path]:
    """Writes folder/experiments_NAME.suffix for each picture that has data.

    Line pictures show the implementations of attend and of its peers that are best at the longest sequences. There are
    style.MOST_LINES lines in total, or all with `all_lines`. `sources` are the files of the rows. Their names are
    written to the pictures' metadata.
    """
    paths = []
    for name, figure in TABLES.items():
        if any(getattr(r, figure.field) for r in rows):
            canvas = _tables(rows, figure, machine.title(about))
            paths.append(plotting.save(canvas, folder / f"experiments_{name}.{suffix}", sources))
    for name, (experiment, figure) in LINES.items():
        over_lengths = [r for r in rows if r.experiment == experiment]
        if any(getattr(r, figure.field) for r in over_lengths):
            canvas = _lines(over_lengths, figure, machine.title(about), all_lines)
            paths.append(plotting.save(canvas, folder / f"experiments_{name}.{suffix}", sources))
    return paths


def _tables(rows: Sequence[Row], figure: Figure, caption: str) -> Any:
    plt, _ = plotting.toolkit()
    experiments = list(dict.fromkeys(r.experiment for r in rows))
    modes = list(dict.fromkeys(r.mode for r in rows))
    names = {e: list(dict.fromkeys(r.implementation for r in rows if r.experiment == e)) for e in experiments}
    heights = [1.2 + 0.2 * len(names[e]) for e in experiments]
    size = (0.9 + 6.3 * len(modes), 0.5 + sum(heights))
    canvas, axes = plt.subplots(
        len(experiments), len(modes), figsize=size, squeeze=False, height_ratios=heights, layout="constrained"
    )
    for experiment, line in zip(experiments, axes):
        for mode, axis in zip(modes, line):
            some = [r for r in rows if (r.experiment, r.mode) == (experiment, mode)]
            shapes = list(dict.fromkeys((r.B, r.H, r.S, r.D) for r in some))
            devices = {r.implementation: r.device for r in some if getattr(r, figure.field)}
            shown = sorted((name for name in names[experiment] if name in devices), key=devices.__getitem__)
            found = {(r.implementation, r.B, r.H, r.S, r.D): getattr(r, figure.field) for r in some}
            values = [[found.get((name, *shape)) for shape in shapes] for name in shown]
            columns = [",".join(map(str, shape)) for shape in shapes]
            groups = [devices[name] for name in shown]
            axis.set_title(f"{experiment}, {mode}: {figure.title}")
            if shown:
                plotting.log_heatmap(axis, shown, columns, values, figure.best_is_low, groups)
            else:  # there are no values, for example if the problems are too small to need memory
                axis.text(0.5, 0.5, "nothing above 0", ha="center", va="center")
                axis.set_axis_off()
    canvas.suptitle(caption, fontsize=8)
    return canvas


def _lines(rows: Sequence[Row], figure: Figure, caption: str, all_lines: bool) -> Any:
    plt, _ = plotting.toolkit()
    modes = [mode for _, mode in sections(rows)]
    size = (5.6 * len(modes), 4.6)
    canvas, axes = plt.subplots(1, len(modes), figsize=size, squeeze=False, sharey=True, layout="constrained")
    peers = {r.implementation for r in rows if r.library != "attend"}
    last = [_at_the_longest(rows, mode, figure) for mode in modes]
    most = None if all_lines else style.MOST_LINES
    looks = style.looks(plotting.worth_a_line(last, peers, figure.best_is_low, most))
    for mode, axis in zip(modes, axes[0]):
        series: dict[str, plotting.Points] = {}
        for r in rows:
            value = getattr(r, figure.field)
            if r.mode == mode and value and r.implementation in looks:
                series.setdefault(r.implementation, []).append((r.S, value))
        axis.set_title(f"{mode}, B {rows[0].B}, H {rows[0].H}, D {rows[0].D}")
        axis.set_xlabel("sequence length")
        plotting.log_lines(axis, series, looks, figure.title if axis is axes[0][0] else "")
    canvas.suptitle(caption, fontsize=8)
    return canvas


def _at_the_longest(rows: Sequence[Row], mode: str, figure: Figure) -> dict[str, float]:
    """Returns for each implementation the value at its longest sequence."""
    last: dict[str, float] = {}
    for r in sorted((r for r in rows if r.mode == mode and getattr(r, figure.field)), key=lambda r: r.S):
        value = getattr(r, figure.field)
        # The value is divided by the length, because some implementations end at shorter sequences.
        last[r.implementation] = value / r.S if figure.best_is_low else value
    return last
