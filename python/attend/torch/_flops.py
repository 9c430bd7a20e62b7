"""Computes the number of operations that torch.utils.flop_counter.FlopCounterMode counts for a call. As for torch's own
attention, masks do not reduce this number.

Each packed sequence is counted with the maximum length, because the offsets may be on a GPU or have no values.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.flop_counter import register_flop_formula

from attend._settings import Settings
from attend.torch._operators import split, split_needs


def scores(q: Any, k: Any, extras: Any, settings: Settings) -> int:
    """Returns the total number of scores of all heads and sequences."""
    if settings.layout == "thd":
        sequences = extras.cu_seqlens_q[0] - 1
        return int(sequences * q[1] * settings.max_seqlen_q * settings.max_seqlen_k)
    axis = 2 if settings.layout == "bhsd" else 1
    return int(q[0] * q[3 - axis] * q[axis] * k[axis])


@register_flop_formula(torch.ops.attend.forward)
def _forward(q: Any, k: Any, v: Any, *rest: Any, **_: Any) -> int:
    """Returns the number of operations of the products Q K^T and P V."""
    return int(2 * scores(q, k, *split(rest)) * (q[-1] + v[-1]))


@register_flop_formula(torch.ops.attend.backward)
def _backward(q: Any, k: Any, v: Any, o: Any, lse: Any, dout: Any, dlse: Any, *rest: Any, **_: Any) -> int:
    """Returns the number of operations of the products Q K^T (recomputed), dS K, dS^T Q, dO V^T and P^T dO."""
    extras, settings = split_needs(rest)[1:]
    return int(2 * scores(q, k, extras, settings) * (3 * q[-1] + 2 * v[-1]))
