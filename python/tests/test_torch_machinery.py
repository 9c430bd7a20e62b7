"""Tests of attend with torch features that are based on operators: vmap, flop counting, traced graphs, profiles, and
drawn seeds.
"""

import sys
import threading
import types

import pytest

pytest.importorskip("numpy")

pytest.importorskip(
    "torch", reason=f"the tests of {__name__} need torch: `make py-test ATTEND_TEST_TORCH=1` installs it"
)

import attend
import attend.torch
from attend._settings import Extras, Settings, needs_of

SHAPE = (2, 4, 9, 8)


def tensors(torch, device, *shape, count=3, requires_grad=False):
    return [torch.randn(*shape, device=device, requires_grad=requires_grad) for _ in range(count)]


def one_by_one(run, count, arguments, in_dims):
    """Returns the expected result of vmap, by calling the function for each entry of the mapped dimension."""
    import torch

    each = [[x if d is None else x.select(d, i) for x, d in zip(arguments, in_dims)] for i in range(count)]
    return torch.stack([run(*some) for some in each])


# The arguments other than q, k and v: the shape for one call, and the option.
MAPPED = {
    "plain": (None, ()),
    "bias of all rows": ("bias", (2, 4, 9, 9)),
    "bias of a head": ("bias", (4, 1, 9)),
    "bias of a key": ("bias", (9,)),
    "mask": ("mask", (2, 1, 9, 9)),
    "slopes": ("alibi_slopes", (4,)),
    "slopes of a batch": ("alibi_slopes", (2, 4)),
    "sinks": ("sinks", (4,)),
    "sinks of a batch": ("sinks", (2, 4)),
}


@pytest.mark.parametrize("in_dims", [(0, 0, 0, 0), (1, None, 0, None), (None, 2, None, 0), (None, None, None, 1)])
@pytest.mark.parametrize("name", MAPPED)
def test_vmap_is_a_loop(torch, device, name, in_dims):
    option, shape = MAPPED[name]
    count = 3
    shapes = [SHAPE, (2, 2, 9, 8), (2, 2, 9, 8), shape]
    if option is None:
        shapes, in_dims = shapes[:3], in_dims[:3]
    if all(d is None for d in in_dims) or len(shape) == 1 and in_dims[-1] == 1:
        pytest.skip("no dimension of that number is left to map over")
    full = [s if d is None else (*s[:d], count, *s[d:]) for s, d in zip(shapes, in_dims)]
    arguments = tensors(torch, device, *full[0], count=1) + [torch.randn(*s, device=device) for s in full[1:]]
    if option == "mask":
        arguments[3] = arguments[3] < 1
    run = lambda q, k, v, *more: attend.attention(q, k, v, **({option: more[0]} if option else {}))
    found = torch.func.vmap(run, in_dims)(*arguments)
    torch.testing.assert_close(found, one_by_one(run, count, arguments, in_dims), atol=1e-6, rtol=1e-5)


def test_vmap_of_packed_sequences(torch, device):
    cu = torch.tensor([0, 5, 12], dtype=torch.int32, device=device)
    q, k, v = torch.randn(3, 12, 4, 8, device=device), *tensors(torch, device, 12, 2, 8, count=2)
    slopes = torch.rand(2, 4, device=device)
    run = lambda q, k, v: attend.attention_varlen(q, k, v, cu, cu, 7, 7, causal=True, alibi_slopes=slopes)
    found = torch.func.vmap(run, (0, None, None))(q, k, v)
    torch.testing.assert_close(found, one_by_one(run, 3, (q, k, v), (0, None, None)), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("bias_shape", [(4, 9, 9), (2, 1, 9, 9), (9,)])
def test_gradients_of_many_outputs_at_once(torch, device, bias_shape):
    """torch's is_grads_batched and vectorize=True apply vmap to backward only."""
    q, k, v = tensors(torch, device, *SHAPE, requires_grad=True)
    bias = torch.randn(*bias_shape, device=device, requires_grad=True)
    o = attend.attention(q, k, v, bias=bias)
    douts = torch.randn(3, *o.shape, device=device)
    leaves = (q, k, v, bias)
    found = torch.autograd.grad(o, leaves, douts, is_grads_batched=True, retain_graph=True)
    one = [torch.autograd.grad(o, leaves, dout, retain_graph=True) for dout in douts]
    for a, b in zip(found, zip(*one)):
        torch.testing.assert_close(a, torch.stack(b), atol=1e-5, rtol=1e-4)
    small = torch.randn(1, 1, 3, 4, device=device)
    run = lambda x: attend.attention(x, small, small).sum(-1)
    jacobian = torch.autograd.functional.jacobian
    torch.testing.assert_close(jacobian(run, small, vectorize=True), jacobian(run, small))


def test_vmap_of_backward(torch, device):
    q, k, v, dout = tensors(torch, device, 3, *SHAPE, count=4)
    bias = torch.randn(4, 9, 9, device=device)
    needs = needs_of(Extras(bias=bias))

    def gradients(q, k, v, dout):
        o, lse = torch.ops.attend.forward(q, k, v, *Extras(bias=bias), *Settings())
        return torch.ops.attend.backward(q, k, v, o, lse, dout, None, *needs, *Extras(bias=bias), *Settings())

    for i, found in enumerate(torch.func.vmap(gradients)(q, k, v, dout)):
        want = torch.stack([gradients(*some)[i] for some in zip(q, k, v, dout)])
        torch.testing.assert_close(found, want, atol=1e-5, rtol=1e-4)


def test_vmap_refuses_what_it_would_change(torch, device):
    q, k, v = tensors(torch, device, 3, *SHAPE)
    with pytest.raises(NotImplementedError, match="^dropout_p: with vmap"):
        torch.func.vmap(lambda q, k, v: attend.attention(q, k, v, dropout_p=0.2))(q, k, v)
    cu = torch.tensor([[0, 9]] * 3, dtype=torch.int32, device=device)
    with pytest.raises(NotImplementedError, match="^cu_seqlens_q: mapped by vmap"):
        torch.func.vmap(lambda x, cu: attend.attention_varlen(x, x, x, cu, cu, 9, 9))(q[:, 0].transpose(1, 2), cu)


def test_operations_are_counted_as_torch_counts_its_own(torch, device):
    from torch.utils.flop_counter import FlopCounterMode

    q, k, v = tensors(torch, device, *SHAPE, requires_grad=True)
    counts = []
    for run in (attend.attention, torch.nn.functional.scaled_dot_product_attention):
        with FlopCounterMode(display=False) as counter:
            run(q, k, v).sum().backward()
        counts.append(counter.get_total_flops())
    assert counts[0] == (2 * 2 + 2 * 5) * 2 * 4 * 9 * 9 * 8
    # torch's backward stores P and therefore needs one product less. Some versions of torch count no operations for
    # their CPU kernel.
    assert counts[0] >= counts[1] and (counts[1] > 0 or device == "cpu")
    cu = torch.tensor([0, 4, 9], dtype=torch.int32, device=device)
    packed = tensors(torch, device, 9, 4, 8)
    with FlopCounterMode(display=False) as counter:
        attend.attention_varlen(*packed, cu, cu, 5, 5)
    assert counter.get_total_flops() == 2 * 2 * 2 * 4 * 5 * 5 * 8


def test_symbolic_trace_makes_one_node(torch, device):
    q, k, v = tensors(torch, device, *SHAPE)
    bias = torch.randn(4, 9, 1, device=device)
    traced = torch.fx.symbolic_trace(lambda q, k, v, b: attend.attention(q, k, v, bias=b, causal=True) * 2)
    assert [n.name for n in traced.graph.nodes].count("attention") == 1
    assert torch.equal(traced(q, k, v, bias), attend.attention(q, k, v, bias=bias, causal=True) * 2)
    longer = tensors(torch, device, 1, 4, 20, 8)
    traced = torch.fx.symbolic_trace(lambda q, k, v: attend.sdpa(q, k, v, is_causal=True))
    assert torch.equal(traced(*longer), attend.sdpa(*longer, is_causal=True))


def test_a_profile_shows_calls_without_autograd(torch, device):
    q, k, v = tensors(torch, device, *SHAPE)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        attend.attention(q, k, v)
    assert "attend::forward" in {event.key for event in profile.key_averages()}


@pytest.mark.parametrize("kind", ["sdpa", "a tensor", "a tensor with an offset"])
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_dropout_is_compiled_without_graph_breaks(torch, device, backend, kind):
    torch._dynamo.reset()
    q, k, v = tensors(torch, device, *SHAPE, requires_grad=True)
    runs = {
        "sdpa": lambda q: attend.sdpa(q, k, v, dropout_p=0.4),
        "a tensor": lambda q: attend.attention(q, k, v, dropout_p=0.4, seed=torch.randint(2**62, ())),
        "a tensor with an offset": lambda q: attend.attention(
            q, k, v, dropout_p=0.4, seed=3, offset=torch.randint(9, (1,))
        ),
    }
    compiled = torch.compile(runs[kind], fullgraph=True, backend=backend)
    torch.manual_seed(5)
    first, second = compiled(q), compiled(q)
    torch.manual_seed(5)
    assert torch.equal(compiled(q), first) and not torch.equal(first, second)
    (dq,) = torch.autograd.grad(first, q, torch.ones_like(first))
    assert dq.isfinite().all() and dq.abs().sum() > 0


@pytest.mark.parametrize("seed", [7, 2**63 + 5])
def test_a_compiled_call_drops_what_the_same_seed_drops(torch, device, seed):
    torch._dynamo.reset()
    q, k, v = tensors(torch, device, *SHAPE, requires_grad=True)
    run = lambda q, k, v, seed: attend.attention(q, k, v, dropout_p=0.4, seed=seed, offset=2)
    want = run(q, k, v, seed)
    wanted = torch.autograd.grad(want.square().sum(), (q, k, v))
    numbers = [seed, torch.tensor(seed, dtype=torch.uint64), torch.tensor([seed - 2**64 * (seed >= 2**63)])]
    for number in numbers:
        for found in (torch.compile(run, fullgraph=True, backend="aot_eager")(q, k, v, number), run(q, k, v, number)):
            assert torch.equal(found, want)
            gradients = torch.autograd.grad(found.square().sum(), (q, k, v))
            assert all(torch.equal(a, b) for a, b in zip(gradients, wanted))


def test_a_drawn_number_needs_no_guard(torch, device):
    torch._dynamo.reset()
    q, k, v = tensors(torch, device, *SHAPE)
    run = lambda q: attend.attention(q, k, v, dropout_p=0.4, seed=int(torch.randint(2**62, ())))
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
        assert not torch.equal(compiled(q), compiled(q))


def test_a_window_of_a_length_is_compiled_whole(torch, device):
    q, k, v = tensors(torch, device, *SHAPE)

    def run(q, k, v, left):
        return attend.attention(q, k, v, window=(left, 0))

    torch._dynamo.reset()
    compiled = torch.compile(run, fullgraph=True, dynamic=True, backend="eager")
    for left in (1, 2, 5):
        assert torch.equal(compiled(q, k, v, left), run(q, k, v, left))


def test_compiled_autograd_traces_the_gradients(torch, device):
    q, k, v = tensors(torch, device, *SHAPE, requires_grad=True)
    want = torch.autograd.grad(attend.attention(q, k, v).square().sum(), (q, k, v))
    torch._dynamo.reset()
    loss = attend.attention(q, k, v).square().sum()
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")):
        loss.backward()
    assert all(torch.equal(x.grad, y) for x, y in zip((q, k, v), want))


@pytest.mark.parametrize("is_packed", [False, True])
def test_a_call_is_traced_while_other_threads_import(torch, device, is_packed):
    """A tracer iterates over dictionaries that a function uses. sys.modules must not be one of them, because other
    threads add modules to it.
    """
    qkv = torch.randn(1, 8, 3, 2, 16, device=device)
    packed = lambda qkv: attend.attention_qkvpacked(qkv, softcap=5)
    separate = lambda qkv: attend.attention(*qkv.unbind(2), layout="bshd", softcap=5, scale=1)
    is_done = threading.Event()

    def import_much():
        names = [f"attend_test_{number}" for number in range(100)]
        while not is_done.is_set():
            sys.modules.update({name: types.ModuleType(name) for name in names})
            for name in names:
                del sys.modules[name]

    other = threading.Thread(target=import_much)
    other.start()
    try:
        for _ in range(3):
            torch._dynamo.reset()
            torch.compile(packed if is_packed else separate, fullgraph=True, backend="eager")(qkv)
    finally:
        is_done.set()
        other.join()


@pytest.mark.parametrize("is_packed", [False, True])
def test_a_first_call_that_is_compiled_is_compiled_once(torch, device, monkeypatch, is_packed):
    monkeypatch.setattr(attend._resolve, "_front_of_torch", None)
    torch._dynamo.reset()
    packed = lambda q, k, v: attend.attention_qkvpacked(torch.stack((q, k, v), 2))
    call = packed if is_packed else attend.attention
    compiled = torch.compile(lambda q, k, v: 2 * call(q, k, v), fullgraph=True, backend="aot_eager")
    q, k, v = tensors(torch, device, *SHAPE)
    with torch._dynamo.config.patch(error_on_recompile=True):
        first, second = compiled(q, k, v), compiled(q, k, v)
    torch.testing.assert_close(first, second)


def test_determinism_that_torch_requires_reaches_the_library(torch, device, monkeypatch):
    from attend.torch import _operators

    seen = []
    plain = _operators._core.backward
    monkeypatch.setattr(_operators._core, "backward", lambda *a: seen.append(a[-2].deterministic) or plain(*a))
    q, k, v = tensors(torch, device, *SHAPE, requires_grad=True)
    name = "cpu" if device == "cpu" else "simt"
    for wanted, warn_only, compute in (
        (False, False, "auto"), (True, False, "auto"), (True, True, "auto"), (True, False, name), (True, True, name)
    ):  # fmt: skip
        torch.use_deterministic_algorithms(wanted, warn_only=warn_only)
        attend.attention(q, k, v, compute=compute).sum().backward()
    assert seen == [False, True, True, True, False]


@pytest.mark.parametrize("is_packed", [False, True])
def test_determinism_that_torch_requires_reaches_the_direct_route(torch, device, is_packed):
    from attend.torch import _direct

    if not _direct.HAS_EXCHANGE_TABLE:
        pytest.skip("torch has no table of C functions")
    seen = []
    names = _direct.names_of_torch()
    function = names["with_required_determinism"]
    spy = lambda settings: seen.append(function(settings).deterministic) or function(settings)
    q, k, v = tensors(torch, device, *SHAPE, requires_grad=True)
    try:
        _direct._core.learn_torch({**names, "with_required_determinism": spy})
        for wanted in (False, True):
            torch.use_deterministic_algorithms(wanted)
            o = attend.attention_qkvpacked(torch.stack((q, k, v), 2)) if is_packed else attend.attention(q, k, v)
            o.square().sum().backward()
    finally:
        _direct._core.learn_torch(names)
    assert seen == [True]
