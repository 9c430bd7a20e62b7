"""When a call may go to the kernels without torch's dispatcher."""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch.autograd import forward_ad

_PLAIN = (torch.Tensor, torch.nn.Parameter)
_STRIDED = torch.strided
_watchers: Optional[tuple[Any, ...]]
try:
    _watchers = (
        torch._C._len_torch_dispatch_stack,
        torch._C._len_torch_function_stack,
        torch._C._functorch.peek_interpreter_stack,  # None where no transform is active
        torch._C._get_tracing_state,  # of torch.jit.trace, likewise
        torch._C._autograd._profiler_enabled,  # which shows what goes through the dispatcher
    )
    forward_ad._current_level, torch.Tensor._is_zerotensor  # noqa: B018 (asked for here: their absence shows here)
except AttributeError:  # another release names them otherwise: the long way is always right
    _watchers = None


def nothing_stands_between(given: tuple[Any, ...]) -> bool:
    """Whether the dispatcher would find nothing to do but autograd and autocast's casts, which the caller makes.

    That is: no mode, transform or tracing, and no tensor of a subclass or with a lazy value.

    The dispatcher calls an operator written in Python twice, and torch's autograd of such an operator walks over its
    schema: both take longer than a small kernel.
    """
    if _watchers is None or forward_ad._current_level >= 0:
        return False
    for watcher in _watchers:
        if watcher():
            return False
    for x in given:
        if type(x) not in _PLAIN or x.layout is not _STRIDED or not (x.is_cuda or x.is_cpu) or x.is_quantized:
            return False
        if x.is_neg() or x._is_zerotensor():  # lazy: what lies in memory is not the value, or there is no memory
            return False
    return True
