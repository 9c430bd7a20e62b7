"""Replaces torch's flex_attention by attend.

The code of torch's function is replaced, and the function object stays the same. Code that has already imported the
function under any name, and functions that torch.compile has made of it, therefore also call attend.
"""

from __future__ import annotations

import inspect
import types
import warnings
from typing import Any, Optional

_code: Optional[types.CodeType] = None  # the original code of torch's function while attend is active


def activate() -> None:
    global _code
    from torch.nn.attention import flex_attention as module

    from attend.torch import _flex_route

    function: Any = module.flex_attention
    if _code is not None:
        return
    ours = _code_for(function)
    if ours is None:
        warnings.warn(
            "attend.activate(): torch's flex_attention stays, because it is not the function that attend recognises",
            stacklevel=3,
        )
        return
    _flex_route.begin(function)
    _code = function.__code__
    function.__code__ = ours


def restore() -> None:
    global _code
    if _code is not None:
        from torch.nn.attention import flex_attention as module

        module.flex_attention.__code__, _code = _code, None


def _code_for(function: Any) -> Optional[types.CodeType]:
    """Returns code with the same arguments as torch's function, or None if the signature is unknown."""
    if type(function) is not types.FunctionType or function.__closure__ is not None:
        return None
    parameters = [(x.name, x.kind) for x in inspect.signature(function).parameters.values()]
    for ours in (_with_aux, _without_aux):
        if parameters == [(x.name, x.kind) for x in inspect.signature(ours).parameters.values()]:
            return ours.__code__
    return None


# The following functions run with the globals of torch's module, so they import the functions that they call.


def _with_aux(
    query: Any, key: Any, value: Any, score_mod: Any = None, block_mask: Any = None, scale: Any = None,
    enable_gqa: Any = False, return_lse: Any = False, kernel_options: Any = None, *, return_aux: Any = None,
) -> Any:  # fmt: skip
    from attend.torch import _flex_route

    run = _flex_route.flex_attention if _flex_route.is_tried() else _flex_route.torchs_own
    return run(
        query, key, value, score_mod, block_mask, scale, enable_gqa, return_lse, kernel_options, return_aux=return_aux
    )


def _without_aux(
    query: Any, key: Any, value: Any, score_mod: Any = None, block_mask: Any = None, scale: Any = None,
    enable_gqa: Any = False, return_lse: Any = False, kernel_options: Any = None,
) -> Any:  # fmt: skip
    """Replaces the code of torch's function in versions before 2.9, which do not have return_aux."""
    from attend.torch import _flex_route

    run = _flex_route.flex_attention if _flex_route.is_tried() else _flex_route.torchs_own
    return run(query, key, value, score_mod, block_mask, scale, enable_gqa, return_lse, kernel_options)
