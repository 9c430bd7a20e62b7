"""Tests with GPU arrays of frameworks other than torch: CuPy in its current stream, and JAX through DLPack only."""

import os

import pytest
from oracle import Problem, check, solve

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # otherwise JAX allocates most of the GPU's memory
np = pytest.importorskip("numpy")

import attend

if not attend.gpus():
    pytest.skip("no GPU here", allow_module_level=True)


def cupy_arrays():
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    return cupy.asarray, cupy.asnumpy, "cupy"


def jax_arrays():
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    if jax.default_backend() != "gpu":
        pytest.skip("this JAX has no GPU")
    return jax.numpy.asarray, np.asarray, "jax"


FRAMEWORKS = {"cupy": cupy_arrays, "jax": jax_arrays}


def problem(rng, dtype, **options):
    def normal(*shape):
        return rng.standard_normal(shape).astype(dtype)

    q, k, v, dout = normal(2, 4, 33, 64), normal(2, 2, 50, 64), normal(2, 2, 50, 64), normal(2, 4, 33, 64)
    return Problem(q, k, v, dout, np.zeros((2, 4, 33), np.float32), **options)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_forward_and_backward(rng, framework, dtype):
    put, get, module = FRAMEWORKS[framework]()
    p = problem(rng, dtype, causal=True)
    q, k, v, dout = (put(x) for x in (p.q, p.k, p.v, p.dout))
    o, lse = attend.forward(q, k, v, causal=True)
    dq, dk, dv = attend.backward(dout, q, k, v, o, lse, causal=True)
    assert type(o).__module__.partition(".")[0] in (module, "jaxlib") and type(o) is type(q) and o.dtype == q.dtype
    truth = solve(p)
    for name, x in {"o": o, "dq": dq, "dk": dk, "dv": dv}.items():
        check(name, get(x), truth[name], {"float32": "f32", "float16": "f16"}[dtype], by_tensor_cores=True)
    check("lse", get(lse), truth["lse"], "f32")
    assert np.array_equal(get(attend.attention(q, k, v, causal=True)), get(o))


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_options(rng, framework):
    put, get, _ = FRAMEWORKS[framework]()
    bias = rng.standard_normal((4, 33, 1)).astype(np.float32)
    mask = rng.random((2, 1, 33, 50)) < 0.7
    p = problem(rng, "float32", bias=bias, mask=mask)
    q, k, v, dout = (put(x) for x in (p.q, p.k, p.v, p.dout))
    options = {"bias": put(bias), "mask": put(mask)}
    o, lse = attend.forward(q, k, v, **options)
    found = attend.backward(dout, q, k, v, o, lse, **options)
    truth = solve(p)
    for name, x in zip(("o", "dq", "dk", "dv", "dbias"), (o, *found)):
        check(name, get(x), truth[name], "f32")


def test_cupys_current_stream(rng):
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    p = problem(rng, "float32")
    stream = cupy.cuda.Stream(non_blocking=True)
    filler = cupy.zeros((6000, 6000), cupy.float32)
    with stream:
        filler = filler @ filler @ filler @ filler  # long work that delays the inputs
        q, k, v = (cupy.asarray(x) for x in (p.q, p.k, p.v))
        o = attend.attention(q, k, v)
        twice = o * 2
    stream.synchronize()
    check("o", cupy.asnumpy(twice) / 2, solve(p)["o"], "f32")


def test_jaxs_late_inputs(rng):
    """JAX returns arrays before they are computed. attend must read the final values."""
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    if jax.default_backend() != "gpu":
        pytest.skip("this JAX has no GPU")
    p = problem(rng, "float32")
    q, k, v = (jax.numpy.asarray(x) for x in (p.q, p.k, p.v))
    late = jax.jit(lambda filler, x: x + 0 * jax.numpy.linalg.matrix_power(filler, 20)[0, 0])
    filler = jax.numpy.zeros((4000, 4000), jax.numpy.float32)
    jax.block_until_ready([late(filler, x) for x in (q, k, v)])  # compiles the functions
    for _ in range(5):
        o = attend.attention(*(late(filler, x) for x in (q, k, v)))
        check("o", np.asarray(o * 2) / 2, solve(p)["o"], "f32")  # JAX computes with the result


def test_what_is_not_contiguous_is_copied(rng):
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    p = problem(rng, "float32")
    q, k, v = (cupy.asarray(np.repeat(x, 2, axis=-1))[..., ::2] for x in (p.q, p.k, p.v))
    check("o", cupy.asnumpy(attend.attention(q, k, v)), solve(p)["o"], "f32")


def test_the_memory_comes_back(rng):
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    q = cupy.zeros((1, 16, 4096, 64), cupy.float32)  # q has 16 MiB
    for _ in range(5):
        attend.attention(q, q, q)
    cupy.cuda.Device().synchronize()
    free, _ = cupy.cuda.runtime.memGetInfo()
    for _ in range(200):  # without reuse, 200 results would need 3 GiB
        attend.attention(q, q, q)
    cupy.cuda.Device().synchronize()
    assert cupy.cuda.runtime.memGetInfo()[0] >= free - 2**28


def test_refusals(rng):
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    q = cupy.zeros((1, 2, 9, 64), cupy.float32)
    with pytest.raises(ValueError, match=r"^k: numpy\.ndarray, allowed an array of the kind of q, cupy\."):
        attend.attention(q, cupy.asnumpy(q), q)
    with pytest.raises(NotImplementedError, match="^q: dtype f64"):
        attend.attention(q.astype(cupy.float64), q, q)
