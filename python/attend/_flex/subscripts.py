"""Handles tensor[q_idx, kv_idx] with subscripts that are tensors without dimensions, without reading their values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Optional

import torch
from torch.overrides import TorchFunctionMode

_DETACH = (torch.Tensor.detach, torch.detach)
_READ_OUT = (torch.Tensor.tolist, torch.Tensor.numpy, torch.Tensor.__array__, torch.Tensor.data_ptr)


class SubscriptMode(TorchFunctionMode):
    """Within this mode, each expression such as tensor[q_idx, kv_idx] becomes one aten.index operator. Without it,
    torch would read the values of the subscripts.

    `read_out` is called with a tensor whose memory the traced function is about to read without torch's dispatcher.
    `stop_gradients` is called when the function disables or enables gradients, as torch.no_grad() does. `detach` is
    called in place of .detach() in the function.
    """

    def __init__(
        self,
        read_out: Optional[Callable[[torch.Tensor], None]] = None,
        stop_gradients: Optional[Callable[[], None]] = None,
        detach: Optional[Callable[[torch.Tensor], torch.Tensor]] = None,
    ) -> None:
        super().__init__()
        self._read_out = read_out
        self._stop_gradients = stop_gradients
        self._detach = detach

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.__getitem__:
            x, subscripts = args
            given = subscripts if isinstance(subscripts, tuple) else (subscripts,)
            if any(_is_number(s) for s in given) and not any(isinstance(s, (bool, list)) for s in given):
                return _take(x, given)
        elif self._read_out is not None and func in _READ_OUT:
            self._read_out(args[0])
        elif self._stop_gradients is not None and func is torch._C._set_grad_enabled:
            self._stop_gradients()
        elif self._detach is not None and func in _DETACH:
            return self._detach(args[0])
        return func(*args, **(kwargs or {}))


def _is_number(s: Any) -> bool:
    return isinstance(s, torch.Tensor) and s.dim() == 0 and not s.is_floating_point() and s.dtype != torch.bool


def _take(x: torch.Tensor, given: tuple[Any, ...]) -> torch.Tensor:
    """Applies the subscripts in three steps. Subscripts that are not tensors come first and give a view. Numbers come
    next and remove dimensions. All other tensors come last.
    """
    numbers: dict[int, Any] = {}
    others: dict[int, Any] = {}
    place = 0
    for s in given:
        if isinstance(s, torch.Tensor):
            (numbers if _is_number(s) else others)[place] = s
        if s is Ellipsis:
            place += x.dim() - sum(t is not None and t is not Ellipsis for t in given)
        elif s is None or isinstance(s, (torch.Tensor, slice)):
            place += 1
    plain = tuple(slice(None) if isinstance(s, torch.Tensor) else s for s in given)
    if any(s != slice(None) for s in plain):
        x = x[plain]
    x = _index(x, numbers)
    return _index(x, {place - sum(n < place for n in numbers): s for place, s in others.items()})


def _index(x: torch.Tensor, subscripts: dict[int, Any]) -> torch.Tensor:
    if not subscripts:
        return x
    result: torch.Tensor = torch.ops.aten.index.Tensor(x, [subscripts.get(n) for n in range(max(subscripts) + 1)])
    return result
