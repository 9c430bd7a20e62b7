"""Tests of attend.append, and of a decode that appends before it reads. The results are compared with float64."""

import os
import subprocess
import sys

import covering
import pytest
from conftest import SEED

np = pytest.importorskip("numpy")
pytest.importorskip("ml_dtypes")

import attend
from append_problems import OPTIONS, AppendProblem
from attend._serving import Numbers, Tensors

pytestmark = pytest.mark.usefixtures("poisoned_numpy")

CASES = [case for seed in (SEED, SEED + 1) for case in covering.cases(OPTIONS, seed)]
ROUNDOFF = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}  # relative error of one rounding


def assert_close(found, want, what):
    """Compares two arrays. If `want` has the dtype of the result, the row was only copied, and the bits must be
    equal.
    """
    if want.dtype == found.dtype:
        assert np.array_equal(found, want), what
        return
    error = np.abs(found.astype(np.float64) - want)
    size = np.abs(want).max(initial=1.0)  # errors of float32 sums are a few roundings of this size
    share = (error / (1.01 * ROUNDOFF[found.dtype.name] * np.abs(want) + 2.0**-20 * size)).max(initial=0.0)
    assert share <= 1, f"{what}: error {error.max():.3g}, {share:.3g} of its budget"


@pytest.mark.parametrize("index", range(len(CASES)))
def test_covering_array(index):
    p = AppendProblem(CASES[index], np.random.default_rng([SEED, index]))
    given = p.arguments()
    before = given["q"].copy() if p.case["queries"] else None
    q_out = attend.append(**given)
    for cache, rows, norm, is_used in zip(
        p.caches, (p.k, p.v), (p.options.get("k_norm"), None), (True, p.case["values"])
    ):
        written = np.zeros(cache.shape[:3:2], bool)
        for s, places in enumerate(p.places) if is_used else ():
            for i, at in enumerate(places):
                if at is None:
                    continue
                written[at] = True
                is_key = rows is p.k
                is_copied = not (is_key and (norm is not None or p.case["rotary"]))
                want = rows[s][:, i] if is_copied else p.changed(rows[s][:, i], norm, p.positions[s][i])
                want = want.astype(cache.dtype) if is_copied else want
                assert_close(cache[at[0], :, at[1]], want, f"sequence {s}, row {i}")
        untouched = cache.swapaxes(1, 2)[~written]
        assert np.isnan(untouched).all()
    if not p.case["queries"]:
        assert q_out is None
        return
    assert np.array_equal(given["q"], before) and q_out.dtype == before.dtype
    at = 0
    for s, n in enumerate(p.q_counts):
        found = q_out[at : at + n].swapaxes(0, 1) if p.case["packed"] else q_out[s]
        found = found if p.case["packed"] or p.case["layout"] == "bhsd" else found.swapaxes(0, 1)
        at += n
        for i in range(n if p.lengths[s] >= 0 else 0):
            want = p.changed(p.q[s][:, i], p.options.get("q_norm"), p.position_of_query(s, i))
            assert_close(found[:, i], want, f"query row {i} of sequence {s}")


def small(rng, dtype=np.float32):
    """Returns k, v (2, 2, 3, 8), caches (2, 2, 10, 8), q (2, 4, 3, 8), seqlens_k (2)."""
    k, v = (rng.standard_normal((2, 2, 3, 8)).astype(dtype) for _ in range(2))
    k_cache, v_cache = (rng.standard_normal((2, 2, 10, 8)).astype(dtype) for _ in range(2))
    return k, v, k_cache, v_cache, rng.standard_normal((2, 4, 3, 8)).astype(dtype), np.array([4, 7], np.int32)


def rotary_of(rng, positions=10, width=8, **options):
    angles = rng.random((positions, width // 2))
    return attend.Rotary(np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32), **options)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("packed", [True, False])
def test_a_decode_with_new_keys_is_append_and_then_decode(rng, causal, packed):
    k, v, k_cache, v_cache, q, n = small(rng)
    rotary = rotary_of(rng)
    options = {"rotary": rotary, "q_norm": q[0, 0, 0], "k_norm": k[0, 0, 0], "norm_eps": 1e-4}
    rows = {"query_positions": "first"}
    of_q = {}
    if packed:
        k, v, q = (x.swapaxes(1, 2).reshape(6, -1, 8) for x in (k, v, q))
        of_q = {"cu_seqlens_q": np.array([0, 3, 6], np.int32), "max_seqlen_q": 3}
        rows |= {"cu_seqlens_new": of_q["cu_seqlens_q"], "max_seqlen_new": 3}
    caches = [x.copy() for x in (k_cache, v_cache)]
    turned = attend.append(k, v, *caches, q=q, seqlens_k=n, **options, **rows, **of_q)
    want, want_lse = attend.decode(turned, *caches, seqlens_k=n + 3, causal=causal, return_lse=True, **of_q)
    o, lse = attend.decode(
        q, k_cache, v_cache, k=k, v=v, seqlens_k=n, causal=causal, return_lse=True, **options, **rows, **of_q
    )
    assert np.array_equal(o, want) and np.array_equal(lse, want_lse)
    assert np.array_equal(k_cache, caches[0]) and np.array_equal(v_cache, caches[1])


def test_query_rows_may_be_turned_in_place(rng, torch):
    k, v, k_cache, v_cache, q, n = small(rng)
    rotary = rotary_of(rng)
    want = attend.append(k, v, k_cache, v_cache, seqlens_k=n, rotary=rotary, q=q)
    tensors = [torch.from_numpy(x.copy()) for x in (k, v, k_cache, v_cache, q, n)]
    own = tensors[4]
    tables = attend.Rotary(*(torch.from_numpy(x) for x in rotary[:2]))
    found = attend.append(*tensors[:4], seqlens_k=tensors[5], rotary=tables, q=own, q_out=own)
    assert found is own and np.array_equal(own.numpy(), want)
    assert attend.append(k, v, k_cache, v_cache, seqlens_k=n, rotary=rotary, q=q, q_out=q) is q
    assert np.array_equal(q, want)


def test_caches_of_one_buffer(rng):
    k, v, _, _, _, n = small(rng)
    both = np.full((2, 10, 2, 16), np.nan, np.float32)  # in memory, each key is next to its value
    k_cache, v_cache = both[..., :8].swapaxes(1, 2), both[..., 8:].swapaxes(1, 2)
    attend.append(k, v, k_cache, v_cache, seqlens_k=n)
    for s in range(2):
        assert np.array_equal(both[s, n[s] : n[s] + 3], np.concatenate([k[s], v[s]], -1).swapaxes(0, 1))
    assert np.isnan(both).sum() == both.size - 2 * 3 * 2 * 16


REFUSED = {
    "k_none": (lambda x: {"k": None}, "k: None, allowed an array"),
    "cache_none": (lambda x: {"k_cache": None}, "k_cache: None, allowed an array"),
    "k_dtype": (lambda x: {"k": x["k"].astype(np.float64)}, "k: dtype f64, allowed f32, f16, bf16"),
    "v_alone": (lambda x: {"v_cache": None}, "v: given without v_cache, allowed with it only"),
    "v_cache_alone": (lambda x: {"v": None}, "v_cache: given without v, allowed with it only"),
    "k_dims": (lambda x: {"k": x["k"][0]}, "k: 3 dimensions, allowed 4 (batch, heads, seqlen, head_dim)"),
    "heads": (lambda x: {"k": x["k"][:, :1]}, "k_cache: shape (2, 2, 10, 8), allowed"),
    "no_lengths": (lambda x: {"seqlens_k": None}, "seqlens_k: absent without slot_mapping, allowed"),
    "lengths": (lambda x: {"seqlens_k": x["seqlens_k"][:1]}, "seqlens_k: shape (1), allowed (2)"),
    "slots": (lambda x: {"slot_mapping": np.arange(6, dtype=np.int32)}, "slot_mapping: dtype i32, allowed i64"),
    "slots_shape": (lambda x: {"slot_mapping": np.arange(5)}, "slot_mapping: shape (5), allowed (6) or"),
    "positions": (lambda x: {"positions": np.zeros((3, 2), np.int32)}, "positions: shape (3, 2), allowed (6)"),
    "rotary": (lambda x: {"rotary": (1, 2)}, "rotary: tuple, allowed attend.Rotary(cos, sin)"),
    "rotary_dims": (lambda x: {"rotary": attend.Rotary(*[x["seqlens_k"] * 1.0] * 2)}, "rotary.cos: 1 dimensions, "),
    "rotary_sin": (lambda x: {"rotary": x["rotary"]._replace(sin=None)}, "rotary.sin: None, allowed an array"),
    "rotary_cos": (lambda x: {"rotary": x["rotary"]._replace(cos=None)}, "rotary.cos: None, allowed an array"),
    "rotary_kind": (lambda x: {"rotary": x["rotary"]._replace(interleaved="x")}, "rotary.interleaved: 'x', allowed"),
    "rotary_column": (lambda x: {"rotary": x["rotary"]._replace(first_column=1.5)}, "rotary.first_column: 1.5, all"),
    "rotary_width": (lambda x: {"rotary": x["rotary"]._replace(first_column=1)}, "rotary.cos: rotary_dim 8, allow"),
    "rotary_lengths": (
        lambda x: {"rotary": x["rotary"]._replace(seqlens=np.zeros(3, np.int32))}, "rotary.seqlens: shape (3)"
    ),
    "two_positions": (
        lambda x: {"rotary": x["rotary"]._replace(seqlens=x["seqlens_k"]), "positions": np.zeros((2, 3), np.int32)},
        "rotary.seqlens: given with positions, allowed one of them",
    ),
    "norm": (lambda x: {"k_norm": np.ones(7, np.float32)}, "k_norm: shape (1, 1, 1, 7), allowed"),
    "eps": (lambda x: {"norm_eps": -1.0}, "norm_eps: -1, allowed finite numbers >= 0"),
    "rule": (lambda x: {"query_positions": "next"}, "query_positions: 'next', allowed 'last', 'first', 'one'"),
    "q_norm_alone": (lambda x: {"q": None, "q_norm": x["k"][0, 0, 0]}, "q_norm: given without q, allowed with it only"),
    "q_out_alone": (lambda x: {"q": None, "q_out": x["q"]}, "q_out: given without q, allowed with it only"),
    "q_out_shape": (lambda x: {"q_out": x["q"][:1]}, "q_out: shape (1, 4, 3, 8), allowed (2, 4, 3, 8)"),
    "q_sequences": (lambda x: {"q": x["q"][:1]}, "k: 2 sequences, allowed as many as q has, 1"),
    "overlap": (lambda x: {"k": x["k_cache"][:, :, :3]}, "k_cache: shares memory with k"),
    "new_bound": (lambda x: {"max_seqlen_new": 3}, "max_seqlen_new: 3 without cu_seqlens_new, allowed with it only"),
    "dense_offsets": (lambda x: {"cu_seqlens_new": np.array([0, 3, 6], np.int32)}, "k: 4 dimensions, allowed 3 "),
    "gaps": (lambda x: {"k_cache": np.zeros((2, 2, 10, 16), np.float32)[..., ::2]}, "k_cache: strides "),
    "read_only": (lambda x: {"v_cache": np.broadcast_to(x["v_cache"][:1], (2, 2, 10, 8))}, "v_cache: read-only"),
    "layout": (lambda x: {"layout": "sbhd"}, "layout: 'sbhd', allowed 'bhsd', 'bshd'"),
    "packed_layout": (lambda x: {"layout": "thd"}, "layout: 'thd', allowed 'bhsd', 'bshd'"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_wrong_is_named_and_nothing_is_written(rng, name):
    change, start = REFUSED[name]
    k, v, k_cache, v_cache, q, n = small(rng)
    given = {"k": k, "v": v, "k_cache": k_cache, "v_cache": v_cache, "q": q, "seqlens_k": n, "rotary": rotary_of(rng)}
    before = {key: x.copy() for key, x in given.items() if isinstance(x, np.ndarray)}
    with pytest.raises(attend.Error) as caught:
        attend.append(**(given | change(given)))
    assert isinstance(caught.value, ValueError)
    assert str(caught.value).startswith(start) and "\n" not in str(caught.value)
    for key, x in before.items():
        assert np.array_equal(given[key], x)


def test_a_decode_that_is_refused_appends_nothing(rng):
    k, v, k_cache, v_cache, q, n = small(rng)
    before = k_cache.copy()
    for options, start in (
        ({"softcap": -1.0}, "softcap: -1, allowed"),
        ({"k": k[:1], "v": v[:1]}, "k: 1 sequences, allowed as many as q has, 2"),
        ({"seqlens_k": None}, "seqlens_k: absent without slot_mapping"),
        ({"out": np.zeros((2, 4, 2, 8), np.float32)}, "out: shape (2, 4, 2, 8), allowed (2, 4, 3, 8)"),
    ):
        with pytest.raises(ValueError) as caught:
            attend.decode(q, k_cache, v_cache, **({"k": k, "v": v, "seqlens_k": n} | options))
        assert str(caught.value).startswith(start)
        assert np.array_equal(k_cache, before)


CHECKED = """
import numpy as np, attend
k, cache = np.ones((2, 1, 1, 4), np.float32), np.ones((2, 1, 4, 4), np.float32)
for options in (dict(seqlens_k=4), dict(slot_mapping=np.array([5, 5])), dict(slot_mapping=np.array([0, 8]))):
    try:
        attend.append(k, None, cache, **options)
    except attend.ArgumentError as error:
        print(error)
"""


def test_a_checked_run_names_what_would_be_dropped():
    environment = os.environ | {"ATTEND_CHECK": "1"}
    done = subprocess.run(
        [sys.executable, "-c", CHECKED], capture_output=True, text=True, check=True, env=environment, timeout=120
    )
    lines = done.stdout.splitlines()
    assert len(lines) == 3 and lines[0].startswith("seqlens_k: ") and lines[1].startswith("slot_mapping: ")
    assert lines[2].startswith("slot_mapping: entry 1 is 8, allowed")


# torch


def tensors_of(torch, rng):
    return [torch.from_numpy(x) for x in small(rng)]


def test_torch_tensors_give_the_same_bits(rng, torch):
    arrays = small(rng)
    tensors = [torch.from_numpy(x.copy()) for x in arrays]
    rotary = rotary_of(rng)
    of_torch = attend.Rotary(*(torch.from_numpy(x) for x in rotary[:2]))
    q = attend.append(*arrays[:4], q=arrays[4], seqlens_k=arrays[5], rotary=rotary)
    found = attend.append(*tensors[:4], q=tensors[4], seqlens_k=tensors[5], rotary=of_torch)
    assert np.array_equal(found.numpy(), q)
    for a, b in zip(arrays[2:4], tensors[2:4]):
        assert np.array_equal(a, b.numpy())


def test_tensors_that_require_grad_are_refused(rng, torch):
    k, v, k_cache, v_cache, _, n = tensors_of(torch, rng)
    before = k_cache.clone()
    with pytest.raises(
        NotImplementedError, match="^k: requires grad, append gives no gradients: call it under torch.no_"
    ):
        attend.append(k.requires_grad_(), v, k_cache, v_cache, seqlens_k=n)
    assert torch.equal(k_cache, before)
    with torch.no_grad():
        attend.append(k, v, k_cache, v_cache, seqlens_k=n)
    assert not torch.equal(k_cache, before)


def test_autograd_sees_that_a_cache_has_changed(rng, torch):
    k, v, k_cache, v_cache, q, n = tensors_of(torch, rng)
    weight = torch.ones(8, requires_grad=True)
    saved = (k_cache * weight).sum()
    with torch.no_grad():
        attend.decode(q, k_cache, v_cache, k=k, v=v, seqlens_k=n)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        saved.backward()
    with torch.inference_mode():
        caches = [torch.zeros(2, 2, 10, 8) for _ in range(2)]
        attend.append(k, v, *caches, seqlens_k=n)
    assert caches[0].any()


def test_autograd_sees_it_by_the_dispatchers_route_too(rng, torch):
    from torch.utils._python_dispatch import TorchDispatchMode

    class Watched(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, arguments=(), options=None):
            return function(*arguments, **(options or {}))

    class OfAUser(torch.Tensor):
        pass

    k, v, k_cache, v_cache, q, n = tensors_of(torch, rng)
    out = torch.zeros_like(q)
    written = (k_cache, v_cache, out)
    for count, call in enumerate((
        lambda: attend.append(k, v, k_cache, v_cache, seqlens_k=n, q=q, q_out=out),
        lambda: attend.decode(q, k_cache, v_cache, k=k, v=v, seqlens_k=n, out=out),
    ), 1):  # fmt: skip
        with Watched():
            call()
        assert [x._version for x in written] == [count] * 3
    with Watched():
        attend.merge([(q, q[..., 0].contiguous())], out=out)
    attend.append(k, v, k_cache.as_subclass(OfAUser), v_cache, seqlens_k=n)
    assert [x._version for x in written] == [3] * 3


def test_a_negated_view_is_not_written(rng, torch):
    k, v, k_cache, v_cache, q, n = tensors_of(torch, rng)
    before = [x.clone() for x in (k_cache, v_cache)]
    for name, call in (
        ("k_cache", lambda: attend.append(k, v, torch._neg_view(k_cache), v_cache, seqlens_k=n)),
        ("v_cache", lambda: attend.decode(q, k_cache, torch._neg_view(v_cache), seqlens_k=n)),
        ("q_out", lambda: attend.append(k, v, k_cache, v_cache, seqlens_k=n, q=q, q_out=torch._neg_view(q.clone()))),
        ("out", lambda: attend.merge([(q, q[..., 0].contiguous())], out=torch._neg_view(q.clone()))),
    ):
        with pytest.raises(NotImplementedError, match=f"^{name}: a negated view, .* resolve_neg"):
            call()
    assert torch.equal(k_cache, before[0]) and torch.equal(v_cache, before[1])


def test_a_compiled_loop_counts_by_numbers(rng, torch):
    k, v, k_cache, v_cache, q, _ = tensors_of(torch, rng)

    def step(q, k, v, k_cache, v_cache, length):
        q = attend.append(k, v, k_cache, v_cache, seqlens_k=length, q=q)
        return attend.decode(q, k_cache, v_cache, seqlens_k=length + k.shape[2]) + 0

    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    caches = [x.clone() for x in (k_cache, v_cache)]
    for length in range(5):
        found = compiled(q, k, v, *caches, length)
        assert torch.equal(found, step(q, k, v, k_cache, v_cache, length))
    assert torch.equal(caches[0], k_cache)
    # The compiler makes one graph for the first number, and one with a symbolic size for all other numbers.
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 2


def test_the_operators_are_what_torch_expects(rng, torch):
    k, v, k_cache, v_cache, q, n = tensors_of(torch, rng)
    given = Tensors(q, k_cache, v_cache, torch.zeros_like(q), None, n, k=k, v=v)
    torch.library.opcheck(torch.ops.attend.append, (*given, *Numbers()))
    torch.library.opcheck(torch.ops.attend.append_decode, (*given, *Numbers()))


def test_compiled_steps_change_the_callers_cache(rng, torch):
    k, v, k_cache, v_cache, q, n = tensors_of(torch, rng)

    def step(q, k, v, k_cache, v_cache, n):
        attend.append(k * 2, v, k_cache, v_cache, seqlens_k=n - 3)
        return attend.decode(q + 0, k_cache, v_cache, k=k, v=v, seqlens_k=n) * 2

    torch._dynamo.reset()
    caches = [x.clone() for x in (k_cache, v_cache)]
    want = step(q, k, v, k_cache, v_cache, n)
    found = torch.compile(step, fullgraph=True, backend="aot_eager")(q, k, v, *caches, n)
    assert torch.equal(found, want)
    assert torch.equal(caches[0], k_cache) and torch.equal(caches[1], v_cache)
