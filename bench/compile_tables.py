"""Makes the table of docs/operations.md with the compile times of first calls, from `attend compile --json` for an
H200.
"""

import json
import statistics

import report

FILE = report.ROOT / "results" / "h200" / "compile.json"
PARTS = ("kernels/common", "kernels/ladder", "kernels/simt")
ARCH = "sm_90a"
SHOWN = ("standard", "fa2", "simt", "mma_qreg_async", "wgmma_specialized")  # one kernel of every kernel family


def markdown():
    rows = [kernel for kernel in json.loads(FILE.read_text()) if kernel["arch"] == ARCH]
    lines = ["| kernels of | kernels | median s | longest s | median KB of code |", "|---|---:|---:|---:|---:|"]
    for name in SHOWN:
        kernels = [kernel for kernel in rows if kernel["compute"] == name]
        seconds = [kernel["seconds"] for kernel in kernels]
        size = statistics.median(kernel["code_bytes"] for kernel in kernels) / 1000
        lines.append(
            f"| `{name}` | {len(kernels)} | {statistics.median(seconds):.2f} | {max(seconds):.2f} | {size:.0f} |"
        )
    return "\n".join(lines)


def sections():
    command = f"attend compile --arch {ARCH} --json results/h200/compile.json"
    return [report.Section(report.DOCS / "operations.md", "first_calls", (FILE,), PARTS, markdown, command)]
