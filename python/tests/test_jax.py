"""Tests of attend.jax under JAX's transformations: every option is compared with the definition in float64."""

import importlib
import itertools

import covering
import problems
import pytest
from conftest import SEED
from oracle import check, solve

np = pytest.importorskip("numpy")
pytest.importorskip("ml_dtypes")
jax = pytest.importorskip(
    "jax", reason=f"the tests of {__name__} need JAX: `make py-test ATTEND_TEST_JAX=1` installs it"
)

import attend.jax
import jax.numpy as jnp
import jax_problems
from attend.jax import _call

ON_GPU = jax.default_backend() == "gpu"
NUM_CASES = 300  # the cases of several covering arrays; the last array is incomplete


def covering_arrays():
    for seed in itertools.count(SEED):
        yield from covering.cases(jax_problems.OPTIONS, seed)


CASES = list(itertools.islice(covering_arrays(), NUM_CASES))


@pytest.mark.parametrize("index", range(len(CASES)))
def test_covering_array(index):
    case = CASES[index]
    p = problems.make({**case, "strides": "dense", "dropout_p": 0.0}, np.random.default_rng([SEED, index]))
    truth = solve(p)
    if case["dlse"]:  # the loss must not contain the lse of rows that see no key
        p.dlse = np.where(np.isinf(truth["lse"].value), 0, p.dlse)
        truth = solve(p)
    found = jax_problems.run(p, case)
    assert set(found) == set(truth)
    for name, x in found.items():
        assert str(x.dtype) == ("float32" if name == "lse" else str(p.q.dtype)), name
        dtype = "f32" if name == "lse" else case["dtype"]
        check(name, x, truth[name], dtype, by_tensor_cores=ON_GPU and dtype != "f32")


def equal(found, want):
    """Checks that two results are close, and equal bit by bit if both were computed on the CPU."""
    np.testing.assert_allclose(found, want, rtol=0, atol=2e-5 if ON_GPU else 0)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("transform", ["jit", "vmap"])
def test_varlen_is_every_sequence_by_itself(rng, causal, transform):
    lengths = [(3, 5), (0, 4), (17, 17), (6, 0), (40, 9)]
    total_q, total_k = (sum(x) for x in zip(*lengths))
    cu_q, cu_k = (np.cumsum([0, *x], dtype=np.int32) for x in zip(*lengths))
    q, dout = (rng.standard_normal((2, total_q, 4, 16)).astype(np.float32) for _ in range(2))
    k, v = (rng.standard_normal((2, total_k, 2, 16)).astype(np.float32) for _ in range(2))
    sinks = rng.standard_normal(4).astype(np.float32)

    def attention(q, k, v, sinks):
        return attend.jax.attention_varlen(q, k, v, cu_q, cu_k, 40, 17, causal=causal, sinks=sinks, return_lse=True)

    def both(q, k, v, sinks):
        if transform == "vmap":
            return jax.vmap(attention, in_axes=(0, 0, 0, None))(q, k, v, sinks)
        return tuple(jnp.stack(x) for x in zip(*(attention(q[i], k[i], v[i], sinks) for i in range(2))))

    (o, lse), pull = jax.vjp(jax.jit(both), q, k, v, sinks)
    gradients = pull((jnp.asarray(dout), jnp.zeros_like(lse)))
    options = {"cu_seqlens_q": cu_q, "cu_seqlens_k": cu_k, "max_seqlen_q": 40, "max_seqlen_k": 17, "causal": causal}
    dsinks = 0
    for i in range(2):
        want, want_lse = attend.forward(q[i], k[i], v[i], sinks=sinks, **options)
        equal(o[i], want)
        equal(lse[i], want_lse)
        *others, own = attend.backward(dout[i], q[i], k[i], v[i], want, want_lse, sinks=sinks, **options)
        dsinks = dsinks + own
        for found, x in zip(gradients, others):
            np.testing.assert_allclose(found[i], x, atol=1e-4)
    np.testing.assert_allclose(gradients[3], dsinks, atol=1e-4)


@pytest.mark.parametrize("seed", [7, 2**64 - 3, "array", "key", "old key"])
def test_dropout_is_a_function_of_its_seed(rng, seed):
    q, k, v = (jnp.asarray(rng.standard_normal((2, 3, 17, 16)).astype(np.float32)) for _ in range(3))
    found = {"array": jnp.uint32(9), "key": jax.random.key(3), "old key": jax.random.PRNGKey(3)}.get(seed, seed)

    def attention(q, seed):
        return attend.jax.attention(q, k, v, dropout_p=0.4, seed=seed)

    if isinstance(found, int):
        o = jax.jit(lambda q: attention(q, found))(q)
        equal(o, attend.attention(*map(np.asarray, (q, k, v)), dropout_p=0.4, seed=found))
    else:
        o = jax.jit(attention)(q, found)  # here the seed is traced
        if seed == "array":
            equal(o, attend.attention(*map(np.asarray, (q, k, v)), dropout_p=0.4, seed=9))
    equal(o, attention(q, found))
    # o is linear in v, so this equality holds only if backward drops the same entries.
    dv = jax.grad(lambda v: attend.jax.attention(q, k, v, dropout_p=0.4, seed=found).sum())(v)
    np.testing.assert_allclose(jnp.sum(dv * v), o.sum(), rtol=1e-4)


@pytest.mark.skipif(ON_GPU, reason="float64 runs on CPUs")
def test_float64(rng):
    enable_x64 = (
        jax.enable_x64 if hasattr(jax, "enable_x64") else importlib.import_module("jax.experimental").enable_x64
    )
    with enable_x64(True):
        q, k, v = (jnp.asarray(rng.standard_normal((1, 2, 9, 8))) for _ in range(3))
        o, lse = attend.jax.attention(q, k, v, causal=True, return_lse=True)
        want, want_lse = attend.forward(*map(np.asarray, (q, k, v)), causal=True)
        assert o.dtype == lse.dtype == np.float64
        equal(o, want)
        equal(lse, want_lse)


@pytest.mark.parametrize("return_lse", [False, True])
def test_scratch_memory_is_asked_for_where_there_is_a_gpu(monkeypatch, rng, return_lse):
    """The query of the scratch size fails because there is no GPU, and the CPU computes the call, with and without an
    lse output.
    """
    monkeypatch.setattr(_call.jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(_call._core, "gpus", lambda: ["a GPU"])
    asked = []
    plain = _call._core.workspace_bytes

    def workspace_bytes(*arguments):
        asked.append(arguments)
        return plain(*arguments)

    monkeypatch.setattr(_call._core, "workspace_bytes", workspace_bytes)
    q, k, v = (jnp.asarray(rng.standard_normal((1, 2, 9, 8)), jnp.float32) for _ in range(3))
    found = attend.jax.attention(q, k, v, return_lse=return_lse)
    assert len(asked) >= 1 and (asked[0][4] is None) == (not return_lse)
    o = found[0] if return_lse else found
    p = jax.nn.softmax(jnp.einsum("bhqd,bhkd->bhqk", q, k) / 8**0.5)
    np.testing.assert_allclose(o, jnp.einsum("bhqk,bhkd->bhqd", p, v), atol=1e-5)
