"""Makes random caches with NaN in all memory that must not be read, and computes the result of decoding in float64."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Optional

import numpy as np
from oracle import Problem, solve
from problems import dtype_of

OPTIONS: dict[str, list[Any]] = {
    "dtype": ["f32", "f16", "bf16"],
    "layout": ["bhsd", "bshd"],
    "memory": ["plain", "other order", "side by side"],
    "page_size": [0, 1, 3, 16],
    "batch_idx": [False, True],
    "packed": [False, True],
    "rows": [1, 4, 9],
    "visible": [{}, {"causal": False}, {"window": (7, -1)}, {"causal": False, "window": (5, 2)}],
    "tree": [False, True],
    "softcap": [0.0, 3.0],
    "scale": [None, 0.3],
    "alibi": [None, "heads", "batch"],
    "sinks": [None, "heads", "batch"],
    "leftpad": [False, True],
    "heads": [(4, 4), (6, 2), (5, 1)],
    "head_dims": [(16, 16), (40, 24), (64, 64), (48, None)],  # None means that the values are columns of the keys
    "lse_base2": [False, True],
}
COLUMNS_V = 32  # in this case, the number of columns of the keys that are values


@dataclass
class CacheProblem:
    """The arguments of a call, and separately the keys and values of each sequence, (heads_k, length, columns)."""

    q: Any
    k_cache: Any
    v_cache: Any
    options: dict[str, Any]
    rows: list[Any]  # the query rows of each sequence, (heads_q, rows, head_dim)
    keys: list[Any]
    values: list[Any]
    lengths: list[int]
    case: dict[str, Any] = field(default_factory=dict)

    def truth(self) -> list[Optional[dict[str, Any]]]:
        """Returns o and lse of each sequence, or None if it is dead."""
        return [self._of_sequence(s) for s in range(len(self.lengths))]

    def _of_sequence(self, s: int) -> Optional[dict[str, Any]]:
        if self.lengths[s] < 0:
            return None
        given, length, num_rows = self.options, self.lengths[s], self.rows[s].shape[1]
        j = np.arange(length)
        mask = np.ones((num_rows, length), bool)
        if given.get("cache_leftpad") is not None:
            mask &= j >= given["cache_leftpad"][s]
        causal = given.get("causal", True)
        if given.get("tree_mask") is not None:
            words = given["tree_mask"].astype(np.uint64)
            words = words[s] if words.ndim == 2 else words[given["cu_seqlens_q"][s] :][:num_rows]
            bit = np.clip(j - (length - num_rows), 0, 63).astype(np.uint64)
            mask &= (j < length - num_rows) | ((words[:, None] >> bit) & np.uint64(1)).astype(bool)
            causal = False
        per_head = {
            name: given[name] if given[name].ndim == 1 else given[name][s : s + 1]
            for name in ("alibi_slopes", "sinks")
            if given.get(name) is not None
        }
        names = ("scale", "softcap", "window")
        results = solve(
            Problem(
                self.rows[s][None], self.keys[s][None], self.values[s][None], causal=causal, mask=mask, **per_head,
                **{name: given[name] for name in names if name in given},
            )
        )  # fmt: skip
        return {name: results[name] for name in ("o", "lse")}

    def part(self, found: Any, s: int, is_lse: bool = False) -> Any:
        """Returns the part of a result that belongs to sequence s, (1, heads, rows, ...)."""
        if (cu := self.options.get("cu_seqlens_q")) is not None:
            rows = slice(cu[s], cu[s + 1])
            return found[None, :, rows] if is_lse else found[rows].swapaxes(0, 1)[None]
        one = found[s : s + 1]
        return one if is_lse or self.options["layout"] == "bhsd" else one.swapaxes(1, 2)


def make(case: dict[str, Any], rng: np.random.Generator) -> CacheProblem:
    dtype, (heads_q, heads_k) = dtype_of(case["dtype"]), case["heads"]
    head_dim, head_dim_v = case["head_dims"]
    capacity = int(rng.integers(20, 90))
    lengths = [-1, 0, capacity, *map(int, rng.integers(1, capacity, 2))]
    lengths = [lengths[i] for i in rng.permutation(5)]
    counts = [int(rng.integers(0, case["rows"] + 1)) if case["packed"] else case["rows"] for _ in lengths]

    def normal(*shape: int) -> Any:
        return rng.standard_normal(shape).astype(dtype)

    rows = [normal(heads_q, n, head_dim) for n in counts]
    keys = [normal(heads_k, max(n, 0), head_dim) for n in lengths]
    values = [x[..., :COLUMNS_V] if head_dim_v is None else normal(*x.shape[:2], head_dim_v) for x in keys]
    options = {"layout": case["layout"], "softcap": case["softcap"], "scale": case["scale"], **case["visible"]}
    options |= {"lse_base2": case["lse_base2"], "seqlens_k": np.array(lengths, np.int32)}
    k_cache, v_cache = _caches(case, rng, capacity, keys, None if head_dim_v is None else values, options)
    if head_dim_v is None:
        options["head_dim_v"] = COLUMNS_V
    _modifications(case, rng, lengths, counts, heads_q, options)
    if case["packed"]:
        spare = normal(3, heads_q, head_dim)  # rows that belong to no sequence
        q = np.concatenate([*(x.swapaxes(0, 1) for x in rows), spare])
        options |= {"cu_seqlens_q": np.cumsum([0, *counts], dtype=np.int32), "max_seqlen_q": max(counts)}
    else:
        q = np.stack(rows)
        q = q if case["layout"] == "bhsd" else np.ascontiguousarray(q.swapaxes(1, 2))
    return CacheProblem(q, k_cache, v_cache, options, rows, keys, values, lengths, case)


def _modifications(
    case: dict[str, Any], rng: np.random.Generator, lengths: list[int], counts: list[int], heads_q: int, options: Any
) -> None:
    shapes = {"heads": (heads_q,), "batch": (len(lengths), heads_q)}
    if case["alibi"]:
        options["alibi_slopes"] = (rng.random(shapes[case["alibi"]]) * 0.2).astype(np.float32)
    if case["sinks"]:
        options["sinks"] = rng.standard_normal(shapes[case["sinks"]]).astype(np.float32)
    if case["leftpad"]:
        options["cache_leftpad"] = np.array([rng.integers(0, max(n, 0) + 2) for n in lengths], np.int32)
    if case["tree"]:
        shape = (sum(counts) + 3,) if case["packed"] else (len(lengths), case["rows"])
        words = rng.integers(0, 2**63, shape, dtype=np.uint64)
        options["tree_mask"] = words if rng.random() < 0.5 else words.astype(np.int64)


def _caches(
    case: dict[str, Any], rng: np.random.Generator, capacity: int, keys: Any, values: Any, options: Any
) -> tuple[Any, Any]:
    """Returns k_cache and v_cache, and adds their arguments to `options`."""
    num_sequences, page_size = len(keys), case["page_size"]
    num_rows = num_sequences + 2 if case["batch_idx"] else num_sequences
    row_of = rng.permutation(num_rows)[:num_sequences] if case["batch_idx"] else np.arange(num_sequences)
    if case["batch_idx"]:
        options["cache_batch_idx"] = row_of.astype(np.int32)
    table = None
    if page_size:
        per_row = -(-capacity // page_size)
        pages = rng.permutation(num_rows * per_row + 3)
        # Table entries after a sequence's last page contain numbers of pages that do not exist.
        table = np.full((num_rows, per_row + 2), -1, np.int32)
        table[:, 1::2] = 2**30
        used = iter(pages)
        for s, x in enumerate(keys):
            for n in range(-(-x.shape[1] // page_size)):
                table[row_of[s], n] = next(used)
        options["page_table"] = table[:, :per_row]  # rows of the table are not contiguous
    blocks = len(pages) if page_size else num_rows
    widths = [keys[0].shape[2], 0 if values is None else values[0].shape[2]]
    shape = (blocks, keys[0].shape[0], page_size or capacity)
    caches = _memory(case, shape, widths, keys[0].dtype)
    for s, x in enumerate(keys):
        for j in range(x.shape[1]):
            at = (row_of[s], j) if table is None else (table[row_of[s], j // page_size], j % page_size)
            caches[0][at[0], :, at[1]] = x[:, j]
            if values is not None:
                caches[1][at[0], :, at[1]] = values[s][:, j]
    if case["layout"] == "bshd":
        caches = [x.swapaxes(1, 2) for x in caches]
    return caches[0], None if values is None else caches[1]


def _memory(case: dict[str, Any], shape: tuple[int, ...], widths: list[int], dtype: Any) -> list[Any]:
    """Returns caches (blocks, heads, keys, columns) in the memory layout of the case, filled with NaN."""
    is_transposed = (case["layout"] == "bshd") != (case["memory"] == "other order")
    stored = (shape[0], shape[2], shape[1]) if is_transposed else shape
    if case["memory"] == "side by side":
        both = np.full((*stored, sum(widths)), np.nan, dtype)
        found = [both[..., : widths[0]], both[..., widths[0] :]]
    else:
        found = [np.full((*stored, width), np.nan, dtype) for width in widths]
    return [x.swapaxes(1, 2) if is_transposed else x for x in found]


def as_torch(torch: Any, x: Any) -> Any:
    """Converts an array to a tensor, of int64 if torch does not have its dtype. Returns all other values unchanged."""
    if not isinstance(x, np.ndarray):
        return x
    if x.dtype == np.uint64:
        return torch.from_numpy(x.astype(np.int64))
    if x.dtype.name != "bfloat16":
        return torch.from_numpy(x)
    return torch.from_numpy(x.view(np.uint16)).view(torch.bfloat16)
