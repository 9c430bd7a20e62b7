"""Tests of gradients of 16-bit tensors whose entries are shared by many scores. The terms must be summed unrounded, and
the sum rounded once.

In these tests each term is too small for a float16, but the sum of 64 terms is not.
"""

import pytest

pytest.importorskip("numpy")

pytest.importorskip(
    "torch", reason=f"the tests of {__name__} need torch: `make py-test ATTEND_TEST_TORCH=1` installs it"
)

import attend

COPIES, HEADS, ROWS, KEYS, DIM = 64, 2, 4, 1024, 16
SUBNORMAL = 2.0**-24  # the smallest positive float16


def standard(q, k, v, bias):
    return (q @ k.transpose(-1, -2) * DIM**-0.5 + bias).softmax(-1) @ v


def alike(torch, device, *lead):
    """Returns q, k, v and dout in float16, with the same numbers at each index of the leading dimensions."""
    shapes = ((HEADS, ROWS, DIM), (HEADS, KEYS, DIM), (HEADS, KEYS, DIM), (HEADS, ROWS, DIM))
    q, k, v, dout = (torch.randn(*shape, device=device) for shape in shapes)
    # Each softmax weight is about 1 / KEYS, so all terms are small.
    return [x.half().expand(*lead, *x.shape) for x in (q / 16, k, v, dout * 2.0**-19)]


def gradient(attention, bias, dout):
    import torch

    leaf = bias.clone().requires_grad_()
    return torch.autograd.grad(attention(leaf), leaf, dout)[0]


def assert_is_the_rounded_sum(found, want, term):
    assert found.shape == want.shape
    assert term.abs().max() < SUBNORMAL < want.abs().max()
    error = (found.double() - want).abs().max().item()
    budget = 0.51 * SUBNORMAL + 2e-3 * want.abs().max().item()
    assert error <= budget, f"error {error:.1e}, budget {budget:.1e}"


def test_a_mask_of_sdpa_that_leading_dimensions_share(torch, device):
    q, k, v, dout = alike(torch, device, COPIES, 2)
    mask = torch.randn(1, 2, HEADS, ROWS, KEYS, device=device).div(16).half()
    found = gradient(lambda mask: attend.sdpa(q, k, v, mask), mask, dout)
    want = gradient(lambda mask: standard(q.double(), k.double(), v.double(), mask), mask.double(), dout.double())
    assert_is_the_rounded_sum(found, want, want / COPIES)


@pytest.mark.parametrize("with_func", [False, True])
def test_a_bias_that_mapped_calls_share(torch, device, with_func):
    q, k, v, dout = alike(torch, device, COPIES, 2)
    bias = torch.randn(2, HEADS, ROWS, KEYS, device=device).div(16).half()
    mapped = lambda bias: torch.func.vmap(lambda q, k, v: attend.attention(q, k, v, bias=bias))(q, k, v)
    found = torch.func.vjp(mapped, bias)[1](dout.contiguous())[0] if with_func else gradient(mapped, bias, dout)
    want = gradient(lambda bias: standard(q.double(), k.double(), v.double(), bias), bias.double(), dout.double())
    assert_is_the_rounded_sum(found, want, want / COPIES)


@pytest.mark.parametrize("shape", [(HEADS, ROWS, KEYS), (1, HEADS, ROWS, KEYS)])
def test_a_bias_that_the_batch_of_a_mapped_gradient_shares(torch, device, shape):
    q, k, v, dout = alike(torch, device, COPIES)
    bias = torch.randn(shape, device=device).div(16).half()
    o, lse = attend.forward(q, k, v, bias=bias)
    run = lambda dout: attend.backward(dout, q, k, v, o, lse, bias=bias)[3]
    (found,) = torch.func.vmap(run)(dout[None].contiguous())
    want = gradient(lambda bias: standard(q.double(), k.double(), v.double(), bias), bias.double(), dout.double())
    assert found.dtype == torch.float16
    assert_is_the_rounded_sum(found, want, want / COPIES)


@pytest.mark.parametrize("by_autograd", [True, False])
def test_a_bias_of_one_column(torch, device, by_autograd):
    """The gradient of such a bias comes only from lse. o depends only on differences of the scores of a row, which the
    bias does not change.
    """
    q, k, v, _ = alike(torch, device, 1)
    bias = torch.randn(1, 1, ROWS, 1, device=device).div(16).half()
    dlse = torch.full((1, HEADS, ROWS), 2.0**-16, device=device)
    if by_autograd:
        found = gradient(lambda bias: attend.attention(q, k, v, bias=bias, return_lse=True)[1], bias, dlse)
    else:
        o, lse = attend.forward(q, k, v, bias=bias)
        found = attend.backward(torch.zeros_like(o), q, k, v, o, lse, dlse=dlse, bias=bias)[3]
    assert found.dtype == torch.float16
    want = dlse.double().sum(1).reshape(1, 1, ROWS, 1)
    assert_is_the_rounded_sum(found, want, want / KEYS / HEADS)


def test_one_head_of_sdpa_for_many(torch, device):
    q, k, v, dout = (x.transpose(0, 1) for x in alike(torch, device, COPIES))
    value = v[:, :1].contiguous()
    found = gradient(lambda v: attend.sdpa(q, k[:, :1], v), value, dout)
    want = gradient(lambda v: standard(q.double(), k[:, :1].double(), v, 0.0), value.double(), dout.double())
    assert_is_the_rounded_sum(found, want, want / COPIES)
