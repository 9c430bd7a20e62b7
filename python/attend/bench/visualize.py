"""visualize: pictures from the JSON files of compare, memory and roofline; nothing is measured."""

from __future__ import annotations

import argparse
import pathlib
from typing import Any

from attend._measure import files, machine, plotting, tables
from attend.bench import compare, memory, roofline

BASELINE = "torch"  # of the speed-ups


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", type=pathlib.Path, nargs="+", help="JSON files of compare, memory, roofline")
    parser.add_argument("--output-dir", type=pathlib.Path, default=pathlib.Path())
    parser.add_argument("--format", choices=("png", "svg"), default="png")
    parser.add_argument("--all", action="store_true", help="every line, not attend's best few and the peers only")


def run(options: argparse.Namespace) -> int:
    """Writes the pictures of each file under its name: FILE.png, and of compare FILE_latency.png and so on."""
    draw = {compare.KIND: draw_compare, memory.KIND: draw_memory, roofline.KIND: draw_roofline}
    files.prepare_folder("--output-dir", options.output_dir)
    data = [files.read_json(path, list(draw)) for path in options.files]
    for path, one in zip(options.files, data):
        with files.understanding(path):
            figures = draw[one["kind"]](one, options.all)
            for figure in figures.values():
                figure.suptitle(machine.title(one["machine"]), fontsize=8)
        for name, figure in figures.items():
            target = options.output_dir / f"{path.stem}{'_' * bool(name)}{name}.{options.format}"
            print(f"wrote {plotting.save(figure, target)}")
    return 0


Figures = dict[str, Any]  # by what stands behind the file's name


def draw_compare(data: dict[str, Any], all_lines: bool) -> Figures:
    """Tables in colour over the problems: TFLOP/s, latency, speed-up over torch where it was measured. Latency as lines
    over the sequence length where there are several."""
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
    """One table for each mode; `found` by mode, implementation and problem."""
    plt, _ = plotting.toolkit()
    rows = compare.rows_of(data)
    modes = list(dict.fromkeys(r.mode for r in rows))
    labels = {r["implementation"]: _label(r) for r in data["rows"]}
    problems = list(dict.fromkeys(tables.label(r) for r in rows))
    size = (1.5 + 0.62 * len(problems), len(modes) * (1.4 + 0.24 * len(labels)))
    figure, axes = plt.subplots(len(modes), 1, figsize=size, squeeze=False, layout="constrained")
    for mode, axis in zip(modes, axes[:, 0]):
        shown = [name for name in labels if any(key[:2] == (mode, name) for key in found)]
        values = [[found.get((mode, name, p)) for p in problems] for name in shown]
        names = [labels[name] for name in shown]
        plotting.log_heatmap(axis, names, problems, values, best_is_low, [data["device"]] * len(shown))
        axis.set_title(f"{mode}, {data['dtype']}{', causal' if data['causal'] else ''}: {unit}")
    return figure


def _scaling(data: dict[str, Any], all_lines: bool) -> Any:
    """Milliseconds over the sequence length: a panel for each mode, batch, heads and head_dim of several lengths."""
    plt, _ = plotting.toolkit()
    rows = [r for r in data["rows"] if r["ms"]]
    groups: dict[Any, set[int]] = {}
    for r in rows:
        groups.setdefault((r["mode"], *_family(data, r)), set()).add(r["S"])
    panels = [key for key, lengths in groups.items() if len(lengths) > 1] or list(groups)
    size = (2 + 4.2 * len(panels), 4.2)
    figure, axes = plt.subplots(1, len(panels), figsize=size, squeeze=False)
    palette = plotting.colors(list(dict.fromkeys(_label(r) for r in rows)))
    for key, axis in zip(panels, axes[0]):
        some = [r for r in rows if (r["mode"], *_family(data, r)) == key]
        plotting.log_lines(axis, _series(some, "ms", all_lines), palette)
        axis.set(title=", ".join(map(str, key)), xlabel="sequence length", ylabel="ms, median")
    axes[0][-1].legend(frameon=False, loc="center left", bbox_to_anchor=(1.01, 0.5))
    return figure


def _family(data: dict[str, Any], row: dict[str, Any]) -> tuple[str, ...]:
    """What stays the same from length to length: in the grid of the papers the number of tokens, not the batch."""
    same = () if data.get("grid") == "paper" else (f"B {row['B']}",)
    return (*same, f"H {row['H']}", f"D {row['D']}")


def _series(rows: list[dict[str, Any]], field: str, all_lines: bool) -> dict[str, list[tuple[float, float]]]:
    """Points by the name of a line; where not all are wanted the peers and attend's best at the longest length."""
    last = {_label(r): r[field] / r["S"] for r in sorted(rows, key=lambda r: r["S"])}
    peers = {_label(r) for r in rows if r["library"] != "attend"}
    shown = set(last) if all_lines else plotting.worth_a_line(last, peers, best_is_low=True)
    series: dict[str, list[tuple[float, float]]] = {}
    for r in rows:
        if _label(r) in shown:
            series.setdefault(_label(r), []).append((r["S"], r[field]))
    return series


def _label(row: dict[str, Any]) -> str:
    return f"attend {row['implementation']}" if row["library"] == "attend" else str(row["implementation"])


def draw_memory(data: dict[str, Any], all_lines: bool) -> Figures:
    plt, _ = plotting.toolkit()
    rows = [r for r in data["rows"] if r["peak_mib"]]
    modes = list(dict.fromkeys(r["mode"] for r in rows)) or ["nothing measured"]
    figure, axes = plt.subplots(1, len(modes), figsize=(2 + 4.2 * len(modes), 4.2), squeeze=False, sharey=True)
    palette = plotting.colors(list(dict.fromkeys(_label(r) for r in rows)))
    for mode, axis in zip(modes, axes[0]):
        some = [r for r in rows if r["mode"] == mode]
        plotting.log_lines(axis, _series(some, "peak_mib", all_lines), palette)
        axis.set_title(mode if mode == "forward" else "forward and backward")
        axis.set_xlabel("sequence length")
    axes[0][0].set_ylabel("peak memory beyond the inputs, MiB")
    axes[0][-1].legend(frameon=False, loc="center left", bbox_to_anchor=(1.01, 0.5))
    return {"": figure}


def _fastest(rows: list[dict[str, Any]], mode: str, all_lines: bool) -> set[str]:
    best = {_label(r): r["tflops"] for r in sorted(rows, key=lambda r: r["tflops"]) if r["mode"] == mode}
    peers = {_label(r) for r in rows if r["library"] != "attend"}
    return set(best) if all_lines else plotting.worth_a_line(best, peers, best_is_low=False)


def draw_roofline(data: dict[str, Any], all_lines: bool) -> Figures:
    """TFLOP/s over operations per byte, both logarithmic, under the measured roofs."""
    plt, _ = plotting.toolkit()
    rows = [r for r in data["rows"] if r["ms"] is not None]
    ceilings = data["ceilings"]
    figure, axis = plt.subplots(figsize=(8, 4.8))
    knees = {dtype: 1e3 * roof / ceilings["copy_gbps"] for dtype, roof in ceilings["peak_tflops"].items()}
    right = 4 * max([*knees.values(), *(r["intensity"] for r in rows)])
    left = min([*knees.values(), *(r["intensity"] for r in rows)]) / 8
    for (dtype, roof), style in zip(ceilings["peak_tflops"].items(), ("-", "--")):
        corner = [(left, left * ceilings["copy_gbps"] / 1e3), (knees[dtype], roof), (right, roof)]
        axis.plot(*zip(*corner), color="black", linestyle=style, linewidth=1)
        axis.text(right, roof * 1.08, f"{dtype} {ceilings['peak_of']} {files.number(roof)}", ha="right", fontsize=7)
    slope = f"copy {files.number(ceilings['copy_gbps'])} GB/s"
    axis.text(1.5 * left, 1.3 * left * ceilings["copy_gbps"] / 1e3, slope, fontsize=7, va="top")
    shown = {mode: _fastest(rows, mode, all_lines) for mode in dict.fromkeys(r["mode"] for r in rows)}
    lines = list(dict.fromkeys((_label(r), r["mode"]) for r in rows if _label(r) in shown[r["mode"]]))
    names = list(dict.fromkeys(name for name, _ in lines))
    palette = plotting.colors(names)
    for index, (name, mode) in enumerate(lines):
        points = sorted((r["intensity"], r["tflops"]) for r in rows if (_label(r), r["mode"]) == (name, mode))
        look = {"color": palette[name], "mfc": palette[name] if mode == "forward" else "none", "ms": 5, "lw": 0.7}
        marker = plotting.MARKERS[index % len(plotting.MARKERS)]
        axis.plot(*zip(*points), marker=marker, label=name if mode == "forward" else f"{name}, backward", **look)
    axis.set(xscale="log", yscale="log", xlabel="operations per byte of inputs and outputs", ylabel="TFLOP/s")
    axis.legend(frameon=False, loc="center left", bbox_to_anchor=(1.01, 0.5), ncols=1 + len(names) // 24)
    return {"": figure}
