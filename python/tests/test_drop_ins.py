"""The front doors of other packages: their positional orders, their conventions, and what is refused by name."""

import inspect

import pytest

pytest.importorskip("numpy")
pytest.importorskip(
    "torch", reason=f"the tests of {__name__} need torch: `make py-test ATTEND_TEST_TORCH=1` installs it"
)

import attend
from attend import flash_attn, flash_attn_3

OPTIONS_2 = "dropout_p softmax_scale causal window_size softcap alibi_slopes deterministic return_attn_probs"
OFFSETS = "cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k"
OPTIONS_3 = (
    "softmax_scale causal qv q_descale k_descale v_descale window_size attention_chunk softcap num_splits pack_gqa "
    "deterministic sm_margin return_attn_probs"
)
ORDERS = {
    flash_attn.flash_attn_func: f"q k v {OPTIONS_2}",
    flash_attn.flash_attn_qkvpacked_func: f"qkv {OPTIONS_2}",
    flash_attn.flash_attn_kvpacked_func: f"q kv {OPTIONS_2}",
    flash_attn.flash_attn_varlen_func: f"q k v {OFFSETS} {OPTIONS_2} block_table",
    flash_attn.flash_attn_varlen_qkvpacked_func: f"qkv cu_seqlens max_seqlen {OPTIONS_2}",
    flash_attn.flash_attn_varlen_kvpacked_func: f"q kv {OFFSETS} {OPTIONS_2}",
    flash_attn_3.flash_attn_func: f"q k v {OPTIONS_3}",
    flash_attn_3.flash_attn_varlen_func: f"q k v {OFFSETS} seqused_q seqused_k {OPTIONS_3}",
    attend.sdpa: "query key value attn_mask dropout_p is_causal scale enable_gqa",
}


@pytest.mark.parametrize("function", ORDERS)
def test_positional_orders(function):
    assert list(inspect.signature(function).parameters) == ORDERS[function].split()


def normal(torch, device, *shape, requires_grad=True):
    return torch.randn(*shape, device=device, requires_grad=requires_grad)


def test_flash_attn_by_position(torch, device):
    q, k, v = normal(torch, device, 2, 9, 4, 8), normal(torch, device, 2, 12, 2, 8), normal(torch, device, 2, 12, 2, 8)
    slopes = torch.rand(4, device=device)
    out, lse, pattern = flash_attn.flash_attn_func(q, k, v, 0.0, 0.2, True, (5, 0), 3.0, slopes, True, True)
    options = {"layout": "bshd", "scale": 0.2, "causal": True, "window": (5, 0), "softcap": 3.0, "alibi_slopes": slopes}
    want, want_lse = attend.attention(q, k, v, return_lse=True, **options)
    assert torch.equal(out, want) and torch.equal(lse, want_lse) and pattern is None
    kv = torch.stack([k, v], dim=2)
    assert torch.equal(flash_attn.flash_attn_kvpacked_func(q, kv, 0.0, 0.2, True, (5, 0), 3.0, slopes), want)
    three = flash_attn_3.flash_attn_func(q, k, v, 0.2, True, None, None, None, None, (5, 0), 0, 3.0)
    assert torch.equal(three, attend.attention(q, k, v, **options | {"alibi_slopes": None}))


def test_packed_forms_and_their_gradients(torch, device):
    qkv = normal(torch, device, 2, 9, 3, 4, 8)
    out = flash_attn.flash_attn_qkvpacked_func(qkv, causal=True)
    want = attend.attention(*qkv.unbind(2), layout="bshd", causal=True)
    assert torch.equal(out, want)
    found, wanted = (torch.autograd.grad(x.square().sum(), qkv)[0] for x in (out, want))
    assert torch.equal(found, wanted) and found.abs().sum() > 0


def test_varlen_forms(torch, device):
    cu = torch.tensor([0, 4, 9], dtype=torch.int32, device=device)
    q, k, v = (normal(torch, device, 9, 2, 8) for _ in range(3))
    want, want_lse = attend.attention_varlen(q, k, v, cu, cu, 5, 5, causal=True, return_lse=True)
    two = flash_attn.flash_attn_varlen_func(q, k, v, cu, cu, 5, 5, 0.0, None, True, return_attn_probs=True)
    three = flash_attn_3.flash_attn_varlen_func(q, k, v, cu, cu, 5, 5, None, None, None, True, return_attn_probs=True)
    for out, lse in (two[:2], three):
        assert torch.equal(out, want) and torch.equal(lse, want_lse)
    qkv, kv = torch.stack([q, k, v], dim=1), torch.stack([k, v], dim=1)
    assert torch.equal(flash_attn.flash_attn_varlen_qkvpacked_func(qkv, cu, 5, causal=True), want)
    assert torch.equal(flash_attn.flash_attn_varlen_kvpacked_func(q, kv, cu, cu, 5, 5, causal=True), want)


@pytest.mark.parametrize(
    "name, value",
    [
        ("qv", "tensor"),
        ("q_descale", "tensor"),
        ("attention_chunk", 4),
        ("num_splits", 3),
        ("pack_gqa", True),
        ("sm_margin", 1),
    ],
)
def test_flash_attn_3_refuses_by_name(torch, device, name, value):
    q, k, v = (normal(torch, device, 1, 9, 2, 8) for _ in range(3))
    with pytest.raises(NotImplementedError, match=f"^{name}: "):
        flash_attn_3.flash_attn_func(q, k, v, **{name: torch.ones(1, device=device) if value == "tensor" else value})


def test_flash_attn_2_refuses_by_name(torch, device):
    cu = torch.tensor([0, 9], dtype=torch.int32, device=device)
    q, k, v = (normal(torch, device, 9, 2, 8) for _ in range(3))
    with pytest.raises(NotImplementedError, match="^block_table: "):
        flash_attn.flash_attn_varlen_func(q, k, v, cu, cu, 9, 9, block_table=cu)
    with pytest.raises(NotImplementedError, match="^seqused_k: "):
        flash_attn_3.flash_attn_varlen_func(q, k, v, cu, cu, 9, 9, seqused_k=cu)
    with pytest.raises(NotImplementedError, match="^return_attn_probs with dropout_p > 0: "):
        flash_attn.flash_attn_func(q[None], k[None], v[None], 0.1, return_attn_probs=True)
    with pytest.raises(ValueError, match="^packed tensor: shape"):
        flash_attn.flash_attn_qkvpacked_func(q[None])


def test_dropout_follows_manual_seed(torch, device):
    q, k, v = (normal(torch, device, 1, 9, 2, 8) for _ in range(3))
    run = lambda seed: torch.manual_seed(seed) and flash_attn.flash_attn_func(q, k, v, 0.5)
    assert torch.equal(run(1), run(1)) and not torch.equal(run(1), run(2))


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


def test_sdpa_refusals(torch, device):
    q, k, v = (normal(torch, device, 2, 4, 9, 8) for _ in range(3))
    with pytest.raises(ValueError, match="^attn_mask: given with is_causal"):
        attend.sdpa(q, k, v, torch.ones(9, 9, dtype=torch.bool, device=device), is_causal=True)
    with pytest.raises(ValueError, match="^key: 3 dimensions"):
        attend.sdpa(q, k[0], v)


def test_sdpa_compiles(torch, device):
    torch._dynamo.reset()
    q, k, v = normal(torch, device, 2, 4, 5, 8), normal(torch, device, 2, 4, 9, 8), normal(torch, device, 2, 4, 9, 8)
    run = lambda q, k, v: attend.sdpa(q, k, v, is_causal=True)
    torch.testing.assert_close(torch.compile(run, fullgraph=True, backend="aot_eager")(q, k, v), run(q, k, v))
