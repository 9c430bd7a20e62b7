"""Describes and clears the on-disk cache of compiled GPU kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attend import _core

if TYPE_CHECKING:
    from attend._core import CacheInfo, CacheTotals


def cache_info() -> CacheInfo:
    """Describes the on-disk cache of compiled GPU kernels. Only reads the folder, so it needs no GPU.

    Kernels are compiled at their first use and stored in $ATTEND_CACHE_DIR. If this variable is not set, the folder is
    $XDG_CACHE_HOME/attend or, without that variable, $HOME/.cache/attend. If the cache exceeds ATTEND_CACHE_LIMIT
    (default 1 GiB) when a new kernel is stored, the least recently used kernels are removed.

    Returns:
        A dict. `folder` is None if no variable is set, and `limit_bytes` is None for "unlimited". `files` and `bytes`
        are totals. `kernels` is a list, the largest first, of dicts with `name`, `arch` (such as "sm_90a"), `files`,
        `bytes` and `last_used` (seconds since the epoch).

    Raises:
        ArgumentError: ATTEND_CACHE_LIMIT is not a valid size.
    """
    return _core.cache_info()


def cache_clear() -> CacheTotals:
    """Removes every compiled GPU kernel from disk, and no other file. Kernels that are already loaded keep working.

    Returns:
        A dict with the numbers of removed `files` and `bytes`.

    Raises:
        RunError: a file cannot be removed.
    """
    return _core.cache_clear()
