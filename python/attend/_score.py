"""Implements the custom scores and masks of a call. A custom score is a text with the arrays that it reads."""

from __future__ import annotations

import atexit
import functools
from collections.abc import Callable, Mapping
from typing import Any, Optional

from attend import _core
from attend._errors import ArgumentError
from attend._frameworks import is_torch
from attend._settings import Extras, Needs, Settings

_DTYPES = "f32, f16, bf16, f64, i32, i64, bool"
_FLOATS = ("f32", "f16", "bf16", "f64")
_MOST_KNOWN = 64


class Own:
    """The `score`, `captures` and `block_mask` of a call. There is a score, a block_mask, or both."""

    def __init__(
        self, text: Optional[str], captures: Mapping[str, Any], block_mask: Optional[_core.BlockMask] = None
    ) -> None:
        self.text = text
        self.block_mask = block_mask
        self.names = tuple(captures)
        self.captures = tuple(captures.values())

    @property
    def what(self) -> str:
        """The name of the argument, for error messages: "score" or "block_mask"."""
        return "block_mask" if self.text is None else "score"

    def function(self, views: tuple[_core.Array, ...]) -> Optional[_core.ScoreFunction]:
        """Returns the library's score function with these views of its captures. A text is parsed once for each
        combination of shapes and dtypes of its captures.
        """
        if self.text is None:
            return None
        key = (self.text, self.names, tuple((view.dtype, view.shape) for view in views))
        known = _known.get(key)
        if known is not None:
            return known.with_arrays(self.names, views)
        function = _core.ScoreFunction(self.text, self.names, views)
        if len(_known) >= _MOST_KNOWN:
            _known.clear()
        _known[key] = function.without_arrays()
        return function

    def of_floats(self, views: tuple[_core.Array, ...]) -> tuple[int, ...]:
        """Returns the positions of the float captures, which have a gradient."""
        return tuple(i for i, view in enumerate(views) if view.dtype in _FLOATS)

    def forward(
        self, q: Any, k: Any, v: Any, extras: Extras, settings: Settings, with_autograd: bool
    ) -> tuple[Any, Any]:
        """Returns (o, lse)."""
        if is_torch(q):
            from attend.torch import _score

            both: tuple[Any, Any] = _score.attention(self, q, k, v, extras, settings, with_autograd)
            return both
        from attend import _arrays

        views = self._views(q)
        call = functools.partial(_core.forward_with_own, self.function(views), self.block_mask)
        return _arrays.forward(q, k, v, extras, settings, call=call)

    def backward(
        self, dout: Any, q: Any, k: Any, v: Any, o: Any, lse: Any, dlse: Any, needs: Needs, extras: Extras,
        settings: Settings,
    ) -> tuple[Any, ...]:  # fmt: skip
        """Returns dq, dk, dv and the gradients of options. If there is a score, a dictionary with the gradients of
        captures follows.
        """
        if is_torch(q):
            from attend.torch import _score

            *gradients, of_captures = _score.gradients(
                self, dout, q, k, v, o, lse, dlse, needs, extras, settings, _score.wanted(self, q)
            )
            asked = [x for x, is_needed in zip(gradients, (True, True, True, *needs)) if is_needed]
            return self._with_captures(
                tuple(asked), {name: x for name, x in zip(self.names, of_captures) if x is not None}
            )
        from attend import _arrays

        space, views = _arrays.space_of(q), self._views(q)
        positions = self.of_floats(views)
        names = tuple(self.names[i] for i in positions)
        dtype = "f64" if space.view("q", q).dtype == "f64" else "f32"
        results = [space.empty(self.names[i], views[i].shape, dtype) for i in positions]
        places = tuple(space.result_view(x) for x in results)
        call = functools.partial(_core.backward_with_own, self.function(views), self.block_mask, names, places)
        of_inputs = _arrays.backward(dout, q, k, v, o, lse, dlse, needs, extras, settings, call)
        return self._with_captures(of_inputs, {name: space.hand_over(x) for name, x in zip(names, results)})

    def _with_captures(self, of_inputs: tuple[Any, ...], of_captures: dict[str, Any]) -> tuple[Any, ...]:
        """Appends the gradients of captures if there is a score."""
        return of_inputs if self.text is None else (*of_inputs, of_captures)

    def _views(self, q: Any) -> tuple[_core.Array, ...]:
        from attend import _arrays

        space = _arrays.space_of(q)
        return tuple(view_of_capture(space, name, x) for name, x in zip(self.names, self.captures))


_known: dict[Any, _core.ScoreFunction] = {}
atexit.register(_known.clear)  # otherwise cached functions could outlive the extension module, as torch's operators do


def check_text(argument: str, text: Any) -> None:
    if not isinstance(text, str):
        raise ArgumentError(f"{argument}: {type(text).__name__}, allowed a text, as in docs/custom_scores.md")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ArgumentError(f"{argument}: column {error.start + 1}: no character, allowed a text of UTF-8") from error


def check_captures(captures: Any) -> None:
    if captures is not None and not isinstance(captures, Mapping):
        raise ArgumentError(f"captures: {type(captures).__name__}, allowed a dictionary that maps names to arrays")
    for name in captures or ():
        if not isinstance(name, str):
            raise ArgumentError(f"captures: a name of type {type(name).__name__}, allowed str")
        if not (name.isascii() and name.isidentifier()):
            raise ArgumentError(f"captures: {name[:32]!r}, allowed a name of letters, digits and _")


def own_of(score: Any, captures: Any, block_mask: Any) -> Optional[Own]:
    """Returns the custom score and mask of a call, or None if neither is given."""
    if score is None and captures is not None:
        raise ArgumentError("captures: given without score, allowed with it only")
    if block_mask is not None and not isinstance(block_mask, _core.BlockMask):
        raise ArgumentError(f"block_mask: {type(block_mask).__name__}, allowed a mask from attend.make_block_mask")
    if score is None:
        return None if block_mask is None else Own(None, {}, block_mask)
    check_text("score", score)
    check_captures(captures)
    return Own(score, captures or {}, block_mask)


def attention_with_own(
    resolve: Callable[..., tuple[Extras, Settings]],
    q: Any,
    k: Any,
    v: Any,
    score: Any,
    captures: Any,
    block_mask: Any,
    return_lse: bool,
    **options: Any,
) -> Any:
    """Computes `attend.attention` with a score or a block mask. `resolve` is the function of attend._api."""
    given = own_of(score, captures, block_mask)
    assert given is not None
    extras, settings = resolve("attention", q, options)
    o, lse = given.forward(q, k, v, extras, settings, with_autograd=True)
    return (o, lse) if return_lse else o


_OWN = ("score", "captures", "block_mask")


def taken_from(options: dict[str, Any]) -> tuple[Optional[Own], dict[str, Any]]:
    """Splits the options into the custom score and mask, and all other options."""
    if not any(name in options for name in _OWN):
        return None, options
    rest = dict(options)
    return own_of(*(rest.pop(name, None) for name in _OWN)), rest


def view_of_capture(space: Any, name: str, x: Any) -> _core.Array:
    """Returns the library's view of a capture. If `space` is None, the capture must be in CPU memory."""
    what = f"captures: '{name}'"
    x = _as_array(x)
    dtype = getattr(x, "dtype", None)
    if getattr(dtype, "kind", "f") in "OSUMmc" or getattr(dtype, "names", None):
        raise ArgumentError(f"{what}: dtype {x.dtype}, allowed {_DTYPES}")
    if space is None:
        from attend._host_space import HostSpace

        space = HostSpace(x)
    if getattr(x, "ndim", 0) > 4:
        raise ArgumentError(f"{what}: {x.ndim} dimensions, allowed 0 to 4")
    try:
        view: _core.Array = space.view(what, x)
    except ArgumentError as error:
        if str(error).startswith(what):
            raise
        raise ArgumentError(f"{what}: {error}") from error
    return view


def _as_array(x: Any) -> Any:
    """Converts a number of Python or NumPy to an array without dimensions."""
    if isinstance(x, (bool, int, float)) or type(x).__module__ == "numpy":
        import numpy as np

        return np.asanyarray(x)
    return x
