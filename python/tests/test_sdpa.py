"""Tests of attend.sdpa, which has the conventions of torch's scaled_dot_product_attention. The results are compared
with torch's.
"""

import pytest

pytest.importorskip("numpy")
pytest.importorskip(
    "torch", reason=f"the tests of {__name__} need torch: `make py-test ATTEND_TEST_TORCH=1` installs it"
)

import attend


def normal(torch, device, *shape, requires_grad=True):
    return torch.randn(*shape, device=device, requires_grad=requires_grad)


SHAPES = {
    "plain": ((2, 4, 9, 8), (2, 4, 9, 8)),
    "more_keys": ((2, 4, 5, 8), (2, 4, 9, 8)),
    "more_rows": ((2, 4, 9, 8), (2, 4, 5, 8)),
    "no_batch": ((4, 9, 8), (4, 9, 8)),
    "matrices": ((9, 8), (12, 8)),
    "five_dims": ((2, 3, 4, 9, 8), (2, 3, 4, 9, 8)),
    "broadcast": ((2, 3, 4, 9, 8), (1, 3, 4, 9, 8)),
}


def torch_math(torch, *arguments, **options):
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        return torch.nn.functional.scaled_dot_product_attention(*arguments, **options)


@pytest.mark.parametrize("masking", ["none", "causal", "bool", "float", "row"])
@pytest.mark.parametrize("shape", SHAPES)
def test_sdpa_is_torchs(torch, device, shape, masking):
    q_shape, k_shape = SHAPES[shape]
    q, k, v = normal(torch, device, *q_shape), normal(torch, device, *k_shape), normal(torch, device, *k_shape[:-1], 6)
    scores = (*q_shape[:-1], k_shape[-2])
    options = {
        "none": {"scale": 0.3},
        "causal": {"is_causal": True},
        "bool": {
            "attn_mask": (torch.rand(scores, device=device) < 0.8)
            | torch.eye(*scores[-2:], dtype=torch.bool, device=device)
        },
        "float": {"attn_mask": normal(torch, device, *scores)},
        "row": {"attn_mask": normal(torch, device, scores[-1])},
    }[masking]
    found, want = attend.sdpa(q, k, v, **options), torch_math(torch, q, k, v, **options)
    torch.testing.assert_close(found, want, atol=1e-5, rtol=0)
    inputs = [q, k, v] + [x for x in options.values() if getattr(x, "requires_grad", False)]
    dout = torch.randn_like(want)
    for a, b in zip(torch.autograd.grad(found, inputs, dout), torch.autograd.grad(want, inputs, dout)):
        torch.testing.assert_close(a, b, atol=2e-5, rtol=0)


def test_sdpa_with_fewer_heads_of_keys(torch, device):
    q, k, v = normal(torch, device, 2, 6, 9, 8), normal(torch, device, 2, 2, 9, 8), normal(torch, device, 2, 2, 9, 8)
    want = torch_math(torch, q, k, v, is_causal=True, enable_gqa=True)
    torch.testing.assert_close(attend.sdpa(q, k, v, is_causal=True, enable_gqa=True), want, atol=1e-5, rtol=0)
    with pytest.raises(ValueError, match="enable_gqa"):
        attend.sdpa(q, k, v)


@pytest.mark.parametrize("heads", [(4, 1, 1), (1, 4, 4), (4, 4, 1), (1, 4, 1)])
def test_sdpa_lets_one_head_stand_for_many(torch, device, heads):
    q, k, v = (normal(torch, device, 2, n, 9, 8) for n in heads)
    found, want = attend.sdpa(q, k, v), torch_math(torch, q, k, v)
    torch.testing.assert_close(found, want, atol=1e-5, rtol=0)
    for a, b in zip(
        torch.autograd.grad(found.sin().sum(), (q, k, v)), torch.autograd.grad(want.sin().sum(), (q, k, v))
    ):
        torch.testing.assert_close(a, b, atol=2e-5, rtol=0)


@pytest.mark.parametrize("lead", [(), (4,), (2, 3, 4), (2, 1, 3, 4), (0, 4)])
def test_sdpa_without_rows(torch, device, lead):
    q, k = normal(torch, device, *lead, 0, 8), normal(torch, device, *lead, 5, 8)
    for mask in (None, torch.ones(0, 5, dtype=torch.bool, device=device)):
        assert attend.sdpa(q, k, k, mask).shape == torch_math(torch, q, k, k, attn_mask=mask).shape == (*lead, 0, 8)


@pytest.mark.parametrize("seqlens", [(9, 9), (5, 9)])
@pytest.mark.parametrize("name", ["causal_lower_right", "causal_upper_left"])
def test_sdpa_takes_torchs_causal_biases(torch, device, name, seqlens):
    """A causal bias of torch is defined by its type, and its memory contains no values."""
    from torch.nn.attention import bias

    mask = getattr(bias, name)(*seqlens)
    q, k, v = (normal(torch, device, 2, 4, n, 8) for n in (seqlens[0], seqlens[1], seqlens[1]))
    want = torch_math(torch, q, k, v, attn_mask=mask._materialize(device))
    torch.testing.assert_close(attend.sdpa(q, k, v, mask), want, atol=1e-5, rtol=0)
    with pytest.raises(ValueError, match="^attn_mask: causal bias of "):
        attend.sdpa(q, k[:, :, 1:], v[:, :, 1:], mask)
    with pytest.raises(ValueError) as torchs:
        torch.nn.functional.scaled_dot_product_attention(q, k, v, mask, is_causal=True)
    with pytest.raises(ValueError, match=f"^attn_mask: {torchs.value}$"):
        attend.sdpa(q, k, v, mask, is_causal=True)


def jagged(torch, device, lengths, heads, head_dim):
    rows = [normal(torch, device, n, heads, head_dim, requires_grad=False) for n in lengths]
    return torch.nested.nested_tensor(rows, layout=torch.jagged, requires_grad=True)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("is_causal", [False, True])
def test_sdpa_of_jagged_tensors(torch, device, is_causal):
    lengths = (5, 1, 7)
    tensors = [jagged(torch, device, lengths, 4, n) for n in (8, 8, 6)]
    found = attend.sdpa(*(x.transpose(1, 2) for x in tensors), is_causal=is_causal)
    leaves = [[row.detach().requires_grad_() for row in x.unbind()] for x in tensors]
    want = [attend.sdpa(*(x.transpose(0, 1) for x in some), is_causal=is_causal) for some in zip(*leaves)]
    for a, b in zip(found.transpose(1, 2).unbind(), want):
        torch.testing.assert_close(a, b.transpose(0, 1), atol=1e-5, rtol=0)
    found.values().square().sum().backward()
    sum(x.square().sum() for x in want).backward()
    for x, rows in zip(tensors, leaves):
        for a, b in zip(x.grad.unbind(), rows):
            torch.testing.assert_close(a, b.grad, atol=1e-5, rtol=1e-4)


@pytest.mark.filterwarnings("ignore")
def test_sdpa_of_other_nested_tensors_is_refused(torch, device):
    x = jagged(torch, device, (5, 3), 4, 8).transpose(1, 2)
    y = jagged(torch, device, (6, 3), 4, 8).transpose(1, 2)
    with pytest.raises(NotImplementedError, match="^attn_mask: with nested tensors"):
        attend.sdpa(x, x, x, torch.ones(5, 5, device=device))
    with pytest.raises(NotImplementedError, match="^is_causal: with nested tensors"):
        attend.sdpa(x, y, y, is_causal=True)
    strided = torch.nested.nested_tensor([torch.randn(2, n, 8, device=device) for n in (5, 3)])
    with pytest.raises(NotImplementedError, match="^query: layout torch.strided"):
        attend.sdpa(strided, strided, strided)


def test_sdpa_refusals(torch, device):
    q, k, v = (normal(torch, device, 2, 4, 9, 8) for _ in range(3))
    with pytest.raises(ValueError, match="^attn_mask: Explicit attn_mask should not be set when is_causal=True$"):
        attend.sdpa(q, k, v, torch.ones(9, 9, dtype=torch.bool, device=device), is_causal=True)
    with pytest.raises(RuntimeError):  # torch raises the same class
        attend.sdpa(q, k, v, torch.ones(9, 9, dtype=torch.bool, device=device), is_causal=True)
    with pytest.raises(ValueError, match="^key: 2 heads, allowed 1 or 4"):
        attend.sdpa(q, k[:, :2], v)
    with pytest.raises(ValueError, match="^key: 3 dimensions"):
        attend.sdpa(q, k[0], v)


def test_sdpa_compiles(torch, device):
    torch._dynamo.reset()
    q, k, v = normal(torch, device, 2, 4, 5, 8), normal(torch, device, 2, 4, 9, 8), normal(torch, device, 2, 4, 9, 8)
    run = lambda q, k, v: attend.sdpa(q, k, v, is_causal=True)
    torch.testing.assert_close(torch.compile(run, fullgraph=True, backend="aot_eager")(q, k, v), run(q, k, v))


def test_sdpa_names_a_mask_that_is_no_tensor(torch):
    x = torch.randn(1, 2, 4, 8)
    with pytest.raises(ValueError, match=r"^attn_mask: list, allowed a torch.Tensor$"):
        attend.sdpa(x, x, x, attn_mask=[[True]])
