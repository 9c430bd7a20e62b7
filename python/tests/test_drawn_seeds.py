"""Tests of dropout without a seed: every call drops different entries, and seeding the generators repeats them."""

import os
import threading

import pytest

np = pytest.importorskip("numpy")

import attend
import attend.ring

SHAPE = (2, 3, 17, 8)


def numpy_inputs():
    """Returns inputs for which o contains the probabilities after dropout. All probabilities are equal, except those of
    dropped entries, which are 0.
    """
    q, v = np.zeros((1, 2, 16, 8), np.float32), np.broadcast_to(np.eye(16, dtype=np.float32), (1, 2, 16, 16))
    return q, q, np.ascontiguousarray(v)


def kept(dropout_p=0.5, **options):
    return attend.attention(*numpy_inputs(), dropout_p=dropout_p, **options) > 0


CALLS = {
    "attention": lambda x, cu: attend.attention(x, x, x, dropout_p=0.5),
    "attention with options": lambda x, cu: attend.attention(x, x, x, dropout_p=0.5, window=(9, 0), softcap=2.0),
    "qkvpacked": lambda x, cu: attend.attention_qkvpacked(x.swapaxes(1, 2)[:, :, :, None], dropout_p=0.5),
    "varlen": lambda x, cu: attend.attention_varlen(x[0].swapaxes(0, 1), x[0].swapaxes(0, 1), x[0].swapaxes(0, 1),
                                                    cu, cu, 17, 17, dropout_p=0.5),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_calls_on_numpy_arrays_drop_anew_and_manual_seed_repeats_them(rng, name):
    x, cu = rng.standard_normal(SHAPE).astype(np.float32), np.array([0, 5, 17], np.int32)
    attend.manual_seed(2**64 - 1)
    first, second = CALLS[name](x, cu), CALLS[name](x, cu)
    attend.manual_seed(2**64 - 1)
    assert not np.array_equal(first, second)
    assert np.array_equal(CALLS[name](x, cu), first) and np.array_equal(CALLS[name](x, cu), second)
    attend.manual_seed(0)
    assert not np.array_equal(CALLS[name](x, cu), first)


def test_an_explicit_seed_asks_no_generator():
    attend.manual_seed(4)
    want = kept()
    attend.manual_seed(4)
    assert np.array_equal(kept(seed=9), kept(seed=9)) and not np.array_equal(kept(seed=9), kept(seed=9, offset=1))
    kept(dropout_p=0.0)
    assert np.array_equal(kept(), want)


def test_threads_share_the_generator_and_draw_different_seeds():
    found, lock = [], threading.Lock()

    def work():
        for _ in range(20):
            pattern = kept().tobytes()
            with lock:
                found.append(pattern)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == len(found) == 160


@pytest.mark.parametrize("seed", [-1, 2**64, 1.5, "x", None])
def test_manual_seed_refuses_by_name(seed):
    with pytest.raises(attend.ArgumentError, match="^seed: "):
        attend.manual_seed(seed)


@pytest.mark.parametrize("frame", ["numpy", "torch"])
def test_a_seed_below_0_is_refused_by_name(frame):
    q, k, v = numpy_inputs()
    if frame == "torch":
        torch = pytest.importorskip("torch", reason="torch is not installed")
        q, k, v = (torch.from_numpy(x) for x in (q, k, v))
    for name in ("seed", "offset"):
        options = {"seed": 1, name: -1}
        with pytest.raises(attend.ArgumentError, match=rf"^{name}: -1, allowed 0 to 2\^64 - 1$"):
            attend.attention(q, k, v, dropout_p=0.5, **options)
    with pytest.raises(attend.ArgumentError, match="^offset: given without seed, allowed with it only$"):
        attend.attention(q, k, v, dropout_p=0.5, offset=3)


def test_what_has_its_backward_apart_needs_a_seed():
    q, k, v = numpy_inputs()
    message = r"^seed: None with dropout_p 0.5, allowed a number: backward needs the same$"
    with pytest.raises(attend.ArgumentError, match=message):
        attend.forward(q, k, v, dropout_p=0.5)
    o, lse = attend.forward(q, k, v, dropout_p=0.5, seed=3)
    with pytest.raises(attend.ArgumentError, match=message):
        attend.backward(o, q, k, v, o, lse, dropout_p=0.5)
    with pytest.raises(attend.ArgumentError, match="^seed: None with dropout_p > 0, allowed the seed of"):
        attend.ring.backward(o, q, k, v, o, lse, comm=None, dropout_p=0.5)


@pytest.mark.parametrize("name", CALLS)
def test_calls_on_tensors_drop_anew_and_torchs_manual_seed_repeats_them(torch, device, name):
    x = torch.randn(SHAPE, device=device, requires_grad=True)
    cu = torch.tensor([0, 5, 17], dtype=torch.int32, device=device)
    torch.manual_seed(3)
    first, second = CALLS[name](x, cu), CALLS[name](x, cu)
    torch.manual_seed(3)
    assert not torch.equal(first, second)
    assert torch.equal(CALLS[name](x, cu), first) and torch.equal(CALLS[name](x, cu), second)


def test_the_generator_is_that_of_the_tensors_device(torch, device):
    x = torch.randn(SHAPE, device=device)
    run = lambda: attend.attention(x, x, x, dropout_p=0.5)
    state = torch.get_rng_state() if device == "cpu" else torch.cuda.get_rng_state()
    first = run()
    if device == "cuda":
        others = torch.get_rng_state()
        run()
        assert torch.equal(torch.get_rng_state(), others)
        torch.cuda.set_rng_state(state)
    else:
        torch.set_rng_state(state)
    assert torch.equal(run(), first)
    with torch.device("meta"):  # tensors that attend makes without naming a device must not be affected
        assert not torch.equal(run(), first)


def test_backward_drops_what_forward_dropped(torch, device):
    q, k, v = (torch.randn(SHAPE, device=device, requires_grad=True) for _ in range(3))
    for options in ({}, {"window": (9, 0)}):
        o = attend.attention(q, k, v, dropout_p=0.5, **options)
        dout = torch.randn_like(o)
        (dv,) = torch.autograd.grad(o, v, dout)
        # o is linear in v, so this equality holds only if backward drops the same entries.
        torch.testing.assert_close((o * dout).sum(), (v * dv).sum(), atol=1e-3, rtol=1e-4)


def test_checkpoints_drop_the_same_when_they_recompute(torch, device):
    from torch.utils.checkpoint import checkpoint

    q, k, v = (torch.randn(SHAPE, device=device, requires_grad=True) for _ in range(3))
    run = lambda q, k, v: attend.attention(q, k, v, dropout_p=0.5).square()
    torch.manual_seed(1)
    want = torch.autograd.grad(run(q, k, v).sum(), (q, k, v))
    torch.manual_seed(1)
    found = torch.autograd.grad(checkpoint(run, q, k, v, use_reentrant=False).sum(), (q, k, v))
    for a, b in zip(found, want):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_what_is_compiled_drops_anew_at_every_run(torch, device, backend):
    torch._dynamo.reset()
    q, k, v = (torch.randn(SHAPE, device=device, requires_grad=True) for _ in range(3))
    compiled = torch.compile(
        lambda q, k, v: attend.attention(q * 2, k, v, dropout_p=0.4), fullgraph=True, backend=backend
    )
    torch.manual_seed(5)
    first, second = compiled(q, k, v), compiled(q, k, v)
    torch.manual_seed(5)
    assert torch.equal(compiled(q, k, v), first) and not torch.equal(first, second)
    dout = torch.randn_like(first)
    (dv,) = torch.autograd.grad(first, v, dout)
    torch.testing.assert_close((first * dout).sum(), (v * dv).sum(), atol=1e-3, rtol=1e-4)


@pytest.mark.filterwarnings("ignore")  # torch.jit.trace is deprecated
@pytest.mark.parametrize("tracer", ["symbolic_trace", "make_fx", "jit.trace", "export"])
def test_what_is_traced_drops_anew_at_every_run(torch, device, tracer):
    from torch.fx.experimental.proxy_tensor import make_fx

    class Layer(torch.nn.Module):
        def forward(self, q, k, v):
            return attend.attention(q, k, v, dropout_p=0.5)

    given = tuple(torch.randn(SHAPE, device=device) for _ in range(3))
    traced = {
        "symbolic_trace": lambda: torch.fx.symbolic_trace(Layer()),
        "make_fx": lambda: make_fx(Layer())(*given),
        "jit.trace": lambda: torch.jit.trace(Layer(), given, check_trace=False),
        "export": lambda: torch.export.export(Layer(), given).module(),
    }[tracer]()
    assert not torch.equal(traced(*given), traced(*given))


def test_tensors_without_memory_are_given_shapes(torch):
    from torch._subclasses.fake_tensor import FakeTensorMode

    x = torch.empty(SHAPE, device="meta")
    assert attend.attention(x, x, x, dropout_p=0.5).shape == SHAPE
    with FakeTensorMode() as mode:
        fake = mode.from_tensor(torch.empty(SHAPE))
        assert attend.attention(fake, fake, fake, dropout_p=0.5).shape == SHAPE


def drawn_in_a_child(depth=1):
    """Returns the seed that a forked child, or a child of that child, draws."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            inner = drawn_in_a_child(depth - 1) if depth > 1 else str(attend._random.drawn_seed()).encode()
            os.write(write, inner)
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as file:
        found = file.read()
    os.waitpid(child, 0)
    assert found
    return found


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_forked_workers_drop_differently_and_a_seeded_program_repeats_them(monkeypatch):
    def of_two_epochs():
        drawn = [drawn_in_a_child() for _ in range(4)] + [drawn_in_a_child(2) for _ in range(2)]
        return [*drawn, str(attend._random.drawn_seed()).encode()]

    monkeypatch.setattr(attend._random, "_lineage", [])  # the state before the first call of manual_seed
    attend._random.drawn_seed()  # makes the generator in this process, so that a fork copies it
    first, second = of_two_epochs(), of_two_epochs()
    assert len({*first, *second}) == len(first) + len(second)
    attend.manual_seed(11)
    first, second = of_two_epochs(), of_two_epochs()
    assert len({*first, *second}) == len(first) + len(second)
    attend.manual_seed(11)
    assert of_two_epochs() == first
    attend.manual_seed(12)
    assert not {*of_two_epochs()} & {*first}
