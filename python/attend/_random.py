"""Seeds of dropout for arrays that are not torch's, where the caller names none: a generator of this module."""

from __future__ import annotations

import functools
import threading
from typing import TYPE_CHECKING, Any

from attend._settings import signed_bits

if TYPE_CHECKING:
    import random

_lock = threading.Lock()


@functools.cache
def _generator() -> random.Random:
    import random  # not before somebody drops: it loads hashes

    return random.Random()


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
    bits = signed_bits("seed", seed)
    with _lock:
        _generator().seed(bits)


def drawn_seed() -> int:
    """64 random bits as a signed number, others at each call."""
    with _lock:
        return _generator().getrandbits(64) - 2**63
