"""Tests of attend.jax.dot_product_attention and activate(). The results are compared with those of jax.nn's
function.
"""

import importlib
import inspect
import itertools
import json
import pathlib
import warnings

import pytest
from conftest import SEED

np = pytest.importorskip("numpy")
jax = pytest.importorskip(
    "jax", reason=f"the tests of {__name__} need JAX: `make py-test ATTEND_TEST_JAX=1` installs it"
)

import attend
import attend.jax
import jax.numpy as jnp

# In versions of JAX without return_residual, windows with two different lengths had another meaning, and rows beyond
# query_seq_lengths were not zero.
IS_COMPARABLE = "return_residual" in inspect.signature(jax.nn.dot_product_attention).parameters
OF_JAX = jax.nn.dot_product_attention
WINDOWS = [None, 3, (2, 1), (0, 0), (4, 0), (0, 4)]
LENGTHS = [(9, 9), (5, 12), (12, 5), (1, 7), (7, 1)]


@pytest.fixture(autouse=True)
def exact_products():
    """Makes XLA multiply float32 exactly. On a GPU its default uses only 10 bits of the mantissa."""
    with jax.default_matmul_precision("highest"):
        yield


def arrays(batch, seqlen_q, seqlen_k, heads=(4, 2), head_dim=16, dtype=jnp.float32):
    rng = np.random.default_rng(SEED)
    shapes = [(batch, seqlen_q, heads[0], head_dim), (batch, seqlen_k, heads[1], head_dim)]
    return [jnp.asarray(rng.standard_normal(shape), dtype) for shape in (shapes[0], shapes[1], shapes[1])]


def kept(seqlen_q, seqlen_k, is_causal, window):
    i, j = np.arange(seqlen_q)[:, None], np.arange(seqlen_k)[None, :]
    seen = np.ones((seqlen_q, seqlen_k), bool)
    left, right = (window, window) if isinstance(window, int) else window or (99, 99)
    seen &= (j >= i - left) & (j <= i + right)
    return seen & (j <= i) if is_causal else seen


@pytest.mark.skipif(not IS_COMPARABLE, reason="this JAX's own masks are others")
@pytest.mark.parametrize("lengths, window, is_causal", list(itertools.product(LENGTHS, WINDOWS, [False, True])))
def test_masks_align_as_jaxs(lengths, window, is_causal):
    q, k, v = arrays(2, *lengths)
    seen = kept(*lengths, is_causal, window).any(axis=1)
    given = dict(is_causal=is_causal, local_window_size=window)

    def loss(function, *x):
        o = function(*x, **given)
        return jnp.sum(jnp.where(seen[None, :, None, None], o, 0) ** 2), o

    one, two = (jax.grad(lambda *x, f=f: loss(f, *x), (0, 1, 2), has_aux=True)(q, k, v)
                for f in (attend.jax.dot_product_attention, OF_JAX))  # fmt: skip
    np.testing.assert_allclose(one[1][:, seen], two[1][:, seen], atol=2e-5)
    assert not one[1][:, ~seen].any()
    for x, y in zip(one[0], two[0]):
        np.testing.assert_allclose(x, y, atol=1e-4)


OPTIONS = [
    {},
    {"bias": (2, 4, 9, 7)},
    {"bias": (1, 1, 9, 7)},
    {"bias": (9, 7), "scale": 0.4},
    {"mask": (2, 4, 9, 7)},
    {"mask": (2, 1, 1, 7), "bias": (4, 9, 7)},
    {"query_seq_lengths": [3, 9]},
    {"key_value_seq_lengths": [4, 7]},
    {"query_seq_lengths": [9, 2], "key_value_seq_lengths": [7, 3], "is_causal": True},
    {"key_value_seq_lengths": [4, 7], "mask": (1, 4, 9, 7), "local_window_size": (8, 3)},
]


@pytest.mark.skipif(not IS_COMPARABLE, reason="this JAX's own masks are others")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("options", OPTIONS)
def test_options_as_jaxs(options, dtype):
    rng = np.random.default_rng(SEED)
    q, k, v = arrays(2, 9, 7, dtype=dtype)
    given = dict(options)
    for name, x in options.items():
        if name == "mask":
            given[name] = jnp.asarray(rng.random(x) < 0.8).at[..., 0].set(True)
        elif name == "bias":
            given[name] = jnp.asarray(rng.standard_normal(x), jnp.float32)
        elif name.endswith("lengths"):
            given[name] = jnp.int32(x)
    found, want = (jax.jit(lambda *x, f=f: f(*x, **given))(q, k, v) for f in (attend.jax.dot_product_attention, OF_JAX))
    assert found.dtype == want.dtype
    budget = 2e-5 if dtype == "float32" else 0.03
    np.testing.assert_allclose(np.float32(found), np.float32(want), atol=budget)


def test_without_a_batch_and_with_the_residual():
    q, k, v = arrays(1, 9, 7)
    found = attend.jax.dot_product_attention(q[0], k[0], v[0], return_residual=True)
    whole = attend.jax.dot_product_attention(q, k, v, return_residual=True)
    assert found[0].shape == (9, 4, 16) and found[1].shape == (9, 4)
    for x, y in zip(found, whole):
        np.testing.assert_array_equal(x, y[0])
    if IS_COMPARABLE:
        for x, y in zip(found, OF_JAX(q[0], k[0], v[0], return_residual=True)):
            np.testing.assert_allclose(x, y, atol=2e-5)


def test_refusals_have_jaxs_names():
    q, k, v = arrays(2, 9, 7)
    for options, line in [
        ({"implementation": "cudnn"}, "implementation: 'cudnn'"),
        ({"query_seq_lengths": jnp.ones(2)}, "query_seq_lengths: float32 .* allowed i32"),
        ({"key_value_seq_lengths": jnp.int32([1])}, "key_value_seq_lengths: .* allowed i32"),
        ({"local_window_size": (1, 2, 3)}, "local_window_size: "),
        ({"local_window_size": "ab"}, "local_window_size: "),
        ({"local_window_size": (None, 3)}, "local_window_size: "),
        ({"mask": jnp.ones((9, 7))}, "mask: dtype f"),
    ]:
        with pytest.raises(attend.Error, match=line):
            attend.jax.dot_product_attention(q, k, v, **options)
    with pytest.raises(attend.Error, match="^query, key, value: 4, 3 and 4 dimensions"):
        attend.jax.dot_product_attention(q, k[0], v)
    with pytest.raises(attend.Error, match="^key: "):
        attend.jax.dot_product_attention(q, k[:, :, :, :8], v)


@pytest.fixture
def active():
    attend.jax.activate()
    yield
    attend.jax.restore()
    assert jax.nn.dot_product_attention is OF_JAX


@pytest.mark.usefixtures("active")
def test_activate_puts_attend_behind_jax():
    q, k, v = arrays(2, 9, 9)
    attend.jax.activate()  # a second call has no effect
    program = jax.jit(lambda *x: jax.nn.dot_product_attention(*x, is_causal=True)).lower(q, k, v).as_text()
    assert "attend_forward_1" in program
    explicit = jax.jit(lambda *x: jax.nn.dot_product_attention(*x, implementation="xla")).lower(q, k, v).as_text()
    assert "attend" not in explicit


@pytest.mark.usefixtures("active")
def test_what_attend_refuses_runs_as_jaxs_and_is_said_once():
    q, k, v = arrays(1, 5, 5, head_dim=520)
    with pytest.warns(UserWarning, match="JAX's own attention runs: query: head_dim 520"):
        o = jax.nn.dot_product_attention(q, k, v)
    np.testing.assert_array_equal(o, OF_JAX(q, k, v))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        jax.nn.dot_product_attention(q, k, v)


@pytest.mark.usefixtures("active")
def test_derivatives_that_attend_lacks_are_jaxs():
    q, k, v = arrays(1, 5, 5, heads=(2, 2), head_dim=4)
    loss = lambda function, q: jnp.sin(function(q, k, v, is_causal=True)).sum()
    ours, theirs = lambda q: loss(jax.nn.dot_product_attention, q), lambda q: loss(OF_JAX, q)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # attend warns only once in a process
        for transform in (jax.hessian, lambda f: jax.jacrev(jax.grad(f)), jax.jacfwd):
            np.testing.assert_allclose(transform(ours)(q), transform(theirs)(q), atol=1e-5)
            np.testing.assert_allclose(jax.jit(transform(ours))(q), transform(theirs)(q), atol=1e-5)
    with pytest.raises(attend.UnsupportedError, match="first derivatives only"):
        jax.hessian(jax.jit(ours))(q)  # the function is traced before it is differentiated


@pytest.fixture
def benchmark(monkeypatch):
    monkeypatch.syspath_prepend(str(pathlib.Path(__file__).resolve().parents[2] / "bench"))
    return importlib.import_module("jax_vs_xla")


def test_the_benchmark_measures_every_case(benchmark, tmp_path):
    output = tmp_path / "jax.json"
    words = ["--seconds", "0", "--shape", "1,16,2,8", "--dtype", "f32,bf16", "--output", str(output)]
    assert benchmark.main(words) == 0
    rows = json.loads(output.read_text())["rows"]
    assert len(rows) == 8 and all(set(row["ratio"]) >= {"attend", "xla"} for row in rows)
    assert all(row["ms"][name]["median"] > 0 for row in rows for name in row["ms"])


@pytest.mark.parametrize("wrong", [1.01, float("nan")])
def test_the_benchmark_notices_wrong_attention(benchmark, monkeypatch, wrong):
    monkeypatch.setattr(
        benchmark.attend.jax, "dot_product_attention", lambda *x, **options: OF_JAX(*x, **options) * wrong
    )
    with pytest.raises(SystemExit, match="attend differs from xla by"):
        benchmark.main(["--seconds", "0", "--shape", "1,16,2,8", "--dtype", "f32"])
