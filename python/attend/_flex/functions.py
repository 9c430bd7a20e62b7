"""Caches traced functions by key, and evaluates a function with torch.vmap, as torch does."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch

from attend._drop_in import TORCH_NAMES
from attend._errors import ArgumentError, UnsupportedError
from attend._flex.keys import key_of
from attend._flex.subscripts import SubscriptMode
from attend._flex.trace import VARIABLES, trace
from attend._flex.traced import Traced

NAMES = {**TORCH_NAMES, "score": "score_mod"}  # the argument names that error messages use
_MOST_KNOWN = 256
_known: dict[Any, Traced] = {}
_SIGNATURES = {
    "score_mod": "(score, b, h, q_idx, kv_idx)",
    "mask_mod": "(b, h, q_idx, kv_idx)",
}


def outside_of_graphs(
    function: Callable[..., Any], reason: str = "attend traces score_mod and mask_mod itself"
) -> Callable[..., Any]:
    """Makes torch.compile break its graph at this function, because Dynamo cannot trace a function that itself
    traces.
    """
    options: dict[str, Any] = {"reason": reason}
    if "reason" not in inspect.signature(torch.compiler.disable).parameters:
        options = {}
    disabled: Callable[..., Any] = torch.compiler.disable(function, **options)
    return disabled


def traced(
    argument: str, function: Callable[..., Any], device: torch.device, dtype: torch.dtype = torch.float32
) -> tuple[Traced, list[torch.Tensor]]:
    """Returns the traced function and the tensors that it captures now. `argument` is "score_mod" or "mask_mod"."""
    key, given = key_of(function)
    if key is None:
        check_signature(argument, function)
        return trace(argument, function, given, device, dtype), given
    key = (argument, key, device, dtype)
    found = _known.get(key)
    if found is None:
        check_signature(argument, function)
        found = trace(argument, function, given, device, dtype)
        if found.is_lasting:
            if len(_known) >= _MOST_KNOWN:
                _known.clear()
            _known[key] = found
    return found, given


def dtype_of_scores(query: torch.Tensor) -> torch.dtype:
    return torch.float64 if query.dtype == torch.float64 else torch.float32


def sizes_of(query: torch.Tensor, key: torch.Tensor) -> dict[str, int]:
    """Returns {"b", "h", "q", "k": number of values that this position has in the call}."""
    return {"b": query.shape[0], "h": query.shape[1], "q": query.shape[2], "k": key.shape[2]}


def text_and_captures(
    function: Traced, captured: Sequence[torch.Tensor], query: torch.Tensor, key: torch.Tensor
) -> tuple[str, dict[str, torch.Tensor]]:
    """Returns the text of a score_mod in a call with `query` and `key`, and the tensors that it reads."""
    sizes = sizes_of(query, key)
    function.check_extents("score_mod", sizes)
    captures = function.captures(captured, query.device)
    asks_for_gradients = torch.is_grad_enabled() and any(x.requires_grad for x in (query, key, *captures.values()))
    if asks_for_gradients and "score" not in function.variables:
        raise UnsupportedError("score_mod: a value that does not depend on the score, allowed without gradients only")
    return function.text_for(sizes), captures


def check_signature(argument: str, function: Any) -> None:
    wanted = len(VARIABLES[argument])
    found = number_of_arguments(argument, function)
    if found != wanted:
        raise ArgumentError(f"{argument}: a function of {found} arguments, allowed {wanted} {_SIGNATURES[argument]}")


def number_of_arguments(argument: str, function: Any) -> int:
    """Returns the number of arguments of the function that have no default."""
    if not callable(function):
        raise ArgumentError(f"{argument}: {type(function).__name__}, allowed a function {_SIGNATURES[argument]}")
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return len(VARIABLES[argument])
    if any(x.kind is x.VAR_POSITIONAL for x in parameters):
        return len(VARIABLES[argument])
    named = [x for x in parameters if x.kind in (x.POSITIONAL_ONLY, x.POSITIONAL_OR_KEYWORD)]
    return sum(x.default is x.empty for x in named)


def evaluated(function: Callable[..., Any], positions: list[torch.Tensor], score: Any = None) -> torch.Tensor:
    """Evaluates the function on every combination of b, h, q_idx and kv_idx (each 1-D) with torch.vmap."""
    lead = () if score is None else (0,)
    mapped = function
    for place in (3, 2, 1, 0):
        mapped = torch.vmap(mapped, in_dims=(*lead, *(0 if n == place else None for n in range(4))))
    with SubscriptMode():
        result: torch.Tensor = mapped(*positions) if score is None else mapped(score, *positions)
    return result
