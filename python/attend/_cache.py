"""The folder of compiled GPU kernels: what it holds, and how to empty it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attend import _core

if TYPE_CHECKING:
    from attend._core import CacheInfo, CacheTotals


def cache_info() -> CacheInfo:
    """What the cache of compiled GPU kernels holds on disk. Reads the folder; needs no GPU.

    Kernels are compiled at their first use and kept in $ATTEND_CACHE_DIR, else $XDG_CACHE_HOME/attend, else
    $HOME/.cache/attend. Beyond ATTEND_CACHE_LIMIT (1 GiB where it is not set) those that were not used for the longest
    time are removed when a new one is stored.

    Returns:
        A dict: `folder`, or None where no variable names one; `limit_bytes`, or None for "unlimited"; `files` and
        `bytes` of the whole; `kernels`, the largest first, each a dict of `name`, `arch` ("sm_90a"), `files`, `bytes`
        and `last_used` (seconds since the epoch).

    Raises:
        ArgumentError: ATTEND_CACHE_LIMIT is no size.
    """
    return _core.cache_info()


def cache_clear() -> CacheTotals:
    """Removes every compiled GPU kernel from disk, and no other file. Kernels that are loaded go on working.

    Returns:
        A dict: `files` and `bytes`, what was removed.

    Raises:
        RunError: a file cannot be removed.
    """
    return _core.cache_clear()
