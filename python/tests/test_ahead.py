"""Tests that the kernels of backward for a score or mask are compiled on a thread while forward compiles its
kernels.
"""

import os
import subprocess
import sys
import threading
import types

import pytest

torch_here = pytest.importorskip(
    "torch", reason=f"the tests of {__name__} need torch: `make py-test ATTEND_TEST_TORCH=1` installs it"
)

import attend
from attend import _core, _plan
from attend._score import Own
from attend._settings import GRADIENT_POSITIONS, NO_EXTRAS, Extras, Settings
from attend.torch import _ahead, _meta, _operators, _score

TEXT = "cap * tanh(score / cap) + table[h][clamp(q - k, -8, 7) + 8]"


@pytest.fixture(autouse=True)
def nothing_begun(monkeypatch):
    monkeypatch.setattr(_ahead, "_begun", {})


def join():
    for thread in threading.enumerate():
        if thread.name == _ahead.NAME:
            thread.join()


def in_a_process(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)


def test_a_key_begins_once_on_a_thread_of_its_own():
    ran_on, described_on = [], []

    def describe():
        described_on.append(threading.get_ident())
        return lambda: ran_on.append(threading.get_ident())

    for key in ("a", "b", "a", "b"):
        _ahead.begin(key, describe)
    join()
    assert described_on == [threading.get_ident()] * 2
    assert len(ran_on) == 2 and threading.get_ident() not in ran_on


def test_threads_that_come_at_once_begin_once():
    barrier, begun = threading.Barrier(8), []

    def call():
        barrier.wait()
        _ahead.begin("key", lambda: lambda: begun.append(1))

    threads = [threading.Thread(target=call) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    join()
    assert begun == [1]


def test_as_many_keys_as_there_may_be_are_remembered():
    for key in range(3 * _ahead._MOST_BEGUN):
        _ahead.begin(key, lambda: lambda: None)
        assert len(_ahead._begun) <= _ahead._MOST_BEGUN
    join()


def test_errors_are_dropped(capfd):
    def fail():
        raise attend.ArgumentError("q: wrong")

    _ahead.begin("of the description", fail)
    _ahead.begin("of the thread", lambda: fail)
    _ahead.begin(["no key"], fail)
    join()
    assert capfd.readouterr() == ("", "")


def test_an_interpreter_that_ends_waits_for_the_thread():
    done = in_a_process(
        "import threading, time\n"
        "from attend.torch import _ahead\n"
        "has_begun = threading.Event()\n"
        "def run():\n"
        "    has_begun.set()\n"
        "    time.sleep(0.5)\n"
        "    print('compiled', threading.current_thread().daemon)\n"
        "threading.Thread(target=_ahead.begin, args=('key', lambda: run), daemon=True).start()\n"
        "has_begun.wait()\n"
    )
    assert (done.returncode, done.stdout) == (0, "compiled False\n"), done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_process_forked_meanwhile_begins_what_is_new_and_ends():
    done = in_a_process(
        "import os, sys, time\n"
        "from attend.torch import _ahead\n"
        "_ahead.begin('one', lambda: lambda: time.sleep(1))\n"
        "child = os.fork()\n"
        "_ahead.begin('one', lambda: lambda: print('again'))\n"
        "if child == 0:\n"
        "    _ahead.begin('other', lambda: lambda: print('other', flush=True))\n"
        "    sys.exit(3)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    assert (done.returncode, done.stdout) == (0, "other\n3\n"), done.stderr


def tensors(torch, *shapes, dtype=None, requires_grad=True):
    return [torch.randn(*shape, dtype=dtype, requires_grad=requires_grad) for shape in shapes]


def test_tensors_on_the_cpu_begin_none(torch, monkeypatch):
    begun = []
    monkeypatch.setattr(_ahead, "begin", lambda *_: begun.append(1))
    q, k, v, table = tensors(torch, *[(1, 2, 9, 8)] * 3, (2, 16))
    attend.attention(q, k, v, score=TEXT, captures={"table": table, "cap": 5.0}).sum().backward()
    attend.attention(q, k, v, block_mask=attend.make_block_mask("k <= q", 9, 9)).sum().backward()
    assert begun == []


def keys_of(monkeypatch, q, k, v, table, extras=NO_EXTRAS, text=TEXT, **settings):
    """Returns the keys that a call begins to compile, as if its tensors were on a GPU."""
    keys = []
    monkeypatch.setattr(_ahead, "begin", lambda key, _: keys.append(key))
    score = Own(text, {"table": table, "cap": torch_here.tensor(5.0)})
    _score._compile_ahead(score, q, k, v, extras, Settings(**settings), score.captures)
    return keys


def test_only_a_call_with_a_gradient_begins(torch, monkeypatch):
    plain = tensors(torch, *[(1, 2, 9, 8)] * 3, (2, 16), requires_grad=False)
    assert keys_of(monkeypatch, *plain) == []
    seen = {keys_of(monkeypatch, *[x.clone().requires_grad_(i == n) for i, x in enumerate(plain)])[0] for n in range(4)}
    assert len(seen) == 2  # the key depends on which captures have a gradient, not on which of q, k and v have one
    bias = torch.zeros(9, 9, requires_grad=True)
    assert len(keys_of(monkeypatch, *plain, extras=Extras(bias=bias))) == 1


def test_what_chooses_kernels_is_in_the_key_and_what_changes_from_call_to_call_is_not(torch, monkeypatch):
    def keys(length=9, dim=8, dtype=None, **more):
        given = tensors(torch, *[(1, 2, length, dim)] * 3, (2, 16), dtype=dtype)
        return keys_of(monkeypatch, *given, **more)

    same = [keys(), keys(length=11), keys(seed=3, offset=4), keys(max_seqlen_q=5, max_seqlen_k=6)]
    assert len({key for (key,) in same}) == 1
    bias = torch.zeros(9, 9)
    others = [keys(dim=16), keys(dtype=torch.float16), keys(causal=True), keys(layout="bshd"), keys(scale=0.5),
              keys(deterministic=True), keys(text="score + cap * table[h][0]"), keys(extras=Extras(bias=bias)),
              keys(extras=Extras(bias=bias.clone().requires_grad_()))]  # fmt: skip
    assert len({key for (key,) in same + others}) == 1 + len(others)


def described(x):
    """Returns dtype, shape, strides and alignment of a tensor."""
    return None if x is None else (_meta.dtype_name(x.dtype), tuple(x.shape), x.stride(), x.data_ptr() % 16 == 0)


def described_place(owner, address, dtype, cuda_index, shape, strides):
    assert isinstance(owner, _ahead.TensorPlaces) and cuda_index == -1
    return dtype, tuple(shape), tuple(strides), address % 16 == 0


def laid_out(torch, how):
    """Returns q, k and v (batch, heads, seqlen, head_dim) in the memory layout `how`."""
    if how == "heads behind rows":
        return [torch.randn(2, 70, h, 16).transpose(1, 2) for h in (4, 2, 2)]
    if how == "slices of one":
        return torch.randn(2, 3, 4, 70, 16)[:, :, :, 1:].unbind(1)
    if how == "unaligned":
        return [torch.randn(2 * 4 * 70 * 16 + 1)[1:].view(2, 4, 70, 16) for _ in range(3)]
    if how == "columns not dense":
        return [torch.randn(2, 4, 16, 70).transpose(2, 3) for _ in range(3)]
    return [torch.randn(2, 4, 70, dim) for dim in ((16, 16, 24) if how == "wider values" else (16, 16, 16))]


@pytest.mark.parametrize(
    "how", ["contiguous", "heads behind rows", "slices of one", "unaligned", "columns not dense", "wider values"]
)
def test_places_are_laid_out_as_the_tensors_of_backward(torch, monkeypatch, how):
    q, k, v = laid_out(torch, how)
    bias = torch.randn(4, 70, 70, requires_grad=True)
    score = Own(TEXT, {"table": torch.randn(16, 4).t().requires_grad_(), "cap": torch.tensor(5.0)})
    score.function = lambda views: views
    extras, settings = Extras(bias=bias), Settings(causal=True)

    place_of = types.SimpleNamespace(Array=types.SimpleNamespace(at=described_place))
    monkeypatch.setattr(_ahead, "_core", place_of)
    monkeypatch.setattr(_plan, "_core", place_of)
    made_up = _score.preparation(score, q, k, v, extras, settings, score.captures)
    assert made_up.func is _core.prepare_backward_with_own

    calls = []
    monkeypatch.setattr(_operators, "_view", _operators._as_it_is)
    monkeypatch.setattr(_score, "_core", types.SimpleNamespace(backward_with_own=lambda *args: calls.append(args)))
    o, lse = _operators.empty_results(q, v, "bhsd")
    needs = tuple(extras[i] is not None for i in GRADIENT_POSITIONS)
    _score.gradients(score, torch.zeros_like(o), q, k, v, o, lse, None, needs, extras, settings, (True, False))

    (*real, _stream), found = calls[0], made_up.args
    assert (found[1], found[2], found[11]) == (real[1], ("table",), real[11]) and real[2] == found[2]
    for i in (0, 3, 9, 10):  # these arguments are captures, their gradients, and the named tuples Gradients and Extras
        assert list(found[i]) == [described(x) for x in real[i]], i
    assert list(found[4:9]) == [described(x) for x in real[4:9]]


def test_a_description_imports_nothing():
    done = in_a_process(
        "import sys, torch\n"
        "from attend._score import Own\n"
        "from attend._settings import NO_EXTRAS, Settings\n"
        "from attend.torch import _score\n"
        "q, k, v = (torch.zeros(1, 9, 2, 8, requires_grad=True).transpose(1, 2) for _ in range(3))\n"
        "before = set(sys.modules)\n"
        "_score.preparation(Own('2 * score', {}), q, k, v, NO_EXTRAS, Settings(), ())\n"
        "print(sorted(set(sys.modules) - before))\n"
    )
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr


def test_no_tensor_is_held(torch):
    q, k, v, table = tensors(torch, *[(1, 2, 9, 8)] * 3, (2, 16))
    score = Own(TEXT, {"table": table, "cap": torch.tensor(5.0)})
    counts = [sys.getrefcount(x) for x in (q, k, v, table)]
    prepare = _score.preparation(score, q, k, v, NO_EXTRAS, Settings(), score.captures)
    assert [sys.getrefcount(x) for x in (q, k, v, table)] == counts
    prepare()  # has nothing to compile on the CPU
