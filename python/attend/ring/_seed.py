"""Seeds of dropout where the caller names none: every rank draws one, and rank 0's is that of all."""

from __future__ import annotations

from typing import Any

from attend._drop_in import dropout_seed
from attend._frameworks import is_torch
from attend._random import drawn_seed


def draw_seed(q: Any, dropout_p: float) -> Any:
    """Of torch's default generator on the CPU for torch tensors, else of `attend.manual_seed`'s.

    Every rank draws, so that generators that were alike remain so. What all use travels with the ranks' agreement on
    the call (`attend::RingParams::seed_of_rank_0`).
    """
    return dropout_seed(dropout_p) if is_torch(q) else drawn_seed() % 2**64
