"""How far one side's result is from another's, and what a side says where it has none."""

from __future__ import annotations

from typing import Any

LARGEST_DIFFERENCE = 0.05  # of the norm: twice what rounding to bfloat16 gives; another mask gives much more


def relative_difference(their: Any, our: Any) -> float:
    """The norm of the difference of two torch tensors over the norm of `our`; NaN where one of them has a NaN."""
    return float(((their.float() - our.float()).norm() / our.float().norm()).item())


def first_line(error: BaseException) -> str:
    """An error in one short line, with its type."""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:160]}"
