#!/usr/bin/env python3
"""Makes the sample reports of docs/profiling.md from the JSON files of `python -m attend.profile --json`."""

import json

import report

PAGE = report.DOCS / "profiling.md"
PERCENT = "%"
FACTS = {  # key: function that formats a value in base units
    "duration": lambda value: f"{1e6 * value:.1f} us" if value < 1e-3 else f"{1e3 * value:.3f} ms",
    "sm_clock": lambda value: f"{value / 1e6:.0f} MHz",
    "registers": lambda value: f"{value:.0f}",
    "shared_bytes": lambda value: f"{value:.0f} bytes",
    "waves": lambda value: f"{value:.2f}",
    "dram_bytes": lambda value: f"{value / 1e6:.1f} MB",
}


def duration_text(launch):
    return "not timed" if launch["duration"] is None else FACTS["duration"](launch["duration"])


def command(problem):
    words = [f"--{name} {problem[name]}" for name in problem if name != "causal"]
    return "python -m attend.profile " + " ".join(words + ["--causal"] * problem["causal"])


def sample(data):
    """Returns the lines of one report: the command, the measured values, and the diagnosis."""
    title = data["kernel"] + (f", {data['gpu']}" if data["gpu"] else "")
    lines = [f"### {title}", ""]
    if data["problem"]:
        lines += [f"`{command(data['problem'])}`" + (f", Nsight Compute {data['tool']}" if data["tool"] else ""), ""]
    if len(data["launches"]) > 1:
        shown = (f"`{x['kernel']}` ({duration_text(x)})" for x in data["launches"])
        lines += ["The longest of " + ", ".join(shown) + ".", ""]
    lines += ["| | |", "|---|---:|"]
    for key, entry in data["measures"].items():
        if key in FACTS:
            lines.append(f"| {entry['label']} | {FACTS[key](entry['value'])} |")
        elif entry["unit"] == PERCENT:
            lines.append(f"| {entry['label']} | {entry['value']:.1f} % |")
    if data["tflops"]:
        lines.append(f"| speed of the call | {data['tflops']:.1f} TFLOP/s |")
    lines += ["", *(f"- {sentence}" for sentence in data["diagnosis"]), ""]
    return lines


def sections():
    files = tuple(sorted((report.ROOT / "results" / "h200").glob("profile_*.json")))

    def body():
        return "\n".join(line for path in files for line in sample(json.loads(path.read_text())))

    parts = ("kernels/common", "kernels/ladder")
    return [report.Section(PAGE, "profile_sample", files, parts, body, "python -m attend.profile --json FILE")]
