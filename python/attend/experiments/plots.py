"""The pictures of the experiments: tables in colour over the configurations, lines over the sequence length."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

from attend._measure import machine, plotting
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
# Over the sequence length: (experiment, figure).
LINES = {
    "scaling": ("seqlen", TABLES["time"]),
    "scaling_memory": ("seqlen", TABLES["memory"]),
    "gpt3": ("gpt3", TABLES["tflops"]),
}
WHOLE = {"gpt3"}  # pictures of all lines: every step of the tensor cores' ladder is what they are for


def draw(
    rows: Sequence[Row], about: dict[str, Any], folder: pathlib.Path, suffix: str, all_lines: bool = False
) -> list[pathlib.Path]:
    """Writes folder/experiments_NAME.suffix for each picture that has figures to show.

    Pictures of lines show the peers and attend's best at the longest sequences, or `all_lines`.
    """
    paths = []
    for name, figure in TABLES.items():
        if any(getattr(r, figure.field) for r in rows):
            paths.append(_tables(rows, figure, machine.title(about), folder / f"experiments_{name}.{suffix}"))
    for name, (experiment, figure) in LINES.items():
        over_lengths = [r for r in rows if r.experiment == experiment]
        if any(getattr(r, figure.field) for r in over_lengths):
            path = folder / f"experiments_{name}.{suffix}"
            paths.append(_lines(over_lengths, figure, machine.title(about), path, all_lines or name in WHOLE))
    return paths


def _tables(rows: Sequence[Row], figure: Figure, caption: str, path: pathlib.Path) -> pathlib.Path:
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
            devices = {r.implementation: r.device for r in some}
            shown = sorted((name for name in names[experiment] if name in devices), key=devices.__getitem__)
            found = {(r.implementation, r.B, r.H, r.S, r.D): getattr(r, figure.field) for r in some}
            values = [[found.get((name, *shape)) for shape in shapes] for name in shown]
            columns = [",".join(map(str, shape)) for shape in shapes]
            groups = [devices[name] for name in shown]
            plotting.log_heatmap(axis, shown, columns, values, figure.best_is_low, groups)
            axis.set_title(f"{experiment}, {mode}: {figure.title}")
    canvas.suptitle(caption, fontsize=8)
    return plotting.save(canvas, path)


def _lines(rows: Sequence[Row], figure: Figure, caption: str, path: pathlib.Path, all_lines: bool) -> pathlib.Path:
    plt, _ = plotting.toolkit()
    modes = [mode for _, mode in sections(rows)]
    canvas, axes = plt.subplots(1, len(modes), figsize=(1.5 + 4.5 * len(modes), 4.6), squeeze=False, sharey=True)
    shown = {mode: _shown(rows, mode, figure, all_lines) for mode in modes}
    names = dict.fromkeys(r.implementation for r in rows)
    palette = plotting.colors([name for name in names if any(name in some for some in shown.values())])
    for mode, axis in zip(modes, axes[0]):
        series: dict[str, list[tuple[float, float]]] = {}
        for r in rows:
            value = getattr(r, figure.field)
            if r.mode == mode and value and r.implementation in shown[mode]:
                series.setdefault(r.implementation, []).append((r.S, value))
        plotting.log_lines(axis, series, palette)
        axis.set_title(f"{mode}, B {rows[0].B}, H {rows[0].H}, D {rows[0].D}")
        axis.set_xlabel("sequence length")
    axes[0][0].set_ylabel(figure.title)
    handles = {label: line for axis in axes[0] for line, label in zip(*axis.get_legend_handles_labels())}
    canvas.legend(handles.values(), handles.keys(), loc="center left", bbox_to_anchor=(0.92, 0.5), frameon=False)
    canvas.suptitle(caption, fontsize=8)
    return plotting.save(canvas, path)


def _shown(rows: Sequence[Row], mode: str, figure: Figure, all_lines: bool) -> set[str]:
    """The implementations whose lines are drawn."""
    peers = {r.implementation for r in rows if r.library != "attend"}
    last: dict[str, float] = {}
    for r in sorted((r for r in rows if r.mode == mode and getattr(r, figure.field)), key=lambda r: r.S):
        value = getattr(r, figure.field)
        last[r.implementation] = value / r.S if figure.best_is_low else value  # who stops early is judged there
    return set(last) if all_lines else plotting.worth_a_line(last, peers, figure.best_is_low)
