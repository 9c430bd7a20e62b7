"""Tests of attend.jax on a GPU: XLA's stream, its memory, and CUDA graphs."""

import os
import subprocess
import sys

import pytest
from oracle import Problem, check, solve

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # otherwise JAX allocates most of the GPU's memory
np = pytest.importorskip("numpy")
pytest.importorskip("ml_dtypes")
jax = pytest.importorskip(
    "jax", reason=f"the tests of {__name__} need JAX: `make py-test ATTEND_TEST_JAX=1` installs it"
)
if jax.default_backend() != "gpu":
    pytest.skip("this JAX has no GPU", allow_module_level=True)

import attend
import attend.jax
import jax.numpy as jnp


def problem(rng, dtype):
    q, dout = (rng.standard_normal((2, 4, 300, 128)).astype(dtype) for _ in range(2))
    k, v = (rng.standard_normal((2, 2, 300, 128)).astype(dtype) for _ in range(2))
    return Problem(q, k, v, dout=dout, causal=True)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_forward_and_backward(rng, dtype):
    p = problem(rng, jnp.dtype(dtype))
    truth, short = solve(p), {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}[dtype]
    o, pull = jax.vjp(jax.jit(lambda *x: attend.jax.attention(*x, causal=True)), *map(jnp.asarray, (p.q, p.k, p.v)))
    found = {"o": o} | dict(zip(("dq", "dk", "dv"), pull(jnp.asarray(p.dout))))
    for name, x in found.items():
        check(name, x, truth[name], short, by_tensor_cores=dtype != "float32")


def test_late_inputs(rng):
    """attend's work waits for earlier work on XLA's stream, and later work waits for it."""
    p = problem(rng, np.float32)
    filler = jnp.zeros((4000, 4000), jnp.float32)

    @jax.jit
    def attention(filler, q, k, v):
        late = q + 0 * jnp.linalg.matrix_power(filler, 20)[0, 0]
        return attend.jax.attention(late, k, v, causal=True) * 2

    for _ in range(3):
        o = attention(filler, *map(jnp.asarray, (p.q, p.k, p.v)))
        check("o", np.asarray(o) / 2, solve(p)["o"], "f32")


def test_scratch_memory_is_xlas(rng):
    """A compiled program uses scratch memory of XLA, and allocates none in the library's pool."""
    p = problem(rng, jnp.dtype("bfloat16"))
    tensors = [jnp.asarray(x) for x in (p.q, p.k, p.v)]
    gradients = jax.jit(jax.grad(lambda *x: attend.jax.attention(*x, causal=True).astype(jnp.float32).sum(), (0, 1, 2)))
    jax.block_until_ready(tensors)
    attend.memory(reset_peak=True)
    jax.block_until_ready(gradients(*tensors))
    memory = attend.memory()
    assert memory["peak"] == memory["used"]


PROGRAM = """
import jax, jax.numpy as jnp, numpy as np, attend.jax
q, k, v = (jax.random.normal(jax.random.key(i), (2, 256, 8, 64), jnp.bfloat16) for i in range(3))
def loss(q, k, v):
    for _ in range(4):
        q = q + attend.jax.attention(q, k, v, layout="bshd", causal=True)
    return q.astype(jnp.float32).sum(), q
run = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True))
first = jax.block_until_ready(run(q, k, v))
for _ in range(4):
    again = jax.block_until_ready(run(q, k, v))
(_, o), gradients = again
print(repr([float(np.abs(np.float32(x)).sum()) for x in (o, *gradients)]))
"""


def test_cuda_graphs_give_the_same():
    sums = []
    for kinds in ("", "FUSION,CUBLAS,CUDNN,CUSTOM_CALL"):
        flags = f"--xla_gpu_enable_command_buffer={kinds} --xla_gpu_graph_min_graph_size=1"
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM], env=os.environ | {"XLA_FLAGS": flags}, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-2000:]
        sums.append(eval(done.stdout))
    np.testing.assert_allclose(sums[0], sums[1], rtol=1e-3)
