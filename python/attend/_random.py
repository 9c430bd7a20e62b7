"""Seeds of dropout that the caller does not name, for arrays that are not torch's: a generator of this module."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, SupportsIndex

from attend._settings import as_int64

if TYPE_CHECKING:
    import random

_made: dict[str, random.Random] = {}
_lineage: list[int] = []  # manual_seed's number, then which fork since then led here; empty: seeded by the system
_forks = 0  # of this process, since it was seeded or began


def _generator() -> random.Random:
    """One for all threads: drawing and seeding are each one function of C, which lets no other thread in between."""
    found = _made.get("generator")
    if found is None:
        import random  # not before somebody drops: it loads hashes

        found = _made.setdefault("generator", random.Random())
    return found


def manual_seed(seed: SupportsIndex) -> None:
    """Set the generator that dropout on NumPy arrays, and on others that are not torch's, draws its seeds from.

    The calls that follow drop what they dropped after the same `manual_seed`, in their order. The generator is one for
    all threads, and starts from the operating system's random numbers. torch tensors ask torch's generators, which
    `torch.manual_seed` sets. An explicit `seed=` of a call asks neither.

    A forked child draws other numbers than its parent and than every other child: without `manual_seed` from the
    operating system's, after it from the seed and the number of the fork since then (1 for the first). So the workers
    of a data loader and of its next epoch drop differently, and a program that forks in the same order repeats them.

    Arguments:
        seed: a whole number from 0 to 2^64 - 1.

    Raises:
        ArgumentError: another value.
    """
    global _forks
    number = as_int64("seed", seed) % 2**64  # of a negative number Python takes the magnitude
    _generator().seed(number)
    _lineage[:] = [number]
    _forks = 0


def drawn_seed() -> int:
    """64 random bits as a signed number, others at each call."""
    return _generator().getrandbits(64) - 2**63


def _before_a_fork() -> None:
    global _forks
    _forks += 1


def _in_a_child() -> None:
    """The child has a copy of the generator, whose numbers the parent draws too."""
    global _forks
    _made.clear()
    if _lineage:
        _lineage.append(_forks)
        _generator().seed("/".join(map(str, _lineage)))
    _forks = 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_a_fork, after_in_child=_in_a_child)
