"""Supports torch.fx.symbolic_trace. A call becomes one node of the graph, and its code is not traced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def is_traced(given: tuple[Any, ...]) -> bool:
    return any(isinstance(x, torch.fx.Proxy) for x in given)


def one_node(function: Callable[..., Any], *arguments: Any) -> Any:
    """Adds the call to the graph and returns the proxy of its result. At least one argument must be a proxy."""
    tracer = next(x.tracer for x in arguments if isinstance(x, torch.fx.Proxy))
    return tracer.create_proxy("call_function", function, arguments, {})
