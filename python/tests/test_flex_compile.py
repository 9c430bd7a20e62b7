"""Tests of flex_attention in graphs of torch.compile."""

import gc
import weakref

import pytest

torch = pytest.importorskip("torch")

import attend
import flex_masks
import flex_problems as problems
from flex_graphs import BACKENDS, below, compare, fresh_compiler, inputs, leaf  # noqa: F401
from flex_problems import HEADS, KEYS, ROWS, SCORES, check, reference
from torch._dynamo.testing import CompileCounterWithBackend

TABLE, SHORT = leaf(HEADS, seed=1), torch.zeros(50)


def of_a_global(score, b, h, q_idx, kv_idx):
    return score + TABLE[h] * (q_idx - kv_idx).abs()


@pytest.mark.parametrize("backend", BACKENDS)
def test_functions_of_every_place(backend):
    """A score_mod can be a function of a module, a closure that is made outside or inside of the compiled function, or
    a method.
    """
    outer, inner = leaf(HEADS, KEYS, seed=2), leaf(HEADS, seed=3)

    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.slope = torch.nn.Parameter(leaf(HEADS, seed=4).detach())

        def forward(self, q, k, v):
            def score_mod(score, b, h, q_idx, kv_idx):
                return score * self.slope[h].exp() + q_idx

            return attend.flex_attention(q, k, v, score_mod, enable_gqa=True, return_lse=True, scale=0.3)

    made_outside = lambda score, b, h, q_idx, kv_idx: torch.tanh(score) + outer[h, kv_idx]

    def with_inner(q, k, v):
        doubled = inner * 2
        mod = lambda score, b, h, q_idx, kv_idx: torch.where(q_idx >= kv_idx, score, score * doubled[h])
        return attend.flex_attention(q, k, v, mod, enable_gqa=True, return_lse=True)

    call = lambda mod: lambda q, k, v: attend.flex_attention(q, k, v, mod, enable_gqa=True, return_lse=True)
    layer, rows = Layer(), inputs()
    compare(call(of_a_global), rows, [TABLE], backend=backend,
            score=lambda t: lambda s, b, h, q, k: s + t[h] * (q - k).abs())  # fmt: skip
    compare(call(made_outside), rows, [outer], backend=backend,
            score=lambda t: lambda s, b, h, q, k: torch.tanh(s) + t[h, k])  # fmt: skip
    compare(with_inner, rows, [inner], backend=backend,
            score=lambda t: lambda s, b, h, q, k: torch.where(q >= k, s, s * (2 * t)[h]))  # fmt: skip
    compare(layer, rows, [layer.slope], backend=backend, scale=0.3,
            score=lambda t: lambda s, b, h, q, k: s * t[h].exp() + q)  # fmt: skip


@pytest.mark.parametrize("name", SCORES)
def test_scores(name):
    """Compares the compiled result with the eager result, which test_flex_attention.py compares with float64."""
    given, make = inputs(), SCORES[name]
    c = problems.leaves(problems.captures_of(make, 3))
    mod = make(c)
    run = lambda q, k, v: attend.flex_attention(q, k, v, mod, enable_gqa=True, return_lse=True)
    leaves = [*given, *(x for x in vars(c).values() if x.requires_grad)]
    results = []
    for call in (run, torch.compile(run, backend="aot_eager", fullgraph=True)):
        o, lse = call(*given)
        results.append((o, lse, *torch.autograd.grad(o.sum() + lse.nan_to_num(neginf=0.0).sum(), leaves)))
    for n, (want, found) in enumerate(zip(*results)):
        check(f"result {n}", 2e-6, found, want)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_other_values_ask_for_no_other_graph(backend):
    """No recompilation occurs for other values of captured tensors, of q, k and v, or for other masks."""
    counter = CompileCounterWithBackend(backend)

    def run(q, k, v, table, mask):
        mod = lambda score, b, h, q_idx, kv_idx: score + table[h]
        return attend.flex_attention(q * 1, k, v, mod, mask, enable_gqa=True, return_lse=True)

    compiled = torch.compile(run, backend=counter, fullgraph=True)
    for seed, limit in enumerate((40, 100, 7)):
        given = [x * (seed + 1) for x in inputs()]
        table = leaf(HEADS, seed=seed)
        mask = attend.create_block_mask(below(torch.tensor(limit)), None, None, ROWS, KEYS, device="cpu")
        o, lse = compiled(*given, table, mask)
        exact = [x.detach().double() for x in given]
        there = table.detach().double().requires_grad_()
        mod = lambda s, b, h, q, k: s + there[h]  # noqa: B023 (called here)
        want, want_lse = reference(*exact, score_mod=mod, mask_mod=below(limit))
        check("o", 1e-5, o, want)
        check("lse", 1e-5, lse, want_lse)
        found = torch.autograd.grad(lse.sum(), table)[0]
        check("gradient", 4e-5, found, torch.autograd.grad(want_lse.sum(), there)[0])
    assert counter.frame_count == 1


def test_a_number_that_becomes_a_symbol_of_the_compiler():
    table = leaf(ROWS, seed=2)

    def model(x, scale):
        mask = attend.create_block_mask(lambda b, h, q, k: q >= k, None, None, ROWS, ROWS, device="cpu")
        return attend.flex_attention(x * 2, x, x, lambda s, b, h, q, k: s * scale + table[q], mask).sin()

    x = inputs()[0]
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    for scale in (0.5, 0.25, 3.0):
        found, want = compiled(x, scale), model(x, scale)
        check("o", 1e-6, found, want)
        for a, b in zip(*(torch.autograd.grad(o.sum(), (x, table)) for o in (found, want))):
            check("gradient", 4e-6, a, b)


def test_another_function_or_number_asks_for_another_graph():
    counter = CompileCounterWithBackend("aot_eager")
    run = lambda q, k, v, mod: attend.flex_attention(q, k, v, mod, enable_gqa=True)
    compiled = torch.compile(run, backend=counter, fullgraph=True)
    times = lambda number: lambda score, b, h, q_idx, kv_idx: score * number + kv_idx * 0.01
    given = [x.detach() for x in inputs()]
    exact = [x.double() for x in given]
    for mod in (times(2), times(3), times(0.5), times(4), problems.alibi(None), times(2)):
        check("o", 1e-5, compiled(*given, mod), reference(*exact, score_mod=mod)[0])
    assert counter.frame_count >= 4


def test_lengths_may_change():
    counter = CompileCounterWithBackend("aot_eager")
    bias = leaf(HEADS, 200, 200, seed=7)
    mod = lambda score, b, h, q_idx, kv_idx: score + bias[h, q_idx, kv_idx] + bias[h, q_idx - kv_idx, 0]
    run = lambda q, k, v: attend.flex_attention(q, k, v, mod, enable_gqa=True, return_lse=True)
    compiled = torch.compile(run, backend=counter, fullgraph=True, dynamic=True)
    for rows, keys in ((50, 60), (77, 130), (130, 77)):
        given = inputs(rows=rows, keys=keys)
        o, lse = compiled(*given)
        exact = [x.detach().double() for x in given]
        there = bias.detach().double()
        same = lambda s, b, h, q, k: s + there[h, q, k] + there[h, q - k, 0]  # noqa: B023 (called here)
        want, want_lse = reference(*exact, score_mod=same)
        check("o", 1e-5, o, want)
        check("lse", 1e-5, lse, want_lse)
    assert counter.frame_count == 1


def test_training_is_that_without_a_compiler():
    torch.manual_seed(3)
    x = torch.randn(2, 40, 32)
    mask = attend.create_block_mask(flex_masks.causal(None), None, None, 40, 40, device="cpu")

    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.outer = torch.nn.Linear(32, 96), torch.nn.Linear(32, 32)
            self.slopes = torch.nn.Parameter(torch.rand(4))

        def forward(self, x):
            q, k, v = self.inner(x).view(2, 40, 3, 4, 8).permute(2, 0, 3, 1, 4)
            alibi = lambda score, b, h, q_idx, kv_idx: score - self.slopes[h] * (q_idx - kv_idx)
            return self.outer(attend.flex_attention(q, k, v, alibi, mask).transpose(1, 2).reshape(2, 40, 32))

    plain = Block()
    state = {name: value.clone() for name, value in plain.state_dict().items()}
    losses = []
    for is_compiled in (False, True):
        block = Block()
        block.load_state_dict(state)
        run = torch.compile(block, fullgraph=True) if is_compiled else block
        optimizer = torch.optim.Adam(block.parameters(), lr=0.01)
        losses.append([])
        for _ in range(5):
            loss = (run(x) - x.flip(1)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses[-1].append(loss.item())
        assert not torch.equal(block.slopes, state["slopes"])
    print(f"losses: {losses}")
    check("losses", 1e-6, torch.tensor(losses[1], dtype=torch.float64), torch.tensor(losses[0], dtype=torch.float64))


def test_autocast_in_a_graph():
    given = inputs()
    table = leaf(HEADS, seed=8)

    def run(q, k, v):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            mod = lambda score, b, h, q_idx, kv_idx: score + table[h] * kv_idx
            return attend.flex_attention(q, k, v, mod, enable_gqa=True)

    found, want = torch.compile(run, backend="aot_eager", fullgraph=True)(*given), run(*given)
    assert found.dtype == torch.bfloat16 and torch.equal(found, want)
    gradients = [torch.autograd.grad(o.float().sum(), [*given, table]) for o in (found, want)]
    assert all(torch.equal(a, b) for a, b in zip(*gradients))


@pytest.mark.parametrize("strict", [False, True])
def test_export_is_refused(strict):
    class Layer(torch.nn.Module):
        def forward(self, q, k, v):
            return attend.flex_attention(q, k, v, problems.alibi(None), enable_gqa=True)

    class Masked(torch.nn.Module):
        def forward(self, q, k, v):
            mask = attend.create_block_mask(lambda b, h, q_idx, kv_idx: kv_idx <= q_idx, 1, 1, 130, 130, device="cpu")
            return attend.flex_attention(q, k, v, block_mask=mask, enable_gqa=True)

    given = tuple(x.detach() for x in inputs())
    for layer in (Layer(), Masked()):
        with pytest.raises(Exception, match="score_mod, mask_mod and block_mask: under torch.export, allowed outside"):
            torch.export.export(layer, given, strict=strict)


@pytest.mark.parametrize("strict", [False, True])
def test_export_without_functions(strict):
    class Layer(torch.nn.Module):
        def forward(self, q, k, v):
            return attend.flex_attention(q, k, v, scale=0.5, enable_gqa=True)

    given = tuple(x.detach() for x in inputs())
    program = torch.export.export(Layer(), given, strict=strict)
    assert len([x for x in program.graph.nodes if "attend.forward" in str(x.target)]) == 1
    assert torch.equal(program.module()(*given), Layer()(*given))


def stops(score, b, h, q_idx, kv_idx):
    return score.detach() + q_idx


def stops_all(score, b, h, q_idx, kv_idx):
    with torch.no_grad():
        return score * 2


@pytest.mark.parametrize(
    ("mod", "message"),
    [
        (lambda s, b, h, q, k: torch.lgamma(s), "aten.lgamma.default: an operator that attend cannot translate"),
        (lambda s, b, h, q, k: s + torch.rand_like(s), "aten.rand_like.default: random numbers"),
        (lambda s, b, h, q, k: s.add_(1), "aten.add_.Tensor: it changes a tensor in place"),
        (lambda s, b, h, q, k: s[None], "it returned shape"),
        (stops, "a gradient that stops at this operator"),
        (stops_all, "torch.no_grad"),
        (lambda s, b, h, q, k: q * 1.0, "a value that does not depend on the score"),
        (lambda s, b, h, q, k: s + SHORT[k], "allowed 130, the number of keys"),
    ],
)
def test_what_is_refused(mod, message):
    run = lambda q, k, v: attend.flex_attention(q, k, v, mod, enable_gqa=True)
    with pytest.raises(Exception, match=message):
        torch.compile(run, backend="aot_eager", fullgraph=True)(*inputs())


def test_what_stops_gradients_of_captures_alone():
    given, table = inputs(), leaf(HEADS, seed=2)
    mod = lambda score, b, h, q_idx, kv_idx: score.exp().log() + table.detach()[h]
    run = lambda q, k, v: attend.flex_attention(q, k, v, mod, enable_gqa=True, return_lse=True)
    compare(run, given, [table.detach()], backend="aot_eager", score=lambda t: lambda s, b, h, q, k: s + t[h])


@pytest.mark.parametrize(
    ("mod", "kind", "message"),
    [
        (lambda s, b, h, q, k: torch.lgamma(s), attend.UnsupportedError, "test_flex_compile.py:[0-9]+: aten.lgamma"),
        (lambda s, b, h, q, k: s + SHORT[k], attend.ArgumentError, "score_mod: a captured tensor of"),
        (lambda s, b, h, q, k: s[None], attend.UnsupportedError, "it returned shape"),
    ],
)
def test_what_a_graph_refuses_without_fullgraph_is_attends_own_error(mod, kind, message):
    run = lambda q, k, v: attend.flex_attention(q, k, v, mod, enable_gqa=True) * 2
    with pytest.raises(kind, match=message):
        torch.compile(run, backend="aot_eager")(*inputs())


def test_what_a_compiler_cannot_follow_runs_outside():
    given, limit = inputs(), {"n": 3}

    def mod(score, b, h, q_idx, kv_idx):
        torch._dynamo.graph_break()
        return score * limit["n"]

    run = lambda q, k, v: attend.flex_attention(q * 1, k, v, mod, enable_gqa=True) + 1
    found = torch.compile(run, backend="aot_eager")(*given)
    want = reference(*(x.detach().double() for x in given), score_mod=lambda s, b, h, q, k: s * 3)[0] + 1
    check("o", 1e-5, found, want)


def test_transforms_of_torch_func_are_refused_in_graphs():
    given = [x.detach() for x in inputs()]
    mod = lambda score, b, h, q_idx, kv_idx: score * 2
    loss = lambda q, k, v: attend.flex_attention(q, k, v, mod, enable_gqa=True).sum()
    with pytest.raises(attend.UnsupportedError, match="under torch.compile, torch.func"):
        torch.compile(torch.func.grad(loss), backend="aot_eager")(*given)


def test_tensors_are_freed_without_the_collector():
    """This includes tensors that a graph of the backend `eager` computes for the score_mod in each call."""
    given = [x.detach() for x in inputs()]
    computed = []

    def watched(x):
        computed.append(weakref.ref(x))
        return x

    torch.compiler.allow_in_graph(watched)

    def run(q, k, v, table):
        doubled = watched(table * 2)
        return attend.flex_attention(q, k, v, lambda s, b, h, q, k: s + doubled[h], enable_gqa=True)

    compiled = torch.compile(run, backend="eager", fullgraph=True)
    compiled(*given, torch.randn(HEADS))
    gc.collect()
    computed.clear()
    gc.disable()
    try:
        compiled(*given, torch.randn(HEADS))
        assert len(computed) == 1 and computed[0]() is None
    finally:
        gc.enable()
