"""Tests of torch tensors as inputs and outputs: every option with autograd is compared with the definition in float64
and with torch.
"""

import covering
import problems
import pytest
from conftest import SEED
from oracle import check, solve

np = pytest.importorskip("numpy")
pytest.importorskip("ml_dtypes")

pytest.importorskip(
    "torch", reason=f"the tests of {__name__} need torch: `make py-test ATTEND_TEST_TORCH=1` installs it"
)

import attend

CASES = covering.cases(problems.OPTIONS, SEED + 1)


def tensor(torch, x, device, requires_grad=False):
    """Converts an array to a tensor with the same values and strides. The bits of bfloat16 are copied."""
    if x is None:
        return None
    if x.dtype.name == "bfloat16":
        base = torch.from_numpy(np.ascontiguousarray(x).view(np.uint16).view(np.int16)).view(torch.bfloat16)
    else:
        base = torch.from_numpy(np.ascontiguousarray(x))
    steps = [s // x.itemsize for s in x.strides]
    result = torch.empty_strided(x.shape, steps, dtype=base.dtype, device=device) if min(steps, default=1) > 0 else base
    return result.copy_(base).to(device).requires_grad_(requires_grad)


def array(x):
    return x.detach().to("cpu").double().numpy()


def dropout_pattern(p, seed):
    batch, heads_q, seqlen_q, _ = p.q.shape
    seqlen_k = p.k.shape[2]
    q, k = (np.zeros((batch, heads_q, n, 1), np.float32) for n in (seqlen_q, seqlen_k))
    v = np.broadcast_to(np.eye(seqlen_k, dtype=np.float32), (batch, heads_q, seqlen_k, seqlen_k))
    if v.size == 0 or seqlen_q == 0:
        return np.ones((batch, heads_q, seqlen_q, seqlen_k), bool)
    return attend.attention(q, k, v, dropout_p=p.dropout_p, seed=seed, compute="reference") > 0


@pytest.mark.parametrize("index", range(len(CASES)))
def test_covering_array(torch, device, index):
    case = CASES[index]
    rng = np.random.default_rng([SEED, index])
    p = problems.make(case, rng)
    seed = int(rng.integers(2**63)) * 2 + 1
    if p.dropout_p:
        p.keep = dropout_pattern(p, seed)
    truth = solve(p)

    layout, dtype = case["layout"], case["dtype"]
    laid_out = [problems.laid_out(x, layout, case["strides"]) for x in (p.q, p.k, p.v, p.dout)]
    q, k, v = (tensor(torch, x, device, requires_grad=True) for x in laid_out[:3])
    options = problems.options_of(p, seed) | {"layout": layout}
    bias = options["bias"] = tensor(torch, p.bias, device, requires_grad=True)
    options["mask"] = tensor(torch, p.mask, device)
    options["alibi_slopes"] = tensor(torch, p.alibi_slopes, device)
    sinks = options["sinks"] = tensor(torch, p.sinks, device, requires_grad=True)
    if device == "cuda" and dtype == "f64":  # only the reference backend supports it
        with pytest.raises(NotImplementedError, match="f64"):
            attend.attention(q, k, v, return_lse=True, **options)
        return
    o, lse = attend.attention(q, k, v, return_lse=True, **options)
    outputs, gradients = [o], [tensor(torch, laid_out[3], device)]
    if case["dlse"]:
        outputs, gradients = [o, lse], [*gradients, tensor(torch, p.dlse, device)]
    inputs = {"dq": q, "dk": k, "dv": v, "dbias": bias, "dsinks": sinks}
    inputs = {name: x for name, x in inputs.items() if x is not None}
    found = dict(zip(inputs, torch.autograd.grad(outputs, list(inputs.values()), gradients)))

    assert o.dtype == q.dtype and lse.dtype == (torch.float64 if dtype == "f64" else torch.float32)
    check("lse", array(lse), truth["lse"], "f32" if dtype in ("f16", "bf16") else dtype)
    for name, x in {"o": o, **found}.items():
        has_layout = name in ("o", "dq", "dk", "dv")
        x = problems.from_layout(array(x), layout) if has_layout else array(x)
        check(name, x, truth[name], dtype, by_tensor_cores=device == "cuda")


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_like_torchs_math_backend(torch, dtype, causal):
    """Runs on the CPU, where attend supports float64. The covering array compares results of a GPU with float64."""
    q, k, v = (torch.randn(2, 4, 33, 16, dtype=getattr(torch, dtype), requires_grad=True) for _ in range(3))
    bias = torch.randn(4, 33, 33, dtype=q.dtype, requires_grad=True)
    inputs = (q, k, v, bias)
    additive = bias + torch.full((33, 33), float("-inf"), dtype=q.dtype).triu(1) if causal else bias
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        want = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=additive)
    found = attend.attention(q, k, v, bias=bias, causal=causal)
    dout = torch.randn_like(want)
    tolerance = dict(atol=2e-5, rtol=0) if dtype == "float32" else dict(atol=1e-11, rtol=0)
    torch.testing.assert_close(found, want, **tolerance)
    for a, b in zip(torch.autograd.grad(found, inputs, dout), torch.autograd.grad(want, inputs, dout)):
        torch.testing.assert_close(a, b, **tolerance)


def test_the_same_as_numpy(torch):
    q, k, v = (torch.randn(1, 2, 40, 16) for _ in range(3))
    options = {"causal": True, "dropout_p": 0.3, "seed": 2**63 + 5, "return_lse": True}
    for a, b in zip(attend.attention(q, k, v, **options), attend.attention(*(x.numpy() for x in (q, k, v)), **options)):
        assert np.array_equal(a.numpy(), b)


def test_varlen_with_autograd(torch, device):
    cu = torch.tensor([0, 5, 5, 12], dtype=torch.int32, device=device)
    q, k, v = (torch.randn(12, 2, 8, device=device, requires_grad=True) for _ in range(3))
    o, lse = attend.attention_varlen(q, k, v, cu, cu, 7, 7, causal=True, return_lse=True)
    assert o.shape == (12, 2, 8) and lse.shape == (2, 12)
    parts = [
        attend.attention(*(x[None, a:b] for x in (q, k, v)), layout="bshd", causal=True)[0]
        for a, b in ((0, 5), (5, 12))
    ]
    want = torch.cat(parts)
    torch.testing.assert_close(o, want)
    for a, b in zip(
        torch.autograd.grad(o.square().sum(), (q, k, v)), torch.autograd.grad(want.square().sum(), (q, k, v))
    ):
        torch.testing.assert_close(a, b)


def test_low_level_pair(torch, device):
    q, k, v, dout = (torch.randn(1, 2, 9, 8, device=device) for _ in range(4))
    bias = torch.randn(2, 9, 1, device=device)
    o, lse = attend.forward(q, k, v, bias=bias)
    found = attend.backward(dout, q, k, v, o, lse, bias=bias)
    leaves = [x.clone().requires_grad_() for x in (q, k, v, bias)]
    want = torch.autograd.grad(attend.attention(*leaves[:3], bias=leaves[3]), leaves, dout)
    assert len(found) == 4 and not found[0].requires_grad
    for a, b in zip(found, want):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    assert len(attend.backward(dout, q, k, v, o, lse, bias=bias, needs_dbias=False)) == 3
    leaf = q.clone().requires_grad_()
    assert not attend.forward(leaf, k, v)[0].requires_grad


def test_results_of_another_dtype_are_cast(torch, device, monkeypatch):
    """If o and dout have another dtype than q, they are cast. Otherwise the slow reference backend, which accepts any
    mix of dtypes, would run.
    """
    from attend.torch import _operators

    q, k, v, dout = (torch.randn(1, 2, 9, 8, device=device) for _ in range(4))
    o, lse = attend.forward(q, k, v)
    seen = []
    plain = _operators.fill_backward
    monkeypatch.setattr(_operators, "fill_backward", lambda *a: seen.append((a[3].dtype, a[5].dout.dtype)) or plain(*a))
    found = attend.backward(dout.bfloat16(), q, k, v, o.bfloat16(), lse)
    assert seen == [(torch.float32, torch.float32)]
    for a, b in zip(found, attend.backward(dout, q, k, v, o, lse)):
        torch.testing.assert_close(a, b, atol=5e-2, rtol=5e-2)


def test_o_lies_in_memory_as_q_does(torch, device):
    q, k, v = (torch.randn(2, 9, 3, 8, device=device).transpose(1, 2) for _ in range(3))
    o = attend.attention(q, k, v)
    assert o.transpose(1, 2).is_contiguous()


def test_temporaries_live_until_the_call_returns(torch, device):
    """Inputs whose last stride is not 1 are copied, and the gradient of a sum has stride 0. The copies must live until
    the call returns.
    """
    for _ in range(20):
        q, k, v = (torch.randn(1, 2, 64, 128, device=device)[..., ::2].requires_grad_() for _ in range(3))
        o, lse = attend.attention(q, k, v, return_lse=True)
        found = torch.autograd.grad(o.sum() + lse.sum(), (q, k, v))
        dense = [x.detach().contiguous().requires_grad_() for x in (q, k, v)]
        o, lse = attend.attention(*dense, return_lse=True)
        for a, b in zip(found, torch.autograd.grad([o, lse], dense, [torch.ones_like(o), torch.ones_like(lse)])):
            torch.testing.assert_close(a, b)


def test_parameters_and_subclasses_are_tensors(torch, device):
    class Named(torch.Tensor):
        pass

    q, k, v = (torch.randn(1, 2, 4, 8, device=device) for _ in range(3))
    want = attend.attention(q, k, v)
    assert torch.equal(attend.attention(torch.nn.Parameter(q), k, v), want)
    assert torch.equal(attend.attention(q.as_subclass(Named), k, v).as_subclass(torch.Tensor), want)


@pytest.mark.parametrize(
    "change, kind, message",
    [
        (lambda q, k, v: dict(q=q.int()), ValueError, "q: dtype i32"),
        (lambda q, k, v: dict(k=k.cpu().numpy()), ValueError, "k: ndarray, allowed a torch.Tensor"),
        (lambda q, k, v: dict(k=k[:, :1].expand(1, 3, 4, 8)), ValueError, "k: num_heads_k 3"),
        (lambda q, k, v: dict(v=v.half()), ValueError, "v: dtype f16, allowed f32 as q"),
        (lambda q, k, v: dict(q=q[0]), ValueError, "q: 3 dimensions, allowed 4"),
        (lambda q, k, v: dict(q=q.to_sparse()), NotImplementedError, "q: layout torch.sparse_coo"),
        (lambda q, k, v: dict(bias=q.new_zeros(3, 3)), ValueError, "bias: shape"),
        (
            lambda q, k, v: dict(alibi_slopes=q.new_ones(2).requires_grad_()),
            NotImplementedError,
            "alibi_slopes: requires",
        ),
        (lambda q, k, v: dict(compute="sm90"), ValueError, "compute: 'sm90', allowed auto, "),
    ],
)
def test_errors_are_the_same_as_elsewhere(torch, device, change, kind, message):
    q, k, v = (torch.randn(1, 2, 4, 8, device=device) for _ in range(3))
    arguments = {"q": q, "k": k, "v": v} | change(q, k, v)
    with pytest.raises(attend.Error) as caught:
        attend.attention(**arguments)
    assert isinstance(caught.value, kind) and str(caught.value).startswith(message)


def test_a_traced_module_calls_attend(torch, device):
    q, k, v = (torch.randn(1, 2, 9, 8, device=device) for _ in range(3))
    traced = torch.jit.trace(lambda q, k, v: attend.attention(q, k, v, causal=True), (q, k, v), check_trace=False)
    assert torch.equal(traced(q + 1, k, v), attend.attention(q + 1, k, v, causal=True))


def test_lazy_signs_are_seen(torch, device):
    """torch may store a negation as a bit that only its operators read, and a gradient of zeros may have no memory."""

    def lazy(x):  # returns the values of x, with a lazy negation
        return torch.complex(torch.zeros_like(x), -x).conj().imag

    q, k, v = (torch.randn(1, 2, 9, 8, device=device) for _ in range(3))
    slopes = torch.rand(2, device=device)
    want = attend.attention(q, k, v, alibi_slopes=slopes)
    assert torch.equal(attend.attention(torch._neg_view(-q), lazy(k), v, alibi_slopes=lazy(slopes)), want)
    q.requires_grad_()
    o, lse = attend.attention(q, k, v, return_lse=True)
    dlse = torch.randn_like(lse)
    (found,), (wanted,) = (torch.autograd.grad(lse, q, x, retain_graph=True) for x in (lazy(dlse), dlse))
    assert torch.equal(found, wanted)
    (zero,) = torch.autograd.grad(o, q, torch._efficientzerotensor(o.shape, device=device))
    assert not zero.any()


def test_rows_that_share_memory(torch, device):
    q = torch.randn(1, 2, 20, device=device).unfold(2, 16, 1)
    assert torch.equal(attend.attention(q, q, q), attend.attention(*[q.contiguous()] * 3))
