"""Draws colour tables and lines on logarithmic axes, and chooses which lines to draw. style.py defines their
appearance.
"""

from __future__ import annotations

import math
import pathlib
from collections.abc import Container, Sequence
from typing import Any, Optional

from attend._measure import files, style
from attend._measure.errors import require

Points = list[tuple[float, float]]


def toolkit() -> tuple[Any, Any]:
    """Returns the modules matplotlib.pyplot and seaborn, configured to draw into files."""
    _, seaborn = require("matplotlib", "seaborn", purpose="drawing")
    return style.pyplot(), seaborn


def save(figure: Any, path: pathlib.Path, sources: Sequence[pathlib.Path] = ()) -> pathlib.Path:
    """Writes the picture. Its metadata contain the names of the `sources` from which it was drawn."""
    plt, _ = toolkit()
    about = style.metadata(path.suffix, sources)
    with files.writing(path) as unfinished:
        figure.savefig(unfinished, format=path.suffix[1:], metadata=about, dpi=110, bbox_inches="tight")
    plt.close(figure)
    return path


Table = Sequence[Sequence[Optional[float]]]


def _share_of_range(values: Table, groups: Sequence[str]) -> list[list[float]]:
    """Returns for each value the position of its logarithm in the range of its group: 0 is the smallest value, 1 the
    largest.
    """
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
    """Draws a table whose cells show each value, coloured by its logarithm. Missing values stay blank.

    `groups` names a group for each row. Each group has its own colour range, so that the values of a GPU remain
    distinguishable next to those of a CPU.
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
    axis.tick_params(axis="x", length=0)
    axis.tick_params(axis="y", rotation=0, length=0)
    for label in axis.get_xticklabels():  # rotates the label around its end, which stays below the middle of the column
        label.set(rotation=35, ha="right", va="top", rotation_mode="anchor")


def log_lines(axis: Any, series: dict[str, Points], looks: dict[str, style.Look], label_y: str = "") -> None:
    """Draws lines on logarithmic axes, with ticks of x at powers of two, and each name at the end of its line."""
    drawn = []
    for name in (name for name in looks if series.get(name)):  # in every panel, a name has the style of `looks`
        xs, ys = zip(*sorted(series[name]))
        drawn += axis.plot(xs, ys, label=name, **looks[name].of_line())
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    lengths = sorted({x for points in series.values() for x, _ in points})
    axis.set_xticks(lengths, [f"{x:g}" for x in lengths])
    axis.xaxis.set_minor_locator(style.pyplot().NullLocator())
    style.plain_numbers(axis.yaxis)
    axis.grid(alpha=0.3)
    if label_y:
        axis.set_ylabel(label_y)
    axis.autoscale_view()
    style.label_ends(axis, drawn)


def worth_a_line(
    panels: Sequence[dict[str, float]],
    peers: Container[str],
    best_is_low: bool,
    most: Optional[int] = style.MOST_LINES,
) -> list[str]:
    """Returns the names to draw, best first. There are at most `most` names for all panels together, or all names if
    `most` is None.

    The list contains the best peer and the best other implementation of each panel. Half of the remaining names are
    peers and half are others, if there are enough of each; otherwise the best names are added. Names are ranked by
    their ratio to the best value of a panel, in the panel where this ratio is best.
    """
    score: dict[str, float] = {}
    leaders: dict[str, None] = {}
    for panel in panels:
        known = {name: figure for name, figure in panel.items() if figure > 0}
        if not known:
            continue
        best = min(known.values()) if best_is_low else max(known.values())
        for name, figure in known.items():
            share = best / figure if best_is_low else figure / best
            score[name] = max(score.get(name, 0.0), share)
        for are_peers in (False, True):
            some = {name: x for name, x in known.items() if (name in peers) == are_peers}
            if some:
                leaders[(min if best_is_low else max)(some, key=some.__getitem__)] = None
    ranked = sorted(score, key=score.__getitem__, reverse=True)
    if most is None or len(ranked) <= most:
        return ranked
    own = [name for name in ranked if name not in peers]
    others = [name for name in ranked if name in peers]
    chosen = set(list(leaders)[:most])
    for names, enough in ((own, most // 2), (others, most // 2), (ranked, most)):
        for name in names:
            if len(chosen) < most and len(chosen.intersection(names)) < enough:
                chosen.add(name)
    return [name for name in ranked if name in chosen]
