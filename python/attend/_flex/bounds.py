"""Computes bounds of integer expressions over all positions of a call. These bounds can prove that a subscript is never
negative.
"""

from __future__ import annotations

from typing import Optional

from attend._flex.expressions import INT, Expression, reachable

Interval = tuple[int, int]


def are_never_negative(roots: list[Expression], sizes: dict[str, int]) -> bool:
    """Returns True if none of the expressions can be negative. `sizes` contains the number of values of each of b, h, q
    and k, which begin at 0.
    """
    known: dict[int, Optional[Interval]] = {}
    for root in roots:
        for x in reachable(root):
            if x.place not in known:
                known[x.place] = _interval(x, [known[y.place] for y in x.args], sizes)
    found = [known[root.place] for root in roots]
    return all(interval is not None and interval[0] >= 0 for interval in found)


def _interval(x: Expression, operands: list[Optional[Interval]], sizes: dict[str, int]) -> Optional[Interval]:
    """Returns the bounds of x. Returns None if they are unknown, or exceed 32 bits, because integers then wrap
    around.
    """
    if x.type != INT:
        return None
    if x.kind == "variable":
        return 0, max(sizes[x.value] - 1, 0)
    found = _computed(x, operands) if x.kind == "operation" else None
    if found is None and x.low is not None and x.high is not None:
        found = x.low, x.high
    return found if found is not None and found[0] >= -(2**31) and found[1] < 2**31 else None


def _computed(x: Expression, operands: list[Optional[Interval]]) -> Optional[Interval]:
    if x.value == "({} ? {} : {})":
        operands = operands[1:]
    given = [interval for interval in operands if interval is not None]
    if x.value == "({} % {})" and x.args[1].is_constant and x.args[1].value > 0:
        return 0, x.args[1].value - 1
    if len(given) < len(operands):
        return _of_one(x.value, operands)
    if len(given) == 1:
        (low, high) = given[0]
        return {"(-{})": (-high, -low), "abs({})": (max(low, -high, 0), max(high, -low))}.get(x.value)
    (a, b), (c, d) = given
    divisor = x.args[1].value if x.args[1].is_constant else 0
    if x.value == "({} // {})" and divisor > 0:
        return a // divisor, b // divisor
    products = [a * c, a * d, b * c, b * d]
    return {
        "({} + {})": (a + c, b + d),
        "({} - {})": (a - d, b - c),
        "({} * {})": (min(products), max(products)),
        "min({}, {})": (min(a, c), min(b, d)),
        "max({}, {})": (max(a, c), max(b, d)),
        "({} ? {} : {})": (min(a, c), max(b, d)),
    }.get(x.value)


def _of_one(text: str, operands: list[Optional[Interval]]) -> Optional[Interval]:
    """Returns the bounds of a minimum or maximum of two operands. One of the operands has unknown bounds."""
    given = next((interval for interval in operands if interval is not None), None)
    if given is None:
        return None
    return {"min({}, {})": (-(2**31), given[1]), "max({}, {})": (given[0], 2**31 - 1)}.get(text)
