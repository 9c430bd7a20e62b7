"""How every picture looks; drawn without a display, and the same file from the same figures."""

from __future__ import annotations

import math
import pathlib
from collections.abc import Sequence
from typing import Any, Optional

from attend._measure import files
from attend._measure.errors import require

STYLE: Any = {"font.size": 8, "axes.spines.top": False, "axes.spines.right": False, "svg.hashsalt": "attend"}
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
    with files.writing(path):
        figure.savefig(path, metadata=date, dpi=110, bbox_inches="tight")
    plt.close(figure)
    return path


def colors(names: Sequence[str]) -> dict[str, Any]:
    """One colour for each name, far apart, whatever their number."""
    _, seaborn = toolkit()
    return dict(zip(names, seaborn.husl_palette(len(names), l=0.55)))


Table = Sequence[Sequence[Optional[float]]]


def log_heatmap(axis: Any, rows: Sequence[str], columns: Sequence[str], values: Table, best_is_low: bool) -> None:
    """A table with each figure written out and coloured by its logarithm; what was not measured stays blank."""
    _, seaborn = toolkit()
    known = [x for line in values for x in line if x]
    low, high = (math.log10(f(known)) if known else 0.0 for f in (min, max))
    seaborn.heatmap(
        [[math.log10(x) if x else math.nan for x in line] for line in values],
        ax=axis,
        annot=[[files.number(x) if x else "" for x in line] for line in values],
        fmt="",
        cmap="crest" if best_is_low else "crest_r",
        vmin=low,
        vmax=max(high, low + 1e-9),
        cbar=False,
        linewidths=0.5,
        annot_kws={"fontsize": 6.5},
        xticklabels=columns,
        yticklabels=rows,
    )
    axis.tick_params(axis="x", rotation=35, length=0)
    axis.tick_params(axis="y", rotation=0, length=0)


def log_lines(axis: Any, series: dict[str, list[tuple[float, float]]], palette: dict[str, Any]) -> None:
    """Lines over x, both axes logarithmic, x in powers of two."""
    for index, (name, points) in enumerate(series.items()):
        if points:
            xs, ys = zip(*sorted(points))
            axis.plot(xs, ys, label=name, color=palette[name], marker=MARKERS[index % len(MARKERS)], ms=4, lw=1.2)
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    lengths = sorted({x for points in series.values() for x, _ in points})
    axis.set_xticks(lengths, [f"{x:g}" for x in lengths])
    axis.grid(alpha=0.3)
