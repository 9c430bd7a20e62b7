"""When a call may go to the kernels without torch's dispatcher, and the ways there: a short one for most calls.

The dispatcher calls an operator written in Python twice, and torch's autograd of such an operator walks over its
schema: both take longer than a small kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Optional

import torch
from torch.autograd import forward_ad

from attend import _core
from attend._settings import NO_EXTRAS, Extras, Settings
from attend.torch._operators import as_torch_is_told, raw_stream, run_forward

_PLAIN = (torch.Tensor, torch.nn.Parameter)
_STRIDED = torch.strided
_watchers: Optional[tuple[Any, ...]]
_gradients_watchers: tuple[Any, ...] = ()  # those of autograd's engine, which no Python calls
try:
    _gradients_watchers = (
        torch._C._len_torch_dispatch_stack,
        torch._C._functorch.peek_interpreter_stack,  # None where no transform is active
        torch._C._autograd._profiler_enabled,  # which shows what goes through the dispatcher
    )
    _watchers = (*_gradients_watchers, torch._C._len_torch_function_stack, torch._C._is_tracing)  # by torch.jit.trace
    # Asked for here: their absence shows here.
    forward_ad._current_level, torch.Tensor._is_zerotensor, torch._is_functional_tensor  # noqa: B018
except AttributeError:  # another release names them otherwise: the long way is always right
    _watchers = None


# How a call may go, in bits; 0: the long way. python/src/torch_side.hpp has the same numbers.
SHORT = 1  # the dispatcher would find nothing to do but what the other bits say
AUTOGRAD = 2  # gradients may be asked for
AUTOCAST = 4  # q, k and v are to be cast


def nothing_stands_between(given: tuple[Any, ...]) -> bool:
    """Whether the dispatcher would find nothing to do but autograd and autocast's casts.

    That is: no mode, transform or tracing, and no tensor of a subclass or with a lazy value.
    """
    if _watchers is None or forward_ad._current_level >= 0:
        return False
    for watcher in _watchers:
        if watcher():
            return False
    for x in given:
        if type(x) not in _PLAIN or x.layout is not _STRIDED or not (x.is_cuda or x.is_cpu):
            return False
        if x.is_quantized or x.is_nested:
            return False
        # Lazy: what lies in memory is not the value, or there is no memory.
        if x.is_neg() or x._is_zerotensor() or torch._is_functional_tensor(x):
            return False
    return True


def way_in_python(given: tuple[Any, ...]) -> int:
    """The bits of a call with these tensors, the first of which is q. The library can do the same, in less time."""
    if not nothing_stands_between(given):
        return 0
    way = SHORT
    if torch.is_autocast_enabled(given[0].device.type):
        way |= AUTOCAST
    if torch.is_grad_enabled() and any(x.requires_grad for x in given):
        way |= AUTOGRAD
    return way


def no_short_way(*arguments: Any) -> Any:
    return None


# What the library asks of torch for the short way: see python/src/torch_side.hpp.
names_of_torch = {
    "tensor": torch.Tensor,
    "parameter": torch.nn.Parameter,
    "is_neg": torch.Tensor.is_neg,
    "empty_like": torch.empty_like,
    "new_empty_strided": torch.Tensor.new_empty_strided,
    "float32": torch.float32,
    "raw_stream": raw_stream,
    "is_grad_enabled": torch.is_grad_enabled,
    "is_any_autocast_enabled": getattr(torch._C, "_is_any_autocast_enabled", lambda: True),
    "is_autocast_enabled": torch.is_autocast_enabled,
    "autocast_dtype": torch.get_autocast_dtype,
    "wants_determinism": getattr(torch._C, "_get_deterministic_algorithms", torch.are_deterministic_algorithms_enabled),
    "as_torch_is_told": as_torch_is_told,
    "forward_ad": forward_ad,
    "no_extras": NO_EXTRAS,
    "watchers": _watchers,
    "gradients_watchers": _gradients_watchers,
}


def _library_can_ask() -> bool:
    """It reads tensors through DLPack's table of C functions."""
    return _watchers is not None and bool(_core.has_exchange_table(torch.empty(0)))


# What most calls take: no Python between torch and the library. Each gives None where it is not for this one.
way_of: Callable[[tuple[Any, ...]], int] = way_in_python
short_forward: Callable[..., Any] = no_short_way
short_backward: Callable[..., Any] = no_short_way
# The whole call, autograd among it: attend.torch._autograd sets them.
short_attention: Callable[..., Any] = no_short_way
plain_attention: Callable[..., Any] = no_short_way
short_packed: Callable[..., Any] = no_short_way
plain_packed: Callable[..., Any] = no_short_way
if _library_can_ask():
    _core.learn_torch(names_of_torch)
    way_of, short_forward, short_backward = _core.way_of, _core.short_forward, _core.short_backward


def forward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, extras: Extras, settings: Settings, return_lse: bool = True
) -> tuple[torch.Tensor, Any]:
    """o and lse (or None), computed now: for tensors that `way_of` has seen."""
    if extras is NO_EXTRAS:
        results: Optional[tuple[torch.Tensor, Any]] = short_forward(q, k, v, settings, return_lse)
        if results is not None:
            return results
    return run_forward(q, k, v, extras, settings, return_lse)
