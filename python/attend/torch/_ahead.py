"""Backward's kernels are compiled on a thread while forward compiles its own, so that a first use takes less time.

The thread knows the tensors' addresses and layouts and holds no tensor: it launches nothing and reads no memory. What
fails there fails again in backward, which reports it. It is no daemon: an interpreter that ends waits for the compiler.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Hashable, Sequence
from typing import Optional

import torch

from attend import _core
from attend._plan import Places
from attend.torch import _meta

_MOST_BEGUN = 256
NAME = "attend: backward's kernels"  # of the threads

# What has begun, and a mark of the call that began it. There is no lock, which a fork could leave locked.
_begun: dict[Hashable, object] = {}


def begin(key: Hashable, describe: Callable[[], Callable[[], None]]) -> None:
    """Once for each key: calls `describe` here and what it returns on a thread. Their errors are dropped."""
    try:
        if key not in _begun:
            _begin(key, describe)
    except TypeError:  # of the key: it holds a setting of a wrong type, which forward refuses
        pass


def _begin(key: Hashable, describe: Callable[[], Callable[[], None]]) -> None:
    if len(_begun) >= _MOST_BEGUN:
        _begun.clear()  # to begin again costs a thread, which finds the kernels in memory
    mark = object()
    if _begun.setdefault(key, mark) is not mark:  # another thread was first
        return
    with contextlib.suppress(Exception):  # also where the interpreter ends, or has no thread left
        threading.Thread(target=_run, args=(describe(),), name=NAME, daemon=False).start()


def _run(prepare: Callable[[], None]) -> None:
    with contextlib.suppress(Exception):
        prepare()


class TensorPlaces(Places):
    """Where tensors are, or might be. Not by tensors on torch's device "meta": its first use imports for 0.3 s."""

    def of(self, x: Optional[torch.Tensor]) -> Optional[_core.Array]:
        """The place of x, or one for the copy that calls make of x if its last dimension is not dense."""
        if x is None:
            return None
        if x.dim() > 0 and x.stride(-1) != 1 and not x.is_contiguous():
            return self.dense(x.dtype, x.shape)
        return _core.Array.at(self, x.data_ptr(), _meta.dtype_name(x.dtype), x.get_device(), x.shape, x.stride())

    def dense(self, dtype: torch.dtype, shape: Sequence[int]) -> _core.Array:
        """A place for a contiguous tensor."""
        return self.array(_meta.dtype_name(dtype), *shape)

    def like(self, x: torch.Tensor) -> _core.Array:
        """A place for what _operators.empty_like makes of x: dense, its dimensions in the order of those of x."""
        given, strides, span = x.stride(), [0] * x.dim(), 1
        for d in sorted(range(x.dim()), key=lambda d: (given[d], -d)):
            strides[d] = span
            span *= x.shape[d]
        if x.is_contiguous() or strides[-1] != 1:
            return self.dense(x.dtype, x.shape)
        return self.strided(_meta.dtype_name(x.dtype), x.shape, strides)
