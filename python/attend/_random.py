"""Seeds of dropout for arrays that are not torch's, where the caller names none: a generator of this module."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attend._settings import signed_bits

if TYPE_CHECKING:
    import random

_made: dict[str, random.Random] = {}


def _generator() -> random.Random:
    """One for all threads: drawing and seeding are each one function of C, which lets no other thread in between."""
    found = _made.get("generator")
    if found is None:
        import random  # not before somebody drops: it loads hashes

        found = _made.setdefault("generator", random.Random())
    return found


def manual_seed(seed: Any) -> None:
    """Set the generator that dropout on NumPy arrays, and on others that are not torch's, draws its seeds from.

    The calls that follow drop what they dropped after the same `manual_seed`, in their order. The generator is one for
    all threads, and starts from the operating system's random numbers. torch tensors ask torch's generators, which
    `torch.manual_seed` sets. An explicit `seed=` of a call asks neither.

    Arguments:
        seed: a whole number from 0 to 2^64 - 1.

    Raises:
        ArgumentError: another value.
    """
    _generator().seed(signed_bits("seed", seed) % 2**64)  # of a negative number Python takes the magnitude


def drawn_seed() -> int:
    """64 random bits as a signed number, others at each call."""
    return _generator().getrandbits(64) - 2**63
