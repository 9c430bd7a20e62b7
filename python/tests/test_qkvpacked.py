"""Tests of attention_qkvpacked, with q, k and v in one tensor and one gradient. The results are compared with those of
attention of three tensors.
"""

import itertools

import attend
import numpy as np
import pytest
from attend import flash_attn, flash_attn_3

OPTIONS = {
    "plain": {},
    "causal": {"causal": True},
    "window": {"window": (5, 2), "scale": 0.3},
    "softcap": {"softcap": 3.0, "causal": True},
    "dropout": {"dropout_p": 0.4, "seed": 11, "offset": 3},
}


def inputs(torch, device, *shape, dtype="float32"):
    qkv = torch.randn(*shape, device=device).to(getattr(torch, dtype))
    return qkv.requires_grad_(), qkv.detach().clone().requires_grad_()


def separate(qkv, **options):
    return attend.attention(*qkv.unbind(2), layout="bshd", **options)


def loss_of(results):
    results = results if isinstance(results, tuple) else (results,)
    return sum((x.double() * (1.5 + i)).square().sum() for i, x in enumerate(results))


def is_direct(torch):
    """Returns whether the library reads the packed tensor directly."""
    from attend.torch import _direct

    return _direct.HAS_EXCHANGE_TABLE


@pytest.mark.parametrize("return_lse", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
@pytest.mark.parametrize("name", OPTIONS)
def test_it_is_attention_of_the_three(torch, device, name, dtype, return_lse):
    if dtype == "float64" and device != "cpu":
        pytest.skip("float64 is the CPU's")
    # `deterministic` is set, because otherwise the order of the sums in dq changes from run to run.
    options = {**OPTIONS[name], "return_lse": return_lse, "deterministic": True}
    packed, others = inputs(torch, device, 2, 37, 3, 4, 24, dtype=dtype)
    found, want = attend.attention_qkvpacked(packed, **options), separate(others, **options)
    for a, b in zip(*((x if return_lse else (x,)) for x in (found, want))):
        assert torch.equal(a, b)
    loss_of(found).backward()
    loss_of(want).backward()
    assert torch.equal(packed.grad, others.grad)
    assert packed.grad.stride() == packed.stride()
    o = found[0] if return_lse else found
    if is_direct(torch) and dtype != "float64":
        assert o.grad_fn.name() == "PackedAttentionBackward"
    with torch.no_grad():
        again = attend.attention_qkvpacked(packed, **options)
        assert torch.equal(again[0] if return_lse else again, o)


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("shape", [(1, 1, 3, 1, 64), (3, 130, 3, 2, 64), (2, 77, 3, 3, 128), (1, 65, 3, 2, 100),
                                   (2, 200, 3, 1, 20), (1, 70, 3, 1, 160)])  # fmt: skip
def test_gradients_against_float64(torch, device, shape, dtype, deterministic):
    """In one gradient tensor, the kernels' stores have other strides and another alignment than in three tensors."""
    torch.use_deterministic_algorithms(False)  # as in training
    torch.utils.deterministic.fill_uninitialized_memory = True
    packed, _ = inputs(torch, device, *shape, dtype=dtype)
    exact = packed.detach().cpu().double().requires_grad_()
    dout = torch.randn(shape[0], shape[1], *shape[3:]).to(packed.dtype)
    options = {"causal": True, "deterministic": deterministic}
    attend.attention_qkvpacked(packed, **options).backward(dout.to(device))
    attend.attention_qkvpacked(exact, causal=True, compute="reference").backward(dout.double())
    error = (packed.grad.cpu().double() - exact.grad).abs().max().item()
    budget = {"float32": 2e-6, "bfloat16": 2.0**-7}[dtype] * exact.grad.abs().max().item()
    print(f"{shape}: error {error:.2e}, budget {budget:.2e}")
    assert error <= budget


def test_every_stride_is_right(torch, device):
    """Tests rows that are not contiguous, elements that share memory, a last dimension that is not dense, and a tensor
    without rows, on all routes.
    """
    packed, _ = inputs(torch, device, 2, 9, 3, 2, 16)
    transposed = torch.randn(3, 2, 16, 2, 9, device=device).permute(3, 4, 0, 1, 2).requires_grad_()
    one_head, one_column = (torch.randn(2, 9, 3, *x, device=device).requires_grad_() for x in ((1, 16), (2, 1)))
    padded = torch.randn(2, 9, 3, 2, 24, device=device).requires_grad_()
    for leaf, given in (
        (packed, packed[:, :0]),
        (packed, packed[:, 1::2]),
        (padded, padded[..., 1:21]),
        (transposed, transposed),
        (one_head, one_head.expand(2, 9, 3, 4, 16)),
        (one_column, one_column.expand(2, 9, 3, 2, 16)),
        (packed, packed[:1].expand(3, 9, 3, 2, 16)),
    ):
        options = {"causal": True, "deterministic": True}
        found, want = attend.attention_qkvpacked(given, **options), separate(given, **options)
        assert torch.equal(found, want)
        (a,), (b,) = (torch.autograd.grad(loss_of(x), leaf) for x in (found, want))
        torch.testing.assert_close(a, b)


def test_calls_that_the_library_leaves_to_python_are_right_too(torch, device):
    """The Python code computes calls with ALiBi, with saved tensors that a hook has changed, and without a gradient of
    o.
    """
    packed, others = inputs(torch, device, 2, 9, 3, 2, 16)
    options = {"alibi_slopes": torch.tensor([0.5, 0.1], device=device)}
    found, want = attend.attention_qkvpacked(packed, **options), separate(others, **options)
    (a,), (b,) = (torch.autograd.grad(loss_of(x), y) for x, y in ((found, packed), (want, others)))
    assert torch.equal(found, want) and torch.equal(a, b)
    with torch.autograd.graph.saved_tensors_hooks(lambda x: -x, lambda x: torch._neg_view(x)):
        o = attend.attention_qkvpacked(packed)
    (a,), (b,) = (torch.autograd.grad(loss_of(x), y) for x, y in ((o, packed), (separate(others), others)))
    assert torch.equal(a, b)
    _, lse = attend.attention_qkvpacked(packed, return_lse=True)
    (gradient,) = torch.autograd.grad(lse.sum(), packed)
    dq, dk, dv = gradient.unbind(2)
    assert dq.abs().sum() > 0 and dk.abs().sum() > 0 and dv.abs().sum() == 0


def test_a_graph_of_gradients_is_refused(torch, device):
    packed, _ = inputs(torch, device, 1, 5, 3, 1, 8)
    o = attend.attention_qkvpacked(packed)
    (gradient,) = torch.autograd.grad(o.sum(), packed, create_graph=True)
    with pytest.raises(attend.Error, match="double backward"):
        gradient.square().sum().backward()


def test_autocast_casts_it(torch, device):
    packed, _ = inputs(torch, device, 2, 9, 3, 2, 16)
    want = attend.attention_qkvpacked(packed.bfloat16(), causal=True)
    with torch.autocast(device, torch.bfloat16):
        cast = attend.attention_qkvpacked(packed, causal=True)
        ready = attend.attention_qkvpacked(packed.bfloat16(), causal=True)
    assert torch.equal(cast, want) and torch.equal(ready, want)
    for o in (cast, ready):
        (gradient,) = torch.autograd.grad(o.float().square().sum(), packed)
        assert gradient.dtype == torch.float32 and gradient.isfinite().all()
        if is_direct(torch):
            assert o.grad_fn.name() == "PackedAttentionBackward"


def test_transforms_and_compilers_see_through_it(torch, device):
    packed, others = inputs(torch, device, 2, 9, 3, 2, 16)
    run = lambda qkv: attend.attention_qkvpacked(qkv, causal=True)
    want = run(packed)
    (gradient,) = torch.autograd.grad(want.square().sum(), packed)
    torch._dynamo.reset()
    found = torch.compile(run, fullgraph=True, backend="aot_eager")(others)
    torch.testing.assert_close(found, want)
    torch.testing.assert_close(torch.autograd.grad(found.square().sum(), others)[0], gradient)
    mapped = torch.func.vmap(run)(packed.detach()[None].expand(3, *packed.shape))
    torch.testing.assert_close(mapped, want.detach().expand(3, *want.shape))
    checkpointed = torch.utils.checkpoint.checkpoint(run, others, use_reentrant=False)
    assert torch.equal(torch.autograd.grad(checkpointed.square().sum(), others)[0], gradient)
    torch._dynamo.reset()
    loss = run(others).square().sum()
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")):
        loss.backward()
    torch.testing.assert_close(others.grad, gradient)
    traced = torch.fx.symbolic_trace(run)
    assert torch.equal(traced(packed), want)
    (many,) = torch.autograd.grad(run(packed), packed, torch.stack([torch.ones_like(want)] * 2), is_grads_batched=True)
    assert torch.equal(many[0], many[1])


def test_what_is_no_packed_tensor_is_refused_by_name(torch, device):
    packed, _ = inputs(torch, device, 2, 9, 3, 2, 16)
    array = np.zeros((2, 9, 3, 2, 16), np.float32)
    for _ in range(2):
        for wrong in (packed[0], packed[:, :, :2], packed.transpose(2, 3), None, array[0], array[:, :, :1], "qkv"):
            with pytest.raises(attend.Error, match="^qkv: "):
                attend.attention_qkvpacked(wrong)
        with pytest.raises(attend.Error, match="^q: dtype"):
            attend.attention_qkvpacked(packed.int())
        for options, message in (({"causal": "yes"}, "causal: 'yes'"), ({"compute": "nobody"}, "compute: 'nobody'")):
            with pytest.raises(attend.Error, match=f"^{message}"):
                attend.attention_qkvpacked(packed, **options)


def test_numpy(rng):
    qkv = rng.standard_normal((2, 17, 3, 2, 8)).astype(np.float32)
    q, k, v = (qkv[:, :, i] for i in range(3))
    for options in ({}, {"causal": True, "window": (3, 0)}):
        o, lse = attend.attention_qkvpacked(qkv, return_lse=True, **options)
        want, lse_want = attend.attention(q, k, v, layout="bshd", return_lse=True, **options)
        assert np.array_equal(o, want) and np.array_equal(lse, lse_want)
        assert np.array_equal(attend.attention_qkvpacked(qkv, **options), want)


def test_flash_attns_names_take_it(torch, device):
    packed, others = inputs(torch, device, 2, 9, 3, 2, 16)
    for module, with_lse in itertools.product((flash_attn, flash_attn_3), (False, True)):
        options = {"causal": True, "deterministic": True}
        found = module.flash_attn_qkvpacked_func(packed, return_attn_probs=with_lse, **options)
        if with_lse:
            assert len(found) == (3 if module is flash_attn else 2) and found[1].shape == (2, 2, 9)
        o = found[0] if with_lse else found
        want = separate(others, **options)
        assert torch.equal(o, want)
        if is_direct(torch):
            assert o.grad_fn.name() == "PackedAttentionBackward"
        (a,), (b,) = (torch.autograd.grad(loss_of(x), y) for x, y in ((o, packed), (want, others)))
        assert torch.equal(a, b)


def test_heads_side_by_side_of_flash_attn_3(torch, device):
    qkv = torch.randn(2, 9, 8, 16, device=device, requires_grad=True)  # 4 heads of q, 2 of k, 2 of v
    found = flash_attn_3.flash_attn_qkvpacked_func(qkv, causal=True, deterministic=True, num_heads_q=4)
    parts = (qkv[:, :, :4], qkv[:, :, 4:6], qkv[:, :, 6:])
    want = attend.attention(*parts, layout="bshd", causal=True, deterministic=True)
    assert torch.equal(found, want)
    for a, b in zip(*(torch.autograd.grad(loss_of(x), qkv) for x in (found, want))):
        assert torch.equal(a, b)
    array = qkv.detach().cpu().numpy()
    o = flash_attn_3.flash_attn_qkvpacked_func(array, causal=True, num_heads_q=4)
    np.testing.assert_allclose(o, want.detach().cpu().numpy(), atol=2e-6)
    for given, number in ((qkv, 3), (qkv, -2), (qkv, 10), (qkv, "4"), (qkv, 4.0), (qkv[0], 4), (None, 4)):
        with pytest.raises(ValueError, match="^qkv: "):
            flash_attn_3.flash_attn_qkvpacked_func(given, num_heads_q=number)


@pytest.mark.parametrize("wants", [1, np.True_, "yes", 0, ""])
def test_whatever_is_true_asks_for_lse(torch, device, wants):
    """This includes calls that the Python code computes: float64, rows that are not dense, and tensors that autocast
    converts.
    """
    packed, _ = inputs(torch, device, 2, 9, 3, 2, 16)
    calls = (
        lambda x: attend.attention_qkvpacked(x, return_lse=wants),
        lambda x: separate(x, return_lse=wants),
        lambda x: flash_attn.flash_attn_func(*x.unbind(2), return_attn_probs=wants),
        lambda x: flash_attn.flash_attn_qkvpacked_func(x, return_attn_probs=wants),
        lambda x: flash_attn_3.flash_attn_func(*x.unbind(2), return_attn_probs=wants),
    )
    sparse_rows = torch.randn(2, 9, 3, 2, 32, device=device)[..., ::2]
    kinds = [packed, packed.detach(), sparse_rows, *([packed.double()] if device == "cpu" else [])]
    for call, qkv in itertools.product(calls, kinds):
        with torch.set_grad_enabled(qkv.requires_grad):
            assert isinstance(call(qkv), tuple) == bool(wants)
            with torch.autocast(device, torch.bfloat16):
                assert isinstance(call(qkv), tuple) == bool(wants)
