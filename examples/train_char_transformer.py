#!/usr/bin/env python3
"""Trains a small character transformer with attend and with torch's attention, and compares losses and step times.

    python examples/train_char_transformer.py [--steps 300] [--device cuda] [--output DIR]

Both models start from the same weights and see the same batches. Only their attention function differs. The text is
this repository's documentation. Writes losses.json and, if matplotlib is installed, losses.svg and losses.png. The exit
status is 0 if all checks passed; 1 if a loss did not fall or the curves diverged; and 2 if the usage was wrong, torch
is missing, or attend does not support the requested options.
"""

import argparse
import json
import pathlib
import statistics
import sys
import tempfile
import time
from typing import Any

try:
    import torch
    import torch.nn.functional as F
    from torch import nn
except ImportError as error:
    print(f"{error.name} is not installed, which this example needs: pip install torch", file=sys.stderr)
    sys.exit(2)

import attend
from attend._core import source_digests

ROOT = pathlib.Path(__file__).resolve().parent.parent
HEAD_DIM = 64
# Largest allowed difference of the two losses at any step, in nats. The two attentions round differently, and training
# amplifies the difference.
TOLERANCE = {"f32": 5e-4, "bf16": 0.05}
FALL = 0.75  # the mean of the last losses must be below this fraction of the first
LAST = 10  # number of steps in that mean
WARM_UP = 10  # untimed steps at the start, if there are more steps


def attend_attention(qkv):
    """Maps qkv (batch, seqlen, 3, heads, head_dim) to (batch, seqlen, heads, head_dim)."""
    return attend.attention_qkvpacked(qkv, causal=True)


def torch_attention(qkv):
    q, k, v = (x.transpose(1, 2) for x in qkv.unbind(2))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)


class Block(nn.Module):
    """Computes x + attention(norm(x)), then x + mlp(norm(x)), for x (batch, seqlen, heads * HEAD_DIM)."""

    def __init__(self, num_heads, attention):
        super().__init__()
        width = num_heads * HEAD_DIM
        self.attention = attention
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        qkv = self.qkv(self.norms[0](x)).unflatten(-1, (3, -1, HEAD_DIM))
        x = x + self.out(self.attention(qkv).flatten(2))
        return x + self.mlp(self.norms[1](x))


class CharTransformer(nn.Module):
    """Computes the logits of the next character, (batch, seqlen, vocabulary), from characters, i64 (batch, seqlen)."""

    def __init__(self, vocabulary, options, attention):
        super().__init__()
        width = options.num_heads * HEAD_DIM
        self.characters, self.places = nn.Embedding(vocabulary, width), nn.Embedding(options.seq_len, width)
        self.blocks = nn.Sequential(*(Block(options.num_heads, attention) for _ in range(options.num_layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary)
        for table in (self.characters, self.places):
            nn.init.normal_(table.weight, std=0.1)

    def forward(self, ids):
        x = self.characters(ids) + self.places.weight[: ids.shape[1]]
        return self.head(self.norm(self.blocks(x)))


def read_text(files):
    """Returns the characters as i64 numbers, and the number of distinct ones."""
    text = "".join(path.read_text(encoding="utf-8") for path in files)
    known = {character: number for number, character in enumerate(sorted(set(text)))}
    return torch.tensor([known[character] for character in text]), len(known)


def prepare_folder(folder):
    """Makes the folder and tests that a file can be written there. An error after the training would lose its
    results.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):
        pass


def train(options, data, vocabulary):
    """Trains both models in turns on the same batches. Returns {"attend": [loss of each step], "torch": [...]} and the
    seconds of the steps in the same form.
    """
    models = {}
    for name, attention in (("attend", attend_attention), ("torch", torch_attention)):
        torch.manual_seed(options.seed)
        models[name] = CharTransformer(vocabulary, options, attention).to(options.device)
    optimizers = {name: torch.optim.AdamW(model.parameters(), lr=options.lr) for name, model in models.items()}
    losses: dict[str, list[float]] = {name: [] for name in models}
    seconds: dict[str, list[float]] = {name: [] for name in models}
    batches = torch.Generator().manual_seed(options.seed)
    device_type = torch.device(options.device).type
    start = time.perf_counter()
    for step in range(options.steps):
        places = torch.randint(len(data) - options.seq_len, (options.batch_size, 1), generator=batches)
        window = data[places + torch.arange(options.seq_len + 1)].to(options.device)
        for name in sorted(models, reverse=step % 2 == 1):
            model, begun = models[name], time.perf_counter()
            with torch.autocast(device_type, torch.bfloat16, enabled=options.dtype == "bf16"):
                logits = model(window[:, :-1])
            loss = F.cross_entropy(logits.float().flatten(0, 1), window[:, 1:].flatten())
            optimizers[name].zero_grad()
            loss.backward()
            optimizers[name].step()
            losses[name].append(loss.item())  # waits for the device
            seconds[name].append(time.perf_counter() - begun)
        if step % max(1, options.steps // 10) == 0 or step == options.steps - 1:
            now = ", ".join(f"{name} {values[-1]:.5f}" for name, values in losses.items())
            print(f"step {step:4}  {now}  ({time.perf_counter() - start:.1f} s)", flush=True)
    return losses, seconds


def judge_falls(losses):
    """Returns {"first": {name: loss}, "last": {name: mean}} and one line for each loss that did not fall."""
    report: dict[str, Any] = {"first": {}, "last": {}}
    failures = []
    for name, values in losses.items():
        count = min(LAST, len(values))
        report["first"][name], report["last"][name] = values[0], sum(values[-count:]) / count
        if not report["last"][name] < FALL * values[0]:  # also true for NaN
            failures.append(f"{name}: the loss went from {values[0]:.4f} to {report['last'][name]:.4f}, "
                            f"expected below {FALL * values[0]:.4f}")  # fmt: skip
    return report, failures


def judge(losses, tolerance):
    """Returns {"first", "last", "largest_difference", ...} and one line for each check that failed."""
    report, failures = judge_falls(losses)
    differences = [abs(a - b) for a, b in zip(losses["attend"], losses["torch"])]
    report |= {"tolerance": tolerance, "largest_difference": max(differences), "final_difference": differences[-1]}
    if not all(difference <= tolerance for difference in differences):
        failures.append(f"the curves are {max(differences):.2e} apart, allowed {tolerance:g}")
    return report, failures


def plot(losses, folder):
    try:
        import matplotlib
    except ImportError:
        print("no plot: matplotlib is not installed")
        return
    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    figure, (above, below) = plt.subplots(2, 1, figsize=(7, 5), sharex=True, height_ratios=(2, 1), layout="constrained")
    above.plot(losses["torch"], label="torch", color="#b3402e", linewidth=3, alpha=0.5)
    above.plot(losses["attend"], label="attend", color="#2563a8", linewidth=1)
    above.set_ylabel("loss, nats for each character")
    above.legend(frameon=False)
    below.plot([abs(a - b) for a, b in zip(losses["attend"], losses["torch"])], ".", color="#444444", markersize=3)
    below.set(yscale="log", xlabel="step", ylabel="difference")
    for kind in ("svg", "png"):
        figure.savefig(folder / f"losses.{kind}", dpi=120)
    print(f"wrote {folder / 'losses.svg'} and losses.png")


def check_device(parser: argparse.ArgumentParser, name: str) -> None:
    """Exits with one line and status 2 if there is no such device."""
    refusal = f"--device: {name!r}, allowed cpu, cuda, cuda:N"
    try:
        device = torch.device(name)
    except RuntimeError:
        parser.error(refusal)
    if device.type not in ("cpu", "cuda"):
        parser.error(refusal)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        parser.error(f"--device: {name}, but torch finds {torch.cuda.device_count() or 'no'} GPU")


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--dtype", choices=tuple(TOLERANCE), default="f32", help="bf16: autocast")
    parser.add_argument("--batch_size", type=int, default=8)
    parser.add_argument("--num_heads", type=int, default=2, help=f"heads, each with head_dim {HEAD_DIM}")
    parser.add_argument("--seq_len", type=int, default=128)
    parser.add_argument("--num_layers", type=int, default=2)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--tolerance", type=float, help=f"largest difference of the curves in nats (default {TOLERANCE})"
    )
    parser.add_argument("--text", type=pathlib.Path, nargs="+", help="text files for training (default: docs/*.md)")
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("experiment_results/char_transformer"))
    options = parser.parse_args(arguments)
    for name in ("steps", "batch_size", "num_heads", "seq_len", "num_layers"):
        if getattr(options, name) < 1:
            parser.error(f"--{name}: {getattr(options, name)}, allowed a number of at least 1")
    if not 0 <= options.seed < 2**63:
        parser.error(f"--seed: {options.seed}, allowed 0 to {2**63 - 1}")
    check_device(parser, options.device)
    return options


def main(arguments=None):
    options = parse(arguments)
    try:
        data, vocabulary = read_text(options.text or sorted((ROOT / "docs").glob("*.md")))
    except (OSError, UnicodeDecodeError) as error:
        print(f"--text: {error}, allowed text files in UTF-8", file=sys.stderr)
        return 2
    if len(data) <= options.seq_len:
        print(f"--text: {len(data)} characters, allowed more than --seq_len {options.seq_len}", file=sys.stderr)
        return 2
    try:
        prepare_folder(options.output)
    except OSError as error:
        print(f"--output: {options.output}: {error.strerror}, allowed a folder that can be written to", file=sys.stderr)
        return 2
    print(f"{len(data)} characters, {vocabulary} of them distinct; {options.device}, {options.dtype}")
    try:
        losses, seconds = train(options, data, vocabulary)
    except attend.Error as error:
        print(f"attend: {error}", file=sys.stderr)
        return 2
    tolerance = TOLERANCE[options.dtype] if options.tolerance is None else options.tolerance
    report, failures = judge(losses, tolerance)
    settings = {name: value for name, value in vars(options).items() if name not in ("text", "output", "tolerance")}
    versions = {"attend": attend.__version__, "torch": torch.__version__}
    when = {"date": time.strftime("%Y-%m-%d", time.gmtime()), "sources": source_digests()}
    skipped = min(WARM_UP, options.steps - 1)
    milliseconds = {name: 1e3 * statistics.median(values[skipped:]) for name, values in seconds.items()}
    record = {"settings": settings, "versions": versions, **when, "failures": failures,
              "ms_per_step": milliseconds, **report,
              "losses": losses}  # fmt: skip
    (options.output / "losses.json").write_text(json.dumps(record, indent=1) + "\n")
    plot(losses, options.output)
    for name, last in report["last"].items():
        print(f"{name:<7} {milliseconds[name]:.2f} ms a step, loss {report['first'][name]:.4f} -> {last:.4f}")
    print(f"difference: {report['final_difference']:.2e} at the end, {report['largest_difference']:.2e} at most, "
          f"allowed {tolerance:g}")  # fmt: skip
    for failure in failures:
        print(f"FAILED {failure}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
