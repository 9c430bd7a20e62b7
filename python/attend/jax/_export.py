"""jax.export of programs with attend in them."""

from __future__ import annotations

from typing import Any

from attend.jax._call import TARGETS


def disabled_checks() -> list[Any]:
    """For `jax.export.export(f, disabled_checks=...)`, which refuses custom calls that it does not know.

    Whoever runs the exported program has to import attend.jax first, of a version that has the same names.
    """
    from jax import export

    return [export.DisabledSafetyCheck.custom_call(name) for name in TARGETS.values()]
