"""Converts a call of xFormers into one call of attend or, in some cases, one call for each sequence."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple, Optional

import torch

from attend._drop_in import top_left
from attend.xformers._inputs import Inputs
from attend.xformers._patterns import Pattern, places


class Part(NamedTuple):
    """The arrays and options of a call of attend. If the options contain `cu_seqlens_q`, the arrays have no batch."""

    q: Any
    k: Any
    v: Any
    options: dict[str, Any]

    @property
    def is_packed(self) -> bool:
        return "cu_seqlens_q" in self.options

    @property
    def num_rows(self) -> int:
        return int(self.q.shape[0 if self.is_packed else 1])


def parts_of(inputs: Inputs) -> list[Part]:
    """Returns the calls of attend. Their results must be concatenated along the rows."""
    if inputs.pattern is None or inputs.pattern.kind.keys == "dense":
        return [_dense(inputs)]
    pattern = inputs.pattern
    lengths_q, bounds = [end - start for start, end in pattern.q_bounds], pattern.k_bounds
    if pattern.kind.is_top_left:  # no row sees a key after the position of the last row
        bounds = [(start, min(end, start + n)) for (start, end), n in zip(bounds, lengths_q)]
        if any(end - start != n for (start, end), n in zip(bounds, lengths_q)):
            return _by_sequence(inputs, pattern, bounds)
    return [_packed(inputs, pattern, bounds)]


def _dense(inputs: Inputs) -> Part:
    q, k, v, bias, pattern = inputs
    window = (-1, -1)
    if pattern is not None and pattern.kind.is_top_left:
        heads_first = top_left(*(x.transpose(1, 2) for x in (q, k, v)))
        k, v, window = heads_first[0].transpose(1, 2), heads_first[1].transpose(1, 2), heads_first[2]
        bias = bias if bias is None or bias.shape[3] == 1 else bias[..., : k.shape[1]]
    elif pattern is not None:
        window = pattern.window
    return Part(q, k, v, {"layout": "bshd", "window": window, "bias": bias})


def _packed(inputs: Inputs, pattern: Pattern, bounds: list[tuple[int, int]]) -> Part:
    """Returns one call for all sequences. Keys that are not consecutive are first copied into one tensor."""
    device, rows = inputs.q.device, pattern.fields.q_seqinfo
    k, v = inputs.k[0], inputs.v[0]
    lengths = [end - start for start, end in bounds]
    if pattern.kind.keys == "packed" and bounds == pattern.k_bounds:
        cu_seqlens_k = pattern.fields.k_seqinfo.seqstart.to(device)
    else:
        where = places(pattern, bounds, device)
        k, v = k.index_select(0, where), v.index_select(0, where)
        cu_seqlens_k = torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32, device=device)
    options = {
        "cu_seqlens_q": rows.seqstart.to(device), "cu_seqlens_k": cu_seqlens_k, "max_seqlen_q": rows.max_seqlen,
        "max_seqlen_k": max(lengths), "window": pattern.window,
    }  # fmt: skip
    return Part(inputs.q[0], k, v, options)


def _by_sequence(inputs: Inputs, pattern: Pattern, bounds: list[tuple[int, int]]) -> list[Part]:
    """Returns one call for each sequence, because a packed call has one window for all sequences.

    If a mask is aligned top left, attend's window depends on the lengths of a sequence and therefore differs between
    sequences.
    """
    found = []
    for (q_start, q_end), (k_start, k_end) in zip(pattern.q_bounds, bounds):
        window = pattern.window_of(q_end - q_start, k_end - k_start)
        k, v = (x[:, k_start:k_end] for x in (inputs.k, inputs.v))
        found.append(Part(inputs.q[:, q_start:q_end], k, v, {"layout": "bshd", "window": window, "bias": None}))
    return found


def cache_of(inputs: Inputs) -> Optional[Part]:
    """Returns the call of `attend.decode` that reads padded or paged keys in place, or None for other keys."""
    pattern = inputs.pattern
    if pattern is None or pattern.kind.keys in ("dense", "packed", "gappy"):
        return None
    device, rows, keys = inputs.q.device, pattern.fields.q_seqinfo, pattern.fields.k_seqinfo
    options: dict[str, Any] = {}
    if pattern.kind.keys == "padded":
        size = keys.padding
    else:
        size = pattern.fields.page_size
        options["page_table"] = pattern.fields.block_tables.to(device, torch.int32)
        if pattern.kind.keys == "gappy_pages":
            options["cache_leftpad"] = keys.seqstart[:-1].to(device)
    k, v = (x[0].unflatten(0, (-1, size)) for x in (inputs.k, inputs.v))
    options |= {
        "layout": "bshd", "cu_seqlens_q": rows.seqstart.to(device), "max_seqlen_q": rows.max_seqlen,
        "seqlens_k": keys.seqlen.to(device), "causal": False, "window": pattern.window,
    }  # fmt: skip
    return Part(inputs.q[0], k, v, options)


def joined(parts: list[Part], results: list[tuple[Any, Any]]) -> tuple[Any, Any]:
    """Concatenates the results of the calls to o (batch, seqlen_q, heads_q, head_dim_v) and lse (batch, heads_q,
    seqlen_q).
    """
    both = [(o[None], lse[None]) if part.is_packed else (o, lse) for part, (o, lse) in zip(parts, results)]
    if len(both) == 1:
        return both[0]
    return torch.cat([o for o, _ in both], 1), torch.cat([lse for _, lse in both], 2)


def cut(parts: list[Part], x: Any, axis: int) -> list[Any]:
    """Splits a tensor of all rows along `axis` into the rows of each call."""
    pieces = x.split([part.num_rows for part in parts], axis) if len(parts) > 1 else [x]
    return [piece[0] if part.is_packed else piece for part, piece in zip(parts, pieces)]
