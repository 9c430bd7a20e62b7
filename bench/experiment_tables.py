#!/usr/bin/env python3
"""Makes the tables of docs/experiments.md from results/*/experiments/*.json. bench/documents.py writes the tables into
the page.

If a file is missing for a machine, the section says that nothing was measured.
"""

import json

import report

PAGE = report.DOCS / "experiments.md"
MACHINES = ("h200", "cpu")


def number(value):
    if value is None:
        return ""
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def title(data):
    machine = data["machine"]
    gpu = f"{machine['gpu']}, CUDA {machine['cuda']}; " if machine["gpu"] else ""
    torch = f"PyTorch {machine['torch']}" if machine["torch"] else "no PyTorch"
    return f"{gpu}{machine['cpu']}, {machine['attend_threads']} threads; {torch}; {machine['date']}."


def table(first, columns, lines):
    """Returns a Markdown table. The columns in `first` are aligned left, and all other columns are aligned right."""
    head = [*first, *columns]
    return [
        f"| {' | '.join(head)} |",
        "|" + "---|" * len(first) + "---:|" * len(columns),
        *(f"| {' | '.join(line)} |" for line in lines),
    ]


def shape(row):
    return f"{row['B']},{row['H']},{row['S']},{row['D']}"


def over_problems(rows, field):
    """Returns the lines of a table with a figure for each implementation on each problem."""
    problems = list(dict.fromkeys(map(shape, rows)))
    found = {(r["implementation"], shape(r)): r[field] for r in rows}
    names = dict.fromkeys((r["implementation"], r["dtype"]) for r in rows if r[field] is not None)
    return table(
        ["", "dtype"],
        problems,
        [[f"`{name}`", dtype, *(number(found.get((name, p))) for p in problems)] for name, dtype in names],
    )


def mean(values):
    known = [x for x in values if x is not None]
    return sum(known) / len(known) if known else None


def means(rows):
    """Returns the means of each implementation over the configurations that it was timed on."""
    total = len(set(map(shape, rows)))
    cells = []
    for name, dtype in dict.fromkeys((r["implementation"], r["dtype"]) for r in rows if r["ms"] is not None):
        own = [r for r in rows if r["implementation"] == name and r["ms"] is not None]
        figures = (mean([r[field] for r in own]) for field in ("ms", "tflops", "gbps"))
        cells.append([f"`{name}`", dtype, f"{len(own)} of {total}", *map(number, figures)])
    return table(["", "dtype", "configurations"], ["ms", "TFLOP/s", "GB/s"], cells)


def left_out(rows):
    """Returns a list of the implementations that were not timed on some problems, with the number of these problems."""
    names = {}
    for r in rows:
        if r["ms"] is None:
            names.setdefault(r["implementation"], []).append(r["remark"])
    if not names:
        return []
    lines = [f"- `{name}`: {len(why)}. {why[-1]}" for name, why in names.items()]
    return ["", "Number of problems that were left out, with the reason for the last one:", "", *lines]


def experiments(data):
    lines = [title(data)]
    failed = sum(r["passed"] is False for r in data["rows"])
    checked = sum(r["passed"] is not None for r in data["rows"])
    lines += ["", f"{checked - failed} of {checked} checks against float64 passed, tolerance {data['tolerance']:g}."]
    for experiment, mode in dict.fromkeys((r["experiment"], r["mode"]) for r in data["rows"]):
        rows = [r for r in data["rows"] if (r["experiment"], r["mode"]) == (experiment, mode)]
        lines += ["", f"Experiment `{experiment}`, {mode}, times in ms:", "", *over_problems(rows, "ms")]
        lines += ["", f"Experiment `{experiment}`, {mode}, TFLOP/s:", "", *over_problems(rows, "tflops")]
        lines += left_out(rows)
        lines += ["", f"Experiment `{experiment}`, {mode}, means over the configurations:", "", *means(rows)]
        if experiment == "gpt3" and (report.DOCS / "experiments_gpt3.svg").exists():
            lines += ["", "![TFLOP/s over the sequence length](experiments_gpt3.svg)"]
    return lines


def compare(data):
    lines = [title(data)]
    mask = "causal" if data["causal"] else "full"
    for mode in dict.fromkeys(r["mode"] for r in data["rows"]):
        rows = [r for r in data["rows"] if r["mode"] == mode]
        lines += ["", f"{data['dtype']}, {mode}, {mask}, ms:", "", *over_problems(rows, "ms"), *left_out(rows)]
    return lines


def memory(data):
    lines = [title(data)]
    for mode in dict.fromkeys(r["mode"] for r in data["rows"]):
        rows = [r for r in data["rows"] if r["mode"] == mode]
        lines += [
            "",
            f"{'forward and backward' if mode == 'backward' else mode}, MiB:",
            "",
            *over_problems(rows, "peak_mib"),
        ]
    return lines


def roofline(data):
    ceilings = data["ceilings"]
    peaks = ", ".join(f"{dtype} {number(x)}" for dtype, x in ceilings["peak_tflops"].items())
    lines = [
        title(data),
        "",
        f"Copy {number(ceilings['copy_gbps'])} GB/s; {ceilings['peak_of']}, TFLOP/s: {peaks}.",
        "",
    ]
    cells = []
    for r in (r for r in data["rows"] if r["ms"] is not None):
        roof = min(ceilings["peak_tflops"].get(r["dtype"], float("inf")), r["intensity"] * ceilings["copy_gbps"] / 1e3)
        figures = (r["intensity"], r["tflops"], 100 * r["tflops"] / roof)
        cells.append([f"`{r['implementation']}`", r["dtype"], r["mode"], str(r["S"]), *map(number, figures)])
    return lines + table(["", "dtype", "pass"], ["S", "operations per byte", "TFLOP/s", "% of the roof"], cells)


KINDS = {"experiments": experiments, "compare": compare, "memory": memory, "roofline": roofline}


COMMANDS = {
    "experiments": "python -m attend.experiments --experiment --seqlen-experiment --mode both --save-results",
    "compare": "python -m attend.bench compare --mode both --output compare.json",
    "memory": "python -m attend.bench memory --output memory.json",
    "roofline": "python -m attend.bench roofline --mode both --output roofline.json",
}
PARTS = {
    "h200": ("kernels/common", "kernels/ladder", "kernels/simt", "kernels/sm80", "kernels/sm90", "src/cuda/launch"),
    "cpu": ("src/cpu",),
}
# The file names of each command, in the folder of a machine.
FILES = {
    "experiments": "results*.json",
    "compare": "bench_compare*.json",
    "memory": "bench_memory.json",
    "roofline": "bench_roofline.json",
}


def sections():
    found = []
    for machine in MACHINES:
        folder = report.ROOT / "results" / machine / "experiments"
        for kind, tables in KINDS.items():
            pattern = FILES[kind]
            files = tuple(sorted(folder.glob(pattern))) or (folder / pattern.replace("*", ""),)

            def body(files=files, tables=tables):
                return "\n\n".join("\n".join(tables(json.loads(file.read_text()))) for file in files)

            name = f"{kind}_{machine}"
            found.append(report.Section(PAGE, name, files, PARTS[machine], body, COMMANDS[kind]))
    return found
