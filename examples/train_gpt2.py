#!/usr/bin/env python3
"""Trains a model of GPT-2's size with attend and with torch's attention, and compares step times, losses, gradients.

    python examples/train_gpt2.py --device cuda [--steps 200] [--dtype bf16] [--output DIR]

As in the smallest GPT-2, the model has 12 layers, 768 columns, 12 heads, a vocabulary of 50,304 tokens, and sequences
of 1024 tokens. AdamW has the betas (0.9, 0.95), and gradients are clipped to a norm of 1. With bf16 the model runs
under autocast. The models start from the same weights and train in turns on the same batches, so that a busy moment of
the machine affects all of them. The data is random but can be learnt, because each of 1024 tokens has only four
possible successors. Writes gpt2.json and, if matplotlib is installed, gpt2.svg and gpt2.png.

Training amplifies rounding errors, so the loss curves of two correct attentions also diverge. A third model, with
another backend of torch's attention, shows when this happens. After torch's two curves have diverged, the program no
longer compares curves. One comparison does not depend on the course of training and is made at all steps: the gradients
of the weights of q, k and v, for the same weights and the same batch. The exit status is 0 if all checks passed; 1 if a
loss did not fall, the curves diverged, or gradients differ; and 2 if the usage was wrong, torch is missing, or attend
does not support the requested options.
"""

import argparse
import json
import pathlib
import statistics
import sys
import time
from typing import Any

try:
    import torch
    import torch.nn.functional as F
except ImportError as error:
    print(f"{error.name} is not installed, which this example needs: pip install torch", file=sys.stderr)
    sys.exit(2)

import attend
from attend._core import source_digests

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import train_char_transformer as small  # the model, its two attentions, and the checks

ACTIVE = 1024  # number of distinct tokens; small, so that each successor appears often in 200 steps
SUCCESSORS = 4  # number of possible successors of each token
WARM_UP = 10  # untimed steps at the start
MOST_NORM = 1.0  # limit of the norm of all gradients of a step
TOLERANCE = {"f32": 2e-3, "bf16": 0.05}  # largest allowed difference of the losses, in nats
PARTED = 0.2  # losses are compared until torch's two backends differ by this fraction of TOLERANCE
# Limit of the difference between attend's gradients and torch's, relative to the difference of torch's two backends.
# The limit is at least LEAST_APART, relative to the norm of the gradient, because two backends may round alike.
GRADIENTS_APART = 3
LEAST_APART = {"f32": 1e-5, "bf16": 2e-3}
COLORS = {"attend": "#2563a8", "torch": "#b3402e", "torch_other": "#777777"}


def other_attention(qkv):
    """Computes torch's attention with a backend that torch does not choose by default for these inputs."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION if qkv.is_cuda else SDPBackend.MATH):
        return small.torch_attention(qkv)


class Tokens:
    """Generates batches of sequences of a random Markov chain, i64 (batch_size, seq_len + 1)."""

    def __init__(self, vocabulary, seed):
        self.generator = torch.Generator().manual_seed(seed)
        self.table = torch.randint(vocabulary, (vocabulary, SUCCESSORS), generator=self.generator)

    def batch(self, batch_size, seq_len):
        choices = torch.randint(SUCCESSORS, (seq_len, batch_size), generator=self.generator)
        rows = [torch.randint(len(self.table), (batch_size,), generator=self.generator)]
        for choice in choices:
            rows.append(self.table[rows[-1], choice])
        return torch.stack(rows, 1)


class Trainee:
    """A model, its optimizer, and the losses and times of its steps."""

    def __init__(self, options, attention):
        torch.manual_seed(options.seed)
        self.model = small.CharTransformer(options.vocabulary, options, attention).to(options.device)
        self.attention = attention
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=options.lr, betas=(0.9, 0.95))
        ramp = options.lr_warm_up + 1
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: min(1, (step + 1) / ramp))
        self.device_type = torch.device(options.device).type
        self.dtype, self.losses, self.seconds = options.dtype, [], []

    def wait(self):
        if self.device_type == "cuda":
            torch.cuda.synchronize()

    def step(self, window):
        self.wait()
        start = time.perf_counter()
        loss = self.loss(window)
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), MOST_NORM)
        self.optimizer.step()
        self.wait()
        self.seconds.append(time.perf_counter() - start)
        self.losses.append(loss.item())
        self.schedule.step()

    def loss(self, window):
        with torch.autocast(self.device_type, torch.bfloat16, enabled=self.dtype == "bf16"):
            logits = self.model(window[:, :-1])
            return F.cross_entropy(logits.flatten(0, 1), window[:, 1:].flatten())

    def gradients(self, window, attention):
        """Returns the gradients of the q, k and v weights, (3, layers, ...), with this attention. Updates nothing."""
        blocks: Any = list(self.model.blocks)
        for block in blocks:
            block.attention = attention
        found = torch.autograd.grad(self.loss(window), [block.qkv.weight for block in blocks])
        for block in blocks:
            block.attention = self.attention
        return torch.stack(found).unflatten(1, (3, -1)).transpose(0, 1)


ATTENTIONS = {"attend": small.attend_attention, "torch": small.torch_attention, "torch_other": other_attention}


def train(options):
    """Returns {name: Trainee} after all steps, and the results of `compare_gradients`."""
    trainees = {name: Trainee(options, attention) for name, attention in ATTENTIONS.items()}
    tokens = Tokens(min(options.vocabulary, ACTIVE), options.seed)
    compared = []
    for step in range(options.steps):
        window = tokens.batch(options.batch_size, options.seq_len).to(options.device)
        is_told = step % max(1, options.steps // 10) == 0 or step == options.steps - 1
        if is_told:
            compared.append({"step": step, **compare_gradients(trainees["torch"], window)})
        # Alternates the order, so that no model always follows the same other model.
        order = sorted(trainees)[:: 1 - 2 * (step % 2)]
        for name in order[step % len(order) :] + order[: step % len(order)]:
            trainees[name].step(window)
        if is_told:
            now = ", ".join(f"{name} {t.losses[-1]:.4f} ({1e3 * t.seconds[-1]:.1f} ms)" for name, t in trainees.items())
            print(f"step {step:4}  {now}", flush=True)
    return trainees, compared


def compare_gradients(trainee, window):
    """Returns {name: [relative difference for q, k, v]}: |gradient - torch's| / |torch's| at the weights of torch's
    model.
    """
    want = trainee.gradients(window, ATTENTIONS["torch"])
    norms = want.flatten(1).norm(dim=1)
    return {
        name: ((trainee.gradients(window, ATTENTIONS[name]) - want).flatten(1).norm(dim=1) / norms).tolist()
        for name in ("attend", "torch_other")
    }


def judge_gradients(compared, least):
    """Returns one line for each step at which attend's gradients differ from torch's by more than rounding explains."""
    failures = []
    for row in compared:
        for name, ours, others in zip("qkv", row["attend"], row["torch_other"]):
            allowed = max(least, GRADIENTS_APART * others)
            if not ours <= allowed:  # also true for NaN
                failures.append(f"step {row['step']}: the gradients of {name}'s weights are {ours:.2e} apart, "
                                f"allowed {allowed:.2e}")  # fmt: skip
    return failures


def judge(losses, compared, dtype):
    """Returns a report, and one line for each check that failed."""
    tolerance = TOLERANCE[dtype]
    report, failures = small.judge_falls(losses)
    ours, others = ([abs(x - want) for x, want in zip(losses[name], losses["torch"])]
                    for name in ("attend", "torch_other"))  # fmt: skip
    parted = next((step for step, other in enumerate(others) if not other <= PARTED * tolerance), len(others))
    report |= {"tolerance": tolerance, "parted_at": parted, "largest_difference": max(ours[:parted], default=0.0)}
    report |= {"gradients": compared}
    if not all(difference <= tolerance for difference in ours[:parted]):
        failures.append(f"the curves are {report['largest_difference']:.2e} apart before step {parted}, "
                        f"allowed {tolerance:g}")  # fmt: skip
    return report, failures + judge_gradients(compared, LEAST_APART[dtype])


def plot(trainees, milliseconds, folder):
    try:
        import matplotlib
    except ImportError:
        print("no plot: matplotlib is not installed")
        return
    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.5), width_ratios=(2, 1), layout="constrained")
    for name, width, alpha in (("torch", 3, 0.5), ("torch_other", 1, 1), ("attend", 1, 1)):
        left.plot(trainees[name].losses, label=name, color=COLORS[name], linewidth=width, alpha=alpha)
    left.set(xlabel="step", ylabel="loss, nats for each token")
    left.legend(frameon=False)
    bars = right.bar(list(milliseconds), list(milliseconds.values()), color=[COLORS[name] for name in milliseconds])
    right.bar_label(bars, fmt="%.1f")
    right.set(ylabel="ms for each step, median")
    for kind in ("svg", "png"):
        figure.savefig(folder / f"gpt2.{kind}", dpi=120)
    print(f"wrote {folder / 'gpt2.svg'} and gpt2.png")


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--device", default="cuda", help="cuda or cpu")
    parser.add_argument("--dtype", choices=tuple(TOLERANCE), default="bf16", help="bf16: autocast")
    parser.add_argument("--batch_size", type=int, default=8)
    parser.add_argument("--seq_len", type=int, default=1024)
    parser.add_argument("--num_layers", type=int, default=12)
    parser.add_argument("--num_heads", type=int, default=12, help=f"heads, each with head_dim {small.HEAD_DIM}")
    parser.add_argument("--vocabulary", type=int, default=50304)
    parser.add_argument("--lr", type=float, default=6e-4)
    parser.add_argument("--lr_warm_up", type=int, default=40, help="steps over which the learning rate rises to --lr")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("experiment_results/gpt2"))
    options = parser.parse_args(arguments)
    for name in ("batch_size", "seq_len", "num_layers", "num_heads", "vocabulary"):
        if getattr(options, name) < 1:
            parser.error(f"--{name}: {getattr(options, name)}, allowed a number of at least 1")
    if options.lr_warm_up < 0:
        parser.error(f"--lr_warm_up: {options.lr_warm_up}, allowed a number of at least 0")
    if options.steps <= WARM_UP:
        parser.error(f"--steps: {options.steps}, allowed a number above {WARM_UP}, the steps that are not timed")
    small.check_device(parser, options.device)
    return options


def main(arguments=None):
    options = parse(arguments)
    try:
        small.prepare_folder(options.output)
    except OSError as error:
        print(f"--output: {options.output}: {error.strerror}, allowed a folder that can be written to", file=sys.stderr)
        return 2
    try:
        trainees, compared = train(options)
    except attend.Error as error:
        print(f"attend: {error}", file=sys.stderr)
        return 2
    losses = {name: trainee.losses for name, trainee in trainees.items()}
    report, failures = judge(losses, compared, options.dtype)
    milliseconds = {name: 1e3 * statistics.median(t.seconds[WARM_UP:]) for name, t in trainees.items()}
    settings = {name: value for name, value in vars(options).items() if name != "output"}
    is_gpu = torch.device(options.device).type == "cuda"
    settings["device_name"] = torch.cuda.get_device_name(options.device) if is_gpu else "cpu"
    versions = {"attend": attend.__version__, "torch": torch.__version__}
    when = {"date": time.strftime("%Y-%m-%d", time.gmtime()), "sources": source_digests()}
    record = {"settings": settings, "versions": versions, **when, "failures": failures,
              "ms_per_step": milliseconds, **report,
              "losses": losses}  # fmt: skip
    (options.output / "gpt2.json").write_text(json.dumps(record, indent=1) + "\n")
    plot(trainees, milliseconds, options.output)
    for name, ms in milliseconds.items():
        print(f"{name:<11} {ms:.2f} ms a step, loss {report['first'][name]:.4f} -> {report['last'][name]:.4f}")
    parted = report["parted_at"]
    until = "" if parted == options.steps else f" before step {parted}, where torch's two backends have diverged"
    print(f"losses differ by {report['largest_difference']:.2e} at most{until}; allowed {report['tolerance']:g}")
    worst = {name: max(max(row[name]) for row in compared) for name in ("attend", "torch_other")}
    print(f"gradients differ by {worst['attend']:.2e} of their size at most, those of torch's two backends by "
          f"{worst['torch_other']:.2e}")  # fmt: skip
    for failure in failures:
        print(f"FAILED {failure}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
