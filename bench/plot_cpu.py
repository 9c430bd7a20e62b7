#!/usr/bin/env python3
"""Draws docs/cpu_vs_torch.svg and docs/cpu_memory.svg from results/cpu/*.json.

.venv/bin/python bench/plot_cpu.py
"""

import json

import report

style = report.style()
plt = style.pyplot()
SPEED, MEMORY = report.RESULTS / "cpu_vs_torch.json", report.RESULTS / "memory.json"


def speed(data):
    """Draws the speeds, with one panel for each dtype and mode, and a pair of bars (attend, torch) for each shape and
    mask.
    """
    panels = [(s["dtype"], s["mode"]) for s in data["summary"]]
    figure, axes = plt.subplots(1, len(panels), figsize=(11, 3.6), layout="constrained")
    for axis, (dtype, mode) in zip(axes, panels):
        rows = [r for r in data["rows"] if (r["dtype"], r["mode"]) == (dtype, mode)]
        at = range(len(rows))
        axis.barh([x - 0.2 for x in at], [1e3 * r["tflops"] for r in rows], 0.38, color=style.BLUE, label="attend")
        axis.barh(
            [x + 0.2 for x in at], [1e3 * r["torch_tflops"] for r in rows], 0.38, color=style.GREY, label="PyTorch"
        )
        labels = [f"{r['B']},{r['H']},{r['Sq']},{r['D']}{' causal' if r['causal'] else ''}" for r in rows]
        axis.set_yticks(at, labels if axis is axes[0] else [""] * len(rows))
        axis.invert_yaxis()
        axis.set_title(f"{dtype} {mode}")
        axis.set_xlabel("GFLOP/s")
        if dtype == "f32":
            peak = data["machine"]["f32_fma_peak_gflops"][str(data["machine"]["threads"])]
            axis.axvline(peak, color=style.VERMILION, linestyle="--", linewidth=1, label="FMA peak")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    figure.suptitle(f"{data['machine']['cpu']}, {data['machine']['threads']} threads", fontsize=8)
    report.save_picture(figure, "cpu_vs_torch.svg", [SPEED])


def memory(data):
    figure, axis = plt.subplots(figsize=(7, 3.6), layout="constrained")
    lengths = [r["seqlen"] for r in data["rows"]]
    series = {}
    for field, name in (
        ("score_matrix_mib", "one score matrix for each head (not stored)"),
        ("peak_mib", "peak of the process"),
        ("tensors_mib", "the caller's own tensors"),
    ):
        series[name] = [r[field] for r in data["rows"]]
    drawn = [
        axis.plot(lengths, values, label=name, **style.looks(list(series))[name].of_line())[0]
        for name, values in series.items()
    ]
    axis.set_xscale("log", base=2)
    axis.set_yscale("log", base=2)
    axis.set_xticks(lengths, [f"{n // 1024}k" for n in lengths])
    axis.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.set_xlabel("sequence length")
    axis.set_ylabel("MiB")
    axis.grid(alpha=0.3)
    style.label_ends(axis, drawn)
    report.save_picture(figure, "cpu_memory.svg", [MEMORY])


if __name__ == "__main__":
    speed(json.loads(SPEED.read_text()))
    memory(json.loads(MEMORY.read_text()))
