"""Implements the operators under torch.func: grad, vjp, jacrev and vmap, in any order. Only first derivatives in
reverse mode are supported.

torch can transform an autograd.Function that has a separate setup_context. It cannot transform the autograd of an
operator if that is written in Python.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

from attend._errors import UnsupportedError
from attend.torch import _autograd, _vmap

_interpreters = getattr(getattr(torch._C, "_functorch", None), "get_interpreter_stack", lambda: None)


class _Backward(torch.autograd.Function):
    """Computes attend::backward as an autograd.Function that torch.func can transform."""

    @staticmethod
    def forward(*arguments: Any) -> Any:
        return torch.ops.attend.backward(*arguments)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass

    backward = staticmethod(_autograd.refuse_double_backward)

    @staticmethod
    def vmap(info: Any, in_dims: Any, *arguments: Any) -> tuple[Any, Any]:
        # This uses _Backward instead of the operator, because an outer transform may differentiate the result.
        return _vmap.backward(_Backward.apply, info, in_dims, *arguments)


class _Forward(torch.autograd.Function):
    """Computes attend::forward as an autograd.Function that torch.func can transform."""

    @staticmethod
    def forward(*arguments: Any) -> Any:
        return torch.ops.attend.forward(*arguments)

    setup_context = staticmethod(_autograd.setup_context)

    @staticmethod
    def backward(ctx: Any, dout: Any, dlse: Any) -> Any:
        return _autograd.gradients(ctx, dout, dlse, _Backward.apply)

    @staticmethod
    def vmap(info: Any, in_dims: Any, *arguments: Any) -> tuple[Any, Any]:
        return _vmap.forward(_Forward.apply, info, in_dims, *arguments)


def are_active() -> bool:
    """Returns whether a transform of torch.func is active for which the Functions above are required."""
    names = [transform.key().name for transform in _interpreters() or ()]
    if "Jvp" in names:  # checked at every level; a jvp rule that raises this error could not be compiled
        raise UnsupportedError(
            "torch.func.jvp: attend gives no forward-mode derivatives; use torch.func.grad, vjp or jacrev"
        )
    if not names or names[-1] == "Functionalize":
        return False
    if "torch._dynamo" in sys.modules:
        torch.compiler.allow_in_graph(forward)
    return True


# With this attribute a compiler evaluates the function once, and traces again under other transforms.
# torch.compiler.assume_constant_result sets the same attribute, but imports the compiler, which takes seconds.
are_active._dynamo_marked_constant = True  # type: ignore[attr-defined]


def functionalizes() -> bool:
    """Returns whether torch.func.functionalize is active, which does not support operators that write to their
    arguments.
    """
    return any(transform.key().name == "Functionalize" for transform in _interpreters() or ())


def forward(q: Any, k: Any, v: Any, *rest: Any) -> Any:
    """Returns (o, lse) of torch.ops.attend.forward, under transforms. A compiler, which cannot apply vmap to a
    Function, treats this call as one node.
    """
    if torch.is_autocast_enabled(q.device.type):  # autograd does not see a cast that happens inside the operator
        q, k, v = _autograd.autocast(q, k, v)
    return _Forward.apply(q, k, v, *rest)
