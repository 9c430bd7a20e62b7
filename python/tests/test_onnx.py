"""Tests of attend.onnx.attention with the standard's node tests and with the formula in float64."""

import numpy as np
import pytest

pytest.importorskip("onnx", reason="the tests of ONNX need it: `make py-test ATTEND_TEST_ONNX=1`")
ml_dtypes = pytest.importorskip("ml_dtypes")

import attend
import attend.onnx
import onnx_cases
from attend.onnx._operator import band

RESULTS = ("Y", "present_key", "present_value", "qk_matmul_output")


def run(case):
    arguments = {name.lower() if len(name) == 1 else name: x for name, x in case.inputs.items()}
    found = attend.onnx.attention(**arguments, **case.attributes, with_qk="qk_matmul_output" in case.outputs)
    return {name: x for name, x in zip(RESULTS, found) if name in case.outputs}


def test_every_node_test_passes_but_those_that_are_listed():
    cases = onnx_cases.cases()
    assert len(cases) == onnx_cases.COUNT
    failed = {case.name for case in cases.values() if not onnx_cases.passes(case, run(case))}
    assert failed == onnx_cases.ROUNDED_OFTENER


@pytest.mark.parametrize("name", sorted(onnx_cases.ROUNDED_OFTENER))
def test_what_is_listed_is_nearer_to_float64_than_what_the_test_expects(name):
    case = onnx_cases.cases()[name]
    truth = onnx_cases.exact(case, case.outputs["Y"])
    own, expected = (abs(y.astype(np.float64) - truth).max() for y in (run(case)["Y"], case.outputs["Y"]))
    assert own <= expected and own <= 2**-8 * abs(truth).max()


def formula(q, k, v, offset, window, bias):
    """Computes O in float64. Row i has position i + offset."""
    group = q.shape[1] // k.shape[1]
    q, k, v = (x.astype(np.float64) for x in (q, np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)))
    i, j = np.arange(q.shape[2])[:, None] + offset, np.arange(k.shape[2])
    seen = ((window[0] < 0) | (j >= i - window[0])) & ((window[1] < 0) | (j <= i + window[1]))
    s = np.where(seen, q @ k.transpose(0, 1, 3, 2) / np.sqrt(q.shape[3]) + bias, -np.inf)
    top = s.max(axis=3, keepdims=True, initial=-np.inf)
    p = np.exp(s - np.where(np.isneginf(top), 0, top))
    total = p.sum(axis=3, keepdims=True)
    return (p / np.where(total == 0, 1, total)) @ v


@pytest.mark.parametrize("past", [0, 1, 5])
@pytest.mark.parametrize("seqlen_k", [1, 4, 9])
@pytest.mark.parametrize("seqlen_q", [1, 4, 7])
def test_every_window_at_every_offset(seqlen_q, seqlen_k, past):
    rng = np.random.default_rng()
    q, k, v = (rng.standard_normal((2, h, n, 8), np.float32) for h, n in ((4, seqlen_q), (2, seqlen_k), (2, seqlen_k)))
    past_key, past_value = (rng.standard_normal((2, 2, past, 8), np.float32) for _ in range(2))
    mask = rng.random((seqlen_q, past + seqlen_k)) < 0.7
    keys, values = np.concatenate((past_key, k), 2), np.concatenate((past_value, v), 2)
    for causal in (0, 1):
        for left in (-1, 0, 1, 3, 20):
            for right in (-1, 0, 2, 20):
                options = {"is_causal": causal, "left_window_size": left, "right_window_size": right}
                window = (left, 0 if causal else right)
                for hidden in (None, mask):
                    y, present_key, present_value, _ = attend.onnx.attention(
                        q, k, v, hidden, past_key, past_value, **options
                    )
                    bias = 0 if hidden is None else np.where(hidden, 0, -np.inf)
                    wanted = formula(q, keys, values, past, window, bias)
                    np.testing.assert_allclose(y, wanted, rtol=1e-4, atol=1e-5, err_msg=str(options))
                    assert (present_key == keys).all() and (present_value == values).all()


def test_the_band_keeps_what_onnx_keeps():
    """Compares the visible pairs with ONNX's definition for every small call."""
    for rows, keys, offset in np.ndindex(5, 6, 8):
        for left in range(-1, 4):
            for right in range(-1, 4):
                at = offset - 3
                i, j = np.arange(rows)[:, None], np.arange(keys)
                wanted = ((left < 0) | (j >= i + at - left)) & ((right < 0) | (j <= i + at + right))
                part = band(rows, keys, at, (left, right))
                assert 0 <= part.rows <= rows and 0 <= part.keys <= keys and part.left >= -1 and part.right >= -1
                found = np.zeros((rows, keys), bool)
                i, j = np.arange(part.rows)[:, None] + part.keys - part.rows, np.arange(part.keys)
                kept = ((part.left < 0) | (j >= i - part.left)) & ((part.right < 0) | (j <= i + part.right))
                found[: part.rows, : part.keys] = kept
                assert (found == wanted).all(), (rows, keys, at, left, right, part)


def arrays(dtype=np.float32, heads_k=2):
    rng = np.random.default_rng()
    return [rng.standard_normal((2, h, 4, 8)).astype(dtype) for h in (4, heads_k, heads_k)]


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"softmax_precision": 7}, "softmax_precision: 7, allowed 1, 10, 11, 16"),
        ({"qk_matmul_output_mode": 4}, "qk_matmul_output_mode: 4, allowed 0 to 3"),
        ({"left_window_size": -2}, "left_window_size: -2, allowed >= 0, or -1 for open"),
        ({"q_num_heads": 3}, "q_num_heads: 3, allowed 4, the heads of Q"),
        ({"past_key": np.zeros((2, 2, 1, 8), np.float32)}, "past_value: missing, allowed with past_key only"),
        ({"attn_mask": np.ones((3, 4), bool)}, r"attn_mask: \(3, 4\), allowed shapes that broadcast to \(2, 4, 4, 4\)"),
        ({"attn_mask": np.ones((4, 5), bool)}, r"attn_mask: \(4, 5\), allowed shapes that broadcast"),
        ({"attn_mask": np.ones((4, 4), np.int64)}, "attn_mask: int64, allowed bool, float32"),
        ({"nonpad_kv_seqlen": np.array([1, 5])}, "nonpad_kv_seqlen: 5, allowed 0 to 4"),
        ({"nonpad_kv_seqlen": np.array([1])}, r"nonpad_kv_seqlen: int64 \(1,\), allowed int64 \(2,\)"),
        ({"softcap": -1.0}, "softcap: -1"),
        ({"scale": float("nan")}, "scale: nan"),
    ],
)
def test_wrong_arguments_are_refused_in_one_line(changes, message):
    with pytest.raises(attend.Error, match=f"^{message}") as caught:
        attend.onnx.attention(*arrays(), **changes)
    assert "\n" not in str(caught.value)


def test_three_dimensions_need_heads_that_divide():
    q, k, v = (x.transpose(0, 2, 1, 3).reshape(2, 4, -1) for x in arrays())
    with pytest.raises(attend.ArgumentError, match="q_num_heads: 3, allowed a divisor of 32"):
        attend.onnx.attention(q, k, v, q_num_heads=3, kv_num_heads=2)
    with pytest.raises(attend.ArgumentError, match="kv_num_heads: None, allowed a divisor of 16"):
        attend.onnx.attention(q, k, v, q_num_heads=4)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.float64])
def test_dtypes(dtype):
    q, k, v = arrays(dtype)
    y = attend.onnx.attention(q, k, v, is_causal=1)[0]
    eps = float(ml_dtypes.finfo(dtype).eps)
    assert y.dtype == dtype
    np.testing.assert_allclose(y.astype(np.float64), formula(q, k, v, 0, (-1, 0), 0), atol=8 * max(eps, 2**-50))
