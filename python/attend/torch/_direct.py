"""Passes functions of torch to the library, which calls them to find out whether a call needs torch's dispatcher.

The library decides this in python/src/torch_route.cpp, without running Python code. This file finds the functions,
whose names differ between releases of torch.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.autograd import forward_ad

from attend import _core
from attend._serving import Numbers, Rotary
from attend._settings import NO_EXTRAS, Settings
from attend.torch import _autograd
from attend.torch._operators import raw_stream, run_forward, with_required_determinism

# The library reads tensors through DLPack's table of C functions, which older releases of torch do not have.
HAS_EXCHANGE_TABLE = bool(_core.has_exchange_table(torch.empty(0)))


def _has_no_dense_memory(x: torch.Tensor) -> bool:
    return x.layout is not torch.strided or not (x.is_cuda or x.is_cpu)


def _watchers(has_exchange_table: bool) -> dict[str, tuple[Any, ...]]:
    """Returns functions that return a true value if the dispatcher has more to do than autograd and autocast.

    Raises AttributeError if this release of torch does not have one of the functions.
    """
    forward_ad._current_level  # noqa: B018
    private: Any = torch._C
    of_gradients = (
        torch._C._len_torch_dispatch_stack,
        private._functorch.peek_interpreter_stack,  # returns None if no transform is active
        private._autograd._profiler_enabled,  # the profiler records only calls through the dispatcher
    )
    of_tensors: tuple[Any, ...] = (torch.Tensor.is_neg,)
    if not has_exchange_table:  # the exchange table refuses the tensors for which the functions below return true
        of_tensors = (
            _has_no_dense_memory,
            operator.attrgetter("is_quantized"),
            operator.attrgetter("is_nested"),
            private._functorch.is_functorch_wrapped_tensor,
            private._functorch.is_legacy_batchedtensor,  # autograd makes such tensors to map over gradients
            torch._is_functional_tensor,
            torch.Tensor._is_zerotensor,
            torch.Tensor.is_neg,
        )
    return {
        "gradient_watchers": of_gradients,
        "call_watchers": (*of_gradients, torch._C._len_torch_function_stack, torch._C._is_tracing),
        "tensor_watchers": of_tensors,
    }


def names_of_torch(has_exchange_table: bool = HAS_EXCHANGE_TABLE) -> dict[str, Any]:
    """Returns the fields of the struct Torch in python/src/torch_api.hpp."""
    try:
        watchers = _watchers(has_exchange_table)
    except AttributeError:
        watchers = {}
    nothing: tuple[Any, ...] = ()
    attention: Any = super(torch.autograd.Function, _autograd.Attention)
    packed_attention: Any = super(torch.autograd.Function, _autograd.PackedAttention)
    return {
        "has_watchers": bool(watchers),
        "gradient_watchers": watchers.get("gradient_watchers", nothing),
        "call_watchers": watchers.get("call_watchers", nothing),
        "tensor_watchers": watchers.get("tensor_watchers", nothing),
        "has_exchange_table": has_exchange_table,
        "tensor": torch.Tensor,
        "parameter": torch.nn.Parameter,
        "empty_like": torch.empty_like,
        "new_empty_strided": torch.Tensor.new_empty_strided,
        "new_full": torch.Tensor.new_full,
        "float32": torch.float32,
        "int32": torch.int32,
        "raw_stream": raw_stream,
        "is_grad_enabled": torch.is_grad_enabled,
        "is_any_autocast_enabled": getattr(torch._C, "_is_any_autocast_enabled", lambda: True),
        "is_autocast_enabled": torch.is_autocast_enabled,
        "autocast_dtype": torch.get_autocast_dtype,
        "requires_determinism": getattr(
            torch._C, "_get_deterministic_algorithms", torch.are_deterministic_algorithms_enabled
        ),
        "is_inference": torch.Tensor.is_inference,
        "increment_version": torch.autograd.graph.increment_version,
        "forward_ad": forward_ad,
        "autocast": _autograd.autocast,
        # This is the apply of the base class. Function.apply would also check for transforms of torch.func, and for
        # tensors that belong to a transform that has ended. The library has already excluded both.
        "apply": attention.apply,
        "apply_packed": packed_attention.apply,
        "run_forward": run_forward,
        "forward_with_extras": _autograd.forward_with_extras,
        "run_backward": _autograd.run_backward,
        "run_packed_backward": _autograd.run_packed_backward,
        "with_required_determinism": with_required_determinism,
        "settings_type": Settings,
        "no_extras": NO_EXTRAS,
        "default_numbers": tuple(Numbers()),
        "rotary_type": Rotary,
    }


_core.learn_torch(names_of_torch())
