"""Draws the pictures of `decode`: GB/s of every side over the length, and GB/s of attend over batch and length."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import Any

from attend._measure import machine, plotting
from attend._measure.decode_shapes import COLD
from attend.bench import lines

KIND = "decode"
OURS = "attend"  # the implementation in the second picture

Figures = dict[str, Any]  # {suffix of the file name: figure}


def draw(data: dict[str, Any], all_lines: bool) -> Figures:
    """Draws the times with cold caches. If a problem has none (a large GPU cache, or a CPU cache), draws the times with
    warm caches.
    """
    rows = [row for row in data["rows"] if row["us"]]
    if not rows:
        raise ValueError("no side was timed")
    return {"": _over_lengths(data, _coldest(rows), all_lines), "grid": _grid(data, rows)}


def save(data: dict[str, Any], path: pathlib.Path, sources: Sequence[pathlib.Path]) -> list[pathlib.Path]:
    """Writes the pictures to `path` and FILE_grid."""
    found = []
    for name, figure in draw(data, False).items():
        figure.suptitle(machine.title(data["machine"]), fontsize=8)
        target = path.with_name(f"{path.stem}{'_' * bool(name)}{name}{path.suffix}")
        found.append(plotting.save(figure, target, sources))
    return found


def _coldest(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns one row for each side and problem: the row with a cold cache if there is one."""
    found: dict[Any, dict[str, Any]] = {}
    for row in rows:
        key = row["implementation"], row["B"], row["S"], row["page_size"]
        if row["state"] == COLD or key not in found:
            found[key] = row
    return list(found.values())


def _over_lengths(data: dict[str, Any], rows: list[dict[str, Any]], all_lines: bool) -> Any:
    """Draws a panel for each batch size and page size."""
    panels: dict[str, lines.Series] = {}
    for row in sorted(rows, key=lambda row: (row["page_size"], row["B"])):
        title = f"{row['B']} sequence{'s' * (row['B'] > 1)}{_pages(row['page_size'])}"
        panels.setdefault(title, {}).setdefault(row["implementation"], []).append((row["S"], row["gbps"]))
    peers = {row["implementation"] for row in rows if row["library"] != "attend"}
    y = f"GB/s{', cold caches' if data['device'] == 'cuda' else ''}"
    return lines.over_lengths(panels, peers, lines.Axes(y, best_is_low=False, x=_keys(data)), all_lines)


def _keys(data: dict[str, Any]) -> str:
    """Returns the label of the axis of lengths, which also states all settings that the problems share."""
    rows = f", {data['rows_of_q']} rows" if data["rows_of_q"] > 1 else ""
    return f"keys of a sequence ({data['H']}:{data['Hkv']} heads, head_dim {data['D']}{rows}, {data['cache']})"


def _pages(size: int) -> str:
    return f", pages of {size}" if size else ""


def _grid(data: dict[str, Any], rows: list[dict[str, Any]]) -> Any:
    """Draws colour tables of attend's GB/s by batch size and length, one table for each page size and cache state."""
    plt, _ = plotting.toolkit()
    own = [row for row in rows if row["implementation"] == OURS]
    panels = list(dict.fromkeys((row["page_size"], row["state"]) for row in own))
    batches, lengths = (sorted({row[name] for row in own}) for name in ("B", "S"))
    size = (1.5 + 0.62 * len(lengths), max(len(panels), 1) * (1.1 + 0.24 * len(batches)))
    figure, axes = plt.subplots(max(len(panels), 1), 1, figsize=size, squeeze=False, layout="constrained")
    for (page_size, state), axis in zip(panels, axes[:, 0]):
        found = {
            (row["B"], row["S"]): row["gbps"] for row in own if (row["page_size"], row["state"]) == (page_size, state)
        }
        values = [[found.get((batch, length)) for length in lengths] for batch in batches]
        down, across = (list(map(str, some)) for some in (batches, lengths))
        plotting.log_heatmap(axis, down, across, values, False, [data["device"]] * len(batches))
        warmth = f", {state} caches" if data["device"] == "cuda" else ""
        axis.set(title=f"attend, GB/s{warmth}{_pages(page_size)}", xlabel=_keys(data), ylabel="sequences")
    return figure
