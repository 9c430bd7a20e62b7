"""Defines the style of all pictures of the package and of bench/: colours, markers, dashes, and labels at the ends of
lines.

Needs only matplotlib and no other module of the package, so bench/ can load it from a checkout.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

RC: Any = {
    "font.size": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "svg.hashsalt": "attend",  # a fixed salt makes the ids in the file reproducible
}
MOST_LINES = 8  # number of lines that a reader can distinguish in one panel

# Okabe and Ito's colour-blind-safe palette without its yellow, which is too pale on white.
BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, BLACK, GREY = (
    "#0072b2", "#d55e00", "#009e73", "#b0578d", "#c98a00", "#56b4e9", "#222222", "#8c8c8c",
)  # fmt: skip
COLORS = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, BLACK, GREY)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHES: Any = (
    "-",
    (0, (5, 1.5)),
    (0, (1, 1)),
    (0, (6, 1.5, 1, 1.5)),
    (0, (3, 1)),
    (0, (8, 2)),
    (0, (2, 2)),
    (0, (4, 1, 1, 1, 1, 1)),
)
LABEL_POINTS = 7.0  # font size of a label at the end of a line


class Look(NamedTuple):
    color: str
    marker: str
    dash: Any

    def of_line(self) -> dict[str, Any]:
        """Returns arguments for matplotlib's plot. The marker is hollow, so lines below it stay visible."""
        return {
            "color": self.color,
            "marker": self.marker,
            "linestyle": self.dash,
            "mfc": "white",
            "ms": 4.5,
            "lw": 1.4,
        }


def pyplot() -> Any:
    """Returns matplotlib.pyplot, ready to draw into files without a display."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update(RC)
    return plt


def looks(names: Sequence[str]) -> dict[str, Look]:
    """Returns a style for each name. Up to MOST_LINES styles differ in colour, marker and dash; with more names, any
    two differ in at least one of the three.
    """
    count = len(COLORS)
    return {
        name: Look(COLORS[i % count], MARKERS[(i + i // count) % count], DASHES[(i + 3 * (i // count)) % count])
        for i, name in enumerate(names)
    }


def plain_numbers(axis: Any) -> None:
    """Labels a logarithmic axis with numbers such as 200 instead of 2 x 10^2. If its range is small, the labels are at
    multiples of 1, 2 and 5.
    """
    from matplotlib import ticker

    low, high = axis.get_view_interval()
    axis.set_major_locator(ticker.LogLocator(subs=(1.0, 2.0, 5.0) if high < 300 * low else (1.0,)))
    axis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.set_minor_formatter(ticker.NullFormatter())


def spread(places: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Moves positions as little as needed so that neighbours are at least `gap` apart. The result is within low to high
    if there is room.
    """
    order = sorted(range(len(places)), key=places.__getitem__)
    gap = min(gap, (high - low) / max(len(places) - 1, 1))
    # Neighbours that touch are merged into a block, which is centred on the mean of its members.
    blocks: list[tuple[float, list[int]]] = []
    for index in order:
        blocks.append((places[index], [index]))
        while True:
            centre, members = blocks[-1]
            half = gap * (len(members) - 1) / 2
            blocks[-1] = (min(max(centre, low + half), high - half), members)
            if len(blocks) == 1:
                break
            below, below_members = blocks[-2]
            if blocks[-1][0] - half - (below + gap * (len(below_members) - 1) / 2) >= gap - 1e-12:
                break
            both = below_members + members
            wanted = sum(places[i] for i in both) / len(both)
            blocks[-2:] = [(wanted, both)]
    found = [0.0] * len(places)
    for centre, members in blocks:
        for rank, index in enumerate(members):
            found[index] = centre + gap * (rank - (len(members) - 1) / 2)
    return found


def label_ends(axis: Any, lines: Iterable[Any]) -> None:
    """Writes the name of each line to the right of the axes, in the line's colour, at the height of the line's end.

    Call it when the limits of the axes are final. The figure should have a layout engine, which makes room for the
    names.
    """
    ends = [(line, line.get_xdata()[-1], line.get_ydata()[-1]) for line in lines if len(line.get_xdata())]
    to_axes = axis.transAxes.inverted()
    heights = [float(to_axes.transform(axis.transData.transform((x, y)))[1]) for _, x, y in ends]
    inches = axis.get_position().height * axis.figure.get_figheight()
    places = spread(heights, 1.3 * LABEL_POINTS / 72 / inches, 0.0, 1.0)
    for (line, x, y), place in zip(ends, places):
        axis.annotate(
            line.get_label(),
            xy=(x, y),
            xytext=(1.03, place),
            textcoords="axes fraction",
            fontsize=LABEL_POINTS,
            color=line.get_color(),
            va="center",
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "color": line.get_color(),
                "lw": 0.5,
                "alpha": 0.6,
                "shrinkA": 1,
                "shrinkB": 3,
            },
        )


def source_line(path: pathlib.Path) -> dict[str, str]:
    """Returns the record of a source file for a picture or table: its name in the checkout, and a digest of its
    content.
    """
    import hashlib

    parts = path.resolve().parts
    name = "/".join(parts[parts.index("results") :]) if "results" in parts else path.name
    return {"file": name, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()[:16]}


def metadata(suffix: str, sources: Sequence[pathlib.Path]) -> dict[str, Any]:
    """Returns metadata for matplotlib's savefig: the source files of the picture, and no date."""
    drawn_from = json.dumps([source_line(path) for path in sources])
    return {"Date": None, "Description": drawn_from} if suffix == ".svg" else {"Description": drawn_from}


def sources_of(svg: str) -> list[Mapping[str, str]]:
    """Returns the source files in a picture's `metadata`, or an empty list."""
    import html
    import re

    found = re.search(r"<dc:description>(.*?)</dc:description>", svg, flags=re.DOTALL)
    return list(json.loads(html.unescape(found[1]))) if found else []
