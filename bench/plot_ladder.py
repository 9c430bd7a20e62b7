#!/usr/bin/env python3
"""Draws docs/ladder.svg, the speed of every rung, from results/h200/ladder.json.

.venv/bin/python bench/plot_ladder.py [results/h200/ladder.json]
"""

import json
import pathlib
import sys

import report

style = report.style()
plt = style.pyplot()


def main():
    path = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else report.ROOT / "results" / "h200" / "ladder.json"
    data = json.loads(path.read_text())
    rows = [r for r in data["rungs"] if r["mode"] == "forward"]
    products = {m["dtype"]: m["tflops"] for m in data["matrix_products"]}
    figure, axis = plt.subplots(figsize=(9, 4.6), layout="constrained")
    at = range(len(rows))
    axis.bar(
        at, [r["tflops"] for r in rows], 0.7, color=[style.BLUE if r["dtype"] == "f32" else style.GREEN for r in rows]
    )
    for x, r in zip(at, rows):
        text = f"{r['tflops']:.2g}" if r["tflops"] < 10 else f"{r['tflops']:.0f}"
        axis.text(x, r["tflops"] * 1.08, text, ha="center", va="bottom", fontsize=8)
    for dtype, name in (("f32", "float32, (8, 16, 2048, 64)"), ("bf16", "bfloat16, (2, 16, 8192, 128)")):
        own = [x for x, r in zip(at, rows) if r["dtype"] == dtype]
        if not own:
            continue
        axis.bar(
            [own[0]], [0], color=style.BLUE if dtype == "f32" else style.GREEN, label=name
        )  # an empty bar for the legend
        if dtype in products:
            axis.plot(
                [own[0] - 0.45, own[-1] + 0.45],
                [products[dtype]] * 2,
                color=style.VERMILION,
                linestyle="--",
                linewidth=1,
            )
            axis.text(
                own[0] - 0.45,
                products[dtype] * 1.08,
                f"matrix product {products[dtype]:.0f}",
                color=style.VERMILION,
                fontsize=8,
            )
    axis.set_yscale("log")
    axis.set_ylabel("TFLOP/s, forward")
    axis.set_xticks(list(at), [f"{r['rung']:02} {r['compute']}" for r in rows], rotation=40, ha="right")
    axis.set_title(f"The ladder on one {data['device_name']}")
    axis.legend(frameon=False, loc="upper left")
    report.save_picture(figure, "ladder.svg", [path])


if __name__ == "__main__":
    main()
