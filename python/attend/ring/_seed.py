"""Seeds of dropout where the caller names none: every rank draws one, and rank 0's is that of all."""

from __future__ import annotations

import functools
from typing import Any

from attend._drop_in import dropout_seed
from attend._frameworks import is_torch


def draw_seed(q: Any, dropout_p: float) -> Any:
    """Of torch's default generator on the CPU for torch tensors, else of a generator of this module.

    Every rank draws, so that generators that were alike remain so. What all use travels with the ranks' agreement on
    the call (`attend::RingParams::seed_of_rank_0`).
    """
    return dropout_seed(dropout_p) if is_torch(q) else _draw_seed()


def _draw_seed() -> int:
    return int(_generator().integers(2**63))


@functools.cache
def _generator() -> Any:
    import numpy as np

    return np.random.default_rng()
