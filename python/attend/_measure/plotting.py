"""How every picture looks; drawn without a display, and the same file from the same figures."""

from __future__ import annotations

import math
import pathlib
from collections.abc import Container, Sequence
from typing import Any, Optional

from attend._measure import files
from attend._measure.errors import require

STYLE: Any = {"font.size": 8, "axes.spines.top": False, "axes.spines.right": False, "svg.hashsalt": "attend"}
LINE_STYLES = ("-", "--", "-.", ":")
BEST = 5  # lines of attend in a plot of lines, unless all are asked for
MARKERS = ("o", "s", "^", "D", "v", "P", "X")


def toolkit() -> tuple[Any, Any]:
    """(matplotlib.pyplot, seaborn), ready to draw into files."""
    matplotlib, seaborn = require("matplotlib", "seaborn", purpose="drawing")
    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update(STYLE)
    return plt, seaborn


def save(figure: Any, path: pathlib.Path) -> pathlib.Path:
    plt, _ = toolkit()
    date = {"Date": None} if path.suffix == ".svg" else {}
    with files.writing(path) as unfinished:
        figure.savefig(unfinished, format=path.suffix[1:], metadata=date, dpi=110, bbox_inches="tight")
    plt.close(figure)
    return path


def colors(names: Sequence[str]) -> dict[str, Any]:
    """One colour for each name, far apart, whatever their number."""
    _, seaborn = toolkit()
    return dict(zip(names, seaborn.husl_palette(len(names), l=0.55)))


Table = Sequence[Sequence[Optional[float]]]


def _share_of_range(values: Table, groups: Sequence[str]) -> list[list[float]]:
    """Where each figure's logarithm lies between the least (0) and the largest (1) of its group of lines."""
    shares = []
    for line, group in zip(values, groups):
        known = [math.log10(x) for other, own in zip(values, groups) if own == group for x in other if x]
        low, high = min(known, default=0.0), max(known, default=0.0)
        width = max(high - low, 1e-9)
        shares.append([(math.log10(x) - low) / width if x else math.nan for x in line])
    return shares


def log_heatmap(
    axis: Any, rows: Sequence[str], columns: Sequence[str], values: Table, best_is_low: bool, groups: Sequence[str]
) -> None:
    """A table with each figure written out and coloured by its logarithm; what was not measured stays blank.

    `groups` has a name for each row: the colours of a group are its own, so that a GPU's figures do not all look alike
    beside those of a CPU.
    """
    _, seaborn = toolkit()
    seaborn.heatmap(
        _share_of_range(values, groups),
        ax=axis,
        annot=[[files.number(x) if x else "" for x in line] for line in values],
        fmt="",
        cmap="crest" if best_is_low else "crest_r",
        vmin=0.0,
        vmax=1.0,
        cbar=False,
        linewidths=0.5,
        annot_kws={"fontsize": 6.5},
        xticklabels=columns,
        yticklabels=rows,
    )
    for i in range(1, len(groups)):
        if groups[i] != groups[i - 1]:
            axis.axhline(i, color="black", linewidth=1)
    axis.set_xlabel("B,H,S,D")
    axis.tick_params(axis="x", rotation=35, length=0)
    axis.tick_params(axis="y", rotation=0, length=0)


def log_lines(axis: Any, series: dict[str, list[tuple[float, float]]], palette: dict[str, Any]) -> None:
    """Lines over x, both axes logarithmic, x in powers of two. Hollow markers and dashes show what lies below."""
    order = list(palette)  # a name looks the same in every panel
    for name, points in series.items():
        index = order.index(name)
        if points:
            xs, ys = zip(*sorted(points))
            look = {"marker": MARKERS[index % len(MARKERS)], "linestyle": LINE_STYLES[index % len(LINE_STYLES)]}
            axis.plot(xs, ys, label=name, color=palette[name], mfc="none", ms=5, lw=1.3, alpha=0.85, **look)
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    lengths = sorted({x for points in series.values() for x, _ in points})
    axis.set_xticks(lengths, [f"{x:g}" for x in lengths])
    axis.grid(alpha=0.3)


def worth_a_line(figures: dict[str, float], peers: Container[str], best_is_low: bool) -> set[str]:
    """The names to draw by default: all peers, and of the others those with the `BEST` best figures."""
    others = sorted((name for name in figures if name not in peers), key=figures.__getitem__, reverse=not best_is_low)
    return {name for name in figures if name in peers} | set(others[:BEST])
