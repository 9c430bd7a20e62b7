"""One seed for all ranks, where a front door of another package takes none."""

from __future__ import annotations

from typing import Any

from attend._drop_in import dropout_seed


def shared_seed(dropout_p: float, group: str) -> Any:
    """What rank 0 draws from torch's default generator, on every rank; 0 where nothing is dropped. Collective.

    Every rank draws, so that generators that were alike remain so.
    """
    seed = dropout_seed(dropout_p)
    if dropout_p == 0.0:
        return seed
    import torch

    from attend.ring import _operators  # noqa: F401 (defines the operator)

    return torch.ops.attend.ring_seed(torch.as_tensor(seed), group)
