"""Translates element-wise functions of torch.nn.functional into expressions."""

from __future__ import annotations

import math
from typing import Any

from attend._flex.expressions import Builder, Expression, NotSaidError
from attend._flex.operators import expm1, handles, isnan


@handles("relu")
def _relu(b: Builder, x: Any) -> Expression:
    return b.select(b.compare("<=", x, 0.0), 0.0, x)  # the derivative at 0 is 0, and NaN stays NaN


@handles("leaky_relu")
def _leaky_relu(b: Builder, x: Any, negative_slope: Any = 0.01) -> Expression:
    return b.select(b.compare(">", x, 0.0), x, b.multiply(x, float(negative_slope)))


@handles("gelu")
def _gelu(b: Builder, x: Any, approximate: str = "none") -> Expression:
    if approximate == "none":
        return b.call("gelu", x)
    cubic = b.add(x, b.multiply(0.044715, b.multiply(x, b.multiply(x, x))))
    tanh = b.call("tanh", b.multiply(math.sqrt(2 / math.pi), cubic))
    return b.multiply(b.multiply(0.5, x), b.add(1.0, tanh))


@handles("silu")
def _silu(b: Builder, x: Any) -> Expression:
    return b.call("silu", x)


@handles("elu")
def _elu(b: Builder, x: Any, alpha: Any = 1.0, scale: Any = 1.0, input_scale: Any = 1.0) -> Expression:
    below = b.multiply(float(alpha * scale), expm1(b, b.multiply(x, float(input_scale))))
    return b.select(b.compare(">", x, 0.0), b.multiply(x, float(scale)), below)


@handles("celu")
def _celu(b: Builder, x: Any, alpha: Any = 1.0) -> Expression:
    return _elu(b, x, alpha, 1.0, 1 / alpha)


@handles("softplus")
def _softplus(b: Builder, x: Any, beta: Any = 1.0, threshold: Any = 20.0) -> Expression:
    scaled = b.multiply(x, float(beta))
    curved = b.divide(b.call("log1p", b.call("exp", scaled)), float(beta))
    return b.select(b.compare(">", scaled, float(threshold)), x, curved)


@handles("log_sigmoid_forward")
def log_sigmoid(b: Builder, x: Any) -> Expression:
    tail = b.call("log1p", b.call("exp", b.negate(b.absolute(x))))
    return b.subtract(b.least(x, 0.0), tail)  # at 0 the derivatives of the two terms are 1/2 and 0


@handles("hardtanh")
def _hardtanh(b: Builder, x: Any, min_val: Any = -1.0, max_val: Any = 1.0) -> Expression:
    low, high = float(min_val), float(max_val)
    return b.select(b.compare("<=", x, low), low, b.select(b.compare(">=", x, high), high, x))


@handles("hardsigmoid")
def _hardsigmoid(b: Builder, x: Any) -> Expression:
    return _hardtanh(b, b.add(b.divide(x, 6.0), 0.5), 0.0, 1.0)


@handles("hardswish")
def _hardswish(b: Builder, x: Any) -> Expression:
    return b.multiply(x, _hardsigmoid(b, x))


@handles("mish")
def _mish(b: Builder, x: Any) -> Expression:
    return b.multiply(x, b.call("tanh", _softplus(b, x)))


@handles("threshold")
def _threshold(b: Builder, x: Any, threshold: Any, value: Any) -> Expression:
    return b.select(b.compare("<=", x, threshold), value, x)


@handles("lerp")
def _lerp(b: Builder, x: Any, end: Any, weight: Any) -> Expression:
    return b.add(x, b.multiply(weight, b.subtract(end, x)))


@handles("addcmul")
def _addcmul(b: Builder, x: Any, y: Any, z: Any, value: Any = 1) -> Expression:
    product = b.multiply(y, z)
    return b.add(x, product if value == 1 else b.multiply(value, product))


@handles("addcdiv")
def _addcdiv(b: Builder, x: Any, y: Any, z: Any, value: Any = 1) -> Expression:
    quotient = b.divide(y, z)
    return b.add(x, quotient if value == 1 else b.multiply(float(value), quotient))


@handles("logaddexp")
def _logaddexp(b: Builder, x: Any, y: Any) -> Expression:
    apart = b.call("log1p", b.call("exp", b.negate(b.absolute(b.subtract(x, y)))))
    equal = b.compare("==", x, y)  # true also for two equal infinities, whose difference is NaN
    return b.add(b.greatest(x, y), b.select(equal, math.log(2), apart))


@handles("nan_to_num")
def _nan_to_num(b: Builder, x: Any, nan: Any = None, posinf: Any = None, neginf: Any = None) -> Expression:
    if posinf is None or neginf is None:
        raise NotSaidError("without posinf and neginf")
    finite = b.select(b.compare("==", x, math.inf), float(posinf), x)
    finite = b.select(b.compare("==", x, -math.inf), float(neginf), finite)
    return b.select(isnan(b, x), float(nan or 0.0), finite)
