"""Tests that attend.activate replaces torch's scaled_dot_product_attention and that restore undoes it."""

import contextlib

import pytest

pytest.importorskip("numpy")
pytest.importorskip(
    "torch", reason=f"the tests of {__name__} need torch: `make py-test ATTEND_TEST_TORCH=1` installs it"
)

import attend
from attend.torch import _activate, _operators


@pytest.fixture
def calls(torch, monkeypatch):
    """Activates attend and returns a list, to which each call adds the attend function that ran."""
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
    # On the CPU, torch before 2.7 uses its math implementation for grouped heads.
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


@pytest.mark.parametrize("seqlens", [(9, 9), (5, 12), (12, 5)])
@pytest.mark.parametrize("dropout_p", [0.0, 0.4])
def test_the_functions_behind_the_cuda_operators(torch, dropout_p, seqlens):
    """Calls the implementation of the CUDA operators with CPU tensors. In this implementation, causal masks align
    bottom right. Only a test on a GPU can show that the dispatcher calls the implementation.
    """
    (q, k, v), _ = inputs(torch, "cpu", seqlens=seqlens)
    plain = [x.detach() for x in (q, k, v)]
    torch.manual_seed(7)
    o, lse, cum_q, cum_k, max_q, max_k, seed, offset, debug = _activate.cuda_forward(*plain, dropout_p, True)
    assert lse.shape == (2, 4, seqlens[0]) and (max_q, max_k) == seqlens and debug.numel() == 0
    want = attend.attention(q, k, v, causal=True, dropout_p=dropout_p, seed=int(seed.view(torch.int64).reshape(-1)[0]))
    assert torch.equal(o, want)
    dout = torch.randn_like(o)
    found = _activate.cuda_backward(
        dout, *plain, o, lse, cum_q, cum_k, max_q, max_k, dropout_p, True, seed, offset, scale=None
    )
    for a, b in zip(found, torch.autograd.grad(want, (q, k, v), dout)):
        torch.testing.assert_close(a, b)


def test_the_seed_is_as_older_releases_of_torch_declare_it(torch, monkeypatch):
    monkeypatch.setattr(_activate, "_random_numbers_of_torch", lambda: [((), torch.int64), ((), torch.int64)])
    q, k, v = (torch.randn(1, 2, 9, 8) for _ in range(3))
    o, lse, *some, seed, offset, _ = _activate.cuda_forward(q, k, v, 0.4)
    assert seed.shape == offset.shape == () and seed.dtype == torch.int64
    found = _activate.cuda_backward(torch.ones_like(o), q, k, v, o, lse, *some, 0.4, False, seed, offset)
    want = attend.backward(torch.ones_like(o), q, k, v, o, lse, dropout_p=0.4, seed=int(seed))
    assert all(torch.equal(a, b) for a, b in zip(found, want))


LAYOUTS = {
    "bhsd": lambda torch, *s: torch.randn(*s),
    "bshd": lambda torch, *s: torch.randn(s[0], s[2], s[1], s[3]).transpose(1, 2),
    "packed": lambda torch, *s: torch.randn(s[0], s[2], 3, s[1], s[3])[:, :, 1].transpose(1, 2),
    "one head": lambda torch, *s: torch.randn(s[0], 1, s[2], s[3]),
}


def described(x):
    """Returns the properties of a result that a compiler relies on: a number, or the shape, strides and dtype of a
    tensor.
    """
    return (x.shape, x.stride(), x.dtype) if hasattr(x, "stride") else x


@pytest.mark.parametrize("dropout_p", [0.0, 0.3])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_results_are_what_torchs_meta_functions_say(torch, layout, dropout_p):
    """torch.compile plans memory from torch's meta functions. If attend's results had other strides, shapes or dtypes,
    compiled code would fail.
    """
    q, k, v = (LAYOUTS[layout](torch, 2, 4, n, 8) for n in (9, 12, 12))
    meta = [x.to("meta") for x in (q, k, v)]
    operators = torch.ops.aten
    found = _activate.cuda_forward(q, k, v, dropout_p, False)
    want = operators._scaled_dot_product_flash_attention(*meta, dropout_p, False)
    assert [described(x) for x in found[:8]] == [described(x) for x in want[:8]]
    assert all(x.device == q.device for x in found if isinstance(x, torch.Tensor))
    dout = torch.randn_like(found[0])
    backward = (dout, q, k, v, *found[:6], dropout_p, False, *found[6:8])
    on_meta = [x.to("meta") if isinstance(x, torch.Tensor) else x for x in backward]
    want = operators._scaled_dot_product_flash_attention_backward(*on_meta)
    assert [described(x) for x in _activate.cuda_backward(*backward)] == [described(x) for x in want]

    found = _activate.cpu_forward(q, k, v)
    want = operators._scaled_dot_product_flash_attention_for_cpu(*meta)
    assert [described(x) for x in found] == [described(x) for x in want]
    backward = (dout, q, k, v, *found, 0.0, False)
    want = operators._scaled_dot_product_flash_attention_for_cpu_backward(
        *(x.to("meta") if isinstance(x, torch.Tensor) else x for x in backward)
    )
    assert [described(x) for x in _activate.cpu_backward(*backward)] == [described(x) for x in want]


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


def flash_only(torch):
    return torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION)


def half_inputs(torch, seqlen_q, seqlen_k):
    shapes = ((2, 4, n, 64) for n in (seqlen_q, seqlen_k, seqlen_k))
    return [torch.randn(*s, device="cuda", dtype=torch.bfloat16, requires_grad=True) for s in shapes]


def check_against_float64(torch, found, tensors, dout, **options):
    wide = [x.detach().double().requires_grad_() for x in tensors]
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        want = torch.nn.functional.scaled_dot_product_attention(*wide, **options)
    torch.testing.assert_close(found.double(), want, atol=2.0**-6, rtol=0)
    gradients = torch.autograd.grad(found, tensors, dout)
    for a, b in zip(gradients, torch.autograd.grad(want, wide, dout.double())):
        torch.testing.assert_close(a.double(), b, atol=2.0**-5 * b.abs().max().item(), rtol=0)


@pytest.mark.parametrize("seqlens", [(130, 130), (70, 130)])
@pytest.mark.parametrize("variant", ["causal_lower_right", "causal_upper_left"])
def test_both_alignments_on_a_gpu(torch, calls, variant, seqlens):
    if not torch.cuda.is_available():
        pytest.skip("no GPU here")
    from torch.nn.attention import bias

    tensors = half_inputs(torch, *seqlens)
    mask = getattr(bias, variant)(*seqlens)
    is_lower = variant == "causal_lower_right"
    # Flash attention does not support the other alignment.
    with flash_only(torch) if is_lower else contextlib.nullcontext():
        found = torch.nn.functional.scaled_dot_product_attention(*tensors, attn_mask=mask)
    check_against_float64(torch, found, tensors, torch.randn_like(found), attn_mask=mask._materialize("cuda"))
    if is_lower:
        assert "fill_forward" in calls


@pytest.mark.parametrize("dropout_p", [0.0, 0.3])
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_on_a_gpu(torch, calls, backend, dropout_p):
    if not torch.cuda.is_available():
        pytest.skip("no GPU here")
    torch._dynamo.reset()
    tensors = half_inputs(torch, 130, 130)
    run = lambda q, k, v: torch.nn.functional.scaled_dot_product_attention(q * 2, k, v, dropout_p=dropout_p)
    with flash_only(torch):
        found = torch.compile(run, fullgraph=True, backend=backend)(*tensors)
        dout = torch.randn_like(found)
        if dropout_p:
            assert all(x.isfinite().all() for x in torch.autograd.grad(found, tensors, dout))
        else:
            torch.testing.assert_close(found, run(*tensors))
            gradients = torch.autograd.grad(found, tensors, dout)
            for a, b in zip(gradients, torch.autograd.grad(run(*tensors), tensors, dout)):
                torch.testing.assert_close(a, b, atol=2e-2, rtol=2e-2)
    assert {"fill_forward", "fill_backward"} <= set(calls)


def test_an_encoder_compiled_on_a_gpu(torch, calls):
    if not torch.cuda.is_available():
        pytest.skip("no GPU here")
    torch._dynamo.reset()
    layer = torch.nn.TransformerEncoderLayer(128, 4, 256, batch_first=True, device="cuda", dtype=torch.bfloat16)
    model = torch.nn.TransformerEncoder(layer, 2).train()
    x = torch.randn(2, 70, 128, device="cuda", dtype=torch.bfloat16)
    with flash_only(torch):
        torch.compile(model)(x).float().square().mean().backward()
    assert {"fill_forward", "fill_backward"} <= set(calls)
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_a_graph_of_torchs_front_door(torch, calls):
    """Every result of the operator is on the GPU. A graph can therefore be captured, and each replay reads the present
    values of its inputs.
    """
    if not torch.cuda.is_available():
        pytest.skip("no GPU here")
    q, k, v = (x.detach() for x in half_inputs(torch, 130, 130))
    run = lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v)
    with flash_only(torch):
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            run()
        side.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = run()
        q.normal_()
        graph.replay()
        torch.testing.assert_close(found, run())
