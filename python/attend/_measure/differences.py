"""The difference between the results of two sides, and the error text of a side without a result."""

from __future__ import annotations

from typing import Any

# relative to the norm: twice the effect of rounding to bfloat16; a different mask gives much more
LARGEST_DIFFERENCE = 0.05


def relative_difference(their: Any, our: Any) -> float:
    """Returns the norm of the tensors' difference divided by the norm of `our`; NaN if either contains a NaN."""
    return float(((their.float() - our.float()).norm() / our.float().norm()).item())


def first_line(error: BaseException) -> str:
    """Returns an error in one short line, with its type."""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:160]}"
