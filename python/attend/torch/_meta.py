"""Checks operator arguments that have no memory: meta tensors, and the fake tensors of compilers and exporters.

The library checks their sizes and strides. A symbolic size is replaced by its hint. If there is no hint, only the later
call with actual sizes checks them.
"""

from __future__ import annotations

import contextlib
from typing import Any, Optional

import torch

from attend import _core
from attend._errors import ArgumentError
from attend._serving import DENSE, IN_PLACE
from attend._settings import OPTION_GRADIENTS, SCORE_TENSORS, Extras, Gradients, Settings

DTYPE_NAMES = {
    torch.float32: "f32",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.float64: "f64",
    torch.bool: "bool",
    torch.int8: "i8",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.uint64: "u64",
}
_GRADIENTS_OF_SCORES = tuple(gradient for name, gradient in OPTION_GRADIENTS if name in SCORE_TENSORS)
_APART = 1 << 52  # bytes between the placeholder addresses of two tensors; no tensor is larger
_KEYS_AXIS = {"bhsd": -2, "bshd": -3, "thd": -3}
_PRETENDED_GPU = 0  # checks assume this GPU, because on a GPU they do not read cu_seqlens


def dtype_name(dtype: torch.dtype) -> str:
    return DTYPE_NAMES.get(dtype) or str(dtype).removeprefix("torch.")


class _UnknownSizeError(Exception):
    pass


def check(
    q: Any, k: Any, v: Any, o: Any, lse: Any, gradients: Optional[Gradients], extras: Extras, settings: Settings
) -> None:
    """Raises ArgumentError if the library would refuse the same tensors with memory. If `gradients` is None, the call
    is a forward pass.
    """
    extras = extras._replace(philox_state=None)  # philox_state may be on another device
    named = dict(zip("qkv", (q, k, v))) | extras._asdict() | ({} if gradients is None else gradients._asdict())
    check_devices(q, ((name, x) for name, x in (*named.items(), ("o", o), ("lse", lse)) if x is not None))
    views = _Views()
    seqlen_k = k.shape[_KEYS_AXIS[settings.layout]] if k.dim() > 2 else 1
    with contextlib.suppress(_UnknownSizeError):
        _core.check(
            views.of(q),
            views.of(k),
            views.of(v),
            views.of(o),
            views.of(lse),
            None if gradients is None else Gradients(**views.of_named(gradients, _GRADIENTS_OF_SCORES, seqlen_k)),
            Extras(**views.of_named(extras, SCORE_TENSORS, seqlen_k)),
            Settings(*(_hint(x) for x in settings)),
        )


def check_score(score: Any) -> None:
    """Checks the text of `score`, an attend._score.Own, for the shapes and dtypes of its captures."""
    views = _Views()
    with contextlib.suppress(_UnknownSizeError):
        score.function(tuple(views.of(x) for x in score.captures))


def check_serving(name: str, tensors: Any, numbers: Any) -> None:
    """Checks a call of decode, append_decode or append. `tensors` and `numbers` hold the
    arguments in the named tuples of attend._serving.
    """
    views = _Views()
    of = dict.fromkeys(IN_PLACE, views.in_place) | dict.fromkeys(DENSE, views.dense)
    with contextlib.suppress(_UnknownSizeError):
        given = type(tensors)(**{field: of.get(field, views.of)(x) for field, x in tensors._asdict().items()})
        known = type(numbers)(*(_hint(x) for x in numbers))
        (_core.check_append if name == "append" else _core.check_decode)(given, known)


def check_merge(o: Any, lse: Any, sinks: Any, out: Any, out_lse: Any, layout: str, lse_base2: bool) -> None:
    views = _Views()
    with contextlib.suppress(_UnknownSizeError):
        states = [(views.of(x), views.of(y)) for x, y in zip(o, lse)]
        _core.check_merge(states, views.in_place(out), views.in_place(out_lse), views.of(sinks), layout, lse_base2)


def check_devices(q: torch.Tensor, named: Any) -> None:
    for name, x in named:
        if x.device != q.device:
            raise ArgumentError(f"{name}: on {x.device}, allowed the device of q, {q.device}")


class _Views:
    """Makes the library's views of tensors, at distinct placeholder addresses."""

    def __init__(self) -> None:
        self._count = 0

    def of(self, x: Optional[torch.Tensor], columns: Any = None) -> Any:
        """Returns the view of a tensor. `columns` is the number of columns of a bias or mask that is expanded over the
        keys, because the library does not broadcast a single column.
        """
        if x is None:
            return None
        self._count += 1
        shape = [_hint(n) for n in x.shape]
        if columns is not None and shape and shape[-1] == 1 and _hint(columns) != 1:
            shape[-1] = _hint(columns)
            return self._at(x, shape, _dense(shape).stride())
        # A tensor whose last dimension is not dense is copied before the library reads it.
        strides = [_hint(n) for n in (x if x.dim() == 0 or _hint(x.stride(-1)) == 1 else _dense(shape)).stride()]
        return self._at(x, shape, strides)

    def of_named(self, tensors: Any, of_scores: Any, columns: Any) -> dict[str, Any]:
        """Returns the views of a named tuple of tensors. `columns` is as in `of`, for the fields in `of_scores`."""
        return {name: self.of(x, columns if name in of_scores else None) for name, x in tensors._asdict().items()}

    def in_place(self, x: Optional[torch.Tensor]) -> Any:
        """Returns the view of a tensor that is never copied."""
        if x is None:
            return None
        self._count += 1
        return self._at(x, [_hint(n) for n in x.shape], [_hint(n) for n in x.stride()])

    def dense(self, x: Optional[torch.Tensor]) -> Any:
        """Returns the view of a tensor that is copied if it is not contiguous."""
        if x is None:
            return None
        self._count += 1
        shape = [_hint(n) for n in x.shape]
        return self._at(x, shape, _dense(shape).stride())

    def _at(self, x: torch.Tensor, shape: Any, strides: Any) -> Any:
        dtype = dtype_name(x.dtype)
        return _core.Array.at(x, self._count * _APART, dtype, _PRETENDED_GPU, shape, strides)


def _dense(shape: list[int]) -> torch.Tensor:
    return torch.empty(shape, device="meta")


def _hint(x: Any) -> Any:
    if not isinstance(x, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return x
    if not x.node.has_hint():
        raise _UnknownSizeError
    return x.node.hint
