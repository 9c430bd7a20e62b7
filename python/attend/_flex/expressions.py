"""Builds scalar expressions and converts them to text in the language of docs/custom_scores.md. Equal expressions are
the same object.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any, Optional, TypeVar, Union

BOOL, INT, FLOAT = "bool", "int", "float"
MOST_INT = 2**31 - 1
_DEEPEST = 12  # maximum nesting depth in one line; a node adds up to 4 brackets; the parser allows 200 levels

Number = Union[bool, int, float]


class NotSaidError(Exception):
    """Raised if an operator has no expression for these arguments. The message is the reason."""


Function = TypeVar("Function", bound=Callable[..., Any])


def registrar(table: dict[str, Function]) -> Callable[..., Callable[[Function], Function]]:
    """Returns a decorator that enters a function into the table under the given names."""

    def names_of(*names: str) -> Callable[[Function], Function]:
        def register(function: Function) -> Function:
            table.update(dict.fromkeys(names, function))
            return function

        return register

    return names_of


class Expression:
    """A node of an expression. `low` and `high` are bounds of an integer value, or None if unknown."""

    __slots__ = ("args", "high", "kind", "low", "place", "type", "value")

    def __init__(
        self, kind: str, value: Any, args: tuple[Expression, ...], type: str, low: Optional[int], high: Optional[int]
    ) -> None:
        self.kind = kind  # "constant", "variable", "load", "operation" or "wrap"
        self.value = value  # by kind: the number, the name, the source, the text with a {} for each operand, the extent
        self.args = args
        self.type = type
        self.low = low
        self.high = high
        self.place = 0

    @property
    def is_constant(self) -> bool:
        return self.kind == "constant"


class Builder:
    """Makes expressions. An operand that is a number becomes a constant."""

    def __init__(self) -> None:
        self._known: dict[Any, Expression] = {}

    def _add(
        self, kind: str, value: Any, args: tuple[Expression, ...], type: str, low: Optional[int] = None,
        high: Optional[int] = None,
    ) -> Expression:  # fmt: skip
        named = value.hex() if isinstance(value, float) else value  # hex() distinguishes -0.0 from 0.0
        key = (kind, named, type, *(id(x) for x in args))
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = Expression(kind, value, args, type, low, high)
            found.place = len(self._known)
        return found

    def of(self, x: Union[Expression, Number]) -> Expression:
        if isinstance(x, Expression):
            return x
        if isinstance(x, bool):
            return self._add("constant", x, (), BOOL, int(x), int(x))
        if not isinstance(x, float) and hasattr(x, "__index__"):
            n = operator.index(x)  # converts a compiler's symbolic integer to a number
            return self._add("constant", n, (), INT, n, n)
        return self._add("constant", float(x), (), FLOAT)

    def variable(self, name: str) -> Expression:
        is_score = name == "score"
        return self._add("variable", name, (), FLOAT if is_score else INT, None if is_score else 0)

    def load(self, source: Any, subscripts: tuple[Expression, ...], type: str) -> Expression:
        return self._add("load", source, subscripts, type)

    def wrap(self, subscript: Expression, extent: int) -> Expression:
        """Returns the subscript as Python interprets it: a negative one counts from the end of a dimension of size
        `extent`.
        """
        if subscript.low is not None and subscript.low >= 0:
            return subscript
        return self._add("wrap", operator.index(extent), (subscript,), INT)

    def operation(
        self, text: str, *operands: Union[Expression, Number], type: str, low: Optional[int] = None,
        high: Optional[int] = None,
    ) -> Expression:  # fmt: skip
        return self._add("operation", text, tuple(self.of(x) for x in operands), type, low, high)

    # Types

    def as_float(self, x: Union[Expression, Number]) -> Expression:
        x = self.of(x)
        if x.type == FLOAT:
            return x
        return self.of(float(x.value)) if x.is_constant else self.operation("float({})", x, type=FLOAT)

    def as_int(self, x: Union[Expression, Number]) -> Expression:
        x = self.of(x)
        if x.type == INT:
            return x
        if x.type == BOOL:
            return self.of(int(x.value)) if x.is_constant else self.operation("int({})", x, type=INT, low=0, high=1)
        return self.operation("int({})", x, type=INT)

    def as_bool(self, x: Union[Expression, Number]) -> Expression:
        x = self.of(x)
        if x.type == BOOL:
            return x
        return self.of(bool(x.value)) if x.is_constant else self.operation("({} != 0)", x, type=BOOL)

    def alike(self, *operands: Union[Expression, Number]) -> tuple[Expression, ...]:
        """Converts all operands to floats if at least one is a float, otherwise to integers."""
        found = [self.of(x) for x in operands]
        if any(x.type == FLOAT for x in found):
            return tuple(self.as_float(x) for x in found)
        return tuple(_checked(self.as_int(x)) for x in found)

    # Arithmetic. Operations on two integer constants are computed here, because subscripts of views contain many of
    # them.

    def add(self, a: Union[Expression, Number], b: Union[Expression, Number]) -> Expression:
        a, b = self.alike(a, b)
        if a.type == INT:
            if a.is_constant and b.is_constant and abs(a.value + b.value) <= MOST_INT:
                return self.of(a.value + b.value)
            for zero, other in ((a, b), (b, a)):
                if zero.is_constant and zero.value == 0:
                    return other
        low, high = _fitting([(x, y) for x in (a.low, a.high) for y in (b.low, b.high)], operator.add)
        return self.operation("({} + {})", a, b, type=a.type, low=low, high=high)

    def subtract(self, a: Union[Expression, Number], b: Union[Expression, Number]) -> Expression:
        a, b = self.alike(a, b)
        low, high = _fitting([(x, y) for x in (a.low, a.high) for y in (b.low, b.high)], operator.sub)
        return self.operation("({} - {})", a, b, type=a.type, low=low, high=high)

    def multiply(self, a: Union[Expression, Number], b: Union[Expression, Number]) -> Expression:
        a, b = self.alike(a, b)
        are_known = a.type == INT and a.is_constant and b.is_constant
        if are_known and abs(a.value * b.value) <= MOST_INT:
            return self.of(a.value * b.value)
        for one, other in ((a, b), (b, a)):
            if one.is_constant and one.value == 1:
                return other
        low, high = _fitting([(x, y) for x in (a.low, a.high) for y in (b.low, b.high)], operator.mul)
        return self.operation("({} * {})", a, b, type=a.type, low=low, high=high)

    def divide(self, a: Union[Expression, Number], b: Union[Expression, Number]) -> Expression:
        a, b = self.as_float(a), self.as_float(b)
        if b.is_constant and b.value == 1:
            return a
        return self.operation("({} / {})", a, b, type=FLOAT)

    def floor_divide(self, a: Union[Expression, Number], b: Union[Expression, Number]) -> Expression:
        """Divides integers, rounding down."""
        a, b = self.as_int(a), self.as_int(b)
        if b.is_constant and b.value > 0:
            if a.is_constant:
                return self.of(a.value // b.value)
            low, high = (None if x is None else x // b.value for x in (a.low, a.high))
            return self.operation("({} // {})", a, b, type=INT, low=low, high=high)
        return self.operation("({} // {})", a, b, type=INT)

    def remainder(self, a: Union[Expression, Number], b: Union[Expression, Number]) -> Expression:
        """Returns the remainder with the sign of the divisor."""
        a, b = self.alike(a, b)
        is_positive = a.type == INT and b.is_constant and b.value > 0
        if is_positive and a.is_constant:
            return self.of(a.value % b.value)
        bounds = {"low": 0, "high": b.value - 1} if is_positive else {}
        return self.operation("({} % {})", a, b, type=a.type, **bounds)

    def negate(self, a: Union[Expression, Number]) -> Expression:
        (a,) = self.alike(a)
        return self.operation("(-{})", a, type=a.type)

    def call(self, name: str, *operands: Union[Expression, Number]) -> Expression:
        """Returns the call of a function of the language, such as exp, with operands converted to floats."""
        floats = [self.as_float(x) for x in operands]
        return self.operation(f"{name}({', '.join('{}' for _ in floats)})", *floats, type=FLOAT)

    def absolute(self, a: Union[Expression, Number]) -> Expression:
        (a,) = self.alike(a)
        return self.operation("abs({})", a, type=a.type, low=0 if a.type == INT else None)

    def least(self, a: Union[Expression, Number], b: Union[Expression, Number]) -> Expression:
        a, b = self.alike(a, b)
        low = None if a.low is None or b.low is None else min(a.low, b.low)
        highs = [x.high for x in (a, b) if x.high is not None]
        return self.operation("min({}, {})", a, b, type=a.type, low=low, high=min(highs) if highs else None)

    def greatest(self, a: Union[Expression, Number], b: Union[Expression, Number]) -> Expression:
        a, b = self.alike(a, b)
        high = None if a.high is None or b.high is None else max(a.high, b.high)
        lows = [x.low for x in (a, b) if x.low is not None]
        return self.operation("max({}, {})", a, b, type=a.type, low=max(lows) if lows else None, high=high)

    # Conditions

    def compare(self, sign: str, a: Union[Expression, Number], b: Union[Expression, Number]) -> Expression:
        a, b = self.of(a), self.of(b)
        if not (a.type == b.type == BOOL and sign in ("==", "!=")):
            a, b = self.alike(a, b)
        return self.operation(f"({{}} {sign} {{}})", a, b, type=BOOL)

    def both(self, a: Union[Expression, Number], b: Union[Expression, Number]) -> Expression:
        return self.operation("({} && {})", self.as_bool(a), self.as_bool(b), type=BOOL)

    def either(self, a: Union[Expression, Number], b: Union[Expression, Number]) -> Expression:
        return self.operation("({} || {})", self.as_bool(a), self.as_bool(b), type=BOOL)

    def invert(self, a: Union[Expression, Number]) -> Expression:
        return self.operation("(!{})", self.as_bool(a), type=BOOL)

    def select(
        self, condition: Union[Expression, Number], a: Union[Expression, Number], b: Union[Expression, Number]
    ) -> Expression:
        a, b = self.of(a), self.of(b)
        if not (a.type == b.type == BOOL):
            a, b = self.alike(a, b)
        condition = self.as_bool(condition)
        if condition.is_constant:
            return a if condition.value else b
        low = None if a.low is None or b.low is None else min(a.low, b.low)
        high = None if a.high is None or b.high is None else max(a.high, b.high)
        return self.operation("({} ? {} : {})", condition, a, b, type=a.type, low=low, high=high)


def _checked(x: Expression) -> Expression:
    if x.is_constant and not -(2**31) <= x.value <= MOST_INT:
        raise NotSaidError(f"the integer {x.value}, allowed 32 bits")
    return x


def _fitting(
    ends: list[tuple[Optional[int], Optional[int]]], compute: Callable[[int, int], int]
) -> tuple[Optional[int], Optional[int]]:
    """Returns the smallest and largest result of `compute` over the ranges `ends`. Both results are None if a bound is
    unknown, or if `compute` overflows, because integers then wrap around.
    """
    found = [compute(x, y) for x, y in ends if x is not None and y is not None]
    if len(found) < len(ends) or min(found) < -(2**31) or max(found) > MOST_INT:
        return None, None
    return min(found), max(found)


def reachable(root: Expression) -> list[Expression]:
    """Returns `root` and all nodes below it, operands before the nodes that use them."""
    found: dict[int, Expression] = {}
    waiting = [root]
    while waiting:
        x = waiting.pop()
        if x.place not in found:
            found[x.place] = x
            waiting.extend(x.args)
    return [found[place] for place in sorted(found)]


def text_of(root: Expression, names: dict[Any, str], keeps_wraps: bool = True) -> str:
    """Returns the function's text. `names` maps load sources to names. If `keeps_wraps` is False, the text assumes that
    no subscript is negative.
    """
    nodes = reachable(root)
    uses = dict.fromkeys((x.place for x in nodes), 0)
    for x in nodes:
        for y in x.args:
            uses[y.place] += 2 if x.kind == "wrap" and keeps_wraps else 1
    lets: list[str] = []
    texts: dict[int, str] = {}
    depths: dict[int, int] = {}
    for x in nodes:
        operands = [texts[y.place] for y in x.args]
        depth = max((depths[y.place] + 1 for y in x.args), default=0)
        text = _line_of(x, operands, names, keeps_wraps)
        if x.args and (uses[x.place] > 1 or depth > _DEEPEST) and text not in operands:
            name = f"v{len(lets)}"
            lets.append(f"let {name} = {_bare(text)}; ")
            text, depth = name, 0
        texts[x.place], depths[x.place] = text, depth
    return "".join(lets) + _bare(texts[root.place])


def _line_of(x: Expression, operands: list[str], names: dict[Any, str], keeps_wraps: bool) -> str:
    if x.kind == "wrap":
        (i,) = operands
        return f"({i} < 0 ? {i} + {x.value} : {i})" if keeps_wraps else i
    if x.kind == "operation":
        text: str = x.value.format(*operands)
        return text
    if x.kind == "load":
        return names[x.value] + "".join(f"[{_bare(i)}]" for i in operands)
    return str(x.value) if x.kind == "variable" else _number(x.value)


def _bare(text: str) -> str:
    """Removes the outermost brackets."""
    if not text.startswith("(") or not text.endswith(")"):
        return text
    depth = 0
    for i, c in enumerate(text):
        depth += (c == "(") - (c == ")")
        if depth == 0 and i < len(text) - 1:
            return text
    return text[1:-1]


def _number(x: Number) -> str:
    if isinstance(x, bool):
        return "true" if x else "false"
    if isinstance(x, int):
        if x >= 0:
            return str(x)
        return f"(-{-x})" if x > -(2**31) else f"(-{MOST_INT} - 1)"
    if math.isnan(x):
        return "(inf - inf)"
    text = "inf" if math.isinf(x) else repr(abs(x))
    return f"(-{text})" if math.copysign(1, x) < 0 else text
