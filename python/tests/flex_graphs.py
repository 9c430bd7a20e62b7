"""Functions that the tests of flex_attention in graphs share."""

import pytest
import torch
from flex_problems import KEYS, ROWS, check, reference, tensors

BACKENDS = ["eager", "aot_eager", "inductor"]


@pytest.fixture(autouse=True)
def fresh_compiler():
    """Resets the compiler, for all tests of a module that imports this fixture."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def inputs(dtype=torch.float32, rows=ROWS, keys=KEYS):
    return [x.clone().requires_grad_() for x in tensors(dtype, rows, keys)]


def leaf(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).requires_grad_()


def compare(run, given, captures=(), budget=1e-5, score=None, mask=None, backend="eager", scale=None):
    """Compares forward and backward of `run(q, k, v)`, compiled to one graph, with the reference. `score` is a function
    of the captures in float64.
    """
    compiled = torch.compile(run, backend=backend, fullgraph=True)
    o, lse = compiled(*given)
    exact = [x.detach().double().requires_grad_() for x in given]
    there = [x.detach().double().requires_grad_(x.requires_grad) for x in captures]
    want_o, want_lse = reference(*exact, score_mod=score and score(*there), mask_mod=mask, scale=scale)
    check("o", budget, o, want_o)
    check("lse", budget, lse, want_lse)
    generator = torch.Generator().manual_seed(9)
    dout = torch.randn(want_o.shape, generator=generator, dtype=torch.float64)
    dlse = torch.where(torch.isfinite(want_lse), torch.randn(want_lse.shape, generator=generator), 0.0)
    here = [x for x in captures if x.requires_grad]
    found = torch.autograd.grad((o, lse), [*given, *here], (dout.to(o.dtype), dlse.to(lse.dtype)))
    wanted = torch.autograd.grad((want_o, want_lse), [*exact, *(x for x in there if x.requires_grad)], (dout, dlse))
    for n, (a, b) in enumerate(zip(found, wanted)):
        check(f"gradient {n}", 4 * budget, a, b)
    return compiled


def below(limit):
    return lambda b, h, q_idx, kv_idx: kv_idx < limit
