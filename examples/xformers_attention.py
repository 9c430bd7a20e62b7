#!/usr/bin/env python3
"""Runs code written for xFormers with attend: packed sequences, local attention, groups of heads, and a paged cache.

    python examples/xformers_attention.py [--device cuda]

xFormers need not be installed, because attend has classes with the same names. attend also accepts instances of
xFormers' classes. Each result, and the gradients of the training call, are compared with the float64 formula, whose
bias tensor comes from `materialize()`. The exit status is 0 if all checks passed, 1 if a check failed, and 2 if the
usage was wrong or a package is missing.
"""

import argparse
import sys

try:
    import torch
except ImportError as error:
    print(f"{error.name} is not installed, which this example needs: pip install torch", file=sys.stderr)
    sys.exit(2)

import attend.xformers as xops
from attend.xformers import fmha

BUDGETS = {torch.float32: 1e-5, torch.bfloat16: 2e-2}  # allowed errors relative to the largest magnitude of a result


def formula(q, k, v, bias):
    """Computes softmax(q k^T / sqrt(head_dim) + bias) v. q, k and v are (batch, seqlen, heads, head_dim), with equal
    numbers of heads.
    """
    q, k, v = (x.double().transpose(1, 2) for x in (q, k, v))
    s = q @ k.transpose(2, 3) / q.shape[3] ** 0.5 + bias
    return (s.softmax(3) @ v).transpose(1, 2)


class Checks:
    """Prints each comparison and records whether one failed."""

    def __init__(self):
        self.failed = False

    def __call__(self, title, ours, truth):
        budget = BUDGETS[ours[0].dtype]
        errors = [float((x - y).detach().abs().max() / y.detach().abs().max()) for x, y in zip(ours, truth)]
        passed = all(error <= budget for error in errors)  # False for NaN
        self.failed |= not passed
        print(f"{title:<30} error {max(errors):.1e}  budget {budget:.1e}  {'ok' if passed else 'FAILED'}")


def training(check, normal, device):
    """Checks three packed causal sequences, and their gradients."""
    lengths = [70, 3, 41]
    bias = fmha.BlockDiagonalMask.from_seqlens(lengths, device=device).make_causal()
    q, k, v = (normal(1, sum(lengths), 4, 64).requires_grad_() for _ in range(3))
    o = xops.memory_efficient_attention(q, k, v, attn_bias=bias)
    truth = formula(q, k, v, bias.materialize((sum(lengths),) * 2, torch.float64, device))
    check("causal blocks", [o], [truth])
    dout = torch.randn_like(o)
    gradients = [torch.autograd.grad(x, (q, k, v), dout.to(x.dtype)) for x in (o, truth)]
    check("their gradients", *gradients)


def local(check, normal, device):
    """Checks windows of 16 keys. There are two groups of four query heads, and each group has one key head."""
    q = normal(2, 90, 2, 4, 64)
    k, v = (normal(2, 90, 2, 1, 64).expand(-1, -1, -1, 4, -1) for _ in range(2))
    bias = fmha.attn_bias.LowerTriangularFromBottomRightMask().make_local_attention(16)
    o = xops.memory_efficient_attention(q, k, v, attn_bias=bias).flatten(2, 3)
    q, k, v = (x.flatten(2, 3) for x in (q, k, v))
    check("a window, grouped heads", [o], [formula(q, k, v, bias.materialize((90, 90), torch.float64, device))])


def paged(check, normal, device):
    """Checks one new row for each of two sequences, whose keys are in pages of 16."""
    table = torch.tensor([[3, 0, 5], [1, 4, 2]], dtype=torch.int32, device=device)
    kind = fmha.attn_bias.PagedBlockDiagonalCausalWithOffsetPaddedKeysMask
    bias = kind.from_seqlens([1, 1], [45, 20], table, 16, device=device)
    q, k, v = normal(1, 2, 4, 64), normal(1, 96, 4, 64), normal(1, 96, 4, 64)
    with torch.no_grad():  # attend reads pages in place only if no gradients are required
        o = xops.memory_efficient_attention(q, k, v, attn_bias=bias)
    check("keys in pages", [o], [formula(q, k, v, bias.materialize((2, 96), torch.float64, device))])


def merged(check, normal, device):
    """Checks the merge of attention over two halves of the keys."""
    q, k, v = normal(2, 9, 4, 64), normal(2, 50, 4, 64), normal(2, 50, 4, 64)
    halves = [xops.memory_efficient_attention_partial(q, k[:, x], v[:, x]) for x in (slice(30), slice(30, None))]
    outs, lses = zip(*halves)
    o, _ = xops.merge_attentions(outs, lses, output_dtype=q.dtype)
    check("merged parts", [o], [formula(q, k, v, torch.zeros((), device=device))])


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device: cuda, but torch finds no GPU")
    torch.manual_seed(options.seed)
    check, dtype = Checks(), torch.float32 if options.device == "cpu" else torch.bfloat16
    normal = lambda *shape: torch.randn(shape, device=options.device).to(dtype)
    for part in (training, local, paged, merged):
        part(check, normal, options.device)
    return 1 if check.failed else 0


if __name__ == "__main__":
    sys.exit(main())
