"""Passes calls of torch's flex_attention to attend or to torch while attend replaces it, see _activate_flex."""

from __future__ import annotations

import sys
import types
import warnings
from typing import Any

from attend import _flex_attention
from attend._errors import Error
from attend._flex import graphs
from attend._flex.functions import outside_of_graphs

_MOST_REFUSALS = 64

torchs_own: Any = None  # a function with torch's original code
_said: set[str] = set()


def begin(function: types.FunctionType) -> None:
    global torchs_own
    torchs_own = types.FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__)
    torchs_own.__kwdefaults__ = function.__kwdefaults__
    _said.clear()


def is_tried() -> bool:
    """Returns False if a graph is being compiled that can contain torch's function but not attend's."""
    if "torch._dynamo" in sys.modules:
        graphs.substitute(flex_attention, _flex_attention.flex_attention)
    return graphs.can_follow()


is_tried._dynamo_marked_constant = True  # type: ignore[attr-defined]  # see graphs.py


def flex_attention(*arguments: Any, **named: Any) -> Any:
    found = _computed(*arguments, **named)
    # Under torch.compile the graph has been broken above, so the compiler compiles this call of torch's function
    # separately.
    return torchs_own(*arguments, **named) if found is None else found


@outside_of_graphs
def _computed(*arguments: Any, **named: Any) -> Any:
    """Returns attend's result, or None if attend refuses the call."""
    try:
        return _flex_attention.flex_attention(*arguments, **named)
    except Error as error:
        _say_once(f"attend.activate(): torch's own flex_attention runs, because attend refuses: {error}")
        return None


def _say_once(what: str) -> None:
    if what not in _said and len(_said) < _MOST_REFUSALS:
        _said.add(what)
        warnings.warn(what, stacklevel=6)
