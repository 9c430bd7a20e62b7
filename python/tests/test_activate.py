"""attend behind torch's own scaled_dot_product_attention, and gone again."""

import pytest

pytest.importorskip("numpy")
pytest.importorskip(
    "torch", reason=f"the tests of {__name__} need torch: `make py-test ATTEND_TEST_TORCH=1` installs it"
)

import attend
from attend.torch import _activate, _operators


@pytest.fixture
def calls(torch, monkeypatch):
    """Activated, with a list of what ran in attend."""
    seen = []
    for name in ("fill_forward", "fill_backward"):
        plain = getattr(_operators, name)
        monkeypatch.setattr(_activate, name, lambda *a, name=name, plain=plain: seen.append(name) or plain(*a))
    attend.activate()
    yield seen
    attend.restore()


def inputs(torch, device, masking="none", seqlens=(9, 9), heads=(4, 4)):
    (seqlen_q, seqlen_k), (heads_q, heads_k) = seqlens, heads
    shapes = (2, heads_q, seqlen_q, 8), (2, heads_k, seqlen_k, 8), (2, heads_k, seqlen_k, 8)
    tensors = [torch.randn(*s, device=device, requires_grad=True) for s in shapes]
    options = {
        "none": {"scale": 0.3},
        "causal": {"is_causal": True},
        "bool": {"attn_mask": torch.rand(2, 1, seqlen_q, seqlen_k, device=device) < 0.9},
        "float": {"attn_mask": torch.randn(seqlen_q, seqlen_k, device=device)},
    }[masking]
    return tensors, options | ({"enable_gqa": True} if heads_q != heads_k else {})


@pytest.mark.parametrize("heads", [(4, 4), (4, 2)])
@pytest.mark.parametrize("seqlens", [(9, 9), (5, 12), (12, 5)])
@pytest.mark.parametrize("masking", ["none", "causal", "bool", "float"])
def test_the_same_results_and_gradients(torch, calls, masking, seqlens, heads):
    tensors, options = inputs(torch, "cpu", masking, seqlens, heads)
    run = torch.nn.functional.scaled_dot_product_attention
    found = run(*tensors, **options)
    dout = torch.randn_like(found)
    found_gradients = torch.autograd.grad(found, tensors, dout)
    # On the CPU torch before 2.7 keeps grouped heads to its math implementation.
    torchs_choice = heads != (4, 4) and torch.__version__.startswith("2.6")
    assert calls == ([] if torchs_choice else ["fill_forward", "fill_backward"])
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        want = run(*tensors, **options)
    torch.testing.assert_close(found, want, atol=1e-5, rtol=0)
    for a, b in zip(found_gradients, torch.autograd.grad(want, tensors, dout)):
        torch.testing.assert_close(a, b, atol=2e-5, rtol=0)


def test_restore_puts_torch_back(torch, calls):
    tensors, options = inputs(torch, "cpu")
    attend.restore()
    attend.restore()
    torch.nn.functional.scaled_dot_product_attention(*tensors, **options)
    assert calls == []
    attend.activate()
    attend.activate()
    torch.nn.functional.scaled_dot_product_attention(*tensors, **options)
    assert calls == ["fill_forward"]


def test_torchs_registry_knows_it(torch, calls):
    if not hasattr(torch.nn.attention, "register_flash_attention_impl"):
        pytest.skip("this torch has no registry")
    assert torch.nn.attention.current_flash_attention_impl() == "attend"
    torch.nn.attention.restore_flash_attention_impl()
    assert torch.nn.attention.current_flash_attention_impl() is None


def test_compiled(torch, calls):
    torch._dynamo.reset()
    tensors, options = inputs(torch, "cpu", "causal")
    run = lambda q, k, v: torch.nn.functional.scaled_dot_product_attention(q * 2, k, v, **options).sin()
    found = torch.compile(run, fullgraph=True, backend="aot_eager")(*tensors)
    gradients = torch.autograd.grad(found.sum(), tensors)
    assert calls == ["fill_forward", "fill_backward"]
    want = run(*tensors)
    torch.testing.assert_close(found, want)
    for a, b in zip(gradients, torch.autograd.grad(want.sum(), tensors)):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("dropout_p", [0.0, 0.4])
def test_the_functions_behind_the_cuda_operators(torch, dropout_p):
    """The same code on CPU tensors; that the dispatcher reaches it, a GPU has to show."""
    (q, k, v), _ = inputs(torch, "cpu")
    plain = [x.detach() for x in (q, k, v)]
    torch.manual_seed(7)
    o, lse, cum_q, cum_k, max_q, max_k, seed, offset, debug = _activate.cuda_forward(*plain, dropout_p, True)
    assert lse.shape == (2, 4, 9) and (max_q, max_k) == (9, 9) and debug.numel() == 0
    want = attend.attention(q, k, v, causal=True, dropout_p=dropout_p, seed=int(seed))
    assert torch.equal(o, want)
    dout = torch.randn_like(o)
    found = _activate.cuda_backward(
        dout, *plain, o, lse, cum_q, cum_k, max_q, max_k, dropout_p, True, seed, offset, scale=None
    )
    for a, b in zip(found, torch.autograd.grad(want, (q, k, v), dout)):
        torch.testing.assert_close(a, b)


CUDA_CASES = [((4, 4), False), ((4, 2), False), ((4, 4), True), ((4, 2), True)]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("heads, is_causal", CUDA_CASES)
def test_the_dispatcher_reaches_the_cuda_operators(torch, calls, heads, is_causal, dtype):
    if not torch.cuda.is_available():
        pytest.skip("no GPU here")
    heads_q, heads_k = heads
    shapes = (2, heads_q, 130, 64), (2, heads_k, 130, 64), (2, heads_k, 130, 64)
    tensors = [torch.randn(*s, device="cuda", dtype=getattr(torch, dtype), requires_grad=True) for s in shapes]
    run = torch.nn.functional.scaled_dot_product_attention
    options = {"is_causal": is_causal, "enable_gqa": heads_q != heads_k}
    backends = torch.nn.attention.SDPBackend
    with torch.nn.attention.sdpa_kernel(backends.FLASH_ATTENTION):
        found = run(*tensors, **options)
    dout = torch.randn_like(found)
    found_gradients = torch.autograd.grad(found, tensors, dout)
    assert calls == ["fill_forward", "fill_backward"]
    wide = [x.detach().double().requires_grad_() for x in tensors]
    with torch.nn.attention.sdpa_kernel(backends.MATH):
        want = run(*wide, **options)
    unit = 2.0**-7 if dtype == "bfloat16" else 2.0**-10
    torch.testing.assert_close(found.double(), want, atol=2 * unit, rtol=0)
    for a, b in zip(found_gradients, torch.autograd.grad(want, wide, dout.double())):
        torch.testing.assert_close(a.double(), b, atol=4 * unit * b.abs().max().item(), rtol=0)
