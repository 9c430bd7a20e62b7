"""Represents tensors in a traced function by a shape and the expression of each element. Views map subscripts to
subscripts.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from attend._flex.expressions import BOOL, FLOAT, INT, Builder, Expression, NotSaidError, registrar

Subscripts = tuple[Expression, ...]
MOST_TERMS = 256  # maximum number of elements over which an operation, such as a sum, is unrolled
_NARROW = {torch.uint8: (255, 0), torch.int8: (255, 128), torch.int16: (65535, 32768)}
_INTEGERS = (torch.int32, torch.int64, *_NARROW)
_FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def type_of(dtype: torch.dtype) -> str:
    if dtype == torch.bool:
        return BOOL
    if dtype in _INTEGERS:
        return INT
    if dtype in _FLOATS:
        return FLOAT
    raise NotSaidError(f"dtype {dtype}")


def converted(b: Builder, x: Expression, dtype: torch.dtype) -> Expression:
    """Converts an expression to an element of this dtype. Integers narrower than 32 bits wrap around. Floats are not
    rounded.
    """
    wanted = type_of(dtype)
    if wanted == BOOL:
        return b.as_bool(x)
    if wanted == FLOAT:
        return b.as_float(x)
    x = b.as_int(x)
    if dtype not in _NARROW:
        return x
    bits, sign = _NARROW[dtype]
    if x.low is not None and x.high is not None and -sign <= x.low and x.high <= bits - sign:
        return x
    low_bits = b.operation("({} & {})", x, bits, type=INT, low=0, high=bits)
    if sign == 0:
        return low_bits
    return b.operation("(({} ^ {}) - {})", low_bits, sign, sign, type=INT, low=-sign, high=bits - sign)


class Lanes:
    """A tensor in a traced function. `at` returns the expression of the element at the given subscripts, one for each
    dimension of `shape`.
    """

    __slots__ = ("at", "dtype", "shape")

    def __init__(self, shape: Sequence[int], dtype: torch.dtype, at: Callable[[Subscripts], Expression]) -> None:
        self.shape = tuple(shape)
        self.dtype = dtype
        self.at = at


def elementwise(b: Builder, shape: Sequence[int], dtype: torch.dtype, compute: Any, operands: list[Any]) -> Lanes:
    """Applies `compute` to the elements of the operands, which are Lanes, numbers or None. Lanes broadcast."""

    def at(subscripts: Subscripts) -> Expression:
        elements = []
        for x in operands:
            if isinstance(x, Lanes):
                behind = subscripts[len(subscripts) - len(x.shape) :] if x.shape else ()
                elements.append(x.at(tuple(b.of(0) if n == 1 else i for i, n in zip(behind, x.shape))))
            else:
                elements.append(x)
        return converted(b, compute(*elements), dtype)

    if len(shape) == 0:
        only = at(())
        return Lanes(shape, dtype, lambda _: only)
    known: dict[tuple[int, ...], Expression] = {}

    def once(subscripts: Subscripts) -> Expression:
        place = tuple(i.place for i in subscripts)
        if place not in known:
            known[place] = at(subscripts)
        return known[place]

    return Lanes(shape, dtype, once)


# Views

Mover = Callable[..., Lanes]
VIEWS: dict[str, Mover] = {}


_view = registrar(VIEWS)


@_view("select")
def _select(b: Builder, x: Lanes, dim: int, index: int) -> Lanes:
    dim, size = dim % len(x.shape), x.shape[dim]
    fixed = b.of(index % size)
    return Lanes(
        x.shape[:dim] + x.shape[dim + 1 :], x.dtype, lambda i: x.at((*i[:dim], fixed, *i[dim:])),
    )  # fmt: skip


@_view("slice")
def _slice(b: Builder, x: Lanes, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Lanes:
    dim %= len(x.shape)
    chosen = range(x.shape[dim])[slice(start, end, step)]
    shape = (*x.shape[:dim], len(chosen), *x.shape[dim + 1 :])
    place = lambda i: b.add(b.multiply(i, chosen.step), chosen.start)
    return Lanes(shape, x.dtype, lambda i: x.at((*i[:dim], place(i[dim]), *i[dim + 1 :])))


@_view("unsqueeze")
def _unsqueeze(b: Builder, x: Lanes, dim: int) -> Lanes:
    dim %= len(x.shape) + 1
    return Lanes((*x.shape[:dim], 1, *x.shape[dim:]), x.dtype, lambda i: x.at((*i[:dim], *i[dim + 1 :])))


@_view("squeeze")
def _squeeze(b: Builder, x: Lanes, dim: Any = None) -> Lanes:
    rank = len(x.shape)
    asked = range(rank) if dim is None else [dim] if isinstance(dim, int) else dim
    dropped = {d % rank for d in asked if x.shape[d] == 1} if rank else set()
    shape = tuple(n for d, n in enumerate(x.shape) if d not in dropped)

    def at(subscripts: Subscripts) -> Expression:
        rest = iter(subscripts)
        return x.at(tuple(b.of(0) if d in dropped else next(rest) for d in range(rank)))

    return Lanes(shape, x.dtype, at)


@_view("expand")
def _expand(b: Builder, x: Lanes, size: Sequence[int], implicit: bool = False) -> Lanes:
    lead = len(size) - len(x.shape)
    shape = tuple(x.shape[d - lead] if n == -1 else n for d, n in enumerate(size))
    return Lanes(
        shape, x.dtype, lambda i: x.at(tuple(b.of(0) if n == 1 else j for j, n in zip(i[lead:], x.shape))),
    )  # fmt: skip


@_view("permute")
def _permute(b: Builder, x: Lanes, dims: Sequence[int]) -> Lanes:
    order = [d % len(x.shape) for d in dims]
    return Lanes([x.shape[d] for d in order], x.dtype, lambda i: x.at(tuple(i[order.index(d)] for d in range(len(i)))))


@_view("transpose")
def _transpose(b: Builder, x: Lanes, first: int, second: int) -> Lanes:
    order = list(range(len(x.shape)))
    order[first], order[second] = order[second], order[first]
    return _permute(b, x, order)


@_view("t")
def _t(b: Builder, x: Lanes) -> Lanes:
    return _permute(b, x, range(len(x.shape))[::-1])


@_view("view", "_unsafe_view", "reshape", "_reshape_alias")
def reshaped(b: Builder, x: Lanes, size: Sequence[int], *_: Any) -> Lanes:
    count = math.prod(x.shape)
    known = math.prod(n for n in size if n != -1)
    shape = tuple(count // known if n == -1 else n for n in size)

    def at(subscripts: Subscripts) -> Expression:
        place = b.of(0)
        for i, n in zip(subscripts, shape):
            place = i if n == count else b.add(b.multiply(place, n), i) if n > 1 else place
        found: list[Expression] = []
        for n in reversed(x.shape):
            found.insert(0, place if n == count else b.remainder(place, n) if n > 1 else b.of(0))
            place = b.floor_divide(place, n) if n > 1 else place
        return x.at(tuple(found))

    return Lanes(shape, x.dtype, at)


# Indexing with tensors


def wrapped(b: Builder, i: Expression, size: int) -> Expression:
    """Returns the subscript as torch interprets it: a negative one counts from the end."""
    if i.is_constant:
        if not -size <= i.value < size:
            raise IndexError(f"index {i.value} is out of bounds for dimension with size {size}")
        return b.of(i.value + size if i.value < 0 else i.value)
    return b.wrap(i, size)


def indexed(b: Builder, x: Lanes, subscripts: Sequence[Any]) -> Lanes:
    """Returns x[subscripts]. A subscript of None selects an entire dimension. All other subscripts are Lanes of
    integers, which broadcast.
    """
    given = {d: s for d, s in enumerate(subscripts) if s is not None}
    for s in given.values():
        if type_of(s.dtype) != INT or s.dtype == torch.uint8:
            raise NotSaidError(f"a subscript of dtype {s.dtype}, which torch treats as a mask")
    common = torch.broadcast_shapes(*(s.shape for s in given.values()))
    places = sorted(given)
    is_together = places[-1] - places[0] == len(places) - 1
    front = places[0] if is_together else 0  # index at which torch inserts the dimensions of the subscripts
    whole = [d for d in range(len(x.shape)) if d not in given]
    rest = [x.shape[d] for d in whole]
    shape = (*rest[:front], *common, *rest[front:])
    chosen = {d: elementwise(b, common, s.dtype, lambda e: e, [s]) for d, s in given.items()}

    def at(i: Subscripts) -> Expression:
        inner, outer = i[front : front + len(common)], iter((*i[:front], *i[front + len(common) :]))
        return x.at(
            tuple(
                wrapped(b, chosen[d].at(inner), x.shape[d]) if d in given else next(outer) for d in range(len(x.shape))
            )
        )

    return Lanes(shape, x.dtype, at)


def index_select(b: Builder, x: Lanes, dim: int, index: Lanes) -> Lanes:
    chosen = index if index.shape else _unsqueeze(b, index, 0)
    return indexed(b, x, [None] * (dim % len(x.shape)) + [chosen])


def gather(b: Builder, x: Lanes, dim: int, index: Lanes) -> Lanes:
    dim %= max(len(x.shape), 1)
    size = x.shape[dim] if x.shape else 1
    moved = lambda i: (*i[:dim], wrapped(b, index.at(i), size), *i[dim + 1 :])
    return Lanes(index.shape, x.dtype, lambda i: x.at(moved(i)) if x.shape else x.at(()))


def embedding(b: Builder, weight: Lanes, index: Lanes) -> Lanes:
    return indexed(b, weight, [index])


def among(b: Builder, x: Lanes, tested: Lanes, assume_unique: bool = False, invert: bool = False) -> Lanes:
    """Returns a bool for each element of x, which is true if the element equals one of the `tested` elements."""
    others = _each(b, tested)

    def compute(e: Expression) -> Expression:
        found = b.of(False)
        for other in others:
            found = b.either(found, b.compare("==", e, other))
        return b.invert(found) if invert else found

    return elementwise(b, x.shape, torch.bool, compute, [x])


def bucket(
    b: Builder,
    edges: Lanes,
    x: Lanes,
    out_int32: bool = False,
    right: bool = False,
    side: Any = None,
    sorter: Any = None,
) -> Lanes:
    """Returns for each element of x the number of smaller edges. With `right`, equal edges are counted too. The edges
    are in ascending order.
    """
    if len(edges.shape) != 1 or sorter is not None:
        raise NotSaidError("edges other than one ascending row")
    sign = "<=" if right or side == "right" else "<"
    ends = _each(b, edges)

    def compute(e: Expression) -> Expression:
        count = b.of(0)
        for end in ends:
            count = b.add(count, b.compare(sign, end, e))
        return count

    return elementwise(b, x.shape, torch.int64, compute, [x])


def _each(b: Builder, x: Lanes) -> list[Expression]:
    if math.prod(x.shape) > MOST_TERMS:
        raise NotSaidError(f"{math.prod(x.shape)} elements to compare with, allowed up to {MOST_TERMS}")
    return [x.at(tuple(b.of(n) for n in place)) for place in itertools.product(*(range(n) for n in x.shape))]


def unbound(b: Builder, x: Lanes, dim: int = 0) -> list[Lanes]:
    return [_select(b, x, dim, n) for n in range(x.shape[dim])]


def stacked(b: Builder, tensors: Sequence[Lanes], dim: int) -> Lanes:
    dim %= len(tensors[0].shape) + 1
    return concatenated(b, [_unsqueeze(b, x, dim) for x in tensors], dim)


def concatenated(b: Builder, tensors: Sequence[Lanes], dim: int) -> Lanes:
    dim %= len(tensors[0].shape)
    shape = list(tensors[0].shape)
    shape[dim] = sum(x.shape[dim] for x in tensors)
    dtype = functools.reduce(torch.promote_types, [x.dtype for x in tensors])

    def at(i: Subscripts) -> Expression:
        start, result = shape[dim], None
        for x in reversed(tensors):
            start -= x.shape[dim]
            if x.shape[dim] == 0:
                continue
            if i[dim].is_constant and not start <= i[dim].value < start + x.shape[dim]:
                continue
            part = x.at((*i[:dim], b.subtract(i[dim], start) if start else i[dim], *i[dim + 1 :]))
            part = converted(b, part, dtype)
            later = start + x.shape[dim]
            result = part if result is None else b.select(b.compare(">=", i[dim], later), result, part)
        assert result is not None
        return result

    return Lanes(shape, dtype, at)
