"""Supports jax.export of programs that call attend."""

from __future__ import annotations

from typing import Any

from attend.jax._call import TARGETS


def disabled_checks() -> list[Any]:
    """Returns a value for the argument `disabled_checks` of `jax.export.export`, which otherwise refuses attend's
    custom calls.

    A process that runs the exported program must first import attend.jax, in a version with the same names of custom
    calls.
    """
    from jax import export

    return [export.DisabledSafetyCheck.custom_call(name) for name in TARGETS.values()]
