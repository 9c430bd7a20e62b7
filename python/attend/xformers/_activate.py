"""Replaces xFormers' own functions by attend's."""

from __future__ import annotations

import functools
import importlib
import warnings
from typing import Any

from attend._errors import Error
from attend.xformers import fmha

_NAMES = (
    "memory_efficient_attention",
    "memory_efficient_attention_forward",
    "memory_efficient_attention_forward_requires_grad",
    "memory_efficient_attention_backward",
    "memory_efficient_attention_partial",
)
_MODULES = ("xformers.ops", "xformers.ops.fmha")
_own: dict[tuple[str, str], Any] = {}  # xFormers' own functions while attend is active, by module and name
_told: set[str] = set()


def activate() -> None:
    """Replaces `xformers.ops.memory_efficient_attention` and related functions by attend's until `restore()`.

    The replacement affects all code that calls these functions by their names in xformers.ops or xformers.ops.fmha.
    Code that has already imported a function itself keeps xFormers' function. If attend refuses a call, xFormers
    computes it, with one warning for each reason. Raises ImportError if xFormers is not installed.
    """
    if _own:
        return
    for module_name in _MODULES:
        module = importlib.import_module(module_name)
        for name in _NAMES:
            function = getattr(module, name, None)
            if function is not None:
                _own[module_name, name] = function
                setattr(module, name, _replaced(function, getattr(fmha, name)))


def restore() -> None:
    """Restores xFormers' own functions. Does nothing if attend is not active."""
    for (module_name, name), function in _own.items():
        setattr(importlib.import_module(module_name), name, function)
    _own.clear()


def _replaced(own: Any, ours: Any) -> Any:
    @functools.wraps(own)
    def run(*arguments: Any, **options: Any) -> Any:
        try:
            return ours(*arguments, **options)
        except Error as error:
            reason = str(error)
        if reason not in _told:
            _told.add(reason)
            warnings.warn(f"attend.xformers.activate(): xFormers' own attention runs: {reason}", stacklevel=2)
        return own(*arguments, **options)

    return run
