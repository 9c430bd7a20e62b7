"""Draws dropout seeds if the caller gives none. Every rank draws a seed, and all ranks use the seed of rank 0."""

from __future__ import annotations

from typing import Any

from attend._drop_in import dropout_seed
from attend._frameworks import is_torch
from attend._random import drawn_seed


def draw_seed(q: Any, dropout_p: float) -> Any:
    """Returns a seed from torch's default CPU generator for torch tensors, otherwise from the generator of
    `attend.manual_seed`.

    Every rank draws a seed, so that generators in equal states stay equal. The seed of rank 0 is part of the message
    with which the ranks agree on the call (`attend::RingParams::seed_of_rank_0`).
    """
    return dropout_seed(dropout_p) if is_torch(q) else drawn_seed() % 2**64
