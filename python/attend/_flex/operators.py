"""Translates torch's element-wise operators into expressions. A handler is a function of the builder and the operator's
arguments.

If the language of docs/custom_scores.md and torch differ, the expression follows torch. The language and torch differ
in integer shifts and powers, floor division of floats, derivatives of relu and clamp at their bounds, and remainders of
fmod.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Optional

from attend._flex.expressions import BOOL, FLOAT, INT, Builder, Expression, NotSaidError, registrar

Handler = Callable[..., Expression]
ELEMENTWISE: dict[str, Handler] = {}


handles = registrar(ELEMENTWISE)


def _register_functions() -> None:
    for name in ("exp", "exp2", "log", "log2", "log1p", "sqrt", "rsqrt", "sin", "cos", "tan", "tanh", "sigmoid", "erf"):
        ELEMENTWISE[name] = lambda b, x, name=name: b.call(name, x)
    ELEMENTWISE["special_erf"] = ELEMENTWISE["erf"]
    for name, method in (
        ("mul", "multiply"), ("remainder", "remainder"), ("neg", "negate"), ("abs", "absolute"), ("minimum", "least"),
        ("maximum", "greatest"), ("logical_and", "both"), ("logical_or", "either"),
    ):  # fmt: skip
        ELEMENTWISE[name] = lambda b, *operands, method=method: getattr(b, method)(*operands)
    for name in ("floor", "ceil", "trunc"):
        ELEMENTWISE[name] = lambda b, x, name=name: b.call(name, x) if x.type == FLOAT else x
    for name in ("gt", "lt", "ge", "le", "eq", "ne"):
        sign = {"gt": ">", "lt": "<", "ge": ">=", "le": "<=", "eq": "==", "ne": "!="}[name]
        ELEMENTWISE[name] = lambda b, x, y, sign=sign: b.compare(sign, x, y)
    for name, sign in (("bitwise_and", "&"), ("bitwise_or", "|"), ("bitwise_xor", "^")):
        ELEMENTWISE[name] = lambda b, x, y, sign=sign: _bitwise(b, sign, x, y)
        ELEMENTWISE[f"__{name[8:]}__"] = ELEMENTWISE[name]
    for name in ("clone", "alias", "lift_fresh", "lift_fresh_copy", "contiguous", "positive", "_to_copy", "view_of"):
        ELEMENTWISE[name] = lambda b, x, **_: x


_register_functions()


@handles("add")
def _add(b: Builder, x: Any, y: Any, alpha: Any = 1) -> Expression:
    return b.add(x, y if alpha == 1 else b.multiply(y, alpha))


@handles("sub")
def _sub(b: Builder, x: Any, y: Any, alpha: Any = 1) -> Expression:
    return b.subtract(x, y if alpha == 1 else b.multiply(y, alpha))


@handles("rsub")
def _rsub(b: Builder, x: Any, y: Any, alpha: Any = 1) -> Expression:
    return b.subtract(y, x if alpha == 1 else b.multiply(x, alpha))


@handles("div", "true_divide")
def _div(b: Builder, x: Any, y: Any, rounding_mode: Optional[str] = None) -> Expression:
    if rounding_mode is None:
        return b.divide(x, y)
    if rounding_mode == "floor":
        return _floor_divide(b, x, y)
    x, y = b.alike(x, y)
    if x.type == FLOAT:
        return b.call("trunc", b.divide(x, y))
    quotient = b.floor_divide(b.absolute(x), b.absolute(y))
    unlike = b.compare("!=", b.compare("<", x, 0), b.compare("<", y, 0))
    return b.select(unlike, b.negate(quotient), quotient)


@handles("floor_divide")
def _floor_divide(b: Builder, x: Any, y: Any) -> Expression:
    x, y = b.alike(x, y)
    if x.type == INT:
        return b.floor_divide(x, y)
    # The quotient of two floats may be rounded up to the next whole number. The remainder is exact, so it is subtracted
    # first.
    whole = b.call("round", b.divide(b.subtract(x, b.remainder(x, y)), y))
    if y.is_constant and y.value != 0:
        return whole
    return b.select(b.compare("==", y, 0.0), b.divide(x, y), whole)


@handles("fmod")
def _fmod(b: Builder, x: Any, y: Any) -> Expression:
    x, y = b.alike(x, y)
    y = b.absolute(y)
    return b.select(b.compare("<", x, 0), b.negate(b.remainder(b.negate(x), y)), b.remainder(x, y))


@handles("sign", "sgn")
def _sign(b: Builder, x: Any) -> Expression:
    (x,) = b.alike(x)
    return b.operation("sign({})", x, type=x.type)


@handles("reciprocal")
def _reciprocal(b: Builder, x: Any) -> Expression:
    return b.divide(1.0, x)


@handles("round")
def _round(b: Builder, x: Any, decimals: int = 0) -> Expression:
    if decimals != 0:
        raise NotSaidError("decimals other than 0")
    return b.call("round", x) if x.type == FLOAT else x


@handles("frac")
def _frac(b: Builder, x: Any) -> Expression:
    return b.subtract(x, b.call("trunc", x))


@handles("expm1")
def expm1(b: Builder, x: Any) -> Expression:
    """Returns tanh(x / 2) (exp(x) + 1), which equals exp(x) - 1 and is also accurate near 0."""
    return b.multiply(b.call("tanh", b.multiply(x, 0.5)), b.add(b.call("exp", x), 1.0))


@handles("log10")
def _log10(b: Builder, x: Any) -> Expression:
    return b.multiply(b.call("log2", x), math.log10(2))


@handles("cosh")
def _cosh(b: Builder, x: Any) -> Expression:
    return b.multiply(b.add(b.call("exp", x), b.call("exp", b.negate(b.as_float(x)))), 0.5)


@handles("sinh")
def _sinh(b: Builder, x: Any) -> Expression:
    return b.multiply(b.call("tanh", x), _cosh(b, x))


@handles("pow")
def _pow(b: Builder, x: Any, y: Any) -> Expression:
    x, y = b.of(x), b.of(y)
    # Multiplications are faster than pow, and correct for negative bases.
    if y.is_constant and y.value in (1, 2, 3, 4, 8):
        result, times = x, int(y.value)
        for _ in range(times.bit_length() - 1):
            result = b.multiply(result, result)
        return b.multiply(result, x) if times == 3 else result
    if x.type == FLOAT or y.type == FLOAT:
        return b.call("sqrt", x) if y.is_constant and y.value == 0.5 else b.call("pow", x, y)
    if x.is_constant and x.value == 2:
        beyond = b.either(b.compare("<", y, 0), b.compare(">", y, 31))
        return b.select(beyond, 0, b.operation("({} << {})", b.of(1), b.as_int(y), type=INT))
    raise NotSaidError("a power of integers other than x**1, 2, 3, 4, 8 and 2**x; use floats")


@handles("hypot")
def _hypot(b: Builder, x: Any, y: Any) -> Expression:
    return root(b, b.add(b.multiply(x, x), b.multiply(y, y)))


def root(b: Builder, x: Expression) -> Expression:
    """Returns the square root of x, a sum of squares. Its derivative at 0 is 0, as in torch's norms."""
    return b.select(b.compare("==", x, 0.0), 0.0, b.call("sqrt", x))


@handles("fmin")
def _fmin(b: Builder, x: Any, y: Any) -> Expression:
    return _of_numbers(b, x, y, b.least(x, y))


@handles("fmax")
def _fmax(b: Builder, x: Any, y: Any) -> Expression:
    return _of_numbers(b, x, y, b.greatest(x, y))


def _of_numbers(b: Builder, x: Any, y: Any, result: Expression) -> Expression:
    """Returns `result`, or the other operand if x or y is NaN."""
    x, y = b.alike(x, y)
    return b.select(isnan(b, x), y, b.select(isnan(b, y), x, result))


@handles("clamp", "clip")
def _clamp(b: Builder, x: Any, min: Any = None, max: Any = None) -> Expression:
    result = b.of(x)
    for bound, is_low in ((min, True), (max, False)):
        if bound is None:
            continue
        if b.alike(result, bound)[0].type == INT:
            result = b.greatest(result, bound) if is_low else b.least(result, bound)
        else:  # at a bound the derivative is 1; with max() and min() it would be 1/2
            result = b.select(b.compare("<" if is_low else ">", result, bound), bound, result)
    return result


@handles("clamp_min")
def _clamp_min(b: Builder, x: Any, bound: Any) -> Expression:
    return _clamp(b, x, bound)


@handles("clamp_max")
def _clamp_max(b: Builder, x: Any, bound: Any) -> Expression:
    return _clamp(b, x, None, bound)


# Conditions and bits


@handles("logical_xor")
def _logical_xor(b: Builder, x: Any, y: Any) -> Expression:
    return b.compare("!=", b.as_bool(x), b.as_bool(y))


@handles("logical_not")
def _logical_not(b: Builder, x: Any) -> Expression:
    return b.invert(x)


def _bitwise(b: Builder, sign: str, x: Any, y: Any) -> Expression:
    x, y = b.of(x), b.of(y)
    if x.type == y.type == BOOL:
        if sign == "^":
            return b.compare("!=", x, y)
        return b.both(x, y) if sign == "&" else b.either(x, y)
    x, y = b.as_int(x), b.as_int(y)
    masks = [z.value for z in (x, y) if z.is_constant and z.value >= 0]
    bounds = {"low": 0, "high": min(masks)} if sign == "&" and masks else {}
    return b.operation(f"({{}} {sign} {{}})", x, y, type=INT, **bounds)


@handles("bitwise_not")
def _bitwise_not(b: Builder, x: Any) -> Expression:
    x = b.of(x)
    return b.invert(x) if x.type == BOOL else b.operation("(~{})", x, type=INT)


def _count(b: Builder, y: Any) -> tuple[Expression, bool]:
    """Returns the number of bits of a shift, and whether it is known to be between 0 and 31."""
    y = b.as_int(y)
    return y, y.low is not None and y.low >= 0 and y.high is not None and y.high <= 31


@handles("bitwise_left_shift", "__lshift__")
def _left_shift(b: Builder, x: Any, y: Any) -> Expression:
    y, is_within = _count(b, y)
    shifted = b.operation("({} << {})", b.as_int(x), y, type=INT)
    return shifted if is_within else _guarded(b, y, shifted, b.of(0))


@handles("bitwise_right_shift", "__rshift__")
def _right_shift(b: Builder, x: Any, y: Any) -> Expression:
    x = b.as_int(x)
    y, is_within = _count(b, y)
    low, high = (None if bound is None or bound < 0 else bound for bound in (x.low, x.high))
    shifted = b.operation("({} >> {})", x, y, type=INT, low=None if low is None else 0, high=high)
    return shifted if is_within else _guarded(b, y, shifted, b.operation("({} >> 31)", x, type=INT))


def _guarded(b: Builder, count: Expression, shifted: Expression, beyond: Expression) -> Expression:
    """Returns `shifted` for counts from 0 to 31, and `beyond`, torch's result, for all other counts. The language would
    shift modulo 32.
    """
    return b.select(b.either(b.compare("<", count, 0), b.compare(">", count, 31)), beyond, shifted)


@handles("isnan")
def isnan(b: Builder, x: Any) -> Expression:
    return b.compare("!=", x, x) if x.type == FLOAT else b.of(False)


@handles("isinf")
def _isinf(b: Builder, x: Any) -> Expression:
    return b.compare("==", b.absolute(b.as_float(x)), math.inf)


@handles("isposinf")
def _isposinf(b: Builder, x: Any) -> Expression:
    return b.compare("==", b.as_float(x), math.inf)


@handles("isneginf")
def _isneginf(b: Builder, x: Any) -> Expression:
    return b.compare("==", b.as_float(x), -math.inf)


@handles("where")
def _where(b: Builder, condition: Any, x: Any, y: Any) -> Expression:
    return b.select(condition, x, y)


@handles("masked_fill")
def _masked_fill(b: Builder, x: Any, mask: Any, value: Any) -> Expression:
    return b.select(mask, value, x)
