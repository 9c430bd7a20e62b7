"""Tests of NumPy arrays as inputs and outputs: every option is compared with the definition in float64."""

import sys
import types

import covering
import problems
import pytest
from conftest import SEED
from oracle import Problem, check, solve

np = pytest.importorskip("numpy")
pytest.importorskip("ml_dtypes")

import attend

pytestmark = pytest.mark.usefixtures("poisoned_numpy")

CASES = covering.cases(problems.OPTIONS, SEED)


@pytest.mark.parametrize("index", range(len(CASES)))
def test_covering_array(index):
    case = CASES[index]
    rng = np.random.default_rng([SEED, index])
    p = problems.make(case, rng)
    seed = int(rng.integers(2**63)) * 2 + 1  # half of these seeds are 2^63 or more
    if p.dropout_p:
        p.keep = problems.dropout_pattern(p, seed)
    truth = solve(p)
    layout, dtype = case["layout"], case["dtype"]
    q, k, v, dout = (problems.laid_out(x, layout, case["strides"]) for x in (p.q, p.k, p.v, p.dout))
    options = problems.options_of(p, seed) | {"layout": layout}
    o, lse = attend.forward(q, k, v, **options)
    results = attend.backward(dout, q, k, v, o, lse, dlse=p.dlse if case["dlse"] else None, **options)

    more = [name for name, x in (("dbias", p.bias), ("dsinks", p.sinks)) if x is not None]
    names = ["dq", "dk", "dv", *more]
    assert len(results) == len(names)
    found = dict(zip(names, results)) | {"o": o}
    for name in ("o", "dq", "dk", "dv"):
        assert found[name].dtype == p.q.dtype
        check(name, problems.from_layout(found[name], layout), truth[name], dtype)
    check("lse", lse, truth["lse"], "f32" if dtype in ("f16", "bf16") else dtype)
    for name in more:
        check(name, found[name], truth[name], dtype)


@pytest.mark.parametrize("causal", [False, True])
def test_varlen_is_every_sequence_by_itself(rng, causal):
    lengths = [(3, 5), (0, 4), (17, 17), (6, 0), (40, 9)]
    total_q, total_k = (sum(x) for x in zip(*lengths))
    q, dout = (rng.standard_normal((total_q, 4, 16)).astype(np.float32) for _ in range(2))
    k, v = (rng.standard_normal((total_k, 2, 16)).astype(np.float32) for _ in range(2))
    cu_q, cu_k = (np.cumsum([0, *x], dtype=np.int32) for x in zip(*lengths))
    packed = {"cu_seqlens_q": cu_q, "cu_seqlens_k": cu_k, "max_seqlen_q": 40, "max_seqlen_k": 17, "causal": causal}
    o, lse = attend.attention_varlen(q, k, v, cu_q, cu_k, 40, 17, causal=causal, return_lse=True)
    dq, dk, dv = attend.backward(dout, q, k, v, o, lse, **packed)
    for s in range(len(lengths)):
        rows, keys = slice(cu_q[s], cu_q[s + 1]), slice(cu_k[s], cu_k[s + 1])
        one = {"layout": "bshd", "causal": causal}
        alone, alone_lse = attend.forward(q[None, rows], k[None, keys], v[None, keys], **one)
        np.testing.assert_allclose(o[rows], alone[0], atol=1e-5)
        np.testing.assert_allclose(lse[:, rows], alone_lse[0], atol=1e-5)
        gradients = attend.backward(
            dout[None, rows], q[None, rows], k[None, keys], v[None, keys], alone, alone_lse, **one
        )
        for packed_gradient, part, gradient in zip((dq, dk, dv), (rows, keys, keys), gradients):
            np.testing.assert_allclose(packed_gradient[part], gradient[0], atol=1e-4)


@pytest.mark.parametrize("compute", ["cpu", "reference", "cpu_naive"])
def test_compute_names_a_backend(rng, compute):
    q, k, v = (rng.standard_normal((1, 2, 9, 8)).astype(np.float32) for _ in range(3))
    truth = solve(Problem(q, k, v))["o"].value
    np.testing.assert_allclose(attend.attention(q, k, v, compute=compute), truth, atol=1e-5)


def test_the_same_bits_from_run_to_run(rng):
    q, k, v = (rng.standard_normal((2, 3, 130, 32)).astype(np.float32) for _ in range(3))
    options = {"causal": True, "dropout_p": 0.2, "seed": 5}
    first, again = (attend.attention(q, k, v, **options) for _ in range(2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, attend.attention(q, k, v, **options | {"seed": 6}))
    assert not np.array_equal(first, attend.attention(q, k, v, **options | {"offset": 1}))


def test_dropout_drops_its_share(rng):
    shape = (2, 4, 96, 96)
    p = Problem(np.zeros(shape), np.zeros(shape), np.zeros(shape), dropout_p=0.25)
    share = 1 - problems.dropout_pattern(p, seed=int(rng.integers(2**62))).mean()
    # The limit is six standard deviations of a binomial share, so a correct result fails once in 10^9 runs.
    assert abs(share - 0.25) < 6 * np.sqrt(0.25 * 0.75 / np.prod(shape))


def test_a_row_without_keys_is_zero(rng):
    q, k, v = (rng.standard_normal((1, 1, n, 8)).astype(np.float32) for n in (5, 3, 3))
    o, lse = attend.attention(q, k, v, causal=True, return_lse=True)
    assert np.all(o[0, 0, :2] == 0) and np.all(np.isneginf(lse[0, 0, :2])) and np.all(np.isfinite(lse[0, 0, 2:]))


def test_a_torch_that_is_not_whole_yet_is_in_nobodys_way(monkeypatch):
    """While one thread imports torch, other threads find an incomplete module torch. The other threads must be able to
    call attend.
    """
    q = np.random.default_rng(SEED).standard_normal((1, 2, 8, 16)).astype(np.float32)
    want = attend.attention(q, q, q)
    monkeypatch.setitem(sys.modules, "torch", types.ModuleType("torch"))
    assert np.array_equal(attend.attention(q, q, q), want)
