"""Tests of the package's guarantees that are not about numbers: errors, ownership, threads, and frameworks."""

import gc
import importlib
import re
import threading
import time

import pytest

np = pytest.importorskip("numpy")

import attend


def arrays(rng, *shape, count=3):
    return [rng.standard_normal(shape).astype(np.float32) for _ in range(count)]


BAD = {
    "layout": (dict(layout="sbhd"), ValueError, "layout: 'sbhd', allowed 'bhsd', 'bshd'"),
    "packed_layout": (dict(layout="thd"), ValueError, "layout: 'thd', allowed"),
    "compute": (dict(compute="nobody"), ValueError, "compute: 'nobody', allowed auto, cpu"),
    "softcap": (dict(softcap=-1.0), ValueError, "softcap: -1, allowed"),
    "dropout": (dict(dropout_p=1.0), ValueError, "dropout_p: 1, allowed 0 <= dropout_p < 1"),
    "window": (dict(window=(-2, 0)), ValueError, "window: left -2, allowed"),
    "window_length": (dict(window=(1,)), ValueError, "window: 1 values, allowed"),
    "scale": (dict(scale=float("nan")), ValueError, "scale: nan, allowed"),
    "seed": (dict(seed=2**64), ValueError, "seed: 18446744073709551616, allowed"),
    "bias_shape": (dict(bias=np.zeros((3, 9), np.float32)), ValueError, "bias: shape (1, 1, 3, 9)"),
    "bias_dims": (dict(bias=np.zeros((1, 1, 1, 1, 9), np.float32)), ValueError, "bias: 5 dimensions, allowed"),
    "mask_dtype": (dict(mask=np.ones((7, 9), np.float32)), ValueError, "mask: dtype f32, allowed bool"),
    "slopes_dtype": (dict(alibi_slopes=np.ones(2)), ValueError, "alibi_slopes: dtype f64, allowed f32"),
    "slopes_shape": (dict(alibi_slopes=np.ones(3, np.float32)), ValueError, "alibi_slopes: shape (1, 3, 1, 1)"),
    "sinks_dtype": (dict(sinks=np.ones(2, np.int32)), ValueError, "sinks: dtype i32, allowed"),
    "sinks_shape": (dict(sinks=np.ones(3, np.float32)), ValueError, "sinks: shape (1, 3, 1, 1)"),
    "list": (dict(bias=[0.0] * 9), ValueError, "bias: list, allowed an array"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_wrong_option_is_named(rng, name):
    options, kind, start = BAD[name]
    (q,), (k, v) = arrays(rng, 1, 2, 7, 8, count=1), arrays(rng, 1, 2, 9, 8, count=2)
    with pytest.raises(attend.Error) as caught:
        attend.attention(q, k, v, **options)
    assert isinstance(caught.value, kind)
    assert str(caught.value).startswith(start) and "\n" not in str(caught.value)


WRONG_TENSORS = {
    "q_dims": (lambda q, k, v: (q[0], k, v), "q: 3 dimensions, allowed 4 (batch, heads, seqlen, head_dim)"),
    "v_dims": (lambda q, k, v: (q, k, v[0]), "v: 3 dimensions, allowed 4"),
    "k_dims": (lambda q, k, v: (q, k[0], v), "k: 3 dimensions, allowed 4"),
    "five_dims": (lambda q, k, v: (q[None], k, v), "q: 5 dimensions, allowed"),
    "heads": (lambda q, k, v: (q, k[:, [0, 1, 1]], v), "k: num_heads_k 3, allowed a divisor of num_heads_q 2"),
    "head_dim": (lambda q, k, v: (q, k[..., :4], v), "k: shape"),
    "q_dtype": (lambda q, k, v: (q.astype(np.int32), k, v), "q: dtype i32, allowed f32"),
    "k_dtype": (lambda q, k, v: (q, k.astype(np.float16), v), "k: dtype f16"),
    "complex": (lambda q, k, v: (q.astype(np.complex64), k, v), "q: "),
    "byte_order": (lambda q, k, v: (q.astype(">f4"), k, v), "q: dtype >f4 of foreign byte order"),
    "object": (lambda q, k, v: (q, None, v), "k: NoneType, allowed an array"),
}


@pytest.mark.parametrize("name", WRONG_TENSORS)
def test_a_wrong_tensor_is_named(rng, name):
    change, start = WRONG_TENSORS[name]
    with pytest.raises(attend.Error) as caught:
        attend.attention(*change(*arrays(rng, 1, 2, 7, 8)))
    assert str(caught.value).startswith(start) and "\n" not in str(caught.value)


def test_wrong_offsets_are_named(rng):
    q, k, v = arrays(rng, 7, 2, 8)
    good = np.array([0, 3, 7], np.int32)
    for cu_q, cu_k, start in (
        (good.astype(np.int64), good, "cu_seqlens_q: dtype i64, allowed i32"),
        (good, good[:2], "cu_seqlens_k: 2 entries, allowed as many as cu_seqlens_q, 3"),
        (good, None, "cu_seqlens_k: None, allowed"),
        (np.array([0, 3, 6], np.int32), good, "cu_seqlens_q: last entry 6"),
        (good[None], good, "cu_seqlens_q: 2 dimensions"),
    ):
        with pytest.raises(ValueError) as caught:
            attend.attention_varlen(q, k, v, cu_q, cu_k, 7, 7)
        assert str(caught.value).startswith(start)


def test_what_is_unsupported_is_a_not_implemented_error(rng):
    q, k, v = (x.astype(np.float64) for x in arrays(rng, 1, 2, 7, 8))
    with pytest.raises(NotImplementedError, match="compute 'cpu'"):
        attend.attention(q, k, v, compute="cpu")
    with pytest.raises(TypeError, match=r"^forward\(\) got an unexpected keyword argument 'causaal'$"):
        attend.forward(q, k, v, causaal=True)


def test_results_own_their_memory(rng):
    q, k, v = arrays(rng, 2, 2, 64, 32)
    o, lse = attend.attention(q, k, v, return_lse=True)
    copy = o.copy(), lse.copy()
    del q, k, v
    gc.collect()
    _ = [rng.standard_normal((2, 2, 64, 32)) for _ in range(20)]
    assert np.array_equal(o, copy[0]) and np.array_equal(lse, copy[1])
    assert o.flags.writeable and o.flags.owndata


def test_nothing_leaks(rng):
    q, k, v = arrays(rng, 1, 1, 4, 8)
    attend.attention(q, k, v)
    import sys

    before = [sys.getrefcount(x) for x in (q, k, v)]
    for _ in range(50):
        attend.attention(q, k, v, bias=v[0, :, :, :4])
        with pytest.raises(attend.Error):
            attend.attention(q, k, v, scale=float("inf"))
    gc.collect()
    assert [sys.getrefcount(x) for x in (q, k, v)] == before


def test_inputs_may_be_read_only_and_stay_as_they_are(rng):
    q, k, v = arrays(rng, 1, 2, 7, 8)
    want = attend.attention(q, k, v)
    copies = [x.copy() for x in (q, k, v)]
    for x in (q, k, v):
        x.flags.writeable = False
    assert np.array_equal(attend.attention(q, k, v), want)
    assert all(np.array_equal(x, y) for x, y in zip((q, k, v), copies))


def test_the_gil_is_released(rng):
    q, k, v = (x.astype(np.float64) for x in arrays(rng, 1, 2, 700, 64))
    done = threading.Event()
    start = time.perf_counter()
    ticks = []

    def work():
        try:
            attend.attention(q, k, v, compute="reference")
        finally:
            done.set()

    worker = threading.Thread(target=work)
    worker.start()
    while not done.is_set():
        ticks.append(time.perf_counter())
        time.sleep(0.001)
    worker.join()
    seconds = time.perf_counter() - start
    # The longest pause of this thread. If the call held the GIL, the thread would stop until the call ends.
    longest = max(b - a for a, b in zip([start, *ticks], [*ticks, start + seconds]))
    assert len(ticks) >= 5 and longest < seconds / 2, f"{len(ticks)} ticks, a pause of {longest:.3f} of {seconds:.3f} s"


def test_many_threads_at_once(rng):
    inputs = [arrays(rng, 1, 2, 50 + i, 16) for i in range(8)]
    want = [attend.attention(*x, causal=True) for x in inputs]
    found = [None] * len(inputs)

    def work(i):
        for _ in range(20):
            found[i] = attend.attention(*inputs[i], causal=True)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(inputs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(np.array_equal(a, b) for a, b in zip(found, want))


class Foreign:
    """An array of another framework that supports only DLPack."""

    def __init__(self, array, device=(1, 0)):
        self.array, self.device, self.exports = array, device, 0

    def __dlpack__(self, **options):
        self.exports += 1
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.device


def test_anything_with_dlpack(rng):
    q, k, v = arrays(rng, 1, 2, 7, 8)
    o = attend.attention(Foreign(q), Foreign(k), Foreign(v))
    assert np.array_equal(o, attend.attention(q, k, v))


def test_results_return_to_their_framework(rng):
    xp = pytest.importorskip("array_api_strict", reason="array_api_strict is not installed")
    q, k, v = arrays(rng, 1, 2, 7, 8)
    o = attend.attention(*(xp.asarray(x) for x in (q, k, v)))
    assert type(o).__module__.startswith("array_api_strict")
    assert np.array_equal(np.from_dlpack(o), attend.attention(q, k, v))


def test_arrays_on_other_devices_are_refused(rng):
    q, k, v = arrays(rng, 1, 2, 7, 8)
    with pytest.raises(NotImplementedError, match="q: .*Foreign on DLPack device 10"):
        attend.attention(Foreign(q, (10, 0)), k, v)
    with pytest.raises(ValueError, match="k: .*Foreign on DLPack device 2, allowed the CPU, like q"):
        attend.attention(Foreign(q), Foreign(k, (2, 0)), Foreign(v))


def test_no_silent_fall_back_to_the_slow_reference(rng):
    (q,), (k, v) = arrays(rng, 1, 2, 7, 8, count=1), arrays(rng, 1, 2, 9, 8, count=2)
    bias = np.zeros((7, 9))
    with pytest.raises(ValueError, match="bias: dtype f64, allowed f32, f16, bf16"):
        attend.attention(q, k, v, bias=bias)
    np.testing.assert_allclose(
        attend.attention(q, k, v, bias=bias, compute="reference"), attend.attention(q, k, v), atol=1e-5
    )


def test_backward_does_not_fall_back_to_the_slow_reference_either(rng):
    q, k, v, dout = arrays(rng, 1, 2, 7, 8, count=4)
    o, lse = attend.forward(q, k, v)
    half = lambda x: x.astype(np.float16)
    with pytest.raises(ValueError, match="^o: dtype f16, allowed f32 as q"):
        attend.backward(dout, q, k, v, half(o), lse)
    with pytest.raises(ValueError, match="^dout: dtype f16, allowed f32 as q"):
        attend.backward(half(dout), q, k, v, o, lse)
    found = attend.backward(half(dout), q, k, v, o, lse, compute="reference")
    np.testing.assert_allclose(found[0], attend.backward(dout, q, k, v, o, lse)[0], atol=2e-3)


def test_foreign_arrays_are_copied_where_numpys_would_be(rng):
    q, k, v = arrays(rng, 1, 2, 7, 8)
    bias = rng.standard_normal((1, 1, 7, 1)).astype(np.float32)
    want = attend.attention(q, k, v, bias=bias)
    wide = np.repeat(q, 2, axis=-1)[..., ::2]
    assert np.array_equal(attend.attention(Foreign(wide), Foreign(k), Foreign(v), bias=Foreign(bias)), want)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"causal": "yes"}, "causal: 'yes', allowed True or False"),
        ({"deterministic": 2}, "deterministic: 2, allowed True or False"),
        ({"scale": "x"}, "scale: 'x', allowed a number"),
        ({"softcap": None}, "softcap: None, allowed a number"),
        ({"dropout_p": "a"}, "dropout_p: 'a', allowed a number"),
        ({"window": (1.5, 0)}, "window: left 1.5, allowed a whole number"),
        ({"compute": None}, "compute: None, allowed a string"),
    ],
)
def test_options_of_a_wrong_type_are_named(rng, options, message):
    q, k, v = arrays(rng, 1, 2, 7, 8)
    with pytest.raises(ValueError) as caught:
        attend.attention(q, k, v, **options)
    assert str(caught.value).startswith(message)


def test_options_may_be_numpys(rng):
    q, k, v = arrays(rng, 1, 2, 7, 8)
    found = attend.attention(q, k, v, causal=np.True_, scale=np.float32(0.5), window=(np.int64(3), 0))
    assert np.array_equal(found, attend.attention(q, k, v, causal=True, scale=0.5, window=(3, 0)))


KINDS = {
    "k": lambda q, some: attend.attention(q, some, q),
    "v": lambda q, some: attend.attention(q, q, some),
    "bias": lambda q, some: attend.attention(q, q, q, bias=some[0, 0, :, :1]),
    "mask": lambda q, some: attend.attention(q, q, q, mask=some[0, 0, :, :1] > 0),
    "alibi_slopes": lambda q, some: attend.attention(q, q, q, alibi_slopes=some[0, :, 0, 0]),
    "cu_seqlens_q": lambda q, some: packed(q, offsets(some), offsets(q)),
    "cu_seqlens_k": lambda q, some: packed(q, offsets(q), offsets(some)),
    "dout": lambda q, some: attend.backward(some, q, q, q, q, q[..., 0]),
    "o": lambda q, some: attend.backward(q, q, q, q, some, q[..., 0]),
    "lse": lambda q, some: attend.backward(q, q, q, q, q, some[..., 0]),
    "dlse": lambda q, some: attend.backward(q, q, q, q, q, q[..., 0], dlse=some[..., 0]),
}


def packed(q, cu_seqlens_q, cu_seqlens_k):
    return attend.attention_varlen(*[q[0, ...]] * 3, cu_seqlens_q, cu_seqlens_k, 2, 2)


def offsets(like):
    xp = importlib.import_module(type(like).__module__.partition(".")[0])
    return xp.asarray([0, 2], dtype=xp.int32)


@pytest.mark.parametrize("frames", [("numpy", "torch"), ("torch", "numpy"), ("numpy", "array_api_strict"),
                                    ("array_api_strict", "numpy"), ("array_api_strict", "torch"),
                                    ("torch", "array_api_strict")], ids=" and ".join)  # fmt: skip
@pytest.mark.parametrize("name", KINDS)
def test_arrays_of_two_kinds_are_refused_by_name(rng, name, frames):
    """Without the refusal, the result would belong to one framework, and gradients of the other framework's arrays
    would be lost.
    """
    q, some = (
        pytest.importorskip(f, reason=f"{f} is not installed").asarray(arrays(rng, 2, 2, 2, 8)[0]) for f in frames
    )
    if frames[1] == "torch":
        some.requires_grad_(name in ("k", "v"))
    with pytest.raises(attend.ArgumentError, match=rf"^{name}: .*\bq\b") as caught:
        KINDS[name](q, some)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("dtype", ["complex64", "U3", "object", "datetime64[s]", "float128"])
def test_dtypes_are_told_by_name(rng, dtype):
    q, k, v = arrays(rng, 1, 2, 7, 8)
    other = np.zeros(k.shape, dtype)
    with pytest.raises(ValueError, match=f"^k: dtype {re.escape(str(other.dtype))}, allowed f32, f16, bf16, f64"):
        attend.attention(q, other, v)


def test_a_gpus_backend_is_said_to_be_one(rng):
    q, k, v = arrays(rng, 1, 2, 7, 8)
    with pytest.raises(
        ValueError, match="^compute: 'fa2' is for tensors on a GPU, allowed for tensors on the CPU: auto, cpu"
    ):
        attend.attention(q, k, v, compute="fa2")
