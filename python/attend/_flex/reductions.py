"""Translates sums and other reductions over few elements in a traced function, by unrolling them into one operation for
each element.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from attend._flex.expressions import Builder, Expression, NotSaidError
from attend._flex.lanes import MOST_TERMS, Lanes, converted, elementwise
from attend._flex.operators import root

Combine = Callable[[Builder, Expression, Expression], Expression]
COMBINE: dict[str, Combine] = {
    "sum": Builder.add,
    "mean": Builder.add,
    "prod": Builder.multiply,
    "any": Builder.either,
    "all": Builder.both,
    "amax": Builder.greatest,
    "amin": Builder.least,
    "max": Builder.greatest,
    "min": Builder.least,
}


def reduced(
    b: Builder, name: str, x: Lanes, dtype: torch.dtype, dim: Any = None, keepdim: bool = False,
) -> Lanes:  # fmt: skip
    rank = len(x.shape)
    asked = [dim] if isinstance(dim, int) else list(dim or ()) or range(rank)
    dropped = sorted(d % rank for d in asked)
    terms = list(itertools.product(*(range(x.shape[d]) for d in dropped)))
    _check(len(terms))
    kept = [d for d in range(rank) if d not in dropped]
    shape = [1 if d in dropped else n for d, n in enumerate(x.shape)] if keepdim else [x.shape[d] for d in kept]

    def at(i: tuple[Expression, ...]) -> Expression:
        whole = {d: i[d] if keepdim else i[n] for n, d in enumerate(kept)}
        elements = []
        for term in terms:
            places = whole | {d: b.of(n) for d, n in zip(dropped, term)}
            elements.append(_element(b, name, x.at(tuple(places[d] for d in range(rank))), dtype))
        result = _combined(b, COMBINE[name], elements)
        return b.divide(result, float(len(terms))) if name == "mean" else result

    return _kept(Lanes(shape, dtype, at))


def norm(b: Builder, x: Lanes, dtype: torch.dtype, ord: Any = 2, dim: Any = None, keepdim: bool = False) -> Lanes:
    size = {math.inf: "amax", -math.inf: "amin", 1: "sum", 2: "sum"}.get(2 if ord is None else ord)
    if size is None:
        raise NotSaidError(f"a norm of order {ord}, allowed 1, 2, inf and -inf")
    is_square = ord in (None, 2)
    compute = (lambda e: b.multiply(e, e)) if is_square else b.absolute
    found = reduced(b, size, elementwise(b, x.shape, dtype, compute, [x]), dtype, dim, keepdim)
    return elementwise(b, found.shape, dtype, lambda e: root(b, e), [found]) if is_square else found


def product(b: Builder, x: Lanes, y: Lanes, dtype: torch.dtype, shape: Sequence[int]) -> Lanes:
    """Multiplies matrices, vectors or stacks of matrices. Sums x[..., n] * y[..., n, m] over the index n. A vector y
    has neither leading dimensions nor the index m.
    """
    length = x.shape[-1]
    _check(length)
    batch = len(x.shape) - 2 if len(x.shape) == 3 else 0

    def at(i: tuple[Expression, ...]) -> Expression:
        left = i[: len(x.shape) - 1]
        right = (i[:batch], i[len(left) :])
        terms = [b.multiply(x.at((*left, b.of(n))), y.at((*right[0], b.of(n), *right[1]))) for n in range(length)]
        return _combined(b, Builder.add, [converted(b, term, dtype) for term in terms])

    return _kept(Lanes(shape, dtype, at))


def _kept(x: Lanes) -> Lanes:
    """Builds the expression of a result without dimensions immediately. An operator that cannot be translated is then
    refused with its own line number.
    """
    if x.shape:
        return x
    only = x.at(())
    return Lanes((), x.dtype, lambda _: only)


def _element(b: Builder, name: str, x: Expression, dtype: torch.dtype) -> Expression:
    return b.as_bool(x) if name in ("any", "all") else converted(b, x, dtype)


def _combined(b: Builder, combine: Combine, elements: list[Expression]) -> Expression:
    return functools.reduce(lambda x, y: combine(b, x, y), elements)


def _check(terms: int) -> None:
    if not 1 <= terms <= MOST_TERMS:
        raise NotSaidError(f"a reduction of {terms} elements, allowed 1 to {MOST_TERMS}")
