#!/usr/bin/env python3
"""Makes the table of docs/ladder.md from the JSON of `attend ladder --json`."""

import itertools
import json

import report

FILE = report.ROOT / "results" / "h200" / "ladder.json"
PARTS = ("kernels/common", "kernels/ladder", "kernels/sm90")
HEAD = ["| rung | pass | type | (B, H, S, D) | time | TFLOP/s | GB/s | share of the matrix product | speed-up over the previous rung |",
        "|---|---|---|---|---:|---:|---:|---:|---:|"]


def milliseconds(ms):
    return f"{1000 * ms:.1f} us" if ms < 1 else f"{ms:.2f} ms"


def line(r):
    share = f"{100 * r['share_of_matrix_product']:.1f} %" if r["share_of_matrix_product"] else ""
    speed_up = f"{r['speed_up']:.2f}x" if r["speed_up"] else ""
    return (f"| {r['rung']:02} `{r['compute']}` | {r['mode']} | {r['dtype']} | ({r['B']}, {r['H']}, {r['Sq']}, {r['D']}) | "
            f"{milliseconds(r['ms'])} | {r['tflops']:.2f} | {r['gbps']:.1f} | {share} | {speed_up} |")


def markdown():
    data = json.loads(FILE.read_text())
    lines = ["![TFLOP/s of every rung](ladder.svg)", "",
             f"Measured on one {data['device_name']} in one run. The kernels of a dtype and pass take turns with a matrix product by cuBLAS:", ""]
    for dtype, group in itertools.groupby(data["matrix_products"], key=lambda m: m["dtype"]):
        products = list(group)
        each = [f"{m['tflops']:.1f} TFLOP/s in turns with {m['beside']}" for m in products]
        size = " x ".join([str(products[0]["size"])] * 3)
        lines.append(f"- {dtype}, {size}: {', '.join(each)}")
    return "\n".join([*lines, "", *HEAD, *map(line, data["rungs"])])


def sections():
    command = "attend ladder --json results/h200/ladder.json"
    return [report.Section(report.DOCS / "ladder.md", "ladder", (FILE,), PARTS, markdown, command)]
