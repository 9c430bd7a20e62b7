"""Detects the framework of an array."""

from __future__ import annotations

import sys
from typing import Any


def is_torch(x: Any) -> bool:
    # The name is checked first, because torch's tracers support this and torch need not be imported.
    module = type(x).__module__
    if module == "torch":
        return True
    package = module.partition(".")[0]
    if package in ("torch", "builtins", "numpy"):
        return package == "torch"
    torch = sys.modules.get("torch")
    return torch is not None and hasattr(torch, "Tensor") and isinstance(x, torch.Tensor)


def framework_of(x: Any) -> str:
    """Returns the name of the package that defines the array's type."""
    if is_torch(x):
        return "torch"
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(x, numpy.ndarray):
        return "numpy"
    package = type(x).__module__.partition(".")[0]
    return "jax" if package == "jaxlib" else package
