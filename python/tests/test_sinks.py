"""Sinks: a score that belongs to no key, against a softmax in float64 with one column more."""

import pytest

np = pytest.importorskip("numpy")
pytest.importorskip(
    "torch", reason=f"the tests of {__name__} need torch: `make py-test ATTEND_TEST_TORCH=1` installs it"
)

import attend
from attend import flash_attn_3, ring

BATCH, HEADS, HEADS_K, DIM = 2, 4, 2, 16
SHAPES = [(HEADS,), (BATCH, HEADS)]
# Of the largest entry: p, o and the result are rounded to 16 bits, each once.
BUDGETS = {"float32": 2e-6, "float16": 2.0**-9, "bfloat16": 2.0**-6}


def standard(q, k, v, sinks, causal=False):
    """o and lse by the definition: the column takes its share of each row, and has no value."""
    import torch

    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = q @ k.mT * q.shape[-1] ** -0.5
    if causal:
        rows, keys = scores.shape[-2:]
        hidden = torch.ones(rows, keys, dtype=torch.bool, device=q.device).triu(keys - rows + 1)
        scores = scores.masked_fill(hidden, float("-inf"))
    column = sinks.expand(q.shape[0], q.shape[1])[..., None, None].expand(*scores.shape[:-1], 1)
    scores = torch.cat([scores, column], -1)
    return scores.softmax(-1)[..., :-1] @ v, scores.logsumexp(-1)


def inputs(torch, device, rows, keys, dtype="float32", heads_k=HEADS_K):
    """q, k, v, weights of o and weights of lse."""
    shapes = ((HEADS, rows, DIM), (heads_k, keys, DIM), (heads_k, keys, DIM), (HEADS, rows, DIM))
    tensors = [torch.randn(BATCH, *shape, device=device).to(getattr(torch, dtype)) for shape in shapes]
    return (*tensors, torch.randn(BATCH, HEADS, rows, device=device))


def leaves(tensors):
    return [x.detach().clone().requires_grad_() for x in tensors]


def gradients(call, tensors, dout, dlse):
    """o, lse and the gradients of all tensors."""
    import torch

    tensors = leaves(tensors)
    o, lse = call(*tensors)
    return [o, lse, *torch.autograd.grad((o, lse), tensors, (dout, dlse.to(lse.dtype)))]


def size_of_dsinks(o, lse, sinks, dout, dlse):
    """The sum that makes dsinks, of magnitudes: its terms cancel."""
    terms = (sinks[..., None] - lse).exp() * (dlse.abs() + (dout.abs() * o.abs()).sum(-1))
    return terms.sum(-1).sum_to_size(sinks.shape)


def assert_same(found, want, dtype, dout, dlse, sinks):
    """`found` as `gradients` gives them, with the gradient of sinks last; `want` likewise, in float64."""
    o, lse = want[:2]
    sizes = [x.abs().max() for x in want[:-1]]
    sizes.append(size_of_dsinks(o, lse, sinks.double(), dout.double(), dlse.double()))
    names = ("o", "lse", "dq", "dk", "dv", "dsinks") if len(want) == 6 else ("o", "lse", "dqkv", "dsinks")
    for name, a, b, size in zip(names, found, want, sizes, strict=True):
        assert a.shape == b.shape, name
        budget = BUDGETS["float32" if name == "lse" else dtype]
        if name == "dsinks" and a.element_size() == 2:
            budget = max(budget, BUDGETS[str(a.dtype).removeprefix("torch.")])
        share = ((a.double() - b).abs() / (budget * size)).max().item()
        print(f"{name}: {share:.2f} of its budget")
        assert share <= 1, f"{name} ({dtype}): {share:.3g} of its budget"


def truth(tensors, sinks, dout, dlse, causal):
    doubles = [x.double() for x in (*tensors, sinks)]
    return gradients(lambda *x: standard(*x, causal=causal), doubles, dout.double(), dlse.double())


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("of_sinks", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("dtype", BUDGETS)
@pytest.mark.parametrize(("rows", "keys", "causal"), [(37, 70, False), (70, 37, True), (1, 33, False)])
def test_gradients_against_a_column_of_its_own(torch, device, rows, keys, causal, dtype, of_sinks, shape):
    """With more rows than keys, the first rows of a causal mask see no key."""
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


LENGTHS = ((3, 5), (0, 4), (17, 9), (6, 0), (40, 70))  # of rows, of keys


def packed(torch, device, dtype="float32"):
    """q, k, v, weights of o and of lse, and the offsets."""
    total_q, total_k = (sum(x) for x in zip(*LENGTHS))
    shapes = ((total_q, HEADS, DIM), (total_k, HEADS_K, DIM), (total_k, HEADS_K, DIM), (total_q, HEADS, DIM))
    tensors = [torch.randn(shape, device=device).to(getattr(torch, dtype)) for shape in shapes]
    offsets = [torch.tensor([0, *np.cumsum(x)], dtype=torch.int32, device=device) for x in zip(*LENGTHS)]
    return tensors, torch.randn(HEADS, total_q, device=device), offsets


def standard_packed(q, k, v, sinks):
    """Causal, sequence by sequence."""
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
    """One of them has no row, one has no key."""
    (*tensors, dout), dlse, offsets = packed(torch, device, dtype)
    sinks = torch.randn(shape, device=device)

    def call(q, k, v, sinks):
        return attend.attention_varlen(q, k, v, *offsets, 40, 70, causal=True, sinks=sinks, return_lse=True)

    found = gradients(call, (*tensors, sinks), dout, dlse)
    doubles = [x.double() for x in (*tensors, sinks)]
    want = gradients(standard_packed, doubles, dout.double(), dlse.double())
    rows = torch.tensor([length for length, _ in LENGTHS], device=device)
    of_rows = doubles[3].expand(len(LENGTHS), HEADS).repeat_interleave(rows, 0).mT  # each row's sink
    o, dout = (x.double().transpose(0, 1) for x in (want[0], dout))
    size = ((of_rows - want[1]).exp() * (dlse.abs() + (dout * o).abs().sum(-1))).sum(-1)
    sizes = [*(x.abs().max() for x in want[:-1]), size.expand(shape)]
    for name, a, b, most in zip(("o", "lse", "dq", "dk", "dv", "dsinks"), found, want, sizes):
        assert a.shape == b.shape
        assert ((a.double() - b).abs() <= BUDGETS["float32" if name == "lse" else dtype] * most).all(), name


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_numpy(torch, dtype, shape):
    """forward and backward of arrays; dsinks stands behind dbias."""
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
    """Bit for bit, also in rows that see no key."""
    *tensors, dout, dlse = inputs(torch, device, 70, 37, dtype)
    sinks = torch.full((HEADS,), float("-inf"), device=device)
    # Of one backend: on a GPU the choice may depend on the sinks.
    options = {"causal": True, "return_lse": True, "compute": "simt" if device == "cuda" else "cpu"}
    call = lambda q, k, v, sinks: attend.attention(q, k, v, sinks=sinks, **options)
    *found, dsinks = gradients(call, (*tensors, sinks), dout, dlse)
    want = gradients(lambda q, k, v: attend.attention(q, k, v, **options), tensors, dout, dlse)
    assert all(torch.equal(a, b) for a, b in zip(found, want, strict=True))
    assert not dsinks.any() and torch.isneginf(found[1][:, :, :33]).all()


@pytest.mark.parametrize("keys", [0, 5])
def test_a_row_without_keys_is_its_sink(torch, device, keys):
    """o = 0, lse = sink, and its dlse goes to the sink."""
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
    """Scale, softcap, ALiBi, masks and dropout change what stands beside the sink."""
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
    one_key = attend.attention(q, k[:, :, :1], v[:, :, :1], **options)  # of which a column is all
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
    with pytest.raises(TypeError, match="unexpected keyword argument 'sinks'"):
        ring.ring_attention(x, x, x, sinks=x[0, :, 0, 0])


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
