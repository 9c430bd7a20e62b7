"""Tests of the operators with torch's tools: opcheck, gradcheck, compile, export, autocast, and unsupported
derivatives.
"""

import subprocess
import sys

import pytest

pytest.importorskip("numpy")

pytest.importorskip(
    "torch", reason=f"the tests of {__name__} need torch: `make py-test ATTEND_TEST_TORCH=1` installs it"
)

import attend
import attend.torch
from attend._settings import OPTION_GRADIENTS, Extras, Settings, needs_of


def tensors(torch, device, *shape, count=3, dtype=None, requires_grad=True):
    return [torch.randn(*shape, dtype=dtype, device=device, requires_grad=requires_grad) for _ in range(count)]


def arguments(torch, device, name):
    """Returns the arguments of torch.ops.attend.forward for the case `name`."""
    if name == "varlen":
        cu = torch.tensor([0, 3, 9], dtype=torch.int32, device=device)
        return (*tensors(torch, device, 9, 2, 8), *Extras(cu_seqlens_q=cu, cu_seqlens_k=cu), *Settings(6, 6, "thd"))
    if name == "bshd":
        return (*tensors(torch, device, 2, 7, 3, 8), *Extras(), *Settings(layout="bshd", causal=True))
    q, k, v = tensors(torch, device, 2, 4, 7, 8)
    extras, settings = Extras(), Settings()
    if name == "transposed":
        q, k, v = (torch.randn(2, 7, 4, 8, device=device).transpose(1, 2).requires_grad_() for _ in range(3))
    elif name == "own_head_dim":
        v = torch.randn(2, 4, 7, 12, device=device, requires_grad=True)
    elif name == "bias":
        bias = torch.randn(4, 1, 7, device=device, requires_grad=True)
        extras = Extras(bias=bias, mask=torch.rand(2, 1, 7, 7, device=device) < 0.8)
    elif name == "constant_bias":
        extras = Extras(bias=torch.randn(4, 1, 7, device=device), alibi_slopes=torch.rand(4, device=device))
    elif name == "half":
        q, k, v = (x.detach().bfloat16().requires_grad_() for x in (q, k, v))
        settings = Settings(causal=True, softcap=2.0, dropout_p=0.1, seed=3)
    return (q, k, v, *extras, *settings)


NAMES = ["dense", "bshd", "transposed", "own_head_dim", "bias", "constant_bias", "half", "varlen"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NAMES)
def test_opcheck(torch, device, name):
    forward_arguments = arguments(torch, device, name)
    torch.library.opcheck(torch.ops.attend.forward, forward_arguments)
    plain = [x.detach() if isinstance(x, torch.Tensor) else x for x in forward_arguments]
    o, lse = torch.ops.attend.forward(*plain)
    needs = needs_of(Extras(*plain[3 : 3 + len(Extras._fields)]))
    backward_arguments = (*plain[:3], o, lse, torch.randn_like(o), torch.randn_like(lse), *needs, *plain[3:])
    torch.library.opcheck(torch.ops.attend.backward, backward_arguments)


def test_the_schema_of_backward_follows_the_options_with_a_gradient(torch):
    schema = torch.ops.attend.backward.default._schema
    gradients = [gradient for _, gradient in OPTION_GRADIENTS]
    assert [x.name for x in schema.returns] == ["dq", "dk", "dv", *gradients]
    names = [x.name for x in schema.arguments]
    assert [name for name in names if name.startswith("needs_")] == [f"needs_{gradient}" for gradient in gradients]
    assert names[7 + len(gradients) :] == [*Extras._fields, *Settings._fields]


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_gradcheck(torch, layout):
    shape = (2, 4, 3, 5) if layout == "bhsd" else (2, 3, 4, 5)
    short = (2, 2, 4, 5) if layout == "bhsd" else (2, 4, 2, 5)
    q, k, v = (torch.randn(*s, dtype=torch.float64, requires_grad=True) for s in (shape, short, short))
    bias = torch.randn(4, 3, 1, dtype=torch.float64, requires_grad=True)

    def run(q, k, v, bias):
        options = {"causal": True, "softcap": 2.0, "dropout_p": 0.2, "seed": 3, "return_lse": True}
        return attend.attention(q, k, v, bias=bias, layout=layout, **options)

    assert torch.autograd.gradcheck(run, (q, k, v, bias))


def test_gradcheck_varlen(torch):
    cu = torch.tensor([0, 2, 2, 5], dtype=torch.int32)
    inputs = tensors(torch, "cpu", 5, 2, 4, dtype=torch.float64)
    run = lambda q, k, v: attend.attention_varlen(q, k, v, cu, cu, 3, 3, window=(1, 0), return_lse=True)
    assert torch.autograd.gradcheck(run, inputs)


def model(q, k, v, bias):
    o = attend.attention(q * 2, k, v, causal=True, bias=bias)
    p, lse = attend.attention(o, k, v, window=(3, 0), return_lse=True)
    return p.sin() + lse[..., None]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compile_without_graph_breaks(torch, device, backend, dynamic):
    torch._dynamo.reset()
    inputs = [*tensors(torch, device, 2, 4, 9, 8), torch.randn(4, 9, 1, device=device, requires_grad=True)]
    compiled = torch.compile(model, fullgraph=True, backend=backend, dynamic=dynamic)
    found, want = compiled(*inputs), model(*inputs)
    torch.testing.assert_close(found, want)
    dout = torch.randn_like(want)
    for a, b in zip(torch.autograd.grad(found, inputs, dout), torch.autograd.grad(want, inputs, dout)):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_compile_varlen(torch, device):
    torch._dynamo.reset()
    cu = torch.tensor([0, 3, 9], dtype=torch.int32, device=device)
    q, k, v = tensors(torch, device, 9, 2, 8, requires_grad=False)
    run = lambda q, k, v: attend.attention_varlen(q, k, v, cu, cu, 6, 6, causal=True)
    torch.testing.assert_close(torch.compile(run, fullgraph=True, backend="aot_eager")(q, k, v), run(q, k, v))


@pytest.mark.parametrize("strict", [False, True])
def test_export(torch, device, strict):
    class Layer(torch.nn.Module):
        def forward(self, q, k, v):
            return attend.attention(q, k, v, causal=True, layout="bshd")

    inputs = tuple(tensors(torch, device, 2, 9, 4, 8, requires_grad=False))
    seqlen = torch.export.Dim("seqlen", min=2, max=4096)
    shapes = {name: {1: seqlen} for name in "qkv"}
    program = torch.export.export(Layer(), inputs, dynamic_shapes=shapes, strict=strict)
    calls = [node for node in program.graph.nodes if "attend.forward" in str(node.target)]
    assert len(calls) == 1
    longer = tuple(tensors(torch, device, 2, 21, 4, 8, requires_grad=False))
    torch.testing.assert_close(program.module()(*longer), Layer()(*longer))


# The program first loads libstdc++ by its name, because some compilers link it statically into the package. Without
# this, torch's std::regex in a CUDA package uses the locale of another copy of libstdc++. This ends the process, even
# for a model that only doubles its input.
PACKAGE = """
import sys, torch, attend
device, path = sys.argv[1:]
class Layer(torch.nn.Module):
    def forward(self, q, k, v, bias):
        o, lse = attend.attention(q * 2, k, v, bias=bias, causal=True, softcap=3.0, window=(9, 0), return_lse=True)
        return o + lse[..., None].to(o.dtype)
torch.manual_seed(0)
inputs = [torch.randn(1, 2, 24, 16, device=device) for _ in range(3)] + [torch.randn(2, 24, 24, device=device)]
with torch.no_grad():
    want = Layer()(*inputs)
    torch._inductor.aoti_compile_and_package(
        torch.export.export(Layer(), tuple(inputs)), package_path=path,
        inductor_configs={"aot_inductor.custom_op_libs": [":libstdc++.so.6"]})
    torch.testing.assert_close(torch._inductor.aoti_load_package(path)(*inputs), want)
print("the same")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="names a library of Linux")
def test_a_package_of_aotinductor(torch, device, tmp_path):
    """The test runs in a separate process, because an error in a package ends the process."""
    command = [sys.executable, "-W", "ignore", "-c", PACKAGE, str(device), str(tmp_path / "layer.pt2")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0 and "the same" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_autocast_casts_q_k_v_alone(torch, device, dtype):
    q, k, v = tensors(torch, device, 1, 2, 9, 8)
    slopes = torch.rand(2, device=device)
    target = getattr(torch, dtype)
    with torch.autocast(device, dtype=target):
        o, lse = attend.attention(q, k.to(target), v, alibi_slopes=slopes, return_lse=True)
        wide = attend.attention(*(x.double().cpu() for x in (q, k, v)))
    assert o.dtype == target and lse.dtype == torch.float32 and wide.dtype == torch.float64
    o.float().sum().backward()
    assert q.grad.dtype == torch.float32


def test_autocast_compiled(torch, device):
    torch._dynamo.reset()
    q, k, v = tensors(torch, device, 1, 2, 9, 8)

    def run(q, k, v):
        with torch.autocast(device, dtype=torch.bfloat16):
            return attend.attention(q, k, v)

    torch.testing.assert_close(torch.compile(run, fullgraph=True, backend="aot_eager")(q, k, v), run(q, k, v))


def test_tangents_are_refused(torch, device):
    q, k, v = tensors(torch, device, 1, 2, 9, 8, requires_grad=False)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(q, torch.ones_like(q))
        with pytest.raises(NotImplementedError, match="^forward-mode derivatives: "):
            attend.attention(dual, k, v)
        assert torch.equal(attend.attention(q, k, v), attend.attention(q, k, v))


def test_the_operator_and_the_direct_route_agree(torch, device):
    for name in NAMES:
        inputs = arguments(torch, device, name)
        operator = torch.ops.attend.forward(*inputs)
        extras, settings = attend.torch._operators.split(inputs[3:])
        direct = attend.torch.attention(*inputs[:3], extras, settings)
        leaves = [x for x in inputs if isinstance(x, torch.Tensor) and x.requires_grad]
        for a, b in zip(operator, direct):
            assert torch.equal(a, b) and a.stride() == b.stride() and a.requires_grad and b.requires_grad
            found, want = (torch.autograd.grad(x.sum(), leaves, retain_graph=True) for x in (b, a))
            assert all(torch.equal(c, d) for c, d in zip(found, want))


def test_double_backward_is_refused(torch, device):
    q, k, v = tensors(torch, device, 1, 2, 9, 8)
    (dq,) = torch.autograd.grad(attend.attention(q, k, v).square().sum(), q, create_graph=True)
    with pytest.raises(NotImplementedError, match="double backward"):
        torch.autograd.grad(dq.sum(), q)


def test_an_lse_that_nobody_uses_costs_no_gradient(torch, device, monkeypatch):
    from attend.torch import _operators

    seen = []
    plain = _operators.fill_backward
    monkeypatch.setattr(_operators, "fill_backward", lambda *a: seen.append(a[5].dlse) or plain(*a))
    q, k, v = tensors(torch, device, 1, 2, 9, 8)
    attend.attention(q, k, v, return_lse=True)[0].sum().backward()
    assert seen == [None]


def test_meta_tensors_give_shapes(torch):
    q = torch.empty(2, 4, 7, 8, device="meta")
    o, lse = attend.attention(q, q, q, return_lse=True)
    assert o.shape == q.shape and lse.shape == (2, 4, 7) and o.device.type == "meta"


def test_checkpointing_recomputes_the_same(torch, device):
    from torch.utils.checkpoint import checkpoint

    q, k, v = tensors(torch, device, 1, 2, 9, 8)
    run = lambda q, k, v: attend.attention(q, k, v, dropout_p=0.3, seed=4)
    found = torch.autograd.grad(checkpoint(run, q, k, v, use_reentrant=False).sum(), (q, k, v))
    for a, b in zip(found, torch.autograd.grad(run(q, k, v).sum(), (q, k, v))):
        assert torch.equal(a, b)
