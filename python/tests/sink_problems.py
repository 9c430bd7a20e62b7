"""Makes problems with sinks, and computes their attention by the definition: a softmax in float64 with one more
column.
"""

import numpy as np

BATCH, HEADS, HEADS_K, DIM = 2, 4, 2, 16
SHAPES = [(HEADS,), (BATCH, HEADS)]
# Allowed errors relative to the largest entry. In 16 bits, p, o and the result are each rounded once.
BUDGETS = {"float32": 2e-6, "float16": 2.0**-9, "bfloat16": 2.0**-6}
LENGTHS = ((3, 5), (0, 4), (17, 9), (6, 0), (40, 70))  # (rows, keys)


def standard(q, k, v, sinks, causal=False):
    """Returns o and lse by the definition. The column of the sink takes a share of the softmax of each row and has no
    value.
    """
    import torch

    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = q @ k.mT * q.shape[-1] ** -0.5
    if causal:
        rows, keys = scores.shape[-2:]
        hidden = torch.ones(rows, keys, dtype=torch.bool, device=q.device).triu(keys - rows + 1)
        scores = scores.masked_fill(hidden, float("-inf"))
    column = sinks.expand(q.shape[0], q.shape[1])[..., None, None].expand(*scores.shape[:-1], 1)
    scores = torch.cat([scores, column], -1)
    return scores.softmax(-1)[..., :-1] @ v, scores.logsumexp(-1)


def inputs(torch, device, rows, keys, dtype="float32", heads_k=HEADS_K):
    """Returns q, k, v, and weights of o and of lse, which are used as the gradients dout and dlse."""
    shapes = ((HEADS, rows, DIM), (heads_k, keys, DIM), (heads_k, keys, DIM), (HEADS, rows, DIM))
    tensors = [torch.randn(BATCH, *shape, device=device).to(getattr(torch, dtype)) for shape in shapes]
    return (*tensors, torch.randn(BATCH, HEADS, rows, device=device))


def leaves(tensors):
    return [x.detach().clone().requires_grad_() for x in tensors]


def gradients(call, tensors, dout, dlse):
    """Returns o, lse and the gradients of all tensors."""
    import torch

    tensors = leaves(tensors)
    o, lse = call(*tensors)
    return [o, lse, *torch.autograd.grad((o, lse), tensors, (dout, dlse.to(lse.dtype)))]


def size_of_dsinks(o, lse, sinks, dout, dlse):
    """Returns the sum of the magnitudes of the terms of dsinks. The terms themselves cancel."""
    terms = (sinks[..., None] - lse).exp() * (dlse.abs() + (dout.abs() * o.abs()).sum(-1))
    return terms.sum(-1).sum_to_size(sinks.shape)


def assert_same(found, want, dtype, dout, dlse, sinks):
    """Compares `found`, a result of `gradients` whose last entry is dsinks, with `want`, the same result in float64."""
    o, lse = want[:2]
    sizes = [x.abs().max() for x in want[:-1]]
    sizes.append(size_of_dsinks(o, lse, sinks.double(), dout.double(), dlse.double()))
    names = ("o", "lse", "dq", "dk", "dv", "dsinks") if len(want) == 6 else ("o", "lse", "dqkv", "dsinks")
    for name, a, b, size in zip(names, found, want, sizes, strict=True):
        assert a.shape == b.shape, name
        budget = BUDGETS["float32" if name == "lse" else dtype]
        if name == "dsinks" and a.element_size() == 2:
            budget = max(budget, BUDGETS[str(a.dtype).removeprefix("torch.")])
        share = ((a.double() - b).abs() / (budget * size)).max().item()
        print(f"{name}: {share:.2f} of its budget")
        assert share <= 1, f"{name} ({dtype}): {share:.3g} of its budget"


def truth(tensors, sinks, dout, dlse, causal):
    doubles = [x.double() for x in (*tensors, sinks)]
    return gradients(lambda *x: standard(*x, causal=causal), doubles, dout.double(), dlse.double())


def packed(torch, device, dtype="float32"):
    """Returns packed q, k and v, the weights of o and of lse, and the offsets."""
    total_q, total_k = (sum(x) for x in zip(*LENGTHS))
    shapes = ((total_q, HEADS, DIM), (total_k, HEADS_K, DIM), (total_k, HEADS_K, DIM), (total_q, HEADS, DIM))
    tensors = [torch.randn(shape, device=device).to(getattr(torch, dtype)) for shape in shapes]
    offsets = [torch.tensor([0, *np.cumsum(x)], dtype=torch.int32, device=device) for x in zip(*LENGTHS)]
    return tensors, torch.randn(HEADS, total_q, device=device), offsets
