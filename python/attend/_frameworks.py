"""Whose array is it?"""

from __future__ import annotations

import sys
from typing import Any


def is_torch(x: Any) -> bool:
    # By name first: that is what tracers of torch can follow, and what needs no torch.
    package = type(x).__module__.partition(".")[0]
    if package in ("torch", "builtins", "numpy"):
        return package == "torch"
    torch = sys.modules.get("torch")
    return torch is not None and hasattr(torch, "Tensor") and isinstance(x, torch.Tensor)
