"""Defines named tuples for the arguments of decode, append and merge, and computes the shapes of their results."""

from __future__ import annotations

import operator
from collections import namedtuple
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Optional, TypedDict

from attend import _core
from attend._errors import ArgumentError
from attend._settings import DIMENSIONS, dense_layout, output_shapes

# Defaults of the fields of Numbers. A field that is missing here has the default 0, which disables the option.
_DEFAULTS = {
    "layout": "bhsd", "max_seqlen_q": 0, "scale": None, "causal": True, "window_left": -1, "window_right": -1,
    "lse_base2": False, "max_seqlen_new": 0, "rotary_interleaved": False, "rotary_first_column": 0,
    "query_positions": "last", "norm_eps": 1e-6, "compute": "auto",
}  # fmt: skip

if TYPE_CHECKING:
    from attend._settings import _Fields
    from attend._types import Array, Layout, Number, WholeNumber, Window

    Tensors = _Fields
    Numbers = _Fields
else:
    # The arrays of a call of decode or append. An array that is not given is None. For append, `out` is q_out.
    Tensors = namedtuple("Tensors", _core.SERVING_TENSORS, defaults=[None] * len(_core.SERVING_TENSORS))
    # All other arguments of a call, in the order of the torch operators' schemas.
    Numbers = namedtuple(
        "Numbers", _core.SERVING_NUMBERS, defaults=[_DEFAULTS.get(x, 0.0) for x in _core.SERVING_NUMBERS]
    )

# Some fields of Tensors are parts of the argument `rotary`. Error messages call them by these names.
_NAMES = {"rotary_cos": "rotary.cos", "rotary_sin": "rotary.sin", "rotary_seqlens": "rotary.seqlens"}
NAMES = tuple(_NAMES.get(field, field) for field in Tensors._fields)
# Fields of Tensors that are never copied. Copying a cache would be a hidden cost, and keys that are written to a copy
# would be lost.
CACHES = ("k_cache", "v_cache")
IN_PLACE = (*CACHES, "out", "lse")
# Fields of Tensors with one or two dimensions. The library requires them to be contiguous.
DENSE = ("tree_mask", "slot_mapping", "positions")
_LEAST_INT32, _MOST_INT32 = -(2**31), 2**31 - 1


class Rotary(NamedTuple):
    """Rotary position embedding for `append` and `decode`. Rotates pairs (a, b) of columns of a row at position t.

    For 0 <= c < rotary_dim / 2::

        x[a]' = x[a] cos[t, c] - x[b] sin[t, c],   x[b]' = x[b] cos[t, c] + x[a] sin[t, c]

    with a = c and b = c + rotary_dim / 2 or, if interleaved, a = 2c and b = 2c + 1. a and b are counted from
    first_column. Other columns do not change. A position outside the tables is clamped to the nearest position inside.
    With the environment variable ATTEND_CHECK=1 it is refused.

    Fields:
        cos, sin: float (max_positions, rotary_dim / 2), max_positions >= 1. They belong to the framework and device of
            the call's arrays.
        interleaved: selects the pairs, see above.
        first_column: the first rotated column; first_column + rotary_dim <= head_dim.
        seqlens: i32 (sequences): replaces seqlens_k when the positions of new rows are computed.

    Source: Su et al., RoFormer (2021), section 3.2.
    """

    cos: Array
    sin: Array
    interleaved: bool = False
    first_column: int = 0
    seqlens: Optional[Array] = None


class CacheOptions(TypedDict, total=False):
    """The options of `append` and `decode` that describe the cache and the new keys."""

    layout: Layout
    seqlens_k: Optional[WholeNumber]
    page_table: Optional[Array]
    cache_batch_idx: Optional[Array]
    cu_seqlens_new: Optional[Array]
    max_seqlen_new: Optional[int]
    slot_mapping: Optional[Array]
    positions: Optional[Array]
    rotary: Optional[Rotary]
    cu_seqlens_q: Optional[Array]
    max_seqlen_q: Optional[int]
    query_positions: Literal["last", "first", "one"]
    q_norm: Optional[Array]
    k_norm: Optional[Array]
    norm_eps: float
    k_descale: Optional[Array]
    v_descale: Optional[Array]


class DecodeOptions(CacheOptions, total=False):
    """The options of `decode`."""

    cache_leftpad: Optional[Array]
    causal: bool
    window: Window
    scale: Optional[Number]
    softcap: Number
    alibi_slopes: Optional[Array]
    sinks: Optional[Array]
    tree_mask: Optional[Array]
    head_dim_v: Optional[int]
    k: Optional[Array]
    v: Optional[Array]
    lse_base2: bool
    out: Optional[Array]
    compute: str


def appended(
    k: Any,
    v: Any,
    cu_seqlens_new: Any,
    max_seqlen_new: Optional[int],
    slot_mapping: Any,
    positions: Any,
    rotary: Optional[Rotary],
    query_positions: str,
    q_norm: Any,
    k_norm: Any,
    norm_eps: float,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the fields of Tensors and of Numbers that describe the new keys and their processing. Both results are
    empty if the call has no k.
    """
    if k is None:
        refuse_given(
            "k", v=v, cu_seqlens_new=cu_seqlens_new, max_seqlen_new=max_seqlen_new, slot_mapping=slot_mapping,
            positions=positions, rotary=rotary, q_norm=q_norm, k_norm=k_norm,
            query_positions=None if query_positions == "last" else query_positions,
        )  # fmt: skip
        return {}, {}
    tensors = {
        "k": k, "v": v, "cu_seqlens_new": cu_seqlens_new, "slot_mapping": slot_mapping, "positions": positions,
        "q_norm": q_norm, "k_norm": k_norm,
    }  # fmt: skip
    numbers = {
        "max_seqlen_new": most("k", k, cu_seqlens_new, max_seqlen_new), "query_positions": query_positions,
        "norm_eps": norm_eps,
    }  # fmt: skip
    if rotary is not None:
        if not isinstance(rotary, Rotary):
            raise ArgumentError(f"rotary: {type(rotary).__name__}, allowed attend.Rotary(cos, sin)")
        for name, table in (("rotary.cos", rotary.cos), ("rotary.sin", rotary.sin)):
            if table is None:
                raise ArgumentError(f"{name}: None, allowed an array (max_positions, rotary_dim / 2)")
        tensors |= {"rotary_cos": rotary.cos, "rotary_sin": rotary.sin, "rotary_seqlens": rotary.seqlens}
        numbers |= {"rotary_interleaved": rotary.interleaved, "rotary_first_column": rotary.first_column}
    return tensors, numbers


def most(name: str, rows: Any, offsets: Any, bound: Optional[int]) -> Any:
    """Returns an upper bound of the number of rows of a sequence, or 0 if the rows are not packed. If `bound` is None,
    the result is the total number of rows.
    """
    if bound is not None or offsets is None:
        return 0 if bound is None else bound
    if not hasattr(rows, "shape") or len(rows.shape) != 3:
        found = f"{len(rows.shape)} dimensions" if hasattr(rows, "shape") else type(rows).__name__
        raise ArgumentError(f"{name}: {found}, allowed 3 {DIMENSIONS['thd']}: its rows are packed")
    return rows.shape[0]


def require(**arrays: Any) -> None:
    for name, x in arrays.items():
        if x is None:
            raise ArgumentError(f"{name}: None, allowed an array")


def refuse_given(without: str, **options: Any) -> None:
    """Refuses the given options, because they have no meaning in a call that lacks the argument `without`."""
    for name, value in options.items():
        if value is not None:
            raise ArgumentError(f"{name}: given without {without}, allowed with it only")


def whole_number(name: str, value: Any) -> Optional[int]:
    """Returns the value of a 32-bit number, or None if `value` is an array."""
    if not isinstance(value, int) and getattr(value, "shape", ()) != ():
        return None
    try:
        # For a compiler, a symbolic integer is an int.
        number = value if isinstance(value, int) else operator.index(value)
    except TypeError:
        if hasattr(value, "shape"):
            return None
        raise ArgumentError(f"{name}: {type(value).__name__}, allowed a whole number or an array i32") from None
    if not _LEAST_INT32 <= number <= _MOST_INT32:
        raise ArgumentError(f"{name}: {number}, allowed {_LEAST_INT32} to {_MOST_INT32}")
    return number


def sequences_of(rows_shape: Any, offsets_shape: Any) -> Any:
    """Returns the number of sequences. Used if a call gives one length for all sequences."""
    if offsets_shape is None:
        return rows_shape[0] if len(rows_shape) > 0 else 0
    return max(offsets_shape[0] - 1, 0) if len(offsets_shape) > 0 else 0


def result_shapes(
    q: Any, k_cache: Any, v_cache: Any, head_dim_v: Optional[int], layout: str
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the shapes of o and lse. A packed q has layout "thd". `v_cache` may be None."""
    for name, shape in (("k_cache", k_cache), ("v_cache", v_cache)):
        if shape is not None and len(shape) != 4:
            raise ArgumentError(f"{name}: {len(shape)} dimensions, allowed 4 (rows or pages, heads, keys, head_dim)")
    if v_cache is None:
        if head_dim_v is None:
            raise ArgumentError("v_cache: None without head_dim_v, allowed with it only: the values are keys' columns")
        width = whole_number("head_dim_v", head_dim_v)
        if width is None or not 1 <= width <= k_cache[-1]:
            raise ArgumentError(f"head_dim_v: {head_dim_v}, allowed 1 to the head_dim of k_cache, {k_cache[-1]}")
    else:
        width = v_cache[-1]
        if head_dim_v is not None and head_dim_v != width:
            raise ArgumentError(f"head_dim_v: {head_dim_v}, allowed the head_dim of v_cache, {width}")
    return output_shapes(q, (*q[:-1], width), layout)


def check_out(name: str, out: Any, shape: tuple[int, ...]) -> None:
    if tuple(out.shape) != tuple(shape):
        raise ArgumentError(f"{name}: shape {tuple(out.shape)}, allowed {tuple(shape)}")


def layout_of_q(tensors: Tensors, numbers: Numbers) -> str:
    return "thd" if tensors.cu_seqlens_q is not None else dense_layout(numbers.layout)


def layout_of_state(o: Any, layout: str) -> str:
    """Returns the layout of a partial result: "thd" (packed) if o has three dimensions, otherwise `layout`."""
    return "thd" if len(o.shape) == 3 else dense_layout(layout)
