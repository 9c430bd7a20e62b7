"""Tests of data that flex_attention keeps between calls. The data must not be stale, and must be freed when they are no
longer used.
"""

import gc
import weakref

import attend
import pytest

torch = pytest.importorskip("torch")

import torch.nn.attention.flex_attention as torchs
from attend._flex.functions import traced
from attend.torch.flex_attention import BlockMask, create_block_mask, flex_attention

SIZE = 40


def inputs(requires_grad=False):
    torch.manual_seed(3)
    return tuple(torch.randn(1, 2, SIZE, 16, requires_grad=requires_grad) for _ in range(3))


def dense(mask_mod):
    positions = torch.arange(SIZE, dtype=torch.int32)
    return torch.stack([torch.stack([mask_mod(0, 0, i, j) for j in positions]) for i in positions])


def of_bools(q, k, v, seen):
    scores = (q @ k.mT / 4).masked_fill(~seen, -torch.inf)
    return torch.nan_to_num(torch.softmax(scores, -1)) @ v


@pytest.mark.parametrize("make", ["of torch", "of lists"])
@pytest.mark.parametrize("kind", ["tensor", "list", "attribute"])
def test_masks_of_lists_follow_what_their_function_captures(make, kind):
    class State:
        offset = 0

    q, k, v = inputs()
    tensor, items, state = torch.tensor(0), [0], State()
    value = {"tensor": lambda: tensor, "list": lambda: items[0], "attribute": lambda: state.offset}[kind]

    def mask_mod(b, h, i, j):
        return i + value() >= j

    if make == "of torch":
        mask = torchs.create_block_mask(mask_mod, None, None, SIZE, SIZE, device="cpu")
    else:
        one, zero = torch.ones(1, 1, 1, dtype=torch.int32), torch.zeros(1, 1, 1, 1, dtype=torch.int32)
        mask = BlockMask.from_kv_blocks(one, zero, BLOCK_SIZE=128, mask_mod=mask_mod, seq_lengths=(SIZE, SIZE))
    for offset in (0, 20, 3):
        tensor.fill_(offset)
        items[0] = state.offset = offset
        expected = of_bools(q, k, v, dense(mask_mod))
        torch.testing.assert_close(flex_attention(q, k, v, block_mask=mask), expected)


def test_layers_that_own_a_mask_of_their_own_method_are_freed():
    q, k, v = inputs()

    class Layer:
        def __init__(self, create):
            self.window = 5
            self.mask = create(
                lambda b, h, i, j: (i >= j) & (i - j < self.window), None, None, SIZE, SIZE, device="cpu"
            )

    for create in (create_block_mask, torchs.create_block_mask):
        layer = Layer(create)
        flex_attention(q, k, v, block_mask=layer.mask)
        gone = weakref.ref(layer)
        del layer
        gc.collect()
        assert gone() is None


def test_a_trace_keeps_only_the_constants_that_it_reads():
    def score_mod(score, b, h, i, j):
        return score + torch.ones(50, 50).tril()[i, j]

    found, _ = traced("score_mod", score_mod, torch.device("cpu"))
    assert len(found.captures([], torch.device("cpu"))) == 1
    assert sum(x.numel() for x in found._constants.values()) == 2500


def test_rows_of_several_dtypes_are_promoted():
    q, k, v = inputs()
    for score_mod in (
        lambda s, b, h, i, j: s + torch.stack([i, j * 0.013]).sum(),
        lambda s, b, h, i, j: s + torch.stack([h, s]).sum(),
        lambda s, b, h, i, j: s + torch.cat([torch.stack([i < j]), torch.stack([j]), torch.stack([s])])[h] * 0.1,
    ):
        torch.testing.assert_close(
            flex_attention(q, k, v, score_mod), torchs.flex_attention(q, k, v, score_mod), atol=1e-5, rtol=1e-5
        )


def test_gradients_that_a_function_stops_are_refused():
    table = torch.rand(2, requires_grad=True)

    def of_score(score, b, h, i, j):
        with torch.no_grad():
            gate = torch.sigmoid(score)
        return score * gate

    @torch.no_grad()
    def of_capture(score, b, h, i, j):
        return score + table[h] * j

    for score_mod in (of_score, of_capture):
        with pytest.raises(attend.Error, match=r"score_mod: test_flex_lasting.py:\d+: torch.no_grad\(\)"):
            flex_attention(*inputs(), score_mod)
        with torch.no_grad():
            q, k, v = inputs()
            torch.testing.assert_close(
                flex_attention(q, k, v, score_mod), torchs.flex_attention(q, k, v, score_mod), atol=1e-5, rtol=1e-5
            )


def test_second_derivatives_are_refused():
    q, k, v = inputs(requires_grad=True)
    o = flex_attention(q, k, v, lambda s, b, h, i, j: s * 2)
    # create_graph is allowed as long as the gradient is not differentiated.
    (dq,) = torch.autograd.grad(o.sum(), q, create_graph=True)
    with pytest.raises(attend.Error, match="first derivatives only"):
        (o.sum() + dq.square().sum()).backward()


def test_masks_are_traced_without_autocast():
    torch.manual_seed(1)
    t = torch.randn(SIZE, SIZE)
    mask_mod = lambda b, h, i, j: (t @ t.T)[i, j] > 0.1
    with torch.autocast("cpu", torch.bfloat16):
        first = create_block_mask(mask_mod, None, None, SIZE, SIZE, device="cpu")
    second = create_block_mask(mask_mod, None, None, SIZE, SIZE, device="cpu")
    q, k, v = inputs()
    expected = of_bools(q, k, v, (t @ t.T) > 0.1)
    for mask in (first, second):
        torch.testing.assert_close(flex_attention(q, k, v, block_mask=mask), expected)


def test_wrong_arguments_are_refused_in_one_line():
    q, k, v = inputs()
    twice = torch.cat([q, q])
    causal = lambda b, h, i, j: i >= j
    for call, words in (
        (lambda: flex_attention(twice, torch.cat([k, k]), v), "value: batch 1"),
        (lambda: flex_attention(torch.cat([twice, twice]), torch.cat([k, k]), v), "key: batch 2"),
        (lambda: flex_attention(q, k, v, return_aux=True), "return_aux: bool"),
        (lambda: flex_attention(q, k, v, kernel_options=[1]), "kernel_options: list"),
        (lambda: create_block_mask(causal, None, None, 8, 8, device="cpu", BLOCK_SIZE=1.5), "BLOCK_SIZE: 1.5"),
        (lambda: create_block_mask(causal, -1, None, 8, 8, device="cpu"), "B: -1, allowed 1 or more"),
        (lambda: create_block_mask(causal, None, 0, 8, 8, device="cpu"), "H: 0, allowed 1 or more"),
    ):
        with pytest.raises(attend.Error, match=words) as refusal:
            call()
        assert "\n" not in str(refusal.value)


def test_lists_of_masks_of_several_functions_can_be_read_in_compiled_code():
    mask = create_block_mask(
        attend.and_masks(lambda b, h, i, j: i >= j, attend.noop_mask), None, None, SIZE, SIZE, device="cpu"
    )
    compiled = torch.compile(lambda x: (x + 1, mask.sparsity()), backend="eager")
    assert (
        compiled(torch.zeros(2))[1]
        == create_block_mask(lambda b, h, i, j: i >= j, None, None, SIZE, SIZE, device="cpu").sparsity()
    )
