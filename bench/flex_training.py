#!/usr/bin/env python3
"""Trains a model twice, with torch's flex_attention and with attend in its place, and compares losses and step times.

    python3 bench/flex_training.py --output results/h200/flex_training_bf16.json

A language model of a few layers reads packed documents of an artificial language. Each token depends on the token
before it. Its attention is `flex_attention`. The score function adds a learned bias that depends on distance and head.
The block mask is causal within each document. Both runs start with the same weights and see the same batches, in
bfloat16 by autocast, with AdamW. The two runs alternate. Each run executes several steps at a time, after a warm-up.
The reported time is the median over the steps. torch's flex_attention has no backward pass on CPUs. On a CPU the first
run therefore computes full score matrices. A run on a CPU is only useful to test this program. With the default number of
stages, torch's backward kernel for a learned bias needs more shared memory than an H200 has. --bwd-stages sets another
number of stages. The exit status is 1 if the losses of the last steps differ by more than a hundredth, or if attend
computed nothing.
"""

import argparse
import itertools
import json
import math
import pathlib
import statistics
import sys
import time

import attend
import report
import torch
from attend.torch import _score
from torch.nn.attention import flex_attention as flex

TOKENS, BUCKETS = 512, 32
LARGEST_DIFFERENCE = 0.01  # allowed relative difference between the mean losses of the last steps


class Attention(torch.nn.Module):
    def __init__(self, heads, head_dim, kernel_options):
        super().__init__()
        width = heads * head_dim
        self.heads, self.kernel_options = heads, kernel_options
        self.qkv = torch.nn.Linear(width, 3 * width, bias=False)
        self.out = torch.nn.Linear(width, width, bias=False)
        self.bias = torch.nn.Parameter(torch.zeros(heads, BUCKETS))

    def forward(self, x, block_mask, attention):
        batch, seqlen, width = x.shape
        q, k, v = (part.view(batch, seqlen, self.heads, -1).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        bias = self.bias

        def by_distance(score, b, h, q_idx, kv_idx):
            return score + bias[h, (q_idx - kv_idx).clamp(0, BUCKETS - 1)]

        o = attention(q, k, v, score_mod=by_distance, block_mask=block_mask, kernel_options=self.kernel_options)
        return self.out(o.transpose(1, 2).reshape(batch, seqlen, width))


class Layer(torch.nn.Module):
    def __init__(self, heads, head_dim, kernel_options):
        super().__init__()
        width = heads * head_dim
        self.norms = torch.nn.ModuleList([torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)])
        self.attention = Attention(heads, head_dim, kernel_options)
        self.mlp = torch.nn.Sequential(
            torch.nn.Linear(width, 4 * width), torch.nn.GELU(), torch.nn.Linear(4 * width, width)
        )

    def forward(self, x, block_mask, attention):
        x = x + self.attention(self.norms[0](x), block_mask, attention)
        return x + self.mlp(self.norms[1](x))


class Model(torch.nn.Module):
    def __init__(self, layers, heads, head_dim, kernel_options):
        super().__init__()
        width = heads * head_dim
        self.embedding = torch.nn.Embedding(TOKENS, width)
        self.layers = torch.nn.ModuleList([Layer(heads, head_dim, kernel_options) for _ in range(layers)])
        self.head = torch.nn.Linear(width, TOKENS, bias=False)

    def forward(self, tokens, block_mask, attention):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, block_mask, attention)
        return self.head(x)


def documents_of(seqlen, device):
    """Returns the document number of each token. The first document has half of the tokens, and later documents are
    shorter.
    """
    ends = [seqlen - seqlen // 2**n for n in range(1, 6)]
    return torch.bucketize(torch.arange(seqlen, device=device), torch.tensor(ends, device=device), right=True)


def batch_of(step, shape, device):
    """Returns the tokens of a step, the same in both runs. Each token has eight possible successors."""
    generator = torch.Generator().manual_seed(step)
    choices = torch.randint(0, 8, shape, generator=generator).tolist()
    tokens = [
        list(itertools.accumulate(row[1:], lambda last, choice: (last * 5 + 17 * choice + 3) % TOKENS, initial=0))
        for row in choices
    ]
    return torch.tensor(tokens, device=device)


class Run:
    """One of the two training runs."""

    def __init__(self, name, options, attention):
        torch.manual_seed(0)
        self.name, self.options, self.attention = name, options, attention
        kernel_options = {"bwd_num_stages": options.bwd_stages}
        self.model = Model(options.layers, options.heads, options.head_dim, kernel_options).to(options.device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-4)
        documents = documents_of(options.seqlen, options.device)
        self.block_mask = flex.create_block_mask(
            lambda b, h, q_idx, kv_idx: (q_idx >= kv_idx) & (documents[q_idx] == documents[kv_idx]),
            None, None, options.seqlen, options.seqlen, device=options.device,
        )  # fmt: skip
        self.losses, self.ms = [], []

    def train(self, batches):
        for number, tokens in enumerate(batches):
            begin = self.now()
            with torch.autocast(torch.device(self.options.device).type, dtype=torch.bfloat16):
                logits = self.model(tokens, self.block_mask, self.attention)
            loss = torch.nn.functional.cross_entropy(
                logits[:, :-1].float().reshape(-1, TOKENS), tokens[:, 1:].reshape(-1)
            )
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            self.optimizer.step()
            self.losses.append(loss.item())
            if number >= self.options.warm_up:
                self.ms.append(1000 * (self.now() - begin))

    def now(self):
        if torch.device(self.options.device).type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    @property
    def last_loss(self):
        return statistics.fmean(self.losses[-10:])


def multiplied(q, k, v, score_mod, block_mask, kernel_options):
    """Computes the same result as flex_attention, with a matrix of all scores."""
    lengths = (q.shape[0], q.shape[1], q.shape[2], k.shape[2])
    b, h, row, key = (
        torch.arange(n, device=q.device).view([-1 if at == dim else 1 for at in range(4)])
        for dim, n in enumerate(lengths)
    )
    scores = score_mod(q @ k.transpose(2, 3) / math.sqrt(q.shape[3]), b, h, row, key)
    scores = scores.masked_fill(~block_mask.mask_mod(b, h, row, key), -math.inf)
    return scores.softmax(-1).to(v.dtype) @ v


def train_in_turns(options):
    """Trains both runs in alternation. Returns them and the number of attend's forward passes in each."""
    attention = torch.compile(flex.flex_attention, backend=options.backend)
    plain, taken = _score.run_forward, {"torch": 0, "attend": 0}
    is_cpu = torch.device(options.device).type == "cpu"
    runs = [Run("torch", options, multiplied if is_cpu else attention), Run("attend", options, attention)]
    shape = (options.batch, options.seqlen)
    part = options.steps // options.parts
    for number in range(options.parts):
        batches = [batch_of(number * part + n, shape, options.device) for n in range(part)]
        for run in runs:

            def counted(*arguments, name=run.name):
                taken[name] += 1
                return plain(*arguments)

            _score.run_forward = counted
            (attend.activate if run.name == "attend" else attend.restore)()
            try:
                run.train(batches)
            finally:
                attend.restore()
                _score.run_forward = plain
            print(f"{run.name:<8}step {len(run.losses):>4}  loss {run.last_loss:.4f}", flush=True)
    return runs, taken


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--output", type=pathlib.Path, help="JSON")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--backend", default="inductor", help="backend of torch.compile for flex_attention")
    for name, value in {"batch": 2, "seqlen": 8192, "layers": 4, "heads": 16, "head_dim": 128, "steps": 60,
                        "parts": 3, "warm_up": 4, "bwd_stages": 1}.items():  # fmt: skip
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=value)
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        print("torch finds no GPU; use --device cpu to run on the CPU", file=sys.stderr)
        return 2
    (torchs, ours), taken = train_in_turns(options)
    difference = abs(ours.last_loss - torchs.last_loss) / torchs.last_loss
    ms = {run.name: statistics.median(run.ms) for run in (torchs, ours)}
    result = {
        "device": torch.cuda.get_device_name() if options.device == "cuda" else "CPU",
        "torch": torch.__version__,
        **report.provenance(),
        **{
            name: getattr(options, name)
            for name in ("batch", "seqlen", "layers", "heads", "head_dim", "steps", "bwd_stages")
        },
        "loss": {run.name: run.losses for run in (torchs, ours)},
        "last_loss_difference": difference,
        "step_ms": ms,
        "speedup": ms["torch"] / ms["attend"],
        "calls_of_attend": taken,
    }
    print(f"step: torch {ms['torch']:.1f} ms, attend {ms['attend']:.1f} ms, {result['speedup']:.2f} times as fast")
    print(f"loss of the last ten steps: torch {torchs.last_loss:.4f}, attend {ours.last_loss:.4f}")
    if options.output:
        options.output.write_text(json.dumps(result, indent=1) + "\n")
    took_part = taken["torch"] == 0 and taken["attend"] >= options.steps * options.layers
    if not took_part:
        print(f"attend computed {taken} forward passes", file=sys.stderr)
    is_same = math.isfinite(difference) and difference <= LARGEST_DIFFERENCE
    return 0 if took_part and is_same else 1


if __name__ == "__main__":
    sys.exit(main())
