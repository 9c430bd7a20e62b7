#!/usr/bin/env python3
"""Shows that the memory of forward and backward grows linearly with the sequence length.

    python3 bench/cpu_memory.py [--lengths 1024,2048,...]

Runs build/release/bench/peak_memory once for each length. Each run is a separate process, because the peak of a process
never decreases. For each length, the script divides the increase of peak memory since the previous length by the number
of added rows. If a score matrix were stored, the result would double from line to line. The script writes
results/cpu/memory.json and the table of docs/benchmarks_cpu.md. Needs only Python and CMake.
"""

import argparse
import itertools
import json
import subprocess

import report

FILE = report.RESULTS / "memory.json"
LENGTHS = [1024, 2048, 4096, 8192, 16384, 32768]
HEADS = 2


def peak(seqlen: int) -> dict:
    done = subprocess.run([report.PROGRAMS / "peak_memory", str(seqlen)], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def add_slopes(rows) -> None:
    """Sets row["bytes_per_row"]: the increase of peak memory from the previous length to this one, divided by the
    number of additional rows.
    """
    for before, row in itertools.pairwise(rows):
        row["bytes_per_row"] = round(
            (row["peak_mib"] - before["peak_mib"]) * 2**20 / (row["seqlen"] - before["seqlen"])
        )


def markdown() -> str:
    data = json.loads(FILE.read_text())
    lines = [
        "![peak memory](cpu_memory.svg)",
        "",
        "| S | tensors, MiB | peak, MiB | scratch of both calls, MiB | peak added per row, bytes | one "
        "score matrix for each head, MiB |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {r['seqlen']} | {r['tensors_mib']:.1f} | {r['peak_mib']:.1f} | {r['scratch_mib']:.1f} | "
        f"{r.get('bytes_per_row', '')} | {r['score_matrix_mib']:.0f} |"
        for r in data["rows"]
    ]
    lines += ["", f"{data['cpu']}, {data['threads']} threads, at commit {data['attend_commit']}."]
    return "\n".join(lines)


def sections():
    command = "python3 bench/cpu_memory.py"
    return [report.Section(report.DOCS / "benchmarks_cpu.md", "cpu_memory", (FILE,), ("src/cpu",), markdown, command)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lengths", default=",".join(map(str, LENGTHS)))
    options = parser.parse_args()

    rows = []
    for seqlen in map(int, options.lengths.split(",")):
        row = peak(seqlen)
        row["score_matrix_mib"] = HEADS * seqlen * seqlen * 4 / 2**20
        rows.append(row)
        print(f"S {seqlen:6}: peak {row['peak_mib']:8.1f} MiB, scratch {row['scratch_mib']:7.1f} MiB", flush=True)
    add_slopes(rows)
    data = {
        "cpu": report.cpu_model(),
        "date": report.today(),
        "attend_commit": report.commit(),
        "sources": report.present_sources(),
        "threads": rows[0]["threads"],
        "B": 1,
        "H": HEADS,
        "D": 64,
        "dtype": "f32",
        "mode": "both",
        "rows": rows,
    }
    report.write_json(FILE, data)
    for section in sections():
        section.write()
    # The scratch memory per row depends on the length, so the slope varies. If a score
    # matrix were stored, the slope would double.
    slopes = [r["bytes_per_row"] for r in rows if "bytes_per_row" in r]
    if len(slopes) > 2 and slopes[-1] > 1.1 * max(slopes[:-1]):
        raise SystemExit(f"peak memory does not grow linearly: {slopes} bytes per row")


if __name__ == "__main__":
    main()
