"""visualize: pictures from the JSON files of compare, memory and roofline; nothing is measured."""

from __future__ import annotations

import argparse
import pathlib
from typing import Any

from attend._measure import files, machine, plotting, tables
from attend.bench import compare, memory, roofline


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", type=pathlib.Path, nargs="+", help="JSON files of compare, memory, roofline")
    parser.add_argument("--output-dir", type=pathlib.Path, default=pathlib.Path())
    parser.add_argument("--format", choices=("png", "svg"), default="png")


def run(options: argparse.Namespace) -> int:
    """Writes one picture for each file, under the file's name."""
    draw = {compare.KIND: draw_compare, memory.KIND: draw_memory, roofline.KIND: draw_roofline}
    files.prepare_folder("--output-dir", options.output_dir)
    data = [files.read_json(path, list(draw)) for path in options.files]
    for path, one in zip(options.files, data):
        with files.understanding(path):
            figure = draw[one["kind"]](one)
            figure.suptitle(machine.title(one["machine"]), fontsize=8)
        print(f"wrote {plotting.save(figure, options.output_dir / f'{path.stem}.{options.format}')}")
    return 0


def draw_compare(data: dict[str, Any]) -> Any:
    """For each mode a table in colour: TFLOP/s of the implementations over the problems."""
    plt, _ = plotting.toolkit()
    rows = compare.rows_of(data)
    modes = list(dict.fromkeys(r.mode for r in rows))
    labels = {r["implementation"]: _label(r) for r in data["rows"]}
    problems = list(dict.fromkeys(tables.label(r) for r in rows))
    size = (1.5 + 0.62 * len(problems), len(modes) * (1.2 + 0.24 * len(labels)))
    figure, axes = plt.subplots(len(modes), 1, figsize=size, squeeze=False, layout="constrained")
    for mode, axis in zip(modes, axes[:, 0]):
        found = {(r.implementation, tables.label(r)): r.tflops for r in rows if r.mode == mode}
        shown = [name for name in labels if any(key[0] == name for key in found)]
        plotting.log_heatmap(
            axis, [labels[n] for n in shown], problems, [[found.get((n, p)) for p in problems] for n in shown], False
        )
        axis.set_title(f"{mode}, {data['dtype']}{', causal' if data['causal'] else ''}: TFLOP/s")
    return figure


def _label(row: dict[str, Any]) -> str:
    return f"attend {row['implementation']}" if row["library"] == "attend" else str(row["implementation"])


def draw_memory(data: dict[str, Any]) -> Any:
    plt, _ = plotting.toolkit()
    rows = [r for r in data["rows"] if r["peak_mib"]]
    modes = list(dict.fromkeys(r["mode"] for r in rows)) or ["nothing measured"]
    figure, axes = plt.subplots(1, len(modes), figsize=(2 + 4.2 * len(modes), 4.2), squeeze=False, sharey=True)
    palette = plotting.colors(list(dict.fromkeys(_label(r) for r in rows)))
    for mode, axis in zip(modes, axes[0]):
        series: dict[str, list[tuple[float, float]]] = {}
        for r in (r for r in rows if r["mode"] == mode):
            series.setdefault(_label(r), []).append((r["S"], r["peak_mib"]))
        plotting.log_lines(axis, series, palette)
        axis.set_title(mode if mode == "forward" else "forward and backward")
        axis.set_xlabel("sequence length")
    axes[0][0].set_ylabel("peak memory beyond the inputs, MiB")
    axes[0][-1].legend(frameon=False, loc="center left", bbox_to_anchor=(1.01, 0.5))
    return figure


def draw_roofline(data: dict[str, Any]) -> Any:
    """TFLOP/s over operations per byte, both logarithmic, under the measured roofs."""
    plt, _ = plotting.toolkit()
    rows = [r for r in data["rows"] if r["ms"] is not None]
    ceilings = data["ceilings"]
    figure, axis = plt.subplots(figsize=(8, 4.8))
    knees = {dtype: 1e3 * roof / ceilings["copy_gbps"] for dtype, roof in ceilings["product_tflops"].items()}
    right = 4 * max([*knees.values(), *(r["intensity"] for r in rows)])
    left = min([*knees.values(), *(r["intensity"] for r in rows)]) / 8
    for (dtype, roof), style in zip(ceilings["product_tflops"].items(), ("-", "--")):
        corner = [(left, left * ceilings["copy_gbps"] / 1e3), (knees[dtype], roof), (right, roof)]
        axis.plot(*zip(*corner), color="black", linestyle=style, linewidth=1)
        axis.text(right, roof * 1.08, f"{dtype} matrix product {files.number(roof)}", ha="right", fontsize=7)
    slope = f"copy {files.number(ceilings['copy_gbps'])} GB/s"
    axis.text(1.5 * left, 1.3 * left * ceilings["copy_gbps"] / 1e3, slope, fontsize=7, va="top")
    names = list(dict.fromkeys(_label(r) for r in rows))
    palette = plotting.colors(names)
    for index, (name, mode) in enumerate(dict.fromkeys((_label(r), r["mode"]) for r in rows)):
        points = sorted((r["intensity"], r["tflops"]) for r in rows if (_label(r), r["mode"]) == (name, mode))
        look = {"color": palette[name], "mfc": palette[name] if mode == "forward" else "none", "ms": 5, "lw": 0.7}
        marker = plotting.MARKERS[index % len(plotting.MARKERS)]
        axis.plot(*zip(*points), marker=marker, label=name if mode == "forward" else f"{name}, backward", **look)
    axis.set(xscale="log", yscale="log", xlabel="operations per byte of inputs and outputs", ylabel="TFLOP/s")
    axis.legend(frameon=False, loc="center left", bbox_to_anchor=(1.01, 0.5), ncols=1 + len(names) // 24)
    return figure
