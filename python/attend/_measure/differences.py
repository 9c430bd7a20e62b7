"""Computes the difference between the results of two sides, and the error text of a side without a result."""

from __future__ import annotations

from typing import Any

# The limit of `relative_difference`. The limit is twice the effect of rounding to bfloat16. A different mask has a much
# larger effect.
LARGEST_DIFFERENCE = 0.05
# The same limit for results in float32, where different orders of sums have effects of about 1e-6.
LARGEST_DIFFERENCE_F32 = 1e-4


def relative_difference(their: Any, our: Any) -> float:
    """Returns the norm of the difference of the tensors divided by the norm of `our`, or NaN if one of them contains a
    NaN.
    """
    return float(((their.float() - our.float()).norm() / our.float().norm()).item())


def first_line(error: BaseException) -> str:
    """Returns one short line with the type and the message of an error."""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:160]}"
