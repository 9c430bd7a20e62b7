"""Draws dropout seeds for arrays that are not torch tensors, if the caller gives no seed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, SupportsIndex

from attend._settings import as_int64

if TYPE_CHECKING:
    import random

_made: dict[str, random.Random] = {}
# Manual_seed's number and the index of each fork since then, or empty if the system chose the seed.
_lineage: list[int] = []
_forks = 0  # number of forks of this process since it was seeded or started


def _generator() -> random.Random:
    """Returns the generator, which all threads share. Drawing and seeding are each a single C function and therefore
    atomic.
    """
    found = _made.get("generator")
    if found is None:
        import random  # imported on first use, because random loads other modules

        found = _made.setdefault("generator", random.Random())
    return found


def manual_seed(seed: SupportsIndex) -> None:
    """Sets the generator of dropout seeds for NumPy arrays and other arrays that are not torch tensors.

    After the same `manual_seed`, the same sequence of calls drops the same entries. All threads share the generator,
    whose initial seed comes from the operating system. torch tensors use torch's generators, which `torch.manual_seed`
    sets. A call with an explicit `seed=` uses no generator.

    A forked child draws other numbers than its parent and than every other child. Without `manual_seed` its seed comes
    from the operating system. After `manual_seed` it is derived from the seed and the number of the fork since then (1
    for the first). Therefore the workers of a data loader drop different entries in each epoch, and a program that
    forks in the same order reproduces them.

    Arguments:
        seed: an integer from 0 to 2^64 - 1.

    Raises:
        ArgumentError: the seed is not such an integer.
    """
    global _forks
    # The number is made non-negative, because Python's generator would ignore the sign of a negative seed.
    number = as_int64("seed", seed) % 2**64
    _generator().seed(number)
    _lineage[:] = [number]
    _forks = 0


def drawn_seed() -> int:
    """Draws 64 random bits and returns them as a signed number."""
    return _generator().getrandbits(64) - 2**63


def _before_a_fork() -> None:
    global _forks
    _forks += 1


def _in_a_child() -> None:
    """Runs in a forked child. Reseeds its copy of the generator, which would otherwise draw the same numbers as the
    parent.
    """
    global _forks
    _made.clear()
    if _lineage:
        _lineage.append(_forks)
        _generator().seed("/".join(map(str, _lineage)))
    _forks = 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_a_fork, after_in_child=_in_a_child)
