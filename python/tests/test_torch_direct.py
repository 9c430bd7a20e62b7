"""Tests of the direct route, which calls the library without torch's dispatcher: which calls use this route, and that
its results equal those of the operators.
"""

import inspect

import pytest

np = pytest.importorskip("numpy")
pytest.importorskip(
    "torch", reason=f"the tests of {__name__} need torch: `make py-test ATTEND_TEST_TORCH=1` installs it"
)

import attend
import attend.torch
from attend import _core

DIRECT = "AttentionBackward"  # name of the autograd node of the direct route


@pytest.fixture
def without_exchange_table(torch):
    """Simulates a release of torch whose tensors do not have DLPack's table of C functions."""
    from attend.torch import _direct

    _core.learn_torch(_direct.names_of_torch(has_exchange_table=False))
    yield
    _core.learn_torch(_direct.names_of_torch())


@pytest.mark.parametrize("function", ["attention", "attention_qkvpacked"])
def test_options_are_handed_over_in_the_order_of_the_signature(torch, monkeypatch, function):
    not_handed_over = ("return_lse", "score", "captures", "block_mask")
    names = [name for name in attend.attention.__kwdefaults__ if name not in not_handed_over]
    taken = inspect.signature(getattr(attend, function)).parameters.keys()
    marks = {name: object() for name in names if name in taken}
    seen = []
    monkeypatch.setattr(_core, f"{function}_of_options", lambda *call: seen.append(call[-2]) or "taken")
    tensors = [torch.zeros(1)] * (3 if function == "attention" else 1)
    assert getattr(attend, function)(*tensors, **marks) == "taken"
    defaults = attend.attention.__kwdefaults__ | {"layout": "bshd"}
    assert seen == [tuple(marks.get(name, defaults[name]) for name in names)]


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("return_lse", [False, True])
def test_both_routes_give_the_same(torch, device, monkeypatch, layout, dtype, return_lse):
    """Results are equal if options are passed separately, as named tuples, and to torch's operator."""
    # As in a model, q, k and v are parts of one tensor, and the gradient is dense.
    qkv = torch.randn(2, 9, 3, 9, 16, device=device, dtype=getattr(torch, dtype), requires_grad=True)
    attend.attention(*qkv.unbind(2), layout=layout)  # imports attend.torch
    results = []
    for refuses in ((), ("attention_of_options",), ("attention_of_options", "direct_attention")):
        for name in refuses:
            monkeypatch.setattr(_core, name, lambda *a: None)
        found = attend.attention(*qkv.unbind(2), layout=layout, causal=True, return_lse=return_lse)
        found = found if return_lse else (found,)
        assert (found[0].grad_fn.name() == DIRECT) == ("direct_attention" not in refuses)
        loss = sum(x.float().square().sum() for x in found)
        (gradient,) = torch.autograd.grad(loss, qkv)
        results.append((*found, gradient))
    for others in results[1:]:
        for a, b in zip(results[0], others):
            assert torch.equal(a, b) and a.stride() == b.stride()
    with torch.no_grad():
        monkeypatch.undo()
        assert torch.equal(attend.attention(*qkv.unbind(2), layout=layout, causal=True), results[0][0])


def test_the_direct_route_runs_no_python(torch, device, monkeypatch):
    """In a call without extras, neither the forward nor the backward pass runs Python code. With extras both passes
    do.
    """
    from attend.torch import _direct, _operators

    if not _direct.HAS_EXCHANGE_TABLE:
        pytest.skip("torch has no table of C functions")
    calls = []
    for name in ("fill_forward", "fill_backward"):
        function = getattr(_operators, name)
        monkeypatch.setattr(_operators, name, lambda *a, n=name, f=function: calls.append(n) or f(*a))
    q, k, v = (torch.randn(1, 2, 8, 16, device=device, requires_grad=True) for _ in range(3))
    slopes = torch.rand(2, device=device)
    for options, want in (({}, []), ({"alibi_slopes": slopes}, ["fill_forward", "fill_backward"])):
        calls.clear()
        attend.attention(q, k, v, **options).square().sum().backward()
        assert calls == want


def test_tensors_are_read_the_same_by_either_way(torch, device, without_exchange_table, monkeypatch):
    """Results are the same if the library reads tensors through DLPack's table of C functions and through torch's
    public attributes.
    """
    from attend.torch import _direct, _operators

    q = torch.randn(2, 70, 3, 16, device=device).transpose(1, 2).requires_grad_()
    k = torch.randn(1, 3, 40, 16, device=device).expand(2, 3, 40, 16)
    v = torch.randn(3, 3, 50, 20, device=device)[1:, :, 5:45, 4:]
    packed = torch.randn(2, 9, 3, 2, 16, device=device, requires_grad=True)

    def run():
        o = attend.attention(q, k, v, causal=True)
        p = attend.attention_qkvpacked(packed, causal=True)
        assert o.grad_fn.name() == DIRECT and p.grad_fn.name() in (DIRECT, "Packed" + DIRECT)
        return o, *torch.autograd.grad(o.square().sum(), q), p, *torch.autograd.grad(p.square().sum(), packed)

    _core.learn_torch(_direct.names_of_torch())
    want = run()
    _core.learn_torch(_direct.names_of_torch(has_exchange_table=False))
    monkeypatch.setattr(_operators, "_view", _operators._view_by_public_names)
    assert all(torch.equal(a, b) for a, b in zip(want, run()))


def test_backward_may_take_the_operator_alone(torch, device):
    """Backward uses the operator if a hook has changed the saved tensors, or if there is no gradient of o."""
    q, k, v = (torch.randn(1, 2, 8, 16, device=device, requires_grad=True) for _ in range(3))
    want = torch.autograd.grad(attend.attention(q, k, v).square().sum(), (q, k, v))
    with torch.autograd.graph.saved_tensors_hooks(lambda x: -x, lambda x: torch._neg_view(x)):
        o = attend.attention(q, k, v)
    for a, b in zip(torch.autograd.grad(o.square().sum(), (q, k, v)), want):
        assert torch.equal(a, b)
    _, lse = attend.attention(q, k, v, return_lse=True)
    dq, dk, dv = torch.autograd.grad(lse.sum(), (q, k, v), materialize_grads=True)
    assert dq.abs().sum() > 0 and dk.abs().sum() > 0 and dv.abs().sum() == 0


def test_the_function_backward_takes_both_routes(torch, device, monkeypatch):
    """attend.backward bypasses the dispatcher if the dispatcher has nothing to do. On both routes the results have the
    same bits, and the errors are the same.
    """
    from attend.torch import _front

    q, k, v, dout = (torch.randn(1, 2, 8, 16, device=device, requires_grad=True) for _ in range(4))
    bias, sinks = torch.randn(2, 8, 8, device=device), torch.randn(2, device=device)
    calls = []
    for name in ("compute_gradients", "_gradients_by_the_operator"):
        function = getattr(_front, name)
        monkeypatch.setattr(_front, name, lambda *a, n=name, f=function: calls.append(n) or f(*a))

    def check(options, **of_backward):
        o, lse = attend.forward(q, k, v, **options)
        options = options | of_backward | {"deterministic": True}
        calls.clear()
        found = attend.backward(dout, q, k, v, o, lse, **options)
        with torch.profiler.profile():
            want = attend.backward(dout, q, k, v, o, lse, **options)
        assert calls == ["compute_gradients", "_gradients_by_the_operator"]
        assert len(found) == len(want) and not any(x.requires_grad for x in found)
        assert all(torch.equal(a, b) for a, b in zip(found, want))
        return len(found)

    assert check({"causal": True}) == check({"softcap": 2.0}, dlse=torch.randn(1, 2, 8, device=device)) == 3
    assert check({"bias": bias, "sinks": sinks}) == 5
    assert check({"bias": bias, "sinks": sinks}, needs_dbias=False) == check({"bias": bias[..., :1]}) == 4
    assert check({"alibi_slopes": torch.rand(2, device=device)}) == 3
    o, lse = attend.forward(q, k, v)
    for wrong, message in (
        ({"dout": None}, "dout: NoneType"), ({"lse": lse.to("meta")}, "lse: on meta"), ({"k": k[:, :, :5]}, "v: shape"),
        ({"dout": dout.detach().cpu().numpy()}, "dout: ndarray"), ({"o": o[..., :8]}, "o: shape"),
    ):  # fmt: skip
        with pytest.raises(attend.Error, match=f"^{message}"):
            attend.backward(**dict(dout=dout, q=q, k=k, v=v, o=o, lse=lse) | wrong)


def test_options_that_equal_known_ones_mean_the_same_and_others_do_not(torch, device, monkeypatch):
    """The library caches the options of calls. The key contains the value and the type of each number."""
    q, k, v = (torch.randn(1, 2, 8, 16, device=device) for _ in range(3))

    def check(**options):
        found = attend.attention(q, k, v, **options)
        with monkeypatch.context() as patch:
            patch.setattr(attend._api._core, "attention_of_options", lambda *a: None)
            assert torch.equal(found, attend.attention(q, k, v, **options)), options

    check()
    scales = [0.1, float("0.1"), -0.1, 0.0, -0.0, 1, True, torch.tensor(0.3), np.float64(0.1), np.float32(0.1)]
    for scale in scales:
        for causal in (False, True, 0, 1):
            check(scale=scale, causal=causal)
    for softcap in (3.0, float("3.0"), 3, 3000, 0.0, 0, True, torch.tensor(2.0), np.float64(3)):
        check(softcap=softcap)
    for number in range(200):  # more options than the library caches
        check(scale=number / 64, softcap=number % 3)
    scale = torch.tensor(0.5)
    check(scale=scale)
    scale.mul_(3)
    check(scale=scale)
    check(deterministic=True, dropout_p=0.5, seed=3)
    check(dropout_p=0.5, seed=3, layout="bs" + "hd"[:2])
    for options, message in (
        ({"layout": ["bhsd"]}, "layout: "), ({"layout": "sbhd"}, "layout: "), ({"compute": 3}, "compute: 3"),
        ({"causal": "yes"}, "causal: 'yes'"), ({"scale": "1"}, "scale: '1'"), ({"dropout_p": 2.0}, "dropout_p: 2"),
        ({"layout": None}, "layout: None"), ({"causal": None}, "causal: None"), ({"compute": None}, "compute: None"),
        ({"dropout_p": None}, "dropout_p: None"), ({"deterministic": None}, "deterministic: None"),
        ({"softcap": None}, "softcap: None"), ({"softcap": -1.0}, "softcap: -1"), ({"softcap": "2"}, "softcap: '2'"),
    ):  # fmt: skip
        for _ in range(2):
            with pytest.raises(attend.Error) as caught:
                attend.attention(q, k, v, **options)
            assert str(caught.value).startswith(message)
    for given in ((None, k, v), (q, None, v), (q, k, None)):
        with pytest.raises(attend.Error, match="NoneType"):
            attend.attention(*given)
    for wants in (True, 1, np.True_):
        for leaf in (q, q.clone().requires_grad_()):
            _, lse = attend.attention(leaf, k, v, return_lse=wants)
            assert lse.shape == (1, 2, 8)
    assert torch.is_tensor(attend.attention(q, k, v, return_lse=0))


@pytest.mark.parametrize("inputs", ["float32", "bfloat16"])
def test_autocast_takes_the_direct_route(torch, device, inputs):
    q, k, v = (torch.randn(1, 2, 8, 16, device=device, requires_grad=True) for _ in range(3))
    want = attend.attention(q.bfloat16(), k.bfloat16(), v.bfloat16())
    with torch.autocast(torch.device(device).type, torch.bfloat16):
        o = attend.attention(*(x.to(getattr(torch, inputs)) for x in (q, k, v)))
    assert torch.equal(o, want)
    assert o.grad_fn.name() == want.grad_fn.name() == DIRECT


def check_routes(torch, device):
    """Checks which route a call uses, with ordinary tensors and with tensors for which torch's dispatcher has to do
    something.
    """

    class Named(torch.Tensor):
        pass

    def check(x, want, autocast=False):
        for heads in ((x,), (ordinary, x), (ordinary, ordinary, x)):
            needs_cast = autocast and want is not None
            assert _core.route_of(heads, ()) == ((True, want, needs_cast) if want is not None else (False,) * 3)
            assert _core.route_of((ordinary,), heads) == _core.route_of(heads, ())

    ordinary = torch.randn(1, 2, 4, 8, device=device)
    leaf = ordinary.clone().requires_grad_()
    scalar = ordinary.new_zeros(())
    for x in (ordinary, ordinary.transpose(1, 2), ordinary[..., ::2], ordinary[:0], ordinary.bool(), scalar):
        check(x, False)
    check(ordinary.double(), False)
    check(leaf, True)
    check(torch.nn.Parameter(ordinary), True)
    check(torch.nn.Parameter(ordinary, requires_grad=False), False)
    with torch.no_grad():
        check(leaf, False)
    with torch.autocast(device, torch.bfloat16):
        check(ordinary, False, autocast=True)
        check(leaf, True, autocast=True)
        assert _core.route_of((ordinary.bfloat16(),), (ordinary,)) == (True, False, False)
    unusual = [
        ordinary.as_subclass(Named), ordinary.to_sparse(), ordinary.to("meta"), torch._neg_view(ordinary),
        torch.complex(ordinary, ordinary).conj().imag, torch._efficientzerotensor(ordinary.shape, device=device),
        torch._to_functional_tensor(ordinary), torch.quantize_per_tensor(ordinary.cpu(), 0.1, 0, torch.qint8),
        None, 1.5, ordinary.cpu().numpy(),
    ]  # fmt: skip
    left_behind = []
    torch.func.vmap(lambda x: left_behind.append(x) or x)(ordinary)
    for x in (*unusual, *left_behind):
        check(x, None)
    with torch.autograd.forward_ad.dual_level():
        check(ordinary, None)
    with torch.profiler.profile():
        check(ordinary, None)
    with torch.utils._python_dispatch.TorchDispatchMode():
        check(ordinary, None)
    torch.func.vmap(lambda x: check(ordinary, None) or x)(ordinary)
    check(ordinary, False)


def test_routes(torch, device):
    check_routes(torch, device)


def test_routes_without_the_exchange_table(torch, device, without_exchange_table):
    check_routes(torch, device)


def test_a_torch_whose_modes_cannot_be_seen_takes_the_operator(torch, device):
    from attend.torch import _direct

    q = torch.randn(1, 2, 8, 16, device=device, requires_grad=True)
    want = attend.attention(q, q, q)
    unknown = dict(has_watchers=False, call_watchers=(), gradient_watchers=(), tensor_watchers=())
    try:
        _core.learn_torch({**_direct.names_of_torch(), **unknown})
        found = attend.attention(q, q, q)
        assert found.grad_fn.name() != DIRECT and torch.equal(found, want)
    finally:
        _core.learn_torch(_direct.names_of_torch())


def test_a_layout_that_is_no_text_is_refused_by_name(torch):
    q = torch.randn(1, 2, 3, 16)
    attend.attention(q, q, q)  # imports attend.torch
    with pytest.raises(attend.Error, match="layout: '.ud800', allowed 'bhsd', 'bshd'"):
        attend.attention(q, q, q, layout="\ud800")


def test_options_without_one_of_them_are_refused(torch):
    q = torch.randn(1, 2, 3, 16)
    attend.attention(q, q, q)
    with pytest.raises(attend.Error, match="without one of its keyword arguments"):
        _core.attention_of_options(q, q, q, (), False)
