"""Tests of calls that flex_attention refuses. The one-line error names the argument, the operator, and the user's file
and line.
"""

import copy
import re

import pytest

torch = pytest.importorskip("torch")

import attend

Q = torch.zeros(1, 2, 8, 16)


def line_of(call, kind=attend.Error):
    with pytest.raises(attend.Error) as caught:
        call()
    assert isinstance(caught.value, kind) and "\n" not in str(caught.value), caught.value
    return str(caught.value)


def place_in(function, number):
    """Returns "file:line" of the line `number` lines below the function's first line."""
    return f"test_flex_refusals.py:{function.__code__.co_firstlineno + number}"


def if_of_positions(score, b, h, q_idx, kv_idx):
    if q_idx > kv_idx:
        return score
    return score * 2


def changes_the_score(score, b, h, q_idx, kv_idx):
    score += 1
    return score


FIXED = torch.zeros(3)


def changes_a_capture(score, b, h, q_idx, kv_idx):
    FIXED.add_(1)
    return score + FIXED[0]


VALUE = "the value of a tensor that depends on the score or a position"


@pytest.mark.parametrize(
    ("mod", "message"),
    [
        (if_of_positions, f"score_mod: {place_in(if_of_positions, 1)}: {VALUE}"),
        (lambda s, b, h, q, k: s * int(q), VALUE),
        (lambda s, b, h, q, k: s * q.item(), VALUE),
        (lambda s, b, h, q, k: s * q.tolist(), VALUE),
        (lambda s, b, h, q, k: max(s, q), VALUE),
        (lambda s, b, h, q, k: s + sum(1 for _ in range(q)), VALUE),
        (changes_the_score, f"{place_in(changes_the_score, 1)}: aten.add_.Tensor: it changes a tensor in place"),
        (changes_a_capture, "aten.add_.Tensor: it changes a tensor in place"),
        (lambda s, b, h, q, k: s + torch.rand(()), "aten.rand.default: random numbers"),
        (lambda s, b, h, q, k: s + torch.rand_like(s), "aten.rand_like.default: random numbers"),
        (lambda s, b, h, q, k: torch.nn.functional.dropout(s), "aten.(empty_like|bernoulli|native_dropout)"),
        (lambda s, b, h, q, k: torch.lgamma(s), "aten.lgamma.default: an operator that attend cannot translate"),
        (lambda s, b, h, q, k: torch.atan2(s, s + 1), "aten.atan2.default: an operator"),
        (
            lambda s, b, h, q, k: s.expand(1000).sum(),
            "aten.sum.default: a reduction of 1000 elements, allowed 1 to 256",
        ),
        (lambda s, b, h, q, k: s.expand(3).max(0).values, "a maximum with its index, allowed torch.amax"),
        (lambda s, b, h, q, k: s.view(torch.int32) * 1.0, "aten.view.dtype: a view of another dtype"),
        (lambda s, b, h, q, k: torch.stack([s, s]).norm(p=3), "a norm of order 3, allowed 1, 2, inf"),
        (lambda s, b, h, q, k: s.detach() + q, "aten.detach.default: a gradient that stops at this operator"),
        (lambda s, b, h, q, k: s + (q**5), "aten.pow.Tensor_Scalar: a power of integers"),
        (lambda s, b, h, q, k: s + (1j * q).real, "dtype torch.complex64"),
        (lambda s, b, h, q, k: s + torch.ones(4)[q.to(torch.uint8)], "a subscript of dtype torch.uint8"),
        (lambda s, b, h, q, k: torch.round(s, decimals=2), "decimals other than 0"),
        (lambda s, b, h, q, k: s + (q < 2**40), "the integer 1099511627776, allowed 32 bits"),
        (lambda s, b, h, q, k: torch.empty_like(s), "aten.empty_like.default: an operator"),
        (lambda s, b, h, q, k: s + torch.isin(q, torch.arange(300)), "300 elements to compare with, allowed up to 256"),
        (lambda s, b, h, q, k: 1.0, "it returned float, allowed a tensor"),
        (lambda s, b, h, q, k: None, "it returned NoneType, allowed a tensor"),
        (lambda s, b, h, q, k: s[None], r"it returned shape \(1,\), allowed a tensor without dimensions"),
        (lambda s, b, h, q, k: s + (1j * q), "dtype torch.complex64"),
        (lambda b, h, q, k: q >= k, "a function of 4 arguments, allowed 5"),
        (lambda s, b, h, q, k, extra: s, "a function of 6 arguments, allowed 5"),
        ("score", "str, allowed a function"),
    ],
)
def test_functions(mod, message):
    line = line_of(lambda: attend.flex_attention(Q, Q, Q, mod))
    assert line.startswith("score_mod: ")
    assert re.search(message, line), line
    assert not FIXED.any()


@torch.library.custom_op("attend_tests::tanh", mutates_args=())
def other_tanh(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@other_tanh.register_fake
def _(x):
    return torch.empty_like(x)


def test_operators_of_the_caller_are_not_torchs_of_their_names():
    line = line_of(lambda: attend.flex_attention(Q, Q, Q, lambda s, b, h, q, k: other_tanh(s)))
    assert "attend_tests.tanh.default: an operator that attend cannot translate" in line


def test_errors_of_the_function_itself_are_its_own():
    for mod in (lambda s, b, h, q, k: s + torch.zeros(3, 3)[q][7], lambda s, b, h, q, k: s[..., None].squeeze(2)):
        with pytest.raises(IndexError):
            attend.flex_attention(Q, Q, Q, mod)
    with pytest.raises(IndexError, match="index 5 is out of bounds"):
        attend.flex_attention(Q, Q, Q, lambda s, b, h, q, k: s + torch.zeros(3, 8)[torch.tensor(5), q])
    with pytest.raises(IndexError):
        attend.flex_attention(Q, Q, Q, lambda s, b, h, q, k: s + torch.zeros(3)[7])
    with pytest.raises(ZeroDivisionError):
        attend.flex_attention(Q, Q, Q, lambda s, b, h, q, k: s + 1 / 0)


def test_a_score_that_does_not_matter_has_no_gradient():
    mod = lambda s, b, h, q, k: (q - k) * 1.0
    assert torch.isfinite(attend.flex_attention(Q, Q, Q, mod)).all()
    x = Q.clone().requires_grad_()
    assert line_of(lambda: attend.flex_attention(x, Q, Q, mod), NotImplementedError).startswith(
        "score_mod: a value that does not depend on the score"
    )
    with torch.no_grad():
        attend.flex_attention(x, Q, Q, mod)


def test_detached_captures_are_no_gradient_that_stops():
    table = torch.ones(8, requires_grad=True)
    x = Q.clone().requires_grad_()
    o = attend.flex_attention(x, Q, Q, lambda s, b, h, q, k: s + table.detach()[k] + (q - k).detach())
    assert torch.autograd.grad(o.sum(), (x, table), allow_unused=True)[1] is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kernel_options": {"BLOCK_Q": 3}}, "kernel_options: 'BLOCK_Q', allowed BACKEND, "),
        ({"kernel_options": {"BACKEND": "FASTEST"}}, "kernel_options: BACKEND 'FASTEST', allowed AUTO, TRITON"),
        ({"block_mask": torch.ones(8, 8)}, "block_mask: Tensor, allowed a mask from create_block_mask"),
        (
            {"block_mask": attend.make_block_mask("k <= q", 8, 8)},
            "block_mask: BlockMask, allowed a mask from create_block_mask",
        ),
        ({"key": Q[:, :1]}, "key: 1 heads with 2 of query, allowed with enable_gqa=True only"),
        ({"key": torch.zeros(1, 3, 8, 16), "enable_gqa": True}, "key: 3 heads, allowed a divisor of query's 2"),
        ({"key": torch.zeros(2, 2, 8, 16)}, "key: batch 2, allowed 1, that of query, or 1"),
        ({"query": Q[0]}, "query: 3 dimensions, allowed 4"),
        ({"query": Q.numpy()}, "query: ndarray, allowed a torch.Tensor"),
        ({"value": Q.bfloat16()}, "value: dtype"),
        ({"key": torch.zeros(1, 2, 8, 12)}, "key: "),
    ],
)
def test_arguments(options, message):
    given = {"query": Q, "key": Q, "value": Q, **options}
    assert line_of(lambda: attend.flex_attention(**given)).startswith(message)


def test_hints_for_other_kernels_are_taken():
    options = {"BLOCK_M": 64, "fwd_num_stages": 2, "bwd_BLOCK_N1": 32, "BACKEND": "TRITON", "PRESCALE_QK": True}
    assert torch.equal(attend.flex_attention(Q, Q, Q, kernel_options=options), attend.flex_attention(Q, Q, Q))


def test_auxiliary_results_that_are_not_given():
    from attend.torch.flex_attention import AuxRequest

    assert line_of(
        lambda: attend.flex_attention(Q, Q, Q, return_aux=AuxRequest(max_scores=True)), NotImplementedError
    ).startswith("return_aux: max_scores, allowed lse")
    assert line_of(
        lambda: attend.flex_attention(Q, Q, Q, return_lse=True, return_aux=AuxRequest(lse=True)), ValueError
    ).startswith("return_lse: given with return_aux")


def test_a_second_derivative_is_refused():
    x = torch.randn(1, 2, 8, 16, requires_grad=True)
    o = attend.flex_attention(x, x, x, lambda s, b, h, q, k: s * 2)
    (dq,) = torch.autograd.grad(o.square().sum(), x, create_graph=True)
    assert dq.requires_grad
    with pytest.raises(attend.Error, match="first derivatives only"):
        torch.autograd.grad(dq.sum(), x)


def test_nested_tensors_are_refused():
    nested = torch.nested.nested_tensor([torch.zeros(2, 3, 16), torch.zeros(2, 5, 16)], layout=torch.jagged)
    assert "nested" in line_of(lambda: attend.flex_attention(nested, nested, nested), NotImplementedError)


def test_transforms_of_torch_func_are_refused():
    mod = lambda s, b, h, q, k: s * 2
    with pytest.raises(attend.UnsupportedError, match="score_mod or block_mask: under torch.compile, torch.func"):
        torch.func.vmap(lambda q: attend.flex_attention(q, q, q, mod))(Q[None])


def test_functions_of_copies_are_functions():
    mod = lambda s, b, h, q, k: s * 2
    assert torch.equal(attend.flex_attention(Q, Q, Q, copy.copy(mod)), attend.flex_attention(Q, Q, Q, mod))
