"""torch.fx.symbolic_trace: a call becomes one node, and its code is not traced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def is_traced(given: tuple[Any, ...]) -> bool:
    return any(isinstance(x, torch.fx.Proxy) for x in given)


def one_node(function: Callable[..., Any], *arguments: Any) -> Any:
    """Returns the proxy of the call's result in the graph. At least one argument is traced."""
    tracer = next(x.tracer for x in arguments if isinstance(x, torch.fx.Proxy))
    return tracer.create_proxy("call_function", function, arguments, {})
