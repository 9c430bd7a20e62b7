"""The command `visualize` draws pictures from the JSON files of compare, memory, roofline and decode. It measures
nothing.
"""

from __future__ import annotations

import argparse
import pathlib
from typing import Any

from attend._measure import files, machine, plotting, style, tables
from attend.bench import compare, decode_pictures, lines, memory, roofline

BASELINE = "torch"  # the implementation to which speed-ups are relative


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", type=pathlib.Path, nargs="+", help="JSON files of compare, memory, roofline, decode")
    parser.add_argument("--output-dir", type=pathlib.Path, default=pathlib.Path())
    parser.add_argument("--format", choices=("png", "svg"), default="png")
    parser.add_argument("--all", action="store_true", help="draw all lines, instead of at most the eight best")


def run(options: argparse.Namespace) -> int:
    """Writes the pictures of each JSON file: FILE.png, and for some commands also FILE_latency.png and others."""
    draw = {compare.KIND: draw_compare, memory.KIND: draw_memory, roofline.KIND: draw_roofline}
    draw[decode_pictures.KIND] = decode_pictures.draw
    files.prepare_folder("--output-dir", options.output_dir)
    data = [files.read_json(path, list(draw)) for path in options.files]
    for path, one in zip(options.files, data):
        with files.understanding(path):
            figures = draw[one["kind"]](one, options.all)
            for figure in figures.values():
                figure.suptitle(machine.title(one["machine"]), fontsize=8)
        for name, figure in figures.items():
            target = options.output_dir / f"{path.stem}{'_' * bool(name)}{name}.{options.format}"
            print(f"wrote {plotting.save(figure, target, [path])}")
    return 0


Figures = dict[str, Any]  # {suffix of the file name: figure}


def draw_compare(data: dict[str, Any], all_lines: bool) -> Figures:
    """Draws colour tables over the problems: TFLOP/s, latency, and speed-up over torch if it was measured.

    With several sequence lengths, latency is also drawn as lines over the length.
    """
    rows = compare.rows_of(data)
    figures = {
        "": _tables(data, {(r.mode, r.implementation, tables.label(r)): r.tflops for r in rows}, "TFLOP/s", False)
    }
    times = {(r.mode, r.implementation, tables.label(r)): r.ms for r in rows}
    figures["latency"] = _tables(data, times, "ms, median", True)
    base = {(r.mode, tables.label(r)): r.ms for r in rows if r.implementation == BASELINE and r.ms}
    ratios = {key: base[key[0], key[2]] / ms for key, ms in times.items() if ms and (key[0], key[2]) in base}
    if ratios:
        figures["speedup"] = _tables(data, ratios, f"times as fast as {BASELINE}", False)
    if len({r.S for r in rows if r.ms}) > 1:
        figures["scaling"] = _scaling(data, all_lines)
    return figures


def _tables(data: dict[str, Any], found: dict[Any, Any], unit: str, best_is_low: bool) -> Any:
    """Draws one table for each mode. `found` contains the values by mode, implementation and problem."""
    plt, _ = plotting.toolkit()
    rows = compare.rows_of(data)
    modes = list(dict.fromkeys(r.mode for r in rows))
    labels = {r["implementation"]: _label(r) for r in data["rows"]}
    problems = list(dict.fromkeys(tables.label(r) for r in rows))
    size = (1.5 + 0.62 * len(problems), len(modes) * (1.4 + 0.24 * len(labels)))
    figure, axes = plt.subplots(len(modes), 1, figsize=size, squeeze=False, layout="constrained")
    for mode, axis in zip(modes, axes[:, 0]):
        shown = [name for name in labels if any(found.get((mode, name, problem)) for problem in problems)]
        values = [[found.get((mode, name, p)) for p in problems] for name in shown]
        names = [labels[name] for name in shown]
        plotting.log_heatmap(axis, names, problems, values, best_is_low, [data["device"]] * len(shown))
        axis.set_title(f"{mode}, {data['dtype']}{', causal' if data['causal'] else ''}: {unit}")
    return figure


def _scaling(data: dict[str, Any], all_lines: bool) -> Any:
    """Draws milliseconds over the sequence length. Each combination of mode, batch, heads and head_dim that has several
    lengths gets a panel.
    """
    rows = [r for r in data["rows"] if r["ms"]]
    groups: dict[Any, set[int]] = {}
    for r in rows:
        groups.setdefault((r["mode"], *_family(data, r)), set()).add(r["S"])
    keys = [key for key, lengths in groups.items() if len(lengths) > 1] or list(groups)
    panels = {}
    for key in keys:
        some = [r for r in rows if (r["mode"], *_family(data, r)) == key]
        panels[", ".join(map(str, key))] = _series(some, "ms")
    return lines.over_lengths(panels, _peers(rows), lines.Axes("ms, median"), all_lines)


def _series(rows: list[dict[str, Any]], field: str) -> lines.Series:
    """Returns for each implementation the points of its line over the sequence length."""
    found: lines.Series = {}
    for row in rows:
        if row[field]:
            found.setdefault(_label(row), []).append((row["S"], row[field]))
    return found


def _peers(rows: list[dict[str, Any]]) -> set[str]:
    return {_label(row) for row in rows if row["library"] != "attend"}


def _family(data: dict[str, Any], row: dict[str, Any]) -> tuple[str, ...]:
    """Returns the sizes that are the same for all lengths of a panel. In the papers' grid this is the number of tokens
    instead of the batch.
    """
    same = () if data.get("grid") == "paper" else (f"B {row['B']}",)
    return (*same, f"H {row['H']}", f"D {row['D']}")


def _label(row: dict[str, Any]) -> str:
    return f"attend {row['implementation']}" if row["library"] == "attend" else str(row["implementation"])


def draw_memory(data: dict[str, Any], all_lines: bool) -> Figures:
    """Draws the peak memory beyond the inputs over the sequence length, with a panel for each mode."""
    rows = [r for r in data["rows"] if r["peak_mib"]]
    titles = {"forward": "forward", "backward": "forward and backward"}
    modes = dict.fromkeys(r["mode"] for r in rows)
    panels = {titles[mode]: _series([r for r in rows if r["mode"] == mode], "peak_mib") for mode in modes}
    return {"": lines.over_lengths(panels, _peers(rows), lines.Axes("peak memory beyond the inputs, MiB"), all_lines)}


def draw_roofline(data: dict[str, Any], all_lines: bool) -> Figures:
    """Draws TFLOP/s over operations per byte, on logarithmic axes with the measured roofs, with a panel for each
    mode.
    """
    plt, _ = plotting.toolkit()
    rows = [r for r in data["rows"] if r["ms"] is not None]
    modes = list(dict.fromkeys(r["mode"] for r in rows))
    size = (5.8 * len(modes), 4.6)
    figure, axes = plt.subplots(1, len(modes), figsize=size, squeeze=False, sharey=True, layout="constrained")
    best = [{_label(r): r["tflops"] for r in sorted(rows, key=_speed) if r["mode"] == mode} for mode in modes]
    looks = lines.chosen(best, _peers(rows), False, all_lines)
    for mode, axis in zip(modes, axes[0]):
        _draw_roofs(axis, data["ceilings"], [r["intensity"] for r in rows])
        drawn = []
        for name in looks:
            points = sorted((r["intensity"], r["tflops"]) for r in rows if (_label(r), r["mode"]) == (name, mode))
            if points:
                drawn += axis.plot(*zip(*points), label=name, **(looks[name].of_line() | {"lw": 0.8}))
        axis.set(xscale="log", yscale="log", title=mode, xlabel="operations per byte of inputs and outputs")
        style.plain_numbers(axis.yaxis)
        style.plain_numbers(axis.xaxis)
        style.label_ends(axis, drawn)
    axes[0][0].set_ylabel("TFLOP/s")
    return {"": figure}


def _speed(row: dict[str, Any]) -> float:
    return float(row["tflops"])


def _draw_roofs(axis: Any, ceilings: dict[str, Any], intensities: list[float]) -> None:
    """Draws the slope of the memory ceiling, and the level of the arithmetic ceiling for each dtype."""
    knees = {dtype: 1e3 * roof / ceilings["copy_gbps"] for dtype, roof in ceilings["peak_tflops"].items()}
    left, right = min([*knees.values(), *intensities]) / 8, 4 * max([*knees.values(), *intensities])
    for (dtype, roof), dash in zip(ceilings["peak_tflops"].items(), ("-", "--")):
        corner = [(left, left * ceilings["copy_gbps"] / 1e3), (knees[dtype], roof), (right, roof)]
        axis.plot(*zip(*corner), color=style.BLACK, linestyle=dash, linewidth=1)
        text = f"{dtype} {ceilings['peak_of']} {files.number(roof)}"
        axis.text(right, roof * 1.06, text, ha="right", fontsize=style.LABEL_POINTS)
    slope = f"copy {files.number(ceilings['copy_gbps'])} GB/s"
    axis.annotate(
        slope, (2 * left, 2 * left * ceilings["copy_gbps"] / 1e3), xytext=(6, -4), textcoords="offset points",
        fontsize=style.LABEL_POINTS, va="top",
    )  # fmt: skip
    axis.set_xlim(left, right)
