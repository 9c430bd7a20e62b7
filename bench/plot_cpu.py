#!/usr/bin/env python3
"""Draws docs/cpu_vs_torch.svg and docs/cpu_memory.svg from results/cpu/*.json.

    .venv/bin/python bench/plot_cpu.py
"""

import json

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt  # noqa: E402 (the backend is chosen first)

import report

BLUE, GREY, RED = "#2563a8", "#9aa3ad", "#b3402e"
plt.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False,
                     "svg.hashsalt": "attend"})  # the same file from the same numbers


def load(name):
    return json.loads((report.RESULTS / name).read_text())


def save(figure, name):
    figure.savefig(report.DOCS / name, metadata={"Date": None})
    print(f"wrote docs/{name}")


def speed(data):
    """One panel for each dtype and mode; a pair of bars (attend, torch) for each shape and mask."""
    panels = [(s["dtype"], s["mode"]) for s in data["summary"]]
    figure, axes = plt.subplots(1, len(panels), figsize=(11, 3.6), layout="constrained")
    for axis, (dtype, mode) in zip(axes, panels):
        rows = [r for r in data["rows"] if (r["dtype"], r["mode"]) == (dtype, mode)]
        at = range(len(rows))
        axis.barh([x - 0.2 for x in at], [1e3 * r["tflops"] for r in rows], 0.38, color=BLUE, label="attend")
        axis.barh([x + 0.2 for x in at], [1e3 * r["torch_tflops"] for r in rows], 0.38, color=GREY, label="PyTorch")
        labels = [f"{r['B']},{r['H']},{r['Sq']},{r['D']}{' causal' if r['causal'] else ''}" for r in rows]
        axis.set_yticks(at, labels if axis is axes[0] else [""] * len(rows))
        axis.invert_yaxis()
        axis.set_title(f"{dtype} {mode}")
        axis.set_xlabel("GFLOP/s")
        if dtype == "f32":
            peak = data["machine"]["f32_fma_peak_gflops"][str(data["machine"]["threads"])]
            axis.axvline(peak, color=RED, linestyle="--", linewidth=1, label="FMA peak")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    save(figure, "cpu_vs_torch.svg")


def memory(data):
    figure, axis = plt.subplots(figsize=(5.5, 3.6), layout="constrained")
    lengths = [r["seqlen"] for r in data["rows"]]
    axis.plot(lengths, [r["score_matrix_mib"] for r in data["rows"]], color=GREY, linestyle="--",
              label="one score matrix for each head (not stored)")
    axis.plot(lengths, [r["peak_mib"] for r in data["rows"]], color=BLUE, marker="o", label="peak of the process")
    axis.plot(lengths, [r["tensors_mib"] for r in data["rows"]], color=RED, marker=".", linewidth=1,
              label="the caller's own tensors")
    axis.set_xscale("log", base=2)
    axis.set_yscale("log", base=2)
    axis.set_xticks(lengths, [f"{n // 1024}k" for n in lengths])
    axis.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.set_xlabel("sequence length")
    axis.set_ylabel("MiB")
    axis.legend(frameon=False)
    save(figure, "cpu_memory.svg")


if __name__ == "__main__":
    speed(load("cpu_vs_torch.json"))
    memory(load("memory.json"))
