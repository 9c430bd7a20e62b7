"""Tests of subscripts in score functions. Negative subscripts count from the end, and functions without negative
subscripts have no additional cost.
"""

import pytest

torch = pytest.importorskip("torch")

import attend
from attend._flex import functions

SHIFTS = torch.arange(8)

OFFSETS = {
    "q - k + 7": lambda q, k: q - k + 7,
    "k - q + 4": lambda q, k: k - q + 4,
    "clamp": lambda q, k: (q - k).clamp(-3, 3) + 3,
    "clamp from below": lambda q, k: torch.maximum(q - k, q * 0 - 2) + 1,
    "steps": lambda q, k: (q - k) // 3 + 3,
    "rest": lambda q, k: (q - k) % 4 - 1,
    "distance": lambda q, k: (q - k).abs() - 1,
    "product": lambda q, k: (q - 2) * (k - 3) + 13,
    "choice": lambda q, k: torch.where(q > k, q - k, k * 2) - 0,
    "negated": lambda q, k: -q + 4,
    "smaller": lambda q, k: torch.minimum(q, k - 1),
    "bits": lambda q, k: ((q - k) & 7) - 1,
    "of a tensor": lambda q, k: SHIFTS[q] - 1,
    "wraps": lambda q, k: (q + 1) * 65536 * 32767 // 2**29,
}
EXACT = {"q - k + 7", "k - q + 4", "clamp", "steps", "negated", "smaller"}


@pytest.mark.parametrize("name", OFFSETS)
def test_subscripts_count_from_the_end_only_where_they_may(name):
    table = torch.arange(100.0, dtype=torch.float64)
    mod = lambda score, b, h, q, k: score + table[OFFSETS[name](q, k)]
    function, _ = functions.traced("score_mod", mod, torch.device("cpu"), torch.float64)
    for rows, num_keys in ((1, 1), (5, 8), (8, 5), (5, 9), (6, 5), (2, 40)):
        q, k = torch.meshgrid(torch.arange(rows).int(), torch.arange(num_keys).int(), indexing="ij")
        wanted = torch.stack([OFFSETS[name](*n) for n in zip(q.flatten(), k.flatten())]).view(rows, num_keys)
        wraps = "< 0 ?" in function.text_for({"b": 1, "h": 1, "q": rows, "k": num_keys})
        assert wraps or (wanted >= 0).all(), (rows, num_keys)
        assert name not in EXACT or wraps == (wanted < 0).any(), (rows, num_keys)
        x = [torch.zeros(1, 1, n, 8, dtype=torch.float64) for n in (rows, num_keys)]
        lse = attend.flex_attention(x[0], x[1], x[1], mod, return_lse=True)[1]
        torch.testing.assert_close(lse[0, 0], table[wanted.long()].logsumexp(-1))
