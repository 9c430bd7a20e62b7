"""Tests of attend._measure.reference: its reference results, and the faults that its comparison detects."""

import pytest

np = pytest.importorskip("numpy")

import attend
from attend._measure.reference import Truth, compare


@pytest.mark.parametrize("causal", [False, True])
def test_the_truth_is_that_of_the_reference(rng, no_torch, causal):
    q, k, v, dout = (rng.standard_normal((2, 3, 17, 8)) for _ in range(4))
    options = {"causal": causal, "compute": "reference"}
    o, lse = attend.forward(q, k, v, **options)
    gradients = attend.backward(dout, q, k, v, o, lse, **options)
    truth = Truth((q, k, v, dout), causal, True, "cpu")
    assert compare((o,), truth, "forward", "f32", 1e-12, False).passed
    assert compare(gradients, truth, "backward", "f32", 1e-11, False).passed
    first = Truth((q, k, v, dout), causal, False, "cpu", most_scores=2 * 17 * 17)
    assert first.heads == 2 and compare((o,), first, "forward", "f32", 1e-12, False).passed
    spoiled = o.copy()
    spoiled[0, 0, 3, 3] = np.nan
    assert not compare((spoiled,), truth, "forward", "f32", 1e3, False).passed


def test_half_precision_has_a_budget_of_its_own(rng, no_torch):
    inputs = tuple(rng.standard_normal((1, 1, 16, 8)) for _ in range(4))
    truth = Truth(inputs, False, False, "cpu")
    ((_, want),) = truth.pairs((inputs[0],), "forward")
    largest = float(abs(want).max())
    got = want.reshape(1, 1, 16, 8) + 1e-3 + 0.9 * 2 * 2.0**-8 * largest
    assert compare((got,), truth, "forward", "bf16", 1e-3, False).passed
    assert not compare((got,), truth, "forward", "f16", 1e-3, False).passed
    assert not compare((got + 0.2 * 2 * 2.0**-8 * largest,), truth, "forward", "bf16", 1e-3, False).passed


class KnownTruth:
    """Replaces Truth by results that are known without computing a score matrix."""

    def __init__(self, *wanted):
        self.wanted = wanted

    def pairs(self, got, mode):
        return zip(got, self.wanted, strict=True)


@pytest.fixture(params=["numpy", "torch"])
def as_tensor(request):
    return request.getfixturevalue("torch").from_numpy if request.param == "torch" else lambda x: x


def half_precision(x, rng):
    """Returns x with each number changed by at most one bfloat16 rounding."""
    return x * (1 + rng.uniform(-(2.0**-8), 2.0**-8, x.shape))


def test_a_forgotten_tile_of_keys_is_found_in_late_rows(rng, as_tensor):
    """With a causal mask and q = 0, o is the mean of the values up to the row. Its magnitude is 4.5 in the first row
    and 0.03 in the last of 16384.
    """
    v = rng.standard_normal((8, 16384, 64))
    keys = np.arange(1, 16385)[:, None]
    o = v.cumsum(1) / keys
    close = half_precision(o, rng)
    passing = compare((as_tensor(close),), KnownTruth(as_tensor(o)), "forward", "bf16", 1e-3, False)
    assert passing.passed
    late = slice(12288, None)
    close[:, late] = (o[:, late] * keys[late] - v[:, 64:128].sum(1, keepdims=True)) / (keys[late] - 64)
    forgotten = compare((as_tensor(close),), KnownTruth(as_tensor(o)), "forward", "bf16", 1e-3, False)
    assert not forgotten.passed
    assert forgotten.allowed == pytest.approx(1e-3 + 2 * 2.0**-8 * 0.03, rel=0.3)
    assert forgotten.max_abs == pytest.approx(abs(close - o)[:, late].max(), rel=0.3)
    assert forgotten.max_rel == pytest.approx(abs(close - o).max() / abs(o).max())


def test_forgotten_rows_are_found_in_the_gradients_of_late_keys(rng, as_tensor):
    """With a causal mask and q = 0, dv of a key is a sum over the rows that see the key. Each row adds its dout,
    divided by the number of keys that the row sees.
    """
    dout = rng.standard_normal((4, 16384, 64)) / np.arange(1, 16385)[:, None]
    dv = dout[:, ::-1].cumsum(1)[:, ::-1]
    zero, close = np.zeros_like(dv), half_precision(dv, rng)
    truth = KnownTruth(*(as_tensor(x.copy()) for x in (zero, zero, dv)))
    assert compare(tuple(map(as_tensor, (zero, zero, close))), truth, "backward", "bf16", 1e-3, False).passed
    close[:, 12288:13312] -= dout[:, 16000:16384].sum(1, keepdims=True)
    assert not compare(tuple(map(as_tensor, (zero, zero, close))), truth, "backward", "bf16", 1e-3, False).passed


def test_the_last_block_of_rows_may_be_short(rng):
    want = rng.standard_normal((2, 70, 8))
    want[1, 64:] = 0
    got = want.copy()
    got[1, 69, 7] += 1.1e-3
    errors_found = compare((got,), KnownTruth(want), "forward", "f16", 1e-3, False)
    assert not errors_found.passed and errors_found.allowed == 1e-3
    got[0, 3, 2] = np.nan
    assert compare((got,), KnownTruth(want), "forward", "f16", 1e-3, False).max_abs == np.inf
