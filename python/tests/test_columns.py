"""Tests that biases and masks of one column equal the same column repeated over the keys, and that their memory grows
only with the number of rows.
"""

import subprocess
import sys

import pytest

np = pytest.importorskip("numpy")

import attend

B, H, SQ, SK, D = 2, 4, 37, 50, 16
COLUMNS = {
    "of all": (B, H, SQ, 1),
    "of rows": (SQ, 1),
    "of heads": (H, 1, 1),
    "of a batch": (B, 1, 1, 1),
    "one": (1,),
}
OPTIONS = {
    "plain": {},
    "causal": {"causal": True},
    "softcap": {"softcap": 2.0, "window": (9, 3)},
    "dropout": {"dropout_p": 0.3, "seed": 5},
    "bshd": {"layout": "bshd"},
}


def repeated(x):
    """Returns the array with its column repeated for every key. The library treats it as an ordinary bias or mask."""
    return None if x is None else np.ascontiguousarray(np.broadcast_to(x, (*x.shape[:-1], SK)))


def inputs(rng, layout="bhsd", dtype=np.float32):
    shapes = [(B, H, SQ, D), (B, 2, SK, D), (B, 2, SK, D), (B, H, SQ, D)]
    given = [rng.standard_normal(s).astype(dtype) for s in shapes]
    return [np.ascontiguousarray(x.swapaxes(1, 2)) if layout == "bshd" else x for x in given]


def columns(rng, shape, kinds):
    """Returns {option: column}. Each random column hides about a fifth of the rows."""
    found = {}
    if "bias" in kinds:
        found["bias"] = rng.standard_normal(shape).astype(np.float32)
        found["bias"][rng.random(shape) < 0.2] = -np.inf
    if "mask" in kinds:
        found["mask"] = rng.random(shape) > 0.2
    if "full bias" in kinds:
        found["bias"] = rng.standard_normal((1, H, SQ, SK)).astype(np.float32)
    if "full mask" in kinds:
        found["mask"] = rng.random((B, 1, SQ, SK)) > 0.2
    return found


KINDS = [("bias",), ("mask",), ("bias", "mask"), ("bias", "full mask"), ("full bias", "mask")]


def close(found, want, tolerance=2e-5):
    np.testing.assert_allclose(np.asarray(found, np.float64), np.asarray(want, np.float64), atol=tolerance, rtol=1e-4)


@pytest.mark.parametrize("kinds", KINDS, ids=" and ".join)
@pytest.mark.parametrize("shape", COLUMNS)
@pytest.mark.parametrize("options", OPTIONS)
def test_numpy(rng, options, shape, kinds):
    q, k, v, dout = inputs(rng, OPTIONS[options].get("layout", "bhsd"))
    given = columns(rng, COLUMNS[shape], kinds)
    full = {name: repeated(x) if x.shape[-1] == 1 else x for name, x in given.items()}
    dlse = rng.standard_normal((B, H, SQ)).astype(np.float32)
    o, lse = attend.forward(q, k, v, **given, **OPTIONS[options])
    want_o, want_lse = attend.forward(q, k, v, **full, **OPTIONS[options])
    close(o, want_o)
    close(lse, want_lse)
    assert np.array_equal(o, attend.attention(q, k, v, **given, **OPTIONS[options]))
    found = attend.backward(dout, q, k, v, o, lse, dlse=dlse, **given, **OPTIONS[options])
    want = attend.backward(dout, q, k, v, want_o, want_lse, dlse=dlse, **full, **OPTIONS[options])
    for a, b in zip(found[:3], want[:3]):
        close(a, b)
    if "bias" in given:
        assert found[3].shape == given["bias"].shape and found[3].dtype == given["bias"].dtype
        column = given["bias"].shape[-1] == 1
        close(found[3], want[3].sum(-1, keepdims=True, dtype=np.float64) if column else want[3], 2e-4)


@pytest.mark.parametrize("kinds", KINDS, ids=" and ".join)
@pytest.mark.parametrize("options", OPTIONS)
def test_torch_with_autograd(torch, device, rng, options, kinds):
    layout = OPTIONS[options].get("layout", "bhsd")
    q, k, v, dout = (torch.from_numpy(x).to(device) for x in inputs(rng, layout))
    given = {n: torch.from_numpy(x).to(device) for n, x in columns(rng, (B, 1, SQ, 1), kinds).items()}
    dlse = torch.from_numpy(rng.standard_normal((B, H, SQ)).astype(np.float32)).to(device)

    def run(full):
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        named = dict(given)
        if "bias" in given:
            leaves.append(given["bias"].clone().requires_grad_())
            named["bias"] = leaves[-1]
        if full:
            named = {n: x.expand(*x.shape[:-1], SK).contiguous() for n, x in named.items()}
        o, lse = attend.attention(*leaves[:3], return_lse=True, **named, **OPTIONS[options])
        seen = lse != -float("inf")
        gradients = torch.autograd.grad([o, lse.masked_fill(~seen, 0.0)], leaves, [dout, dlse])
        return [o, lse, *gradients]

    for a, b in zip(run(False), run(True)):
        assert a.shape == b.shape
        close(a.detach().cpu(), b.detach().cpu(), 2e-4)


def test_large_finite_biases_hide_nothing_and_lose_nothing(torch, device, rng):
    """If a bias of -1e9 is added to lse, float32 cannot represent the other digits of lse. Backward must not depend on
    that sum.
    """
    q, k, v, dout = (torch.from_numpy(x).to(device).requires_grad_() for x in inputs(rng))
    want = attend.attention(q, k, v)
    wanted = torch.autograd.grad(want, (q, k, v), dout)
    for value in (-1e9, 3e38, torch.finfo(torch.float32).min):
        bias = torch.full((1, 1, SQ, 1), value, device=device, requires_grad=True)
        o, lse = attend.attention(q, k, v, bias=bias, return_lse=True)
        assert torch.equal(o, want) and lse.isfinite().all()
        *found, dbias = torch.autograd.grad(o, (q, k, v, bias), dout)
        assert all(torch.equal(a, b) for a, b in zip(found, wanted)) and not dbias.any()
        o, lse = attend.forward(q.detach(), k.detach(), v.detach(), bias=bias.detach())
        found = attend.backward(*(x.detach() for x in (dout, q, k, v)), o, lse, bias=bias.detach())
        for a, b in zip(found, wanted):
            torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)


def test_16_bit_biases_have_the_exact_gradient(torch, device, rng):
    q, k, v, _ = (torch.from_numpy(x).to(device).bfloat16().requires_grad_() for x in inputs(rng))
    bias = torch.zeros(1, 1, SQ, 1, device=device, dtype=torch.bfloat16, requires_grad=True)
    o, lse = attend.attention(q, k, v, bias=bias, return_lse=True)
    dlse = torch.randn_like(lse)
    (found,) = torch.autograd.grad([o, lse], bias, [torch.randn_like(o), dlse])
    assert torch.equal(found, dlse.double().sum((0, 1)).reshape(1, 1, SQ, 1).bfloat16())


@pytest.mark.parametrize("frame", ["numpy", "torch"])
def test_what_hidden_rows_hold_reaches_nothing(rng, frame):
    """The last row and key contain NaN, like padding, and the row is hidden. On the CPU no other result may change."""
    q, k, v, dout = inputs(rng)
    q, dout = (np.pad(x, ((0, 0), (0, 0), (0, SK - SQ), (0, 0))) for x in (q, dout))
    for x in (q, k, v, dout):
        x[:, :, -1] = np.nan
    mask = np.ones((SK, 1), bool)
    mask[-1] = False
    bias = np.where(mask, 0.5, -np.inf).astype(np.float32)
    for column in ({"mask": mask}, {"bias": bias}, {"mask": mask, "bias": bias}):
        options = {"causal": True, **column}
        if frame == "torch":
            torch = pytest.importorskip("torch", reason="torch is not installed")
            tensors = {n: torch.from_numpy(x) if isinstance(x, np.ndarray) else x for n, x in options.items()}
            leaves = [torch.from_numpy(x).requires_grad_() for x in (q, k, v)]
            o = attend.attention(*leaves, **tensors)
            found = torch.autograd.grad(o, leaves, torch.from_numpy(dout))
            o = o.detach()
        else:
            o, lse = attend.forward(q, k, v, **options)
            assert np.isneginf(lse[:, :, -1]).all() and np.isfinite(lse[:, :, :-1]).all()
            found = attend.backward(dout, q, k, v, o, lse, **options)
        assert not o[:, :, -1].any()
        want_o, want_lse = attend.forward(q[:, :, :-1], k[:, :, :-1], v[:, :, :-1], causal=True)
        want = attend.backward(dout[:, :, :-1], q[:, :, :-1], k[:, :, :-1], v[:, :, :-1], want_o, want_lse, causal=True)
        close(o[:, :, :-1], want_o)
        for a, b in zip(found, want):
            close(a[:, :, :-1], b)
            assert not a[:, :, -1].any()


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("frame", ["numpy", "torch"])
def test_a_bias_that_is_no_number_makes_its_rows_nan(rng, frame, value):
    q, k, v, dout = inputs(rng)
    bias = np.zeros((SQ, 1), np.float32)
    bias[[0, 30]] = value
    options = {"window": (SK - SQ - 1, -1 if SK > SQ else 0)}
    full = np.ascontiguousarray(np.broadcast_to(bias, (SQ, SK)))
    want_o, want_lse = attend.forward(q, k, v, bias=full, **options)
    *want, dbias = attend.backward(dout, q, k, v, want_o, want_lse, bias=full, **options)
    want.append(dbias.sum(-1, keepdims=True))
    if frame == "numpy":
        o, lse = attend.forward(q, k, v, bias=bias, **options)
        found = attend.backward(dout, q, k, v, o, lse, bias=bias, **options)
    else:
        torch = pytest.importorskip("torch", reason="torch is not installed")
        leaves = [torch.from_numpy(x).requires_grad_() for x in (q, k, v, bias)]
        o, lse = attend.attention(*leaves[:3], bias=leaves[3], return_lse=True, **options)
        found = torch.autograd.grad(o, leaves, torch.from_numpy(dout))
        o, lse, *found = (x.detach().numpy() for x in (o, lse, *found))
    assert np.isnan(o[:, :, 0]).all() and np.isfinite(o[:, :, 1:30]).all()
    for a, b in zip((o, lse, *found), (want_o, want_lse, *want)):
        assert np.array_equal(np.isnan(a), np.isnan(b))


def test_a_row_without_keys_stays_empty_whatever_its_bias(torch, device):
    q, k, v = (torch.randn(1, 2, n, 8, device=device, requires_grad=True) for n in (6, 3, 3))
    bias = torch.full((6, 1), float("inf"), device=device)
    bias[3:] = 1.0
    o, lse = attend.attention(q, k, v, bias=bias, causal=True, return_lse=True)
    assert not o[:, :, :3].any() and torch.isneginf(lse[:, :, :3]).all() and lse[:, :, 3:].isfinite().all()
    (dq,) = torch.autograd.grad(o.sum(), q)
    assert dq.isfinite().all()


def test_compiled_vmapped_and_in_sdpa(torch, device, rng):
    torch._dynamo.reset()
    q, k, v, _ = (torch.from_numpy(x).to(device).requires_grad_() for x in inputs(rng))
    bias = torch.randn(SQ, 1, device=device, requires_grad=True)
    mask = torch.rand(B, 1, SQ, 1, device=device) > 0.3
    run = lambda q, k, v, bias, mask: attend.attention(q, k, v, bias=bias, mask=mask, return_lse=True)
    found = torch.compile(run, fullgraph=True, backend="aot_eager")(q, k, v, bias, mask)
    want = run(q, k, v, bias, mask)
    for a, b in zip(found, want):
        torch.testing.assert_close(a, b)
    gradients = [torch.autograd.grad(x[0].sum() + x[1][mask[:, :, :, 0].expand(B, H, SQ)].sum(), (q, k, v, bias))
                 for x in (found, want)]  # fmt: skip
    for a, b in zip(*gradients):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)
    mapped = torch.func.vmap(lambda b: run(q.detach(), k.detach(), v.detach(), b, mask))(
        torch.stack([bias.detach(), 2 * bias.detach()])
    )
    for a, b in zip(mapped, run(q, k, v, 2 * bias, mask)):
        torch.testing.assert_close(a[1], b)
    keys = (x.repeat_interleave(2, 1) for x in (k, v))
    torch.testing.assert_close(attend.sdpa(q, *keys, attn_mask=mask), attend.attention(q, k, v, mask=mask))


@pytest.mark.parametrize("frame", ["numpy", "torch", "meta"])
@pytest.mark.parametrize(
    "options, message",
    [
        ({"bias": ((1, 1, SQ + 1, 1), "float32")}, rf"bias: shape .*, dimension 2 must be {SQ}"),
        ({"mask": ((3, 1, SQ, 1), "bool")}, rf"mask: shape .*, dimension 0 must be {B}"),
        ({"mask": ((SQ, 1), "float32")}, "mask: dtype f32, allowed bool"),
        ({"bias": ((SQ, 1), "int32")}, "bias: dtype i32, allowed"),
        ({"bias": ((1, 1, 1, 1, 1), "float32")}, "bias: 5 dimensions, allowed|5 dimensions, allowed at most 4"),
    ],
)
def test_wrong_columns_are_refused_by_name(rng, frame, options, message):
    q, k, v, _ = inputs(rng)
    given = {name: np.zeros(shape, dtype) for name, (shape, dtype) in options.items()}
    if frame != "numpy":
        torch = pytest.importorskip("torch", reason="torch is not installed")
        where = "meta" if frame == "meta" else "cpu"
        q, k, v = (torch.from_numpy(x).to(where) for x in (q, k, v))
        given = {name: torch.from_numpy(x).to(where) for name, x in given.items()}
    with pytest.raises(attend.ArgumentError, match=message):
        attend.attention(q, k, v, **given)


@pytest.mark.parametrize("frame", ["numpy", "torch"])
@pytest.mark.parametrize(("name", "shape"), [("lse", (B, H, SQ + 1)), ("dlse", (B, H, 1)), ("lse", (H, SQ))])
def test_backward_with_a_column_refuses_the_lse_that_it_refuses_without(rng, frame, name, shape):
    q, k, v, dout = inputs(rng)
    given = {"lse": np.zeros((B, H, SQ), np.float32), "dlse": None, "bias": np.zeros((SQ, 1), np.float32)}
    given[name] = np.zeros(shape, np.float32)
    if frame == "torch":
        torch = pytest.importorskip("torch", reason="torch is not installed")
        q, k, v, dout = (torch.from_numpy(x) for x in (q, k, v, dout))
        given = {name: x if x is None else torch.from_numpy(x) for name, x in given.items()}
    lines = []
    for bias in (given["bias"], None):
        with pytest.raises(attend.ArgumentError, match=f"^{name}: ") as caught:
            attend.backward(dout, q, k, v, dout, given["lse"], dlse=given["dlse"], bias=bias)
        lines.append(str(caught.value))
    assert lines[0] == lines[1]


MEMORY = """
import resource, sys
import {frame} as frame
import attend
rows = 1 << 14
if "{frame}" == "torch":
    q, k, v = (frame.randn(1, 1, rows, 8, requires_grad=True) for _ in range(3))
    bias, mask = frame.zeros(1, 1, rows, 1, requires_grad=True), frame.ones(rows, 1, dtype=frame.bool)
    run = lambda: attend.attention(q, k, v, window=(15, 0), bias=bias, mask=mask).sum().backward()
else:
    q = k = v = frame.ones((1, 1, rows, 8), frame.float32)
    bias, mask = frame.zeros((1, 1, rows, 1), frame.float32), frame.ones((rows, 1), bool)
    def run():
        o, lse = attend.forward(q, k, v, window=(15, 0), bias=bias, mask=mask)
        attend.backward(o, q, k, v, o, lse, window=(15, 0), bias=bias, mask=mask)
attend.attention(q, k, v, window=(15, 0))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
run()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.parametrize("frame", ["numpy", "torch"])
def test_memory_grows_with_the_rows_alone(frame):
    """If they were repeated over the keys, the mask of 2^14 rows would need 256 MiB and the bias 1 GiB."""
    pytest.importorskip(frame, reason=f"{frame} is not installed")
    done = subprocess.run(
        [sys.executable, "-c", MEMORY.format(frame=frame)], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 100 << 10  # KiB
