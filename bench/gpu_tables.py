#!/usr/bin/env python3
"""Rewrites the tables of docs/benchmarks_gpu.md and the README's tables of GPUs from results/h200/*.json.

    python3 bench/gpu_tables.py
"""

import json

import peer_tables
import report

RESULTS = report.ROOT / "results" / "h200"
PAGE = report.DOCS / "benchmarks_gpu.md"


def load(name):
    return json.loads((RESULTS / name).read_text())


def milliseconds(value):
    return f"{1000 * value:.1f} us" if value < 1 else f"{value:.2f} ms"


def sizes(row):
    return f"({row['B']}, {row['H']}, {row['S']}, {row['D']})"


def versus(data):
    """A line for each row: both sides' time and speed."""
    lines = []
    for r in data["rows"]:
        mask = "causal" if r["causal"] else "full"
        lines.append(f"| {sizes(r)} | {mask} | {r['mode']} | {milliseconds(r['ms'])} | "
                     f"{milliseconds(r['torch_ms'])} | {r['tflops']:.1f} | {r['torch_tflops']:.1f} | "
                     f"{r['torch_ms'] / r['ms']:.2f}x |")
    return lines


HEAD = ["| (B, H, S, D) | mask | pass | attend | PyTorch | attend, TFLOP/s | PyTorch, TFLOP/s | speed-up |",
        "|---|---|---|---:|---:|---:|---:|---:|"]


def seed_f32():
    data = load("seed_f32.json")
    lines = [f"{data['device_name']}, PyTorch {data['torch']}.", "", *HEAD, *versus(data), ""]
    for mode, mean in data["mean_ms"].items():
        lines.append(f"Mean time, {mode}: attend {mean['attend']:.3f} ms, PyTorch {mean['torch']:.3f} ms.  ")
    report.replace_section(PAGE, "seed_f32", "\n".join(lines))


def bf16_forward():
    lines = []
    for sdp, name in (("cudnn", "cuDNN"), ("flash", "FlashAttention-2")):
        data = [load(f"bf16_{sdp}_{mask}.json") for mask in ("full", "causal")]
        lines += [f"PyTorch {data[0]['torch']} with its {name} backend, {data[0]['device_name']}:", "", *HEAD]
        lines += [line for d in data for line in versus(d)] + [""]
    report.replace_section(PAGE, "bf16_forward", "\n".join(lines))


def peers(grid, dtype):
    """What bench/h200_vs_peers.py wrote, or None where this grid was not measured."""
    path = RESULTS / f"vs_peers_{grid}_{dtype}.json"
    return json.loads(path.read_text()) if path.exists() else None


def slow_lines():
    """What is slower than PyTorch by most, a line for each kind of problem, for the README; of bfloat16 the tables of
    `beside_peers` say it where there are any."""
    shortest = min(load("seed_f32.json")["rows"], key=lambda r: r["torch_ms"] / r["ms"])
    lines = [f"| float32 {shortest['mode']}, {sizes(shortest)} | `fa2` | **{shortest['tflops']:.1f}** | "
             f"{shortest['torch_tflops']:.1f} (memory-efficient) |"]
    if peers("paper", "bf16"):
        return lines
    short = min(load("bf16_cudnn_causal.json")["rows"], key=lambda r: r["torch_ms"] / r["ms"])
    backward = {r["implementation"]: r for r in load("experiments/results.json")["rows"]
                if (r["experiment"], r["mode"], r["S"]) == ("seed", "backward", 2048)}
    simt, cudnn = backward["simt"], backward["torch_cudnn"]
    return [*lines, f"| bfloat16 {short['mode']}, causal, {sizes(short)} | `wgmma_specialized` | "
            f"**{short['tflops']:.0f}** | {short['torch_tflops']:.0f} (cuDNN) |",
            f"| bfloat16 backward on CUDA cores, {sizes(simt)} | `simt` | **{simt['tflops']:.0f}** | "
            f"{cudnn['tflops']:.0f} (cuDNN) |"]


def half_lines():
    """The largest problems in bfloat16, where the ladder alone was measured beside PyTorch."""
    half = [] if peers("paper", "bf16") else [
        (load(f"bf16_cudnn_{mask}.json")["rows"][0], mask) for mask in ("full", "causal")]
    return [f"| bfloat16 forward, {mask}, {sizes(r)} | `wgmma_specialized` | "
            f"{r['tflops']:.0f} | {r['torch_tflops']:.0f} (cuDNN) |" for r, mask in half]


def beside_peers():
    """bfloat16 through the Python package beside the best peer at each point, for the README."""
    paper, masks, decode = (peers(grid, "bf16") for grid in ("paper", "masks", "decode"))
    if not paper:
        return []
    lines = ["", f"bfloat16, TFLOP/s of attend and, in brackets, of the best of FlashAttention-3, cuDNN and "
             f"FlashAttention-2 at each point ({peer_tables.title(paper)}; 16384 tokens, 2048 channels):", "",
             *peer_tables.by_length(paper["rows"], (512, 2048, 8192, 16384))]
    if masks:
        row = masks["rows"][0]
        lines += ["", f"Options at {peer_tables.sizes(row)}, the best of those and FlexAttention in brackets:", "",
                  *peer_tables.options_table(masks["rows"])]
    if decode:
        cells = [f"{peer_tables.sizes(r)} {peer_tables.cell(r)}" for r in decode["rows"]]
        lines += ["", f"One query row over a cache of keys, GB/s: {', '.join(cells)}."]
    return lines


def summary():
    """The largest problems and the slowest, for the README."""
    run = load("seed_f32.json")
    f32 = {r["mode"]: r for r in run["rows"] if r["S"] == 2048}
    lines = [f"On one {run['device_name']}, TFLOP/s, beside PyTorch {run['torch']} in one process:", "",
             "| | kernel | attend | PyTorch |", "|---|---|---:|---:|"]
    for mode, r in f32.items():
        lines.append(f"| float32 {mode}, {sizes(r)} | `fa2` | {r['tflops']:.1f} | "
                     f"{r['torch_tflops']:.1f} (memory-efficient) |")
    lines += [*half_lines(), *slow_lines(), *beside_peers(), "", slow_sentence()]
    report.replace_section(report.ROOT / "README.md", "gpu_summary", "\n".join(lines))


def slow_sentence():
    page = "All figures: [docs/benchmarks_gpu.md](docs/benchmarks_gpu.md)."
    if peers("paper", "bf16"):
        return f"**Bold is slow**: another is faster there. {page}"
    return ("**Bold is slow**: few rows, short sequences, and what `simt` computes: gradients in 16 bits with bias, "
            f"boolean mask or softcap, beyond head_dim 256, or before Hopper. {page}")


def vs_peers():
    """Every figure of bench/h200_vs_peers.py, for the page."""
    lines = []
    for dtype in ("bf16", "f16"):
        for grid, unit in (("paper", "TFLOP/s"), ("masks", "TFLOP/s"), ("decode", "GB/s")):
            data = peers(grid, dtype)
            if data:
                lines += [f"Grid `{grid}`, {dtype}, {unit} ({peer_tables.title(data)}, {data['date']}):", "",
                          *(peer_tables.by_length(data["rows"]) + [""] if grid == "paper" else []),
                          *peer_tables.by_side(data["rows"]), ""]
                if grid == "paper" and (report.DOCS / f"vs_peers_{dtype}.svg").exists():
                    lines += [f"![TFLOP/s over the sequence length, {dtype}](vs_peers_{dtype}.svg)", ""]
    report.replace_section(PAGE, "vs_peers", "\n".join(lines))


def grids():
    lines = []
    for name, title in (("paper_bf16.json", "paper"), ("gpt3_bf16.json", "gpt3")):
        rows = load(name)
        lengths = sorted({r["Sq"] for r in rows})
        lines += [f"TFLOP/s, grid `{title}`, bfloat16, {rows[0]['device_name']}:", "",
                  "| kernel | D | mask | " + " | ".join(f"S = {s}" for s in lengths) + " |",
                  "|---|---|---|" + "---:|" * len(lengths)]
        found = {(r["compute"], r["D"], r["causal"], r["Sq"]): r["tflops"] for r in rows}
        for compute, head_dim, causal in sorted({key[:3] for key in found}):
            cells = (found.get((compute, head_dim, causal, s)) for s in lengths)
            lines.append(f"| `{compute}` | {head_dim} | {'causal' if causal else 'full'} | "
                         + " | ".join("" if c is None else f"{c:.0f}" for c in cells) + " |")
        lines.append("")
    report.replace_section(PAGE, "grids", "\n".join(lines))


def in_python():
    """What Python costs and what the examples and experiments gave, for the README."""
    names = ("python_host_cost.json", "train_char_transformer.json", "train_gpt2.json", "experiments/results.json")
    cost, train, gpt2, experiments = map(load, names)
    plain = {row["dtype"]: row for row in cost["rows"] if not row["autograd"]}
    checked = [row for row in experiments["rows"] if row["passed"] is not None]
    passed = sum(row["passed"] for row in checked)
    first, last, steps = train["first"], train["last"], train["settings"]["steps"]
    lines = [
        f"On one {cost['device_name']} with PyTorch {cost['torch']}:",
        "",
        "- **The host's time of a call** on CUDA tensors (1, 1, 128, 64), autograd off: `attend.attention` "
        f"{plain['f32']['attend_us']:.1f} us in float32 and {plain['bf16']['attend_us']:.1f} us in bfloat16, "
        f"`F.scaled_dot_product_attention` {plain['f32']['torch_us']:.1f} and {plain['bf16']['torch_us']:.1f}.",
        f"- **Training** the character transformer for {steps} steps: the loss falls from {first['attend']:.3f} to "
        f"{last['attend']:.3f} with attend, and to {last['torch']:.3f} with torch's attention from the same weights and "
        f"batches; the two curves are never further apart than {train['largest_difference']:.1e}. A step takes "
        f"{train['ms_per_step']['attend']:.2f} ms with attend and {train['ms_per_step']['torch']:.2f} with torch's "
        f"attention, a step of a GPT-2 in bfloat16 {gpt2['ms_per_step']['attend']:.1f} and "
        f"{gpt2['ms_per_step']['torch']:.1f}.",
        f"- **Experiments**: {passed} of {len(checked)} checks against float64 passed.",
    ]
    report.replace_section(report.ROOT / "README.md", "python_summary", "\n".join(lines))


if __name__ == "__main__":
    in_python()
    summary()
    seed_f32()
    bf16_forward()
    vs_peers()
    grids()
