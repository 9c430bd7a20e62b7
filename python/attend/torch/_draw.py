"""Draws a dropout seed from torch's generator of the tensors' device, if the caller gives none."""

from __future__ import annotations

import threading
from typing import Any, Optional

import torch

from attend._errors import ArgumentError, UnsupportedError
from attend._settings import as_int64
from attend.torch._tracing import is_traced, one_node

_STEP = 4  # torch requires that offsets of its GPU generators are multiples of 4
_lock = threading.Lock()  # makes reading and advancing an offset atomic
_dispatch_modes = getattr(torch._C, "_len_torch_dispatch_stack", lambda: 0)
_is_traced_by_jit = getattr(torch._C, "_is_tracing", lambda: False)
_interpreters = getattr(getattr(torch._C, "_functorch", None), "get_interpreter_stack", lambda: None)


def drawn_numbers(q: Any) -> tuple[int, int, Optional[torch.Tensor]]:
    """Returns seed, offset and None, with signed numbers. Alternatively returns 0, 0 and a tensor with seed and offset,
    i64 (2) on the device of q.

    The tensor is used if a compiler, a tracer or a CUDA graph records the call, so that each run of the record draws a
    new seed. Otherwise the host reads numbers from the generator, without waiting for a GPU.
    """
    if torch.compiler.is_compiling():
        return 0, 0, _drawn_on_device(q)
    if is_traced((q,)):
        return 0, 0, one_node(_drawn_on_device, q)
    if not isinstance(q, torch.Tensor):
        raise ArgumentError(f"q: {type(q).__name__}, allowed a torch.Tensor")
    refuse_vmap()
    if _dispatch_modes() or _is_traced_by_jit():
        return 0, 0, _drawn_on_device(q)
    if q.is_meta or type(q).__name__ == "FakeTensor":  # such a call computes nothing
        return 0, 0, q.new_empty(2, dtype=torch.int64)
    if not q.is_cuda:
        return int(torch.randint(2**62, (), device="cpu")), 0, None
    if torch.cuda.is_current_stream_capturing():
        return 0, 0, _drawn_on_device(q)
    return (*_moved_generator(q.get_device()), None)


def _drawn_on_device(q: Any) -> torch.Tensor:
    return torch.randint(2**62, (2,), device=q.device)


def _moved_generator(index: int) -> tuple[int, int]:
    """Returns the seed and offset of a GPU's default generator, and advances its offset, as torch's own kernels do."""
    generator = torch.cuda.default_generators[index]
    with _lock:
        offset = generator.get_offset()
        generator.set_offset(offset + _STEP)
        return as_int64("seed", generator.initial_seed()), offset


def refuse_vmap() -> None:
    """Refuses vmap, because torch does not specify for such a function whether the mapped calls drop the same
    entries.
    """
    for interpreter in _interpreters() or ():
        if interpreter.key().name == "Vmap":
            raise UnsupportedError(
                "dropout_p: with vmap, allowed 0 only: the entries that a seed drops are defined for one call"
            )
