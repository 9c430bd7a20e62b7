"""Implements attend._columns (biases and masks of one column) for torch tensors."""

from __future__ import annotations

from typing import Any, Optional

import torch

from attend import _columns
from attend._columns import Columns, four_dims, hidden_rows, is_narrow
from attend._errors import ArgumentError
from attend._settings import Extras
from attend.torch._meta import check_devices, dtype_name

_INFINITY = float("inf")
_FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


def split(extras: Extras, q: torch.Tensor, k: torch.Tensor, layout: str) -> tuple[Extras, Optional[Columns]]:
    """Returns `extras` without biases and masks of one column, and these as Columns, or None if there are none. Refuses
    invalid columns.
    """
    if not (is_narrow(extras.bias) or is_narrow(extras.mask)):
        return extras, None
    rest, columns = _columns.split(extras, q.shape, k.shape, layout)
    if columns is not None:
        check_devices(q, ((name, x) for name, x in columns._asdict().items() if x is not None))
        if columns.mask is not None and columns.mask.dtype != torch.bool:
            raise ArgumentError(f"mask: dtype {dtype_name(columns.mask.dtype)}, allowed bool")
        if columns.bias is not None and columns.bias.dtype not in _FLOATS:
            raise ArgumentError(f"bias: dtype {dtype_name(columns.bias.dtype)}, allowed f32, f16, bf16, f64")
    return rest, columns


def finish(o: torch.Tensor, lse: Optional[torch.Tensor], columns: Columns, layout: str) -> None:
    """Applies the mask, and the infinite entries of the bias, to o and lse, which were computed without them. Does not
    add the bias to lse.
    """
    hidden = hidden_rows(columns)
    o.masked_fill_(_over_o(hidden, layout), 0.0)
    if lse is None:
        return
    lse.masked_fill_(hidden[..., 0], -_INFINITY)
    if columns.bias is not None:
        bias = four_dims(columns.bias)
        spoilt = (bias.isnan() | (bias == _INFINITY)) & (lse != -_INFINITY)[..., None]
        o.masked_fill_(_over_o(spoilt, layout), float("nan"))
        lse.masked_fill_(spoilt[..., 0], float("nan"))


def shifted(lse: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Returns lse plus the bias, which `finish` does not add. Differentiable."""
    return torch.where(lse == -_INFINITY, lse, lse + four_dims(bias)[..., 0].to(lse.dtype))


def gradient_of_bias(lse: torch.Tensor, dlse: Optional[torch.Tensor], shape: Any) -> torch.Tensor:
    """Returns the gradient of a bias of one column with this shape: the sum of dlse (None means zero) over the rows
    that share an entry, in the dtype of lse. lse is a result of `finish`.
    """
    by_row = torch.zeros_like(lse) if dlse is None else dlse.masked_fill(lse == -_INFINITY, 0.0)
    by_row = by_row.masked_fill(lse.isnan(), float("nan"))[..., None]
    return by_row.sum_to_size((1,) * (4 - len(shape)) + tuple(shape)).reshape(tuple(shape))


def _over_o(x: torch.Tensor, layout: str) -> torch.Tensor:
    return x.transpose(1, 2) if layout == "bshd" else x
