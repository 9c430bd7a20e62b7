"""Tests of attend.jax with transformations that are not in the covering array: shared operands, other axes, Jacobians,
and threads.
"""

import itertools
import pathlib
import subprocess
import sys
import threading

import pytest
from conftest import SEED

np = pytest.importorskip("numpy")
jax = pytest.importorskip(
    "jax", reason=f"the tests of {__name__} need JAX: `make py-test ATTEND_TEST_JAX=1` installs it"
)

import attend.jax
import jax.numpy as jnp

NAMES = ("q", "k", "v", "bias", "sinks", "alibi_slopes")
SHAPES = ((2, 4, 7, 16), (2, 2, 9, 16), (2, 2, 9, 8), (1, 4, 7, 9), (4,), (4,))


def arrays(*shapes):
    rng = np.random.default_rng(SEED)
    return [jnp.asarray(rng.standard_normal(shape).astype(np.float32)) for shape in shapes]


def attention(q, k, v, bias, sinks, alibi_slopes):
    return attend.jax.attention(q, k, v, bias=bias, sinks=sinks, alibi_slopes=alibi_slopes, causal=True)


def loss(*x):
    return jnp.sin(attention(*x)).sum()


@pytest.mark.parametrize("mapped", [x for n in (1, 2) for x in itertools.combinations(NAMES, n)] + [NAMES])
def test_each_operand_may_be_mapped_or_shared(mapped):
    axes = tuple(0 if name in mapped else None for name in NAMES)
    tensors = arrays(*((3, *shape) if axis == 0 else shape for shape, axis in zip(SHAPES, axes)))
    alone = [tuple(x if axis is None else x[i] for x, axis in zip(tensors, axes)) for i in range(3)]
    found = jax.jit(jax.vmap(attention, in_axes=axes))(*tensors)
    np.testing.assert_allclose(found, jnp.stack([attention(*x) for x in alone]), atol=1e-5)
    gradient = jax.grad(loss, argnums=range(5))
    found = jax.jit(jax.vmap(gradient, in_axes=axes))(*tensors)
    for x, y in zip(found, zip(*(gradient(*x) for x in alone))):
        np.testing.assert_allclose(x, jnp.stack(y), atol=1e-4)
    found = jax.jit(jax.grad(lambda *x: jax.vmap(loss, in_axes=axes)(*x).sum(), argnums=range(5)))(*tensors)
    want = jax.grad(
        lambda *x: sum(loss(*(y if a is None else y[i] for y, a in zip(x, axes))) for i in range(3)), range(5)
    )
    for x, y in zip(found, want(*tensors)):
        np.testing.assert_allclose(x, y, atol=1e-4)


def test_other_axes():
    q, k, v = arrays((2, 4, 3, 7, 16), (3, 2, 4, 9, 16), (2, 4, 9, 16, 3))
    mapped = jax.vmap(attend.jax.attention, in_axes=(2, 0, 4), out_axes=3)
    want = [attend.jax.attention(q[:, :, i], k[i], v[..., i]) for i in range(3)]
    np.testing.assert_allclose(mapped(q, k, v), jnp.stack(want, axis=3), atol=1e-5)


def test_jacobian():
    q, k, v = arrays((1, 1, 3, 4), (1, 1, 5, 4), (1, 1, 5, 4))
    ours = jax.jacrev(attend.jax.attention, argnums=(0, 1, 2))(q, k, v)
    formula = lambda q, k, v: jax.nn.softmax(q @ k.swapaxes(2, 3) / 2) @ v
    with jax.default_matmul_precision("highest"):
        truth = jax.jacrev(formula, argnums=(0, 1, 2))(q, k, v)
    for x, y in zip(ours, truth):
        np.testing.assert_allclose(x, y, atol=1e-5)


def test_forward_mode_is_refused_by_jax():
    q, k, v = arrays((1, 1, 3, 4), (1, 1, 5, 4), (1, 1, 5, 4))
    with pytest.raises(TypeError, match="forward-mode"):
        jax.jvp(lambda q: attend.jax.attention(q, k, v), (q,), (q,))


def test_without_jit():
    tensors = arrays(*SHAPES)
    want = jax.grad(loss, argnums=range(5))(*tensors)
    with jax.disable_jit():
        found = jax.grad(loss, argnums=range(5))(*tensors)
        mapped = jax.vmap(attention, in_axes=(0, *(None,) * 5))(tensors[0][None], *tensors[1:])
    for x, y in zip(found, want):
        np.testing.assert_allclose(x, y, atol=1e-5)
    np.testing.assert_allclose(mapped[0], attention(*tensors), atol=1e-5)


class Parameter:
    def __init__(self, x):
        self.x = x

    def __jax_array__(self):
        return self.x


def test_arrays_of_numpy_parameters_and_none():
    tensors = arrays(*SHAPES)
    np.testing.assert_allclose(attention(*map(np.asarray, tensors)), attention(*tensors), atol=1e-6)
    q, k, v = tensors[:3]
    assert (attend.jax.attention(Parameter(q), k, v) == attend.jax.attention(q, k, v)).all()
    assert (attend.jax.attention(q, k, v, bias=None, window=(None, None)) == attend.jax.attention(q, k, v)).all()


@pytest.mark.skipif(jax.default_backend() == "gpu", reason="of the CPU's threads")
@pytest.mark.skipif(not pathlib.Path("/proc/self/task").exists(), reason="no list of threads here")
def test_threads_do_not_multiply():
    """Any number of calling threads share one thread team."""
    q, k, v = arrays((4, 8, 128, 32), (4, 8, 128, 32), (4, 8, 128, 32))
    run = jax.jit(attend.jax.attention)
    jax.block_until_ready(run(q, k, v))
    count = lambda: len(list(pathlib.Path("/proc/self/task").iterdir()))
    before, peaks, barrier = count(), [], threading.Barrier(6)

    def work():
        barrier.wait()
        for _ in range(20):
            jax.block_until_ready(run(q, k, v))
        peaks.append(count())

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(peaks) == 6 and max(peaks) <= before + 6


def test_a_process_may_end_while_a_call_runs():
    code = """
import jax, attend.jax
q = jax.random.normal(jax.random.PRNGKey(0), (1, 8, 2048, 64))
run = jax.jit(lambda q: attend.jax.attention(q, q, q))
run(q)
jax.block_until_ready(run(q))
run(q)
"""
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=300)
        assert done.returncode == 0, done.stderr
