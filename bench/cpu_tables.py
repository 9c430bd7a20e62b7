#!/usr/bin/env python3
"""Makes the CPU tables of docs/benchmarks_cpu.md and README.md from the results of bench/cpu_vs_torch.py."""

import json

import report

FILE = report.RESULTS / "cpu_vs_torch.json"
PICTURE = "![speed against PyTorch](cpu_vs_torch.svg)"


def markdown() -> str:
    data = json.loads(FILE.read_text())
    info = data["machine"]
    peak = info["f32_fma_peak_gflops"][str(info["threads"])] / 1e3
    lines = [
        PICTURE, "",
        f"Measured on {info['date']} at commit {info['attend_commit']}: {info['cpu']}, {info['threads']} threads, SIMD target "
        f"{info['simd_target']}, measured float32 FMA peak {peak * 1e3:.0f} GFLOP/s, PyTorch {info['torch']}.", "",
        "| dtype | mode | geometric mean of the speed-up | smallest |", "|---|---|---|---|"]
    lines += [f"| {s['dtype']} | {s['mode']} | {s['geomean_speedup']:.2f} | {s['min_speedup']:.2f} |"
              for s in data["summary"]]
    lines += ["", "Times in ms: median (lower to upper quartile).", "",
              "| dtype | mode | B, H, S, D | mask | attend | torch | speed-up | TFLOP/s | of f32 peak |",
              "|---|---|---|---|---|---|---|---|---|"]
    for r in data["rows"]:
        low, mid, high = r["ms_quartiles"]
        torch_low, torch_mid, torch_high = r["torch_ms_quartiles"]
        share = f"{100 * r['tflops'] / peak:.0f} %" if r["dtype"] == "f32" else ""
        lines.append(
            f"| {r['dtype']} | {r['mode']} | {r['B']}, {r['H']}, {r['Sq']}, {r['D']} | "
            f"{'causal' if r['causal'] else 'full'} | {mid:.2f} ({low:.2f} to {high:.2f}) | "
            f"{torch_mid:.2f} ({torch_low:.2f} to {torch_high:.2f}) | {r['speedup']:.2f} | {r['tflops']:.3f} | {share} |")
    return "\n".join(lines)


def readme_summary() -> str:
    data = json.loads(FILE.read_text())
    info = data["machine"]
    share = max(r["tflops"] for r in data["rows"] if r["dtype"] == "f32" and r["mode"] == "forward")
    share *= 1e5 / info["f32_fma_peak_gflops"][str(info["threads"])]
    lines = [f"attend compared with the CPU `scaled_dot_product_attention` of PyTorch {info['torch'].split('+')[0]} in one process, "
             f"on {info['threads']} threads of an {info['cpu'].split(' (')[0]} ({info['simd_target']}). "
             f"Each row covers {len(data['rows']) // len(data['summary'])} combinations of shape and mask:", "",
             "| dtype | pass | speed-up, geometric mean | smallest |", "|---|---|---|---|"]
    lines += [f"| {s['dtype']} | {s['mode']} | {s['geomean_speedup']:.2f} | {s['min_speedup']:.2f} |"
              for s in data["summary"]]
    lines += ["", f"The float32 forward pass reaches up to {share:.0f} % of the multiply-add peak of the same threads. "
              "[docs/benchmarks_cpu.md](docs/benchmarks_cpu.md) has all numbers and the method. `make bench-cpu` measures "
              "them again."]
    return "\n".join(lines)


def sections():
    made = {"files": (FILE,), "parts": ("src/cpu",), "command": "make bench-cpu"}
    return [report.Section(report.DOCS / "benchmarks_cpu.md", "cpu_vs_torch", body=markdown, **made),
            report.Section(report.ROOT / "README.md", "speed_summary", body=readme_summary, **made)]
