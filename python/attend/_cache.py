"""The on-disk cache of compiled GPU kernels: its contents, and how to clear it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attend import _core

if TYPE_CHECKING:
    from attend._core import CacheInfo, CacheTotals


def cache_info() -> CacheInfo:
    """Describes the on-disk cache of compiled GPU kernels. Reads the folder; needs no GPU.

    Kernels are compiled at their first use and stored in $ATTEND_CACHE_DIR, otherwise $XDG_CACHE_HOME/attend, otherwise
    $HOME/.cache/attend. If the cache exceeds ATTEND_CACHE_LIMIT (default 1 GiB) when a new kernel is stored, the least
    recently used kernels are removed.

    Returns:
        A dict: `folder`, or None if no variable names one; `limit_bytes`, or None for "unlimited"; `files` and `bytes`
        in total; `kernels`, the largest first, each a dict of `name`, `arch` ("sm_90a"), `files`, `bytes` and
        `last_used` (seconds since the epoch).

    Raises:
        ArgumentError: ATTEND_CACHE_LIMIT is not a valid size.
    """
    return _core.cache_info()


def cache_clear() -> CacheTotals:
    """Removes every compiled GPU kernel from disk, and no other file. Kernels that are already loaded keep working.

    Returns:
        A dict: the removed `files` and `bytes`.

    Raises:
        RunError: a file cannot be removed.
    """
    return _core.cache_clear()
