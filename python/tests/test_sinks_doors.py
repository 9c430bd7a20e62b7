"""Tests of sinks with torch's transforms, in attend.explain, and under flash-attn 3's names, and of their refusals."""

import pytest

np = pytest.importorskip("numpy")
pytest.importorskip(
    "torch", reason=f"the tests of {__name__} need torch: `make py-test ATTEND_TEST_TORCH=1` installs it"
)

import attend
from attend import flash_attn_3
from sink_problems import BATCH, HEADS, inputs, leaves, packed, standard


def test_a_compiler_follows(torch, device):
    q, k, v, dout, _ = inputs(torch, device, 9, 12)
    tensors = leaves((q, k, v, torch.randn(HEADS, device=device)))
    run = lambda q, k, v, sinks: attend.attention(q, k, v, causal=True, sinks=sinks, deterministic=True)
    want = run(*tensors)
    torch._dynamo.reset()
    found = torch.compile(run, fullgraph=True, backend="aot_eager")(*tensors)
    assert torch.equal(found, want)
    for a, b in zip(torch.autograd.grad(found, tensors, dout), torch.autograd.grad(want, tensors, dout)):
        torch.testing.assert_close(a, b)


def test_functional_transforms(torch, device):
    q, k, v, dout, _ = inputs(torch, device, 9, 12)
    many = torch.randn(3, HEADS, device=device)
    ours = lambda q, k, v, sinks: attend.attention(q, k, v, sinks=sinks)
    theirs = lambda q, k, v, sinks: standard(q, k, v, sinks)[0]

    def results(attention, q, k, v, sinks, dout):
        loss = lambda q, k, v, sinks: (attention(q, k, v, sinks) * dout).sum()
        mapped = torch.func.vmap(attention, (None, None, None, 0))(q, k, v, sinks)
        alone = torch.func.grad(loss, (0, 1, 2, 3))(q, k, v, sinks[0])
        each = torch.func.vmap(torch.func.grad(loss, (0, 3)), (None, None, None, 0))(q, k, v, sinks)
        of_all = torch.func.vmap(loss, (None, None, None, 0))
        both = torch.func.grad(lambda sinks: of_all(q, k, v, sinks).sum())(sinks)
        return mapped, *alone, *each, both

    wide = [x.double() for x in (q, k, v, many, dout)]
    for a, b in zip(results(ours, q, k, v, many, dout), results(theirs, *wide), strict=True):
        torch.testing.assert_close(a.double(), b, atol=2e-5, rtol=1e-5)


def test_checkpoints_recompute_it(torch, device):
    from torch.utils.checkpoint import checkpoint

    q, k, v, dout, _ = inputs(torch, device, 9, 12)
    tensors = leaves((q, k, v, torch.randn(HEADS, device=device)))
    run = lambda q, k, v, sinks: attend.attention(q, k, v, sinks=sinks, deterministic=True)
    want = torch.autograd.grad(run(*tensors), tensors, dout)
    found = torch.autograd.grad(checkpoint(run, *tensors, use_reentrant=False), tensors, dout)
    assert all(torch.equal(a, b) for a, b in zip(found, want))


def test_without_memory(torch):
    x, sinks = (torch.empty(*shape, device="meta", requires_grad=True) for shape in ((2, 4, 9, 8), (4,)))
    o = attend.attention(x, x, x, sinks=sinks)
    found = torch.autograd.grad(o.sum(), (x, sinks))
    assert [g.shape for g in found] == [x.shape, sinks.shape] and found[1].device.type == "meta"
    with pytest.raises(ValueError, match=r"^sinks: shape \(1, 3, 1, 1\)"):
        attend.attention(x, x, x, sinks=sinks[:3])


def test_a_plan_has_them(torch):
    lacks = {x["compute"]: x["lack"] for x in attend.explain(1, 2, 8, 16, dtype="f32", device="cpu", sinks=True)}
    assert lacks["cpu"] == lacks["reference"] == "" and lacks["cpu_naive"].startswith("sinks: given")
    attend.prepare(1, 2, 8, 16, dtype="f32", device="cpu", sinks=True, backward=True)


def test_refusals_name_sinks(torch, device):
    q, k, v, *_ = inputs(torch, device, 9, 12)
    sinks = torch.zeros(HEADS, device=device)
    run = lambda **options: attend.attention(q, k, v, **{"sinks": sinks} | options)
    wrong = {
        r"^sinks: shape \(1, 3, 1, 1\), dimension 1 must be 4": sinks[:3],
        r"^sinks: shape \(3, 4, 1, 1\), dimension 0 must be 2 or 1": sinks.expand(3, HEADS),
        "^sinks: dtype i32, allowed": sinks.int(),
        "^sinks: 3 dimensions, allowed": sinks[None, None],
        "^sinks: list, allowed": [0.0] * HEADS,
        "^sinks: ndarray, allowed": np.zeros(HEADS, np.float32),
        "^sinks: on meta, allowed the device of q": sinks.to("meta"),
    }
    for message, given in wrong.items():
        with pytest.raises(ValueError, match=message) as caught:
            run(sinks=given)
        assert "\n" not in str(caught.value)
    offsets = torch.tensor([0, 9], dtype=torch.int32, device=device)
    flat = q[0].transpose(0, 1).contiguous()
    with pytest.raises(ValueError, match=r"^sinks: shape \(2, 4, 1, 1\), dimension 0 must be 1"):
        attend.attention_varlen(flat, flat, flat, offsets, offsets, 9, 9, sinks=sinks.expand(2, HEADS))


@pytest.mark.parametrize("name", ["bias", "mask"])
def test_one_column_for_all_keys_is_refused_with_them(torch, device, name):
    q, k, v, *_ = inputs(torch, device, 9, 12)
    column = torch.ones(9, 1, device=device)
    options = {name: column > 0 if name == "mask" else column, "sinks": torch.zeros(HEADS, device=device)}
    for call in (attend.attention, attend.forward):
        with pytest.raises(NotImplementedError, match=rf"^{name}: shape \(9, 1\) with sinks, allowed a column for"):
            call(q, k, v, **options)
    o, lse = attend.forward(q, k, v)
    with pytest.raises(NotImplementedError, match=rf"^{name}: shape \(9, 1\) with sinks"):
        attend.backward(o, q, k, v, o, lse, **options)
    # If there is only one key, a column is an ordinary bias or mask, which sinks can be combined with.
    one_key = attend.attention(q, k[:, :, :1], v[:, :, :1], **options)
    assert one_key.isfinite().all()
    arrays = [x.cpu().numpy() for x in (q, k, v)]
    with pytest.raises(NotImplementedError, match=rf"^{name}: shape \(9, 1\) with sinks"):
        attend.attention(*arrays, **{n: x.cpu().numpy() for n, x in options.items()})


def test_backends_without_them_refuse_by_name(torch):
    x = torch.randn(1, 2, 8, 16)
    for given in (x, x.numpy()):
        sinks = given[0, :, 0, 0]
        with pytest.raises(NotImplementedError, match="sinks"):
            attend.attention(given, given, given, sinks=sinks, compute="cpu_naive")


@pytest.mark.parametrize("name", ["s_aux", "learnable_sink"])
def test_flash_attn_3_takes_them_by_both_names(torch, device, name):
    q, k, v, dout, _ = inputs(torch, device, 9, 9, heads_k=HEADS)
    rows_first = [x.transpose(1, 2) for x in (q, k, v)]
    sinks = torch.randn(HEADS, device=device)
    offsets = torch.arange(0, 9 * BATCH + 1, 9, dtype=torch.int32, device=device)

    def varlen(q, k, v, **options):
        flat = [x.flatten(0, 1) for x in (q, k, v)]
        o = flash_attn_3.flash_attn_varlen_func(*flat, offsets, offsets, 9, 9, **options)
        return o.unflatten(0, (BATCH, 9))

    side_by_side = lambda *x, **options: flash_attn_3.flash_attn_qkvpacked_func(torch.stack(x, 2), **options)
    in_heads = lambda *x, **options: flash_attn_3.flash_attn_qkvpacked_func(
        torch.cat(x, 2), num_heads_q=HEADS, **options
    )
    exact = leaves(x.double() for x in (q, k, v, sinks))
    want_o = standard(*exact, causal=True)[0]
    want = torch.autograd.grad(want_o, exact, dout.double())
    for door in (flash_attn_3.flash_attn_func, varlen, side_by_side, in_heads):
        tensors = leaves((*rows_first, sinks))
        o = door(*tensors[:3], causal=True, **{name: tensors[3]})
        torch.testing.assert_close(o.double(), want_o.transpose(1, 2), atol=1e-5, rtol=1e-4)
        *found, dsinks = torch.autograd.grad(o, tensors, dout.transpose(1, 2).contiguous())
        for a, b in zip((*(x.transpose(1, 2) for x in found), dsinks), want):
            torch.testing.assert_close(a.double(), b, atol=2e-5, rtol=1e-4)
        with pytest.raises(ValueError, match=rf"^{name}: shape \(1, 3, 1, 1\)"):
            door(*rows_first, **{name: sinks[:3]})
        with pytest.raises(ValueError, match="^learnable_sink: given with s_aux, allowed one of the two$"):
            door(*rows_first, s_aux=sinks, learnable_sink=sinks)


def test_flash_attn_3s_unused_rows_have_their_sink(torch, device):
    (q, k, v, _), _, offsets = packed(torch, device)
    sinks = torch.randn(HEADS, device=device)
    used = torch.tensor([2, 0, 5, 6, 1], dtype=torch.int32, device=device)
    o, lse = flash_attn_3.flash_attn_varlen_func(
        q, k, v, *offsets, 40, 70, seqused_q=used, s_aux=sinks, return_attn_probs=True
    )
    assert not o[2:3].any() and torch.equal(lse[:, 2], sinks)
    assert o[:2].any() and not torch.equal(lse[:, 0], sinks)
