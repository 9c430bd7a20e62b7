"""Compiles the kernels of backward on a thread while forward compiles its kernels. A call that needs new kernels
therefore takes less time.

The thread has the addresses and layouts of the tensors, but no references to them. The thread launches no kernel and
reads no tensor. The thread ignores errors, because an error occurs again in backward, which reports it. The thread is
not a daemon, so an exiting interpreter waits for the compiler.
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
NAME = "attend: backward's kernels"  # name of the threads

# Maps each key whose compilation has begun to a mark of the call that began it. No lock is used, because a fork could
# leave it locked.
_begun: dict[Hashable, object] = {}


def begin(key: Hashable, describe: Callable[[], Callable[[], None]]) -> None:
    """If the key is new, calls `describe` on this thread. Then calls the function that `describe` returned on a new
    thread. Errors are ignored.
    """
    try:
        if key not in _begun:
            _begin(key, describe)
    except TypeError:  # the key contains a setting of a wrong type, which forward refuses
        pass


def _begin(key: Hashable, describe: Callable[[], Callable[[], None]]) -> None:
    if len(_begun) >= _MOST_BEGUN:
        _begun.clear()  # if a key is compiled again, one more thread runs, which finds the kernels in memory
    mark = object()
    if _begun.setdefault(key, mark) is not mark:  # another thread already compiles for this key
        return
    with contextlib.suppress(Exception):  # the interpreter may be exiting, or no more threads can be started
        threading.Thread(target=_run, args=(describe(),), name=NAME, daemon=False).start()


def _run(prepare: Callable[[], None]) -> None:
    with contextlib.suppress(Exception):
        prepare()


class TensorPlaces(Places):
    """Describes tensors that exist or that a call would make, by address and layout. torch's device "meta" is not used,
    because its first use imports modules for 0.3 s.
    """

    def of(self, x: Optional[torch.Tensor]) -> Optional[_core.Array]:
        """Returns the description of x. If the last dimension of x is not dense, calls copy x, and the description has
        a new address.
        """
        if x is None:
            return None
        if x.dim() > 0 and x.stride(-1) != 1 and not x.is_contiguous():
            return self.dense(x.dtype, x.shape)
        return _core.Array.at(self, x.data_ptr(), _meta.dtype_name(x.dtype), x.get_device(), x.shape, x.stride())

    def dense(self, dtype: torch.dtype, shape: Sequence[int]) -> _core.Array:
        """Returns the description of a new contiguous tensor."""
        return self.array(_meta.dtype_name(dtype), *shape)

    def like(self, x: torch.Tensor) -> _core.Array:
        """Returns the description of a result of _operators.empty_like(x), which is dense and has the dimension order
        of x.
        """
        given, strides, span = x.stride(), [0] * x.dim(), 1
        for d in sorted(range(x.dim()), key=lambda d: (given[d], -d)):
            strides[d] = span
            span *= x.shape[d]
        if x.is_contiguous() or strides[-1] != 1:
            return self.dense(x.dtype, x.shape)
        return self.strided(_meta.dtype_name(x.dtype), x.shape, strides)
