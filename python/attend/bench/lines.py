"""Draws panels of lines over the sequence length, for the commands `visualize` and `decode`."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any, NamedTuple

from attend._measure import plotting, style

Series = dict[str, plotting.Points]  # {name of a line: its points}
MOST_COLUMNS = 3


class Axes(NamedTuple):
    """The axes of every panel. If low values are best, lines are ranked by y / x, otherwise by y."""

    y: str
    best_is_low: bool = True
    x: str = "sequence length"


def over_lengths(panels: dict[str, Series], peers: Container[str], axes: Axes, all_lines: bool) -> Any:
    """Returns a figure with a panel for each title of `panels`. A name has the same style in all panels."""
    plt, _ = plotting.toolkit()
    columns = min(len(panels), MOST_COLUMNS)
    rows = -(-len(panels) // columns)
    size = (5.2 * columns, 4.2 * rows)
    figure, grid = plt.subplots(rows, columns, figsize=size, squeeze=False, sharey=True, layout="constrained")
    last = [{name: _figure(max(points), axes) for name, points in panel.items()} for panel in panels.values()]
    looks = chosen(last, peers, axes.best_is_low, all_lines)
    ys = [y for panel in panels.values() for name in looks for _, y in panel.get(name, [])]
    if ys:  # the labels of lines need the final limits, which are the same for all panels
        room = max(max(ys) / min(ys), 1.5) ** 0.05
        grid[0][0].set_ylim(min(ys) / room, max(ys) * room)
    for (title, panel), axis in zip(panels.items(), grid.flat):
        axis.set(title=title, xlabel=axes.x)
        shown = {name: points for name, points in panel.items() if name in looks}
        plotting.log_lines(axis, shown, looks, axes.y if axis in grid[:, 0] else "")
    for axis in grid.flat[len(panels) :]:
        axis.set_visible(False)
    return figure


def _figure(point: tuple[float, float], axes: Axes) -> float:
    return point[1] / point[0] if axes.best_is_low else point[1]


def chosen(
    panels: Sequence[dict[str, float]], peers: Container[str], best_is_low: bool, all_lines: bool
) -> dict[str, style.Look]:
    """Returns the style of each line to draw, by name. `panels` contains the values by which lines are chosen."""
    return style.looks(plotting.worth_a_line(panels, peers, best_is_low, None if all_lines else style.MOST_LINES))
