"""Defines named tuples for the arguments of a call other than q, k and v. The tuples are made once, and every layer of
the package passes them on unchanged.
"""

from __future__ import annotations

import math
import operator
from collections import namedtuple
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Optional

from attend import _core
from attend._errors import ArgumentError

DIMENSIONS = {
    "bhsd": "(batch, heads, seqlen, head_dim)",
    "bshd": "(batch, seqlen, heads, head_dim)",
    "thd": "(tokens, heads, head_dim)",
}

_DEFAULTS = {
    "max_seqlen_q": 0, "max_seqlen_k": 0, "layout": "bhsd", "scale": None, "causal": False, "window_left": -1,
    "window_right": -1, "seed": 0, "offset": 0, "deterministic": False, "compute": "auto",
}  # fmt: skip

if TYPE_CHECKING:

    class _Fields(tuple[Any, ...]):
        _fields: tuple[str, ...]

        def __new__(cls, *values: Any, **named: Any) -> _Fields: ...  # noqa: PYI034
        def __getattr__(self, name: str) -> Any: ...
        def _replace(self, **named: Any) -> _Fields: ...
        def _asdict(self) -> dict[str, Any]: ...

    Extras = _Fields
    Settings = _Fields
    Gradients = _Fields
else:
    # The optional tensors of a call, or None for a tensor that is not given. The tensors that modify scores come first,
    # in the library's order. Then follow cu_seqlens_q, cu_seqlens_k, and philox_state, which is i64 (2) and contains a
    # seed and an offset that replace those of Settings.
    Extras = namedtuple("Extras", _core.EXTRAS_FIELDS, defaults=[None] * len(_core.EXTRAS_FIELDS))
    # The numbers and names of a call, in the order of the torch operators' schemas. Fields without a default in
    # _DEFAULTS are the numbers that modify scores, in the library's order. The value 0.0 disables such an option.
    Settings = namedtuple(
        "Settings", _core.SETTINGS_FIELDS, defaults=[_DEFAULTS.get(name, 0.0) for name in _core.SETTINGS_FIELDS]
    )
    # The additional arguments and results of backward: dout, dlse, dq, dk, dv, and a gradient for each of
    # OPTION_GRADIENTS. None means that the gradient is not requested.
    _num_gradients = sum(row["gradient"] is not None for row in _core.TENSOR_OPTIONS)
    Gradients = namedtuple("Gradients", _core.GRADIENTS_FIELDS, defaults=[None] * _num_gradients)

NO_EXTRAS = Extras()

# SCORE_TENSORS have an entry for each row and key, HEAD_TENSORS have an entry for each query head.
SCORE_TENSORS = tuple(row["name"] for row in _core.TENSOR_OPTIONS if row["shape"] == "scores")
HEAD_TENSORS = tuple(row["name"] for row in _core.TENSOR_OPTIONS if row["shape"] == "heads")
# (name of an option, name of its gradient), in the order of Gradients.
OPTION_GRADIENTS = tuple((row["name"], row["gradient"]) for row in _core.TENSOR_OPTIONS if row["gradient"] is not None)
# The positions in Extras of the options of OPTION_GRADIENTS.
GRADIENT_POSITIONS = tuple(Extras._fields.index(name) for name, _ in OPTION_GRADIENTS)
# The position of dbias in OPTION_GRADIENTS. For a bias of one column, the front ends compute dbias.
OF_BIAS = [name for name, _ in OPTION_GRADIENTS].index("bias")
# Options that depend on an entire row. These options cannot be combined with a bias or mask of one column
# (_columns.py). Rings refuse them, because a ring computes rows in parts.
ROW_OPTIONS = tuple(row["name"] for row in _core.TENSOR_OPTIONS if not row["of_single_scores"])
NO_GRADIENT_TENSORS = tuple(row["name"] for row in _core.TENSOR_OPTIONS if row["gradient"] is None)

# One flag for each of OPTION_GRADIENTS: whether the backward pass computes the gradient.
Needs = tuple[bool, ...]
NEEDS_NONE: Needs = (False,) * len(OPTION_GRADIENTS)
_GRADIENTS = tuple(zip(GRADIENT_POSITIONS, [gradient for _, gradient in OPTION_GRADIENTS]))


def needs_of(extras: Extras, **asked: Any) -> Needs:
    """Returns Needs: True for each given option, except options whose keyword in `asked` is False."""
    if extras is NO_EXTRAS:
        return NEEDS_NONE
    return tuple([extras[i] is not None and bool(asked.get(gradient, True)) for i, gradient in _GRADIENTS])


def as_int64(name: str, value: Any) -> int:
    """Converts the unsigned `value` to the int64 with the same bits, because frameworks have no unsigned scalars."""
    if type(value) is not int:
        try:
            value = int(operator.index(value))
        except TypeError as error:
            raise ArgumentError(f"{name}: {type(value).__name__}, allowed a whole number from 0 to 2^64 - 1") from error
    if not 0 <= value < 2**64:
        raise ArgumentError(f"{name}: {value}, allowed 0 to 2^64 - 1")
    return int(value - 2**64 if value >= 2**63 else value)


def drops(dropout_p: Any) -> bool:
    """Returns whether dropout_p is not 0. Refuses a value that is not a single number. The library checks the range of
    the number.
    """
    if type(dropout_p) is not float:
        shape = getattr(dropout_p, "shape", ())
        if math.prod(shape) != 1:
            raise ArgumentError(f"dropout_p: shape {tuple(shape)}, allowed a number")
    return bool(dropout_p)


def window_of(window: Sequence[Optional[int]]) -> tuple[int, int]:
    """Returns (left, right), with -1 for an open side."""
    try:
        left, right = window
    except (TypeError, ValueError) as error:
        found = f"{len(window)} values" if hasattr(window, "__len__") else repr(window)
        raise ArgumentError(f"window: {found}, allowed (left, right)") from error
    return -1 if left is None else left, -1 if right is None else right


def dense_layout(layout: str) -> str:
    """Returns `layout`, which must be a layout of unpacked tensors."""
    if layout != "bhsd" and layout != "bshd":
        raise ArgumentError(f"layout: {layout!r}, allowed 'bhsd', 'bshd'")
    return layout


def output_shapes(q_shape: Any, v_shape: Any, layout: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the shapes of o and lse. The library performs all other shape checks."""
    wanted = 3 if layout == "thd" else 4
    if len(q_shape) != wanted or len(v_shape) != wanted:
        name, found = ("q", len(q_shape)) if len(q_shape) != wanted else ("v", len(v_shape))
        raise ArgumentError(f"{name}: {found} dimensions, allowed {wanted} {DIMENSIONS[layout]}")
    o_shape = (*q_shape[:-1], v_shape[-1])
    if layout == "bhsd":
        return o_shape, o_shape[:-1]
    if layout == "bshd":
        return o_shape, (q_shape[0], q_shape[2], q_shape[1])
    return o_shape, (q_shape[1], q_shape[0])
