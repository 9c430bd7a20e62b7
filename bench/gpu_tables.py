#!/usr/bin/env python3
"""Makes the tables of docs/benchmarks_gpu.md, and the GPU tables of README.md, from results/h200/*.json."""

import json

import ladder_table
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
    """Returns a line for each measured row, with the time and speed of both sides."""
    lines = []
    for r in data["rows"]:
        mask = "causal" if r["causal"] else "full"
        lines.append(
            f"| {sizes(r)} | {mask} | {r['mode']} | {milliseconds(r['ms'])} | "
            f"{milliseconds(r['torch_ms'])} | {r['tflops']:.1f} | {r['torch_tflops']:.1f} | "
            f"{r['torch_ms'] / r['ms']:.2f}x |"
        )
    return lines


HEAD = [
    "| (B, H, S, D) | mask | pass | attend | PyTorch | attend, TFLOP/s | PyTorch, TFLOP/s | speed-up |",
    "|---|---|---|---:|---:|---:|---:|---:|",
]


def seed_f32():
    data = load("seed_f32.json")
    lines = [f"{data['device_name']}, PyTorch {data['torch']}.", "", *HEAD, *versus(data), ""]
    for mode, mean in data["mean_ms"].items():
        lines.append(f"Mean time, {mode}: attend {mean['attend']:.3f} ms, PyTorch {mean['torch']:.3f} ms.  ")
    return "\n".join(lines)


def peers(grid, dtype):
    """Returns the results of bench/h200_vs_peers.py, or None if this grid was not measured."""
    path = RESULTS / f"vs_peers_{grid}_{dtype}.json"
    return json.loads(path.read_text()) if path.exists() else None


def float32():
    """Returns lines about the float32 kernel on the largest problem, compared with PyTorch if PyTorch was measured."""
    if (RESULTS / "seed_f32.json").exists():
        run = load("seed_f32.json")
        largest = [r for r in run["rows"] if r["S"] == 2048]
        slowest = min(run["rows"], key=lambda r: r["torch_ms"] / r["ms"])
        lines = [f"TFLOP/s on one {run['device_name']}, compared with PyTorch {run['torch']} in the same process:", "",
                 "| | kernel | attend | PyTorch |", "|---|---|---:|---:|"]
        for r in [*largest, slowest]:
            bold = "**" * (r["torch_ms"] < r["ms"])
            lines.append(
                f"| float32 {r['mode']}, {sizes(r)} | `{run['compute']}` | {bold}{r['tflops']:.1f}{bold} | "
                f"{r['torch_tflops']:.1f} (memory-efficient) |"
            )
        return lines
    run = load("ladder.json")
    rows = [r for r in run["rungs"] if r["compute"] == "fa2"]
    product = next(m["tflops"] for m in run["matrix_products"] if m["dtype"] == "f32")
    shown = " and ".join(f"{r['tflops']:.1f} TFLOP/s {r['mode']}" for r in rows)
    row = {**rows[0], "S": rows[0]["Sq"]}
    return [f"float32 at {sizes(row)} on one {run['device_name']}: `fa2` reaches {shown}. A large matrix product by "
            f"cuBLAS reaches {product:.1f} TFLOP/s."]


def beside_peers():
    """Returns the README's lines on bfloat16 through the Python package, compared with the best peer at each point."""
    paper, masks = (peers(grid, "bf16") for grid in ("paper", "masks"))
    beside = [n for key, n in peer_tables.NAMES.items() if key != "attend" and any(key in r["tflops"] for r in paper["rows"])]
    lines = [f"TFLOP/s of attend in bfloat16. Brackets: the best of {', '.join(beside[:-1])} and "
             f"{beside[-1]} at each point ({peer_tables.title(paper)}; 16384 tokens, 2048 channels):", "",
             *peer_tables.by_length(paper["rows"], (512, 2048, 8192, 16384))]
    if masks:
        row = masks["rows"][0]
        lines += ["", f"Options at {peer_tables.sizes(row)}. Brackets: the best of the same libraries and FlexAttention:", "",
                  *peer_tables.options_table(masks["rows"])]
    return [*lines, "", *one_row_of_decode()]


def one_row_of_decode():
    """Returns the README's lines on attend.decode with one query row and at least KEYS_OF_LARGE keys in total."""
    data = json.loads(DECODE.read_text())
    cells = []
    for row in data["rows"]:
        if row["rows"] != 1 or row["B"] * row["S"] < KEYS_OF_LARGE:
            continue
        speeds = {side: speed["cold"] for side, speed in row["gbps"].items()}
        own, best = speeds.pop("attend"), max(speeds.values())
        sizes = f"({row['B']}, {row['H']}:{row['Hkv']}, {row['S']}, {row['D']})"
        cells.append(f"{sizes} {peer_tables.emphasised(own, own < best)} ({best:.0f})")
    return ["`attend.decode` with one query row over a cache: GB/s of keys and values. Brackets: the better of cuDNN and "
            f"FlashAttention-3 ({data['date']}). {', '.join(cells)}."]


def summary():
    """Returns the README's comparison with peers."""
    picture = "![TFLOP/s of attend and its peers over sequence length, forward and backward](docs/vs_peers_bf16.svg)"
    last = "**Bold**: another library is faster. [docs/benchmarks_gpu.md](docs/benchmarks_gpu.md) has all figures."
    return "\n".join([*beside_peers(), "", picture, "", last])


def vs_peers():
    """Returns every figure of bench/h200_vs_peers.py for docs/benchmarks_gpu.md."""
    lines = []
    for dtype in ("bf16", "f16", "f32"):
        for grid, unit in (("paper", "TFLOP/s"), ("masks", "TFLOP/s"), ("corners", "TFLOP/s"), ("decode", "GB/s")):
            data = peers(grid, dtype)
            if data:
                if grid == "decode":
                    lines += ["The next grid calls `attend.attention` with one query row. `attend.decode` is faster "
                              "([serving.md](serving.md)).", ""]
                lines += [f"Grid `{grid}`, {dtype}, {unit} ({peer_tables.title(data)}, {data['date']}):", "",
                          *(peer_tables.by_length(data["rows"]) + [""] if grid == "paper" else []),
                          *peer_tables.by_side(data["rows"]), ""]
                if grid == "paper" and (report.DOCS / f"vs_peers_{dtype}.svg").exists():
                    lines += [f"![TFLOP/s over the sequence length, {dtype}](vs_peers_{dtype}.svg)", ""]
    return "\n".join(lines)


OWN = RESULTS / "vs_peers_own_bf16.json"
DECODE = RESULTS / "decode_bf16.json"
KEYS_OF_LARGE = 65536  # with fewer keys in all, the start of the kernel dominates


def own_functions():
    """Returns the table of custom scores and masks for docs/custom_scores.md."""
    data = json.loads(OWN.read_text())
    lines = [f"bfloat16; TFLOP/s count the pairs that a mask keeps ({peer_tables.title(data)}):", "",
             "| function | (B, H, S, D) | pass | attend | attend's option | FlexAttention | FlashAttention-4 | attend over the "
             "best |", "|---|---|---|---:|---:|---:|---:|---:|"]
    for row in data["rows"]:
        figures, share = row["tflops"], peer_tables.ratio(row)
        cells = [f"{figures[name]:.0f}" if name in figures else "-" for name in ("attend", "built_in", "flex", "fa4")]
        beside = "-" if share is None else peer_tables.emphasised(share, share < 1, 2) + "x"
        lines.append(f"| {' | '.join([row['mask'], sizes(row), peer_tables.PASSES[row['mode']], *cells, beside])} |")
    return "\n".join([*lines, "", "![TFLOP/s of attend and its peers, one function per row](vs_peers_own_bf16.svg)"])


MADE_MASKS, FLEX_TRAINING = RESULTS / "made_masks.json", RESULTS / "flex_training_bf16.json"


def made_masks():
    """Returns the table of docs/custom_scores.md with the times in which a GPU and the CPU make block masks."""
    data = json.loads(MADE_MASKS.read_text())
    lines = [f"Medians of {data['runs']} runs on one {data['device']}, in microseconds. *GPU*: from the first operation on the GPU to the last "
             "copy. *call*: the time that the caller waits. *CPU*: the same mask made on the CPU.", "",
             "| mask | rows and keys | GPU | call | CPU | most memory, MiB |", "|---|---:|---:|---:|---:|---:|"]
    for row in data["masks"]:
        lines.append(
            f"| {row['mask']} | {row['length']} | {row['gpu_us']:.0f} | {row['call_us']:.0f} | {row['host_us']:.0f} | "
            f"{row['peak_mib']:.1f} |"
        )
    return "\n".join(lines)


def flex_training():
    """Returns the paragraph of docs/custom_scores.md on training with torch's flex_attention and with attend."""
    data = json.loads(FLEX_TRAINING.read_text())
    last = {name: sum(losses[-10:]) / 10 for name, losses in data["loss"].items()}
    return (f"The example is a language model of {data['layers']} layers with {data['heads']} heads of head_dim {data['head_dim']}, trained on "
            f"batches of {data['batch']} sequences of {data['seqlen']} tokens. Its mask is causal within documents. Its score adds a learned bias for each distance. "
            f"On one {data['device']} with PyTorch {data['torch']}, the loss after {data['steps']} steps is {last['torch']:.4f} with torch's kernels and "
            f"{last['attend']:.4f} with attend behind `flex_attention`. A step takes {data['step_ms']['torch']:.0f} ms with torch's kernels and "
            f"{data['step_ms']['attend']:.0f} ms with attend. torch's kernel sums the gradient of the bias with one atomic addition per score. Its backward pass "
            f"runs with `bwd_num_stages` {data['bwd_stages']}, because it needs too much shared memory otherwise.")


def in_python():
    """Returns the README's figures about the cost of Python and about the examples."""
    cost, train, gpt2 = map(load, ("python_host_cost.json", "train_char_transformer.json", "train_gpt2.json"))
    plain = {row["dtype"]: row for row in cost["rows"] if not row["autograd"]}
    first, last, steps = train["first"], train["last"], train["settings"]["steps"]
    lines = [
        f"On one {cost['device_name']} with PyTorch {cost['torch']}:",
        "",
        "- **The host's time of a call** on CUDA tensors (1, 1, 128, 64) without autograd: `attend.attention` takes "
        f"{plain['f32']['attend_us']:.1f} us in float32 and {plain['bf16']['attend_us']:.1f} us in bfloat16. "
        f"`F.scaled_dot_product_attention` takes {plain['f32']['torch_us']:.1f} us and {plain['bf16']['torch_us']:.1f} us.",
        f"- **Training** the character transformer for {steps} steps: the loss falls from {first['attend']:.3f} to "
        f"{last['attend']:.3f} with attend, and to {last['torch']:.3f} with torch's attention, from the same weights and "
        f"batches. The two curves differ by at most {train['largest_difference']:.1e}. A step takes "
        f"{train['ms_per_step']['attend']:.2f} ms with attend and {train['ms_per_step']['torch']:.2f} ms with torch's "
        f"attention. A step of a GPT-2 in bfloat16 takes {gpt2['ms_per_step']['attend']:.1f} ms and "
        f"{gpt2['ms_per_step']['torch']:.1f} ms.",
    ]
    return "\n".join(lines)


def sections():
    readme = report.ROOT / "README.md"
    tensor_cores = ("kernels/common", "kernels/sm80", "kernels/sm90", "kernels/simt", "src/cuda/launch")
    compare = "python3 bench/h200_vs_peers.py"
    seed = RESULTS / "seed_f32.json"
    grids = tuple(path for path in sorted(RESULTS.glob("vs_peers_*_*.json")) if path != OWN)
    of_bf16 = (*(RESULTS / f"vs_peers_{grid}_bf16.json" for grid in ("paper", "masks")), DECODE)
    in_f32 = (seed,) if seed.exists() else (ladder_table.FILE,)
    python = tuple(RESULTS / f"{name}.json" for name in ("python_host_cost", "train_char_transformer", "train_gpt2"))
    command = (
        "python3 bench/gpu_vs_torch.py --dtype f32 --compute fa2 --sdp efficient --output results/h200/seed_f32.json"
    )
    rungs = ("kernels/common", "kernels/ladder")

    def in_float32():
        return "\n".join(float32())

    return [
        report.Section(readme, "gpu_float32", in_f32, rungs, in_float32, command),
        report.Section(readme, "gpu_summary", of_bf16, tensor_cores, summary, compare),
        report.Section(readme, "python_summary", python, tensor_cores, in_python, "python3 bench/python_host_cost.py"),
        report.Section(PAGE, "seed_f32", (seed,), rungs, seed_f32, command),
        report.Section(PAGE, "vs_peers", grids, tensor_cores, vs_peers, compare),
        report.Section(
            report.DOCS / "custom_scores.md",
            "own_functions",
            (OWN,),
            tensor_cores,
            own_functions,
            f"{compare} --grid own --dtype bf16",
        ),
        report.Section(
            report.DOCS / "custom_scores.md",
            "made_masks",
            (MADE_MASKS,),
            ("kernels/masks",),
            made_masks,
            "build/release/bench/made_masks --json results/h200/made_masks.json",
        ),
        report.Section(
            report.DOCS / "custom_scores.md",
            "flex_training",
            (FLEX_TRAINING,),
            tensor_cores,
            flex_training,
            "python3 bench/flex_training.py --output results/h200/flex_training_bf16.json",
        ),
    ]
