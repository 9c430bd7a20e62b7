"""Tests of attend's and torch's block masks in graphs of torch.compile. The masks are made outside and inside of the
graph.
"""

import copy
import gc

import pytest

torch = pytest.importorskip("torch")

import attend
import flex_masks
import flex_problems as problems
from attend.torch import _flex_operators
from flex_graphs import BACKENDS, below, compare, fresh_compiler, inputs, leaf  # noqa: F401
from flex_masks import MASKS
from flex_problems import HEADS, KEYS, ROWS, check, reference
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn.attention import flex_attention as torchs


def problem_of(name):
    """Returns the mask_mod, inputs of suitable lengths, and the lengths."""
    make = MASKS[name]
    rows, keys = flex_masks.lengths(make)
    return make(problems.leaves(problems.captures_of(make, 3))), inputs(rows=rows, keys=keys), rows, keys


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["causal", *list(MASKS)[-3:]])
def test_masks_that_are_made_outside(name, backend):
    mask_mod, given, rows, keys = problem_of(name)
    mask = attend.create_block_mask(mask_mod, given[0].shape[0], HEADS, rows, keys, device="cpu")
    shift = leaf(seed=5)
    mod = lambda score, b, h, q_idx, kv_idx: score + shift * kv_idx / 100
    run = lambda q, k, v: attend.flex_attention(q, k, v, mod, mask, enable_gqa=True, return_lse=True)
    compare(run, given, [shift], backend=backend, mask=mask_mod,
            score=lambda t: lambda s, b, h, q, k: s + t * k / 100)  # fmt: skip
    alone = lambda q, k, v: attend.flex_attention(q, k, v, block_mask=mask, enable_gqa=True, return_lse=True)
    compare(alone, given, backend=backend, mask=mask_mod)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_mask_may_be_gone_before_the_backward_pass(backend):
    run = lambda q, k, v, mask: attend.flex_attention(q * 1, k, v, block_mask=mask, enable_gqa=True)
    compiled = torch.compile(run, backend=backend, fullgraph=True)
    given, held = inputs(), _flex_operators._tiles
    results = []
    for limit in (100, 30):
        mask = attend.create_block_mask(below(limit), None, None, ROWS, KEYS, device="cpu")
        results.append(compiled(*given, mask))
        del mask
    gc.collect()
    exact = [x.detach().double().requires_grad_() for x in given]
    for limit, o in zip((100, 30), results):
        want = reference(*exact, mask_mod=below(limit))[0]
        found = torch.autograd.grad(o.sum(), given)
        for n, (a, b) in enumerate(zip(found, torch.autograd.grad(want.sum(), exact))):
            check(f"gradient {n}", 4e-5, a, b)
    del results, o, found
    gc.collect()
    assert not held


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["causal", *list(MASKS)[-3:]])
def test_masks_of_torchs(name, backend):
    mask_mod, given, rows, keys = problem_of(name)
    mask = torchs.create_block_mask(mask_mod, given[0].shape[0], HEADS, rows, keys, device="cpu", BLOCK_SIZE=32)
    run = lambda q, k, v: attend.flex_attention(q, k, v, block_mask=mask, enable_gqa=True, return_lse=True)
    compare(run, given, backend=backend, mask=mask_mod)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("create", ["attend", "torch"])
def test_masks_that_are_made_inside(create, backend):
    """A mask may be made from tensors that the graph computes. Other values use the same graph, and the mask's tensors
    get no gradient.
    """
    make = attend.create_block_mask if create == "attend" else torchs.create_block_mask
    counter = CompileCounterWithBackend(backend)

    def run(q, k, v, lengths, table):
        limit = lengths * 2
        mask_mod = lambda b, h, q_idx, kv_idx: (kv_idx < limit[b]) & (q_idx >= kv_idx - 40)
        mask = make(mask_mod, q.shape[0], None, q.shape[2], k.shape[2], device="cpu")
        mod = lambda score, b, h, q_idx, kv_idx: score + table[h] * kv_idx / 50
        return attend.flex_attention(q, k, v, mod, mask, enable_gqa=True, return_lse=True)

    compiled = torch.compile(run, backend=counter, fullgraph=True)
    for seed, lengths in enumerate(([20, 50], [64, 3], [20, 50])):
        given, table, lengths = inputs(), leaf(HEADS, seed=seed), torch.tensor(lengths)
        o, lse = compiled(*given, lengths, table)
        exact = [x.detach().double().requires_grad_() for x in given]
        there = table.detach().double().requires_grad_()
        want, want_lse = reference(
            *exact, score_mod=lambda s, b, h, q, k: s + there[h] * k / 50,  # noqa: B023 (called here)
            mask_mod=lambda b, h, q, k: (k < 2 * lengths[b]) & (q >= k - 40),  # noqa: B023
        )  # fmt: skip
        check("o", 1e-5, o, want)
        check("lse", 1e-5, lse, want_lse)
        found = torch.autograd.grad(o.sum(), [*given, table])
        for n, (a, b) in enumerate(zip(found, torch.autograd.grad(want.sum(), [*exact, there]))):
            check(f"gradient {n}", 4e-5, a, b)
    assert counter.frame_count == 1


def test_lengths_of_masks_may_change():
    counter = CompileCounterWithBackend("aot_eager")

    def run(q, k, v):
        mask = attend.create_block_mask(flex_masks.causal(None), None, None, q.shape[2], k.shape[2], device="cpu")
        return attend.flex_attention(q, k, v, block_mask=mask, enable_gqa=True, return_lse=True)

    compiled = torch.compile(run, backend=counter, fullgraph=True, dynamic=True)
    for rows, keys in ((200, 130), (130, 200), (200, 130)):
        given = inputs(rows=rows, keys=keys)
        want, want_lse = reference(*(x.detach().double() for x in given), mask_mod=flex_masks.causal(None))
        o, lse = compiled(*given)
        check("o", 1e-5, o, want)
        check("lse", 1e-5, lse, want_lse)
    print(f"graphs: {counter.frame_count}")
    assert counter.frame_count <= 2


def test_equal_texts_of_other_lengths_have_tiles_of_their_own():
    """The tiles that flex_tiles caches must not be used for other numbers of rows or keys."""
    text, table = "k <= q && t0[0] == 0", torch.zeros(1, dtype=torch.int32)
    found = [
        _flex_operators._tiles_of_number(torch.ops.attend.flex_tiles([table], text, 1, 1, *n)) for n in ((9, 9), (5, 9))
    ]
    assert [x.shape for x in found] == [(1, 1, 9, 9), (1, 1, 5, 9)]


@pytest.mark.parametrize("place", ["inside", "outside", "lists"])
def test_a_mask_of_a_tensor_that_asks_for_gradients_is_refused(place):
    limit = torch.full((1,), 40.0, requires_grad=True)
    mask_mod = lambda b, h, q_idx, kv_idx: kv_idx < limit[0]
    make = lambda: attend.create_block_mask(mask_mod, None, None, ROWS, KEYS, device="cpu")
    outside = make()
    if place == "lists":
        lists = outside.kv_num_blocks, outside.kv_indices, outside.full_kv_num_blocks, outside.full_kv_indices
        outside = type(outside).from_kv_blocks(*lists, mask_mod=mask_mod, seq_lengths=(ROWS, KEYS))

    def run(q, k, v):
        return attend.flex_attention(q, k, v, block_mask=make() if place == "inside" else outside, enable_gqa=True)

    with pytest.raises(attend.UnsupportedError, match="requires its gradient, and masks have none"):
        torch.compile(run, backend="aot_eager")(*inputs())
    torch._dynamo.reset()
    with torch.no_grad():
        o = torch.compile(run, backend="aot_eager", fullgraph=True)(*inputs())
    check("o", 1e-5, o, reference(*(x.detach().double() for x in inputs()), mask_mod=below(40))[0])


def test_copies_of_masks_are_masks_of_their_own():
    given = [x.detach() for x in inputs()]
    exact = [x.double() for x in given]
    run = lambda q, k, v, mask: attend.flex_attention(q, k, v, block_mask=mask, enable_gqa=True)
    compiled = torch.compile(run, backend="aot_eager", fullgraph=True)
    mask = attend.create_block_mask(below(100), None, None, ROWS, KEYS, device="cpu")
    copied = copy.copy(mask)
    copied.mask_mod = below(30)
    check("the copy", 1e-5, compiled(*given, copied), reference(*exact, mask_mod=below(30))[0])
    check("the mask", 1e-5, compiled(*given, mask), reference(*exact, mask_mod=below(100))[0])
    del mask
    moved = copied.to("cpu")
    del copied
    gc.collect()
    check("moved", 1e-5, compiled(*given, moved), reference(*exact, mask_mod=below(30))[0])
