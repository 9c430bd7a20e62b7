"""torch.fx.symbolic_trace: a call becomes one node, whatever it looks at inside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def is_traced(given: tuple[Any, ...]) -> bool:
    return any(isinstance(x, torch.fx.Proxy) for x in given)


def one_node(function: Callable[..., Any], *arguments: Any) -> Any:
    """What stands for the call's result in the graph. One of the arguments at least is traced."""
    tracer = next(x.tracer for x in arguments if isinstance(x, torch.fx.Proxy))
    return tracer.create_proxy("call_function", function, arguments, {})
