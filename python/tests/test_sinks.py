"""Tests of sinks, which are scores that belong to no key. The reference is a softmax in float64 with one more
column.
"""

import pytest

np = pytest.importorskip("numpy")
pytest.importorskip(
    "torch", reason=f"the tests of {__name__} need torch: `make py-test ATTEND_TEST_TORCH=1` installs it"
)

import attend
from sink_problems import (
    BATCH,
    BUDGETS,
    DIM,
    HEADS,
    HEADS_K,
    LENGTHS,
    SHAPES,
    assert_same,
    gradients,
    inputs,
    leaves,
    packed,
    standard,
    truth,
)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("of_sinks", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("dtype", BUDGETS)
@pytest.mark.parametrize(("rows", "keys", "causal"), [(37, 70, False), (70, 37, True), (1, 33, False)])
def test_gradients_against_a_column_of_its_own(torch, device, rows, keys, causal, dtype, of_sinks, shape):
    """If there are more rows than keys, the first rows of a causal mask see no key."""
    *tensors, dout, dlse = inputs(torch, device, rows, keys, dtype)
    sinks = torch.randn(shape, device=device).to(getattr(torch, of_sinks))
    call = lambda q, k, v, sinks: attend.attention(q, k, v, causal=causal, sinks=sinks, return_lse=True)
    found = gradients(call, (*tensors, sinks), dout, dlse)
    assert found[0].dtype == found[2].dtype == tensors[0].dtype and found[-1].dtype == sinks.dtype
    assert found[1].dtype == torch.float32
    assert_same(found, truth(tensors, sinks, dout, dlse, causal), dtype, dout, dlse, sinks)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rows_before_heads_and_without_lse(torch, device, shape):
    q, k, v, dout, _ = inputs(torch, device, 19, 33)
    sinks = torch.randn(shape, device=device)
    one, other = leaves((q, k, v, sinks)), leaves((q, k, v, sinks))
    x = [t.transpose(1, 2) for t in one[:3]]
    found = attend.attention(*x, layout="bshd", sinks=one[3], deterministic=True).transpose(1, 2)
    want = attend.attention(*other[:3], sinks=other[3], deterministic=True)
    torch.testing.assert_close(found, want)
    for a, b in zip(torch.autograd.grad(found, one, dout), torch.autograd.grad(want, other, dout)):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", BUDGETS)
def test_one_packed_tensor(torch, device, dtype, shape):
    q, k, v, dout, dlse = inputs(torch, device, 21, 21, dtype, HEADS)
    sinks = torch.randn(shape, device=device)
    qkv = torch.stack([x.transpose(1, 2) for x in (q, k, v)], 2)

    def call(function, qkv, sinks):
        o, lse = function(qkv, sinks)
        return o.transpose(1, 2), lse

    ours = lambda qkv, sinks: attend.attention_qkvpacked(qkv, causal=True, sinks=sinks, return_lse=True)

    def theirs(qkv, sinks):
        o, lse = standard(*(x.transpose(1, 2) for x in qkv.unbind(2)), sinks, causal=True)
        return o.transpose(1, 2), lse

    found = gradients(lambda *x: call(ours, *x), (qkv, sinks), dout, dlse)
    doubles = (qkv.double(), sinks.double())
    want = gradients(lambda *x: call(theirs, *x), doubles, dout.double(), dlse.double())
    assert_same(found, want, dtype, dout, dlse, sinks)


def standard_packed(q, k, v, sinks):
    """Computes causal attention sequence by sequence."""
    import torch

    results, at_q, at_k = [], 0, 0
    every = sinks.expand(len(LENGTHS), HEADS)
    for (rows, keys), own in zip(LENGTHS, every):
        some = (q[at_q : at_q + rows], k[at_k : at_k + keys], v[at_k : at_k + keys])
        results.append(standard(*(x.transpose(0, 1)[None] for x in some), own, causal=True))
        at_q, at_k = at_q + rows, at_k + keys
    o, lse = zip(*results)
    return torch.cat([x[0].transpose(0, 1) for x in o]), torch.cat([x[0] for x in lse], -1)


@pytest.mark.parametrize("shape", [(HEADS,), (len(LENGTHS), HEADS)], ids=str)
@pytest.mark.parametrize("dtype", BUDGETS)
def test_packed_sequences(torch, device, dtype, shape):
    """One of the sequences has no row, and one has no key."""
    (*tensors, dout), dlse, offsets = packed(torch, device, dtype)
    sinks = torch.randn(shape, device=device)

    def call(q, k, v, sinks):
        return attend.attention_varlen(q, k, v, *offsets, 40, 70, causal=True, sinks=sinks, return_lse=True)

    found = gradients(call, (*tensors, sinks), dout, dlse)
    doubles = [x.double() for x in (*tensors, sinks)]
    want = gradients(standard_packed, doubles, dout.double(), dlse.double())
    rows = torch.tensor([length for length, _ in LENGTHS], device=device)
    of_rows = doubles[3].expand(len(LENGTHS), HEADS).repeat_interleave(rows, 0).mT  # for each row, the sink of its head
    o, dout = (x.double().transpose(0, 1) for x in (want[0], dout))
    size = ((of_rows - want[1]).exp() * (dlse.abs() + (dout * o).abs().sum(-1))).sum(-1)
    sizes = [*(x.abs().max() for x in want[:-1]), size.expand(shape)]
    for name, a, b, most in zip(("o", "lse", "dq", "dk", "dv", "dsinks"), found, want, sizes):
        assert a.shape == b.shape
        assert ((a.double() - b).abs() <= BUDGETS["float32" if name == "lse" else dtype] * most).all(), name


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_numpy(torch, dtype, shape):
    """attend.forward and attend.backward of NumPy arrays return dsinks after dbias."""
    import problems
    from oracle import Problem, check, solve

    rng = np.random.default_rng(int(torch.randint(2**31, ())))
    q, k, v, dout = (
        rng.standard_normal((BATCH, heads, length, DIM)).astype(dtype)
        for heads, length in ((HEADS, 19), (HEADS_K, 33), (HEADS_K, 33), (HEADS, 19))
    )
    bias, sinks = rng.standard_normal((HEADS, 1, 33)).astype(dtype), rng.standard_normal(shape).astype(dtype)
    dlse = rng.standard_normal((BATCH, HEADS, 19)).astype("float64" if dtype == "float64" else "float32")
    want = solve(Problem(q, k, v, dout, dlse, causal=True, bias=bias, sinks=sinks))
    options = {"causal": True, "bias": bias, "sinks": sinks}
    o, lse = attend.forward(q, k, v, **options)
    *found, dbias, dsinks = attend.backward(dout, q, k, v, o, lse, dlse=dlse, **options)
    assert len(found) == 3 and all(isinstance(x, np.ndarray) for x in (*found, dbias, dsinks))
    short = {"float32": "f32", "float16": "f16", "float64": "f64"}[dtype]
    for name, x in zip(("o", "dq", "dk", "dv", "dbias", "dsinks"), (o, *found, dbias, dsinks)):
        assert x.dtype == problems.dtype_of(short)
        check(name, x, want[name], short)
    check("lse", lse, want["lse"], "f64" if short == "f64" else "f32")
    fewer = attend.backward(dout, q, k, v, o, lse, dlse=dlse, needs_dbias=False, **options)
    assert len(fewer) == 4 and np.array_equal(fewer[3], dsinks)


def test_forward_and_backward_of_tensors(torch, device):
    q, k, v, dout, dlse = inputs(torch, device, 19, 33)
    sinks = torch.randn(HEADS, device=device)
    options = {"causal": True, "sinks": sinks, "deterministic": True}
    o, lse = attend.forward(q, k, v, **options)
    found = attend.backward(dout, q, k, v, o, lse, dlse=dlse, **options)
    call = lambda q, k, v, sinks: attend.attention(q, k, v, return_lse=True, **options | {"sinks": sinks})
    want = gradients(call, (q, k, v, sinks), dout, dlse)
    assert len(found) == 4
    for a, b in zip((o, lse, *found), want, strict=True):
        assert torch.equal(a, b)


def test_numpy_is_torch(torch):
    *tensors, _, _ = inputs(torch, "cpu", 19, 33)
    sinks = torch.randn(BATCH, HEADS)
    arrays = [x.numpy() for x in (*tensors, sinks)]
    found = attend.attention(*arrays[:3], sinks=arrays[3], return_lse=True)
    want = attend.attention(*tensors, sinks=sinks, return_lse=True)
    assert all(np.array_equal(a, b.numpy()) for a, b in zip(found, want))


@pytest.mark.parametrize("dtype", BUDGETS)
def test_minus_infinity_is_no_sink(torch, device, dtype):
    """A sink of -inf must not change a bit of the result, also in rows that see no key."""
    *tensors, dout, dlse = inputs(torch, device, 70, 37, dtype)
    sinks = torch.full((HEADS,), float("-inf"), device=device)
    # Both calls use one backend, because on a GPU the choice of the backend may depend on the sinks.
    options = {"causal": True, "return_lse": True, "compute": "simt" if device == "cuda" else "cpu"}
    call = lambda q, k, v, sinks: attend.attention(q, k, v, sinks=sinks, **options)
    *found, dsinks = gradients(call, (*tensors, sinks), dout, dlse)
    want = gradients(lambda q, k, v: attend.attention(q, k, v, **options), tensors, dout, dlse)
    assert all(torch.equal(a, b) for a, b in zip(found, want, strict=True))
    assert not dsinks.any() and torch.isneginf(found[1][:, :, :33]).all()


@pytest.mark.parametrize("keys", [0, 5])
def test_a_row_without_keys_is_its_sink(torch, device, keys):
    """In a row without keys, o = 0 and lse = sink, and the gradient of the sink is the row's dlse."""
    q, k, v, dout, dlse = inputs(torch, device, keys + 3, keys)
    sinks = torch.tensor([0.5, -3.0, 80.0, -200.0], device=device)
    call = lambda q, k, v, sinks: attend.attention(q, k, v, causal=True, sinks=sinks, return_lse=True)
    dlse[:, :, 3:] = dout[:, :, 3:] = 0
    o, lse, dq, dk, dv, dsinks = gradients(call, (q, k, v, sinks), dout, dlse)
    assert not o[:, :, :3].any() and not dq.any() and not dk.any() and not dv.any()
    assert torch.equal(lse[:, :, :3], sinks[:, None].expand(BATCH, HEADS, 3))
    torch.testing.assert_close(dsinks, dlse.sum((0, 2)), atol=1e-5, rtol=1e-5)


def test_a_large_sink_takes_the_row_and_a_small_one_nothing(torch, device):
    q, k, v, dout, dlse = inputs(torch, device, 9, 9)
    sinks = torch.tensor([1e4, -1e4, 3e38, -3e38], device=device)
    call = lambda q, k, v, sinks: attend.attention(q, k, v, sinks=sinks, return_lse=True)
    found = gradients(call, (q, k, v, sinks), dout, dlse)
    assert all(x.isfinite().all() for x in found)
    o, lse, *_, dsinks = found
    plain, of_keys = attend.attention(q, k, v, return_lse=True)
    assert not o[:, ::2].any() and torch.equal(lse[:, ::2], sinks[::2, None].expand(BATCH, 2, 9))
    torch.testing.assert_close(o[:, 1::2], plain[:, 1::2])
    torch.testing.assert_close(lse[:, 1::2], of_keys[:, 1::2])
    torch.testing.assert_close(dsinks[::2], dlse[:, ::2].sum((0, 2)), atol=1e-5, rtol=1e-5)
    assert not dsinks[1::2].any()


@pytest.mark.parametrize("door", ["attention", "qkvpacked", "varlen"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_gradient_of_sinks_alone(torch, device, door, shape):
    q, k, v, dout, _ = inputs(torch, device, 9, 9, heads_k=HEADS)
    leaf = torch.randn(shape, device=device, requires_grad=True)
    exact = leaf.detach().double().requires_grad_()
    rows_first = [x.transpose(1, 2) for x in (q, k, v)]
    if door == "attention":
        o = attend.attention(*rows_first, layout="bshd", causal=True, sinks=leaf)
    elif door == "qkvpacked":
        o = attend.attention_qkvpacked(torch.stack(rows_first, 2), causal=True, sinks=leaf)
    else:
        offsets = torch.arange(0, 9 * BATCH + 1, 9, dtype=torch.int32, device=device)
        flat = [x.flatten(0, 1) for x in rows_first]
        o = attend.attention_varlen(*flat, offsets, offsets, 9, 9, causal=True, sinks=leaf).unflatten(0, (BATCH, 9))
    (found,) = torch.autograd.grad(o, leaf, dout.transpose(1, 2))
    (want,) = torch.autograd.grad(standard(*(x.double() for x in (q, k, v)), exact, True)[0], exact, dout.double())
    torch.testing.assert_close(found.double(), want, atol=2e-5, rtol=1e-5)
    fixed = attend.attention(q, k, v, sinks=leaf.detach())
    assert not fixed.requires_grad


def test_other_options_leave_sinks_alone(torch, device):
    """Scale, softcap, ALiBi, masks and dropout change the other terms of the softmax, not the sink."""
    q, k, v, *_ = inputs(torch, device, 9, 12)
    sinks = torch.randn(HEADS, device=device)
    mask = torch.rand(BATCH, 1, 9, 12, device=device) < 0.7
    for options in (
        {"scale": 0.1, "softcap": 2.0},
        {"alibi_slopes": torch.rand(HEADS, device=device), "window": (5, 2)},
        {"bias": torch.randn(HEADS, 9, 12, device=device), "mask": mask},
        {"dropout_p": 0.4, "seed": 5},
    ):
        o, lse = attend.attention(q, k, v, return_lse=True, **options)
        share = (lse - torch.logaddexp(lse, sinks[:, None])).exp()
        found, all_of_it = attend.attention(q, k, v, sinks=sinks, return_lse=True, **options)
        torch.testing.assert_close(found, o * share[..., None], atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(all_of_it, torch.logaddexp(lse, sinks[:, None]), atol=1e-5, rtol=1e-5)
