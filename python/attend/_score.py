"""Scores of the caller's own: a line of text and the arrays that it reads. docs/custom_scores.md has the language."""

from __future__ import annotations

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


class Score:
    """What `score` and `captures` of a call are."""

    def __init__(self, text: str, captures: Mapping[str, Any]) -> None:
        self.text = text
        self.names = tuple(captures)
        self.captures = tuple(captures.values())

    def function(self, views: tuple[_core.Array, ...]) -> _core.ScoreFunction:
        """Of these views of the captures, which it holds. A text is parsed once for the same shapes and dtypes."""
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
        """The positions of captures that have a gradient."""
        return tuple(i for i, view in enumerate(views) if view.dtype in _FLOATS)

    def forward(
        self, q: Any, k: Any, v: Any, extras: Extras, settings: Settings, with_autograd: bool
    ) -> tuple[Any, Any]:
        """(o, lse)."""
        if is_torch(q):
            from attend.torch import _score

            both: tuple[Any, Any] = _score.attention(self, q, k, v, extras, settings, with_autograd)
            return both
        from attend import _arrays

        views = self._views(q)
        call = functools.partial(_core.forward_with_score, self.function(views))
        return _arrays.forward(q, k, v, extras, settings, call=call)

    def backward(
        self, dout: Any, q: Any, k: Any, v: Any, o: Any, lse: Any, dlse: Any, needs: Needs, extras: Extras,
        settings: Settings,
    ) -> tuple[Any, ...]:  # fmt: skip
        """(dq, dk, dv, gradients of options, a dictionary of gradients of captures)."""
        if is_torch(q):
            from attend.torch import _score

            *gradients, of_captures = _score.gradients(
                self, dout, q, k, v, o, lse, dlse, needs, extras, settings, _score.wanted(self, q)
            )
            asked = [x for x, is_needed in zip(gradients, (True, True, True, *needs)) if is_needed]
            return (*asked, {name: x for name, x in zip(self.names, of_captures) if x is not None})
        from attend import _arrays

        space, views = _arrays.space_of(q), self._views(q)
        positions = self.of_floats(views)
        names = tuple(self.names[i] for i in positions)
        dtype = "f64" if space.view("q", q).dtype == "f64" else "f32"
        results = [space.empty(self.names[i], views[i].shape, dtype) for i in positions]
        places = tuple(space.result_view(x) for x in results)
        call = functools.partial(_core.backward_with_score, self.function(views), names, places)
        of_inputs = _arrays.backward(dout, q, k, v, o, lse, dlse, needs, extras, settings, call)
        return (*of_inputs, {name: space.hand_over(x) for name, x in zip(names, results)})

    def _views(self, q: Any) -> tuple[_core.Array, ...]:
        from attend import _arrays

        space = _arrays.space_of(q)
        return tuple(_view(space, name, x) for name, x in zip(self.names, self.captures))


_known: dict[Any, _core.ScoreFunction] = {}


def score_of(score: Any, captures: Any) -> Optional[Score]:
    """None: there is none."""
    if score is None:
        if captures is not None:
            raise ArgumentError("captures: given without score, allowed with it only")
        return None
    if not isinstance(score, str):
        raise ArgumentError(f"score: {type(score).__name__}, allowed a text, as in docs/custom_scores.md")
    if captures is not None and not isinstance(captures, Mapping):
        raise ArgumentError(f"captures: {type(captures).__name__}, allowed a dictionary of arrays by their names")
    for name in captures or ():
        if not isinstance(name, str):
            raise ArgumentError(f"captures: a name of type {type(name).__name__}, allowed str")
        if not (name.isascii() and name.isidentifier()):
            raise ArgumentError(f"captures: {name[:32]!r}, allowed a name of letters, digits and _")
    try:
        score.encode()
    except UnicodeEncodeError as error:
        raise ArgumentError(f"score: column {error.start + 1}: no character, allowed a text of UTF-8") from error
    return Score(score, captures or {})


def attention_with_score(
    resolve: Callable[..., tuple[Extras, Settings]],
    q: Any,
    k: Any,
    v: Any,
    score: Any,
    captures: Any,
    return_lse: bool,
    **options: Any,
) -> Any:
    """`attend.attention` where one is given. `resolve`: of attend._api."""
    given = score_of(score, captures)
    assert given is not None
    extras, settings = resolve("attention", q, options)
    o, lse = given.forward(q, k, v, extras, settings, with_autograd=True)
    return (o, lse) if return_lse else o


def taken_from(options: dict[str, Any]) -> tuple[Optional[Score], dict[str, Any]]:
    """The score among the options, and the other options."""
    if "score" not in options and "captures" not in options:
        return None, options
    rest = dict(options)
    return score_of(rest.pop("score", None), rest.pop("captures", None)), rest


def _view(space: Any, name: str, x: Any) -> _core.Array:
    what = f"captures: '{name}'"
    x = _as_array(x)
    dtype = getattr(x, "dtype", None)
    if getattr(dtype, "kind", "f") in "OSUMmc" or getattr(dtype, "names", None):
        raise ArgumentError(f"{what}: dtype {x.dtype}, allowed {_DTYPES}")
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
    """A number, Python's or NumPy's, as an array without dimensions."""
    if isinstance(x, (bool, int, float)) or type(x).__module__ == "numpy":
        import numpy as np

        return np.asanyarray(x)
    return x
