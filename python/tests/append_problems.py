"""Makes random calls of append, and computes the expected value of each new row in float64 and its position in the
cache. The cache is filled with NaN.
"""

from __future__ import annotations

import attend
import numpy as np
from problems import dtype_of

OPTIONS = {
    "dtype": ["f32", "f16", "bf16"],
    "cache_dtype": ["same", "bf16", "f32"],
    "layout": ["bhsd", "bshd"],
    "page_size": [0, 1, 3],
    "batch_idx": [False, True],
    "packed": [False, True],
    "where": ["lengths", "number", "slots"],
    "positions": ["lengths", "given", "rotary"],
    "rotary": [None, "halves", "interleaved", "later columns"],
    "norms": [False, True],
    "values": [False, True],
    "queries": [None, "last", "first", "one"],
}
SEQUENCES, HEADS_Q, HEADS_K, DIM, DIM_V, CAPACITY, EPS = 4, 4, 2, 16, 24, 12, 1e-3


class AppendProblem:
    """The arguments of a call, with the expected value and position of each row."""

    def __init__(self, case, rng):
        self.case, self.rng = case, rng
        dtype = dtype_of(case["dtype"])
        cache_dtype = dtype if case["cache_dtype"] == "same" else dtype_of(case["cache_dtype"])
        self.counts = list(map(int, rng.integers(0, 4, SEQUENCES))) if case["packed"] else [3] * SEQUENCES
        self.q_counts = [int(rng.integers(0, n + 1)) for n in self.counts] if case["packed"] else [2] * SEQUENCES
        self.lengths = [3] * SEQUENCES if case["where"] == "number" else [-1, 0, CAPACITY - 2, 4]
        self.k = [rng.standard_normal((HEADS_K, n, DIM)).astype(dtype) for n in self.counts]
        self.v = [rng.standard_normal((HEADS_K, n, DIM_V)).astype(dtype) for n in self.counts]
        self.q = [rng.standard_normal((HEADS_Q, n, DIM)).astype(dtype) for n in self.q_counts]
        self.options = {"layout": case["layout"], "norm_eps": EPS}
        self._make_cache(cache_dtype)
        self._make_places()
        self._make_rotation()

    def _make_cache(self, dtype):
        case, rng = self.case, self.rng
        num_rows = SEQUENCES + 1 if case["batch_idx"] else SEQUENCES
        self.row_of = rng.permutation(num_rows)[:SEQUENCES] if case["batch_idx"] else np.arange(SEQUENCES)
        if case["batch_idx"]:
            self.options["cache_batch_idx"] = self.row_of.astype(np.int32)
        self.size = case["page_size"] or CAPACITY
        self.table = None
        blocks = num_rows
        if case["page_size"]:
            blocks = num_rows * (CAPACITY // self.size)
            self.table = rng.permutation(blocks).reshape(num_rows, -1).astype(np.int32)
            self.table[self.row_of[3], 4 // self.size] = -1  # a page that does not exist
            self.options["page_table"] = self.table
        shape = (blocks, HEADS_K, self.size)
        self.caches = [np.full((*shape, width), np.nan, dtype) for width in (DIM, DIM_V)]

    def _make_places(self):
        """Sets places[s][i] to the block and row of the cache to which new row i of sequence s is written, or to None
        if it is dropped.
        """
        case, rng = self.case, self.rng
        if case["where"] != "slots":
            number = case["where"] == "number"
            self.options["seqlens_k"] = 3 if number else np.array(self.lengths, np.int32)
            self.places = [[self._place(s, self.lengths[s] + i) for i in range(n)] for s, n in enumerate(self.counts)]
            return
        count = self.caches[0].shape[0] * self.size
        slots = [[int(x) for x in rng.integers(-3, count + 3, n)] for n in self.counts]
        seen = set()
        for row in slots:
            for i, slot in enumerate(row):
                row[i] = -1 if slot in seen else slot
                seen.add(slot)
        flat = np.array([x for row in slots for x in row], np.int64)
        self.options["slot_mapping"] = flat if case["packed"] else flat.reshape(SEQUENCES, -1)
        self.options["seqlens_k"] = np.array(self.lengths, np.int32)
        self.places = [[divmod(x, self.size) if 0 <= x < count else None for x in row] for row in slots]
        self.places[0] = [None] * self.counts[0]  # sequence 0 is dead

    def _place(self, s, key):
        if self.lengths[s] < 0 or key >= CAPACITY:
            return None
        if self.table is None:
            return self.row_of[s], key
        page = self.table[self.row_of[s], key // self.size]
        return (page, key % self.size) if page >= 0 else None

    def _make_rotation(self):
        case, rng = self.case, self.rng
        self.width, self.first, self.max_positions = 8, 4 if case["rotary"] == "later columns" else 0, 40
        self.tables = [rng.standard_normal((self.max_positions, self.width // 2)).astype(np.float32) for _ in range(2)]
        begins = [max(n, 0) for n in self.lengths]
        own = None
        if case["positions"] == "rotary":
            begins = [int(x) for x in rng.integers(0, 30, SEQUENCES)]
            own = np.array(begins, np.int32)
        self.positions = [[begin + i for i in range(n)] for begin, n in zip(begins, self.counts)]
        if case["positions"] == "given":
            self.positions = [[int(x) for x in rng.integers(0, self.max_positions, n)] for n in self.counts]
            flat = np.array([x for row in self.positions for x in row], np.int32)
            self.options["positions"] = flat if case["packed"] else flat.reshape(SEQUENCES, -1)
        if case["rotary"]:
            is_interleaved = case["rotary"] == "interleaved"
            self.options["rotary"] = attend.Rotary(*self.tables, is_interleaved, self.first, own)
        if case["norms"]:
            self.options["k_norm"] = rng.standard_normal(DIM).astype(np.float32)
            if case["queries"]:
                self.options["q_norm"] = rng.standard_normal(DIM).astype(np.float32)

    def packed_or_not(self, rows):
        """Returns the rows of all sequences, packed or as one array, as the case requires."""
        if self.case["packed"]:
            return np.concatenate([x.swapaxes(0, 1) for x in rows])
        return np.stack(rows if self.case["layout"] == "bhsd" else [x.swapaxes(0, 1) for x in rows])

    def arguments(self):
        k_cache, v_cache = (x.swapaxes(1, 2) if self.case["layout"] == "bshd" else x for x in self.caches)
        given = {"k": self.packed_or_not(self.k), "k_cache": k_cache, "v": None, **self.options}
        if self.case["values"]:
            given |= {"v": self.packed_or_not(self.v), "v_cache": v_cache}
        if self.case["packed"]:
            given["cu_seqlens_new"] = np.cumsum([0, *self.counts], dtype=np.int32)
        if self.case["queries"]:
            given |= {"q": self.packed_or_not(self.q), "query_positions": self.case["queries"]}
            if self.case["packed"]:
                given["cu_seqlens_q"] = np.cumsum([0, *self.q_counts], dtype=np.int32)
        return given

    def changed(self, row, norm, position):
        """Returns the expected row in float64, normalised and rotated."""
        x = row.astype(np.float64)
        if norm is not None:
            x = x / np.sqrt((x**2).mean(-1, keepdims=True) + EPS) * norm
        if not self.case["rotary"]:
            return x
        half = self.width // 2
        position = min(max(position, 0), self.max_positions - 1)
        cos, sin = (t[position].astype(np.float64) for t in self.tables)
        part = x[..., self.first : self.first + self.width]
        if self.case["rotary"] == "interleaved":
            a, b = part[..., ::2], part[..., 1::2]
            turned = np.stack([a * cos - b * sin, b * cos + a * sin], -1).reshape(part.shape)
        else:
            a, b = part[..., :half], part[..., half:]
            turned = np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)
        return np.concatenate([x[..., : self.first], turned, x[..., self.first + self.width :]], -1)

    def position_of_query(self, s, i):
        rule = self.case["queries"]
        new = 0 if rule == "one" else i if rule == "first" else i + self.counts[s] - self.q_counts[s]
        if self.case["positions"] == "given":
            return self.positions[s][new]
        begin = self.positions[s][0] if self.positions[s] else 0
        return begin + new
