#!/usr/bin/env python3
"""Shows that the memory of forward and backward grows linearly with the sequence length.

    python3 bench/cpu_memory.py [--lengths 1024,2048,...]

Runs build/release/bench/peak_memory once per length, each in a process of its own (a peak never goes down again), and
fits the power p of `peak above the smallest program ~ S^p`. Linear growth is p near 1; a stored score matrix would be 2.
Writes results/cpu/memory.json and the table of docs/benchmarks_cpu.md. Needs nothing but Python.
"""

import argparse
import json
import math
import subprocess

import report

LENGTHS = [1024, 2048, 4096, 8192, 16384, 32768]
HEADS = 2


def peak(seqlen: int) -> dict:
    done = subprocess.run([report.PROGRAMS / "peak_memory", str(seqlen)], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def growth_power(rows, key) -> float:
    """Slope of the least-squares line through (log S, log value)."""
    points = [(math.log(r["seqlen"]), math.log(r[key])) for r in rows if r[key] > 0]
    mean_x, mean_y = (sum(c) / len(points) for c in zip(*points))
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / sum((x - mean_x) ** 2 for x, _ in points)


def markdown(data) -> str:
    lines = ["| S | tensors, MiB | peak, MiB | scratch of both calls, MiB | one score matrix for each head, MiB |",
             "|---|---|---|---|---|"]
    lines += [f"| {r['seqlen']} | {r['tensors_mib']:.1f} | {r['peak_mib']:.1f} | {r['scratch_mib']:.1f} | "
              f"{r['score_matrix_mib']:.0f} |" for r in data["rows"]]
    lines += ["", f"Peak above the bare process grows as S^{data['peak_power']:.2f} (commit {data['attend_commit']})."]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lengths", default=",".join(map(str, LENGTHS)))
    options = parser.parse_args()

    bare = peak(1)["peak_mib"]  # the program, its libraries and its threads
    rows = []
    for seqlen in map(int, options.lengths.split(",")):
        row = peak(seqlen)
        row["above_bare_mib"] = round(row["peak_mib"] - bare, 2)
        row["score_matrix_mib"] = HEADS * seqlen * seqlen * 4 / 2**20
        rows.append(row)
        print(f"S {seqlen:6}: peak {row['peak_mib']:8.1f} MiB, scratch {row['scratch_mib']:7.1f} MiB", flush=True)
    data = {"cpu": report.cpu_model(), "attend_commit": report.commit(), "bare_mib": bare,
            "B": 1, "H": HEADS, "D": 64, "dtype": "f32", "mode": "both",
            "peak_power": round(growth_power(rows, "above_bare_mib"), 3), "rows": rows}
    report.write_json(report.RESULTS / "memory.json", data)
    report.replace_section(report.DOCS / "benchmarks_cpu.md", "cpu_memory", markdown(data))
    if not data["peak_power"] <= 1.15:
        raise SystemExit(f"peak memory grows as S^{data['peak_power']}, allowed about 1")


if __name__ == "__main__":
    main()
