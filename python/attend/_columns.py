"""Computes attention with a bias or mask of one column, (..., 1), which is the same for all keys of a row. The column
is never expanded over the keys.

A constant that is added to all scores of a row does not change the softmax weights. Therefore the bias does not change
o, and it is added to the lse that is computed without it. A row that the mask hides, or whose bias is -inf, sees no key
and has o = 0 and lse = -inf. A bias of NaN or +inf makes the row NaN. The gradient of the bias is dlse, because o does
not depend on the bias.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Optional

from attend._errors import ArgumentError, UnsupportedError
from attend._settings import NO_EXTRAS, ROW_OPTIONS, Extras

_INFINITY = float("inf")
_KEYS_AXIS = {"bhsd": -2, "bshd": -3, "thd": -3}


class Columns(NamedTuple):
    """The bias and mask of one column of a call, (1 or batch, 1 or heads, 1 or seqlen_q, 1). Leading dimensions may be
    missing.
    """

    bias: Any = None
    mask: Any = None


def split(extras: Extras, q_shape: Any, k_shape: Any, layout: str) -> tuple[Extras, Optional[Columns]]:
    """Returns `extras` without biases and masks of one column, and these as Columns, or None if there are none. Refuses
    wrong shapes.
    """
    if not (is_narrow(extras.bias) or is_narrow(extras.mask)):
        return extras, None
    if len(k_shape) != 4 or len(q_shape) != 4:  # a later check refuses these
        return extras, None
    if k_shape[_KEYS_AXIS[layout]] == 1:  # if there is only one key, a column is an ordinary bias or mask
        return extras, None
    columns = Columns(*(x if is_narrow(x) else None for x in (extras.bias, extras.mask)))
    batch, first, second, _ = q_shape
    rows = (batch, first, second) if layout == "bhsd" else (batch, second, first)
    found = {name: x for name, x in columns._asdict().items() if x is not None}
    for name, x in found.items():
        _check_shape(name, tuple(x.shape), rows)
    for option in ROW_OPTIONS:
        if getattr(extras, option) is not None:
            name, x = next(iter(found.items()))
            raise UnsupportedError(f"{name}: shape {tuple(x.shape)} with {option}, allowed a column for each key")
    rest = extras._replace(**dict.fromkeys(found))
    return (rest if any(x is not None for x in rest) else NO_EXTRAS), columns


def is_narrow(x: Any) -> bool:
    return x is not None and x.shape[-1:] == (1,)


def _check_shape(name: str, shape: tuple[int, ...], rows: tuple[int, ...]) -> None:
    if len(shape) > 4:
        raise ArgumentError(f"{name}: {len(shape)} dimensions, allowed 1 to 4 (batch, heads, seqlen_q, seqlen_k)")
    for d, (found, full) in enumerate(zip(reversed(shape[:-1]), reversed(rows)), start=2):
        if found != full and found != 1:
            raise ArgumentError(f"{name}: shape {shape}, dimension {len(shape) - d} must be {full} or 1")


def four_dims(x: Any) -> Any:
    return x.reshape((1,) * (4 - len(x.shape)) + tuple(x.shape))


def over_o(x: Any, layout: str, xp: Any) -> Any:
    """Transposes x (batch, heads, rows, 1) so that it broadcasts to o."""
    return xp.swapaxes(x, 1, 2) if layout == "bshd" else x


def hidden_rows(columns: Columns) -> Any:
    """Returns bool, True for each row that the columns hide, with four dimensions as in Columns."""
    hidden = None if columns.mask is None else ~four_dims(columns.mask)
    if columns.bias is None:
        return hidden
    unseen = four_dims(columns.bias) == -_INFINITY
    return unseen if hidden is None else hidden | unseen


def unshifted(xp: Any, lse: Any, columns: Columns) -> Any:
    """Returns the lse that backward reads: the lse without the bias, or -inf in hidden rows, or NaN if the bias is NaN
    or +inf.
    """
    lse = xp.where(hidden_rows(columns)[..., 0], -_INFINITY, lse).astype(lse.dtype)
    if columns.bias is None:
        return lse
    bias = four_dims(columns.bias)
    spoilt = (xp.isnan(bias) | (bias == _INFINITY))[..., 0] & (lse != -_INFINITY)
    return xp.where(spoilt, float("nan"), lse).astype(lse.dtype)


def finished(xp: Any, o: Any, lse: Any, columns: Columns, layout: str) -> tuple[Any, Any]:
    """Applies the columns to o and lse, which were computed without them. o and lse are arrays of the module `xp`. lse
    may be None if there is no bias.
    """
    o = xp.where(over_o(hidden_rows(columns), layout, xp), 0.0, o).astype(o.dtype)
    if lse is None:
        return o, lse
    lse = unshifted(xp, lse, columns)
    if columns.bias is not None:
        o = xp.where(over_o(xp.isnan(lse)[..., None], layout, xp), float("nan"), o).astype(o.dtype)
        bias = four_dims(columns.bias)[..., 0]
        lse = lse + xp.where(xp.isfinite(bias), bias, 0.0).astype(lse.dtype)
    return o, lse


def gradient_of_bias(xp: Any, lse: Any, dlse: Any, bias: Any) -> Any:
    """Returns the gradient of the bias: dlse, summed over the dimensions in which the bias has size 1. A dlse of None
    means zero. `lse` is a result of `unshifted`.
    """
    by_row = xp.zeros_like(lse) if dlse is None else xp.where(lse == -_INFINITY, 0.0, dlse)
    by_row = xp.where(xp.isnan(lse), float("nan"), by_row)[..., None]
    shape = four_dims(bias).shape
    shared = tuple(d for d in range(3) if shape[d] == 1)
    return by_row.sum(axis=shared, keepdims=True).reshape(tuple(bias.shape)).astype(bias.dtype)
