"""Peak memory of a call, beyond what stood before it: results, what is kept for backward, and scratch.

What a library keeps from earlier calls would be used again and not show, so that a row would depend on the rows
before it.

On a CPU: the peak of the process's resident set (VmHWM, which Linux lets a process reset) less the resident set
before. The call runs on a thread of its own, with a team of OpenMP threads of its own: scratch that a library keeps
for each thread (attend does) is new there. None where the system has no such peak.

On a GPU: torch's allocator knows the peak of what torch allocates, exactly; torch's kernels take their scratch from
it too. attend's results come from it as well, its scratch from a pool of its own (attend.memory), whose peak the
driver counts as exactly. Both count what is handed out, not what the pools hold: memory that was freed counts again
when it is used again. The two peaks are added: results and scratch stand together while the kernels of a pass run.
cuBLAS's workspaces, which torch keeps for ever, are given back before.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import pathlib
from collections.abc import Callable, Iterator
from typing import Any, Optional, TypeVar

import attend
from attend._measure.apart import on_a_fresh_thread

T = TypeVar("T")
MIB, GIB = 2.0**20, 2.0**30


def total_bytes(device: str) -> float:
    """Memory of the device or of the machine; infinity where the system does not tell."""
    if device == "cuda":
        import torch

        return float(torch.cuda.get_device_properties(0).total_memory)
    try:
        return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, ValueError, OSError):
        return float("inf")


def lacking(needed_bytes: int, device: str) -> str:
    """Why so much cannot be had on the device, or ""."""
    total = total_bytes(device)
    if needed_bytes <= total:
        return ""
    needed = f"{needed_bytes / GIB:.4g} GiB"
    return f"{needed} of memory, allowed {total / GIB:.4g} GiB: what the {'GPU' if device == 'cuda' else 'machine'} has"


class Meter:
    """Measures calls on one device."""

    def __init__(self, device: str) -> None:
        self.device = device
        if device == "cuda":
            import torch

            torch.empty(1, device="cuda")

    def peak(self, call: Callable[[], T]) -> tuple[T, Optional[float]]:
        """What `call` returns, and its peak in MiB."""
        return _peak_of_gpu(call) if self.device == "cuda" else _peak_of_process(call)


def _peak_of_gpu(call: Callable[[], T]) -> tuple[T, Optional[float]]:
    import torch

    torch.cuda.synchronize()
    forget_workspaces: Any = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
    if forget_workspaces is not None:
        forget_workspaces()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated() + attend.memory(reset_peak=True)["used"]
    result = call()
    torch.cuda.synchronize()
    return result, (torch.cuda.max_memory_allocated() + attend.memory()["peak"] - before) / MIB


def _peak_of_process(call: Callable[[], T]) -> tuple[T, Optional[float]]:
    _give_freed_memory_back()
    try:
        pathlib.Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
        before = _status("VmRSS")
    except OSError:
        return call(), None
    with _blocks_of_their_own():
        result = on_a_fresh_thread(call)
    return result, max(0.0, _status("VmHWM") - before) / MIB


def _status(field: str) -> float:
    """A field of /proc/self/status in bytes."""
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return 1024.0 * float(line.split()[1])
    raise OSError(f"/proc/self/status has no {field}")


def _give_freed_memory_back() -> None:
    """Memory that was freed but is still mapped would be used again without a new peak."""
    gc.collect()
    trim: Any = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h


@contextlib.contextmanager
def _blocks_of_their_own() -> Iterator[None]:
    """The system gives every larger block at once and takes it back when it is freed.

    Else what a thread frees stays in an arena that malloc_trim does not shorten, for the next thread to use. Afterwards
    blocks come from the heap as far as glibc allows: clocks would count the system's work.
    """
    option: Any = getattr(ctypes.CDLL(None), "mallopt", lambda *_: 0)
    option(_M_MMAP_THRESHOLD, 2**16)
    try:
        yield
    finally:
        option(_M_MMAP_THRESHOLD, 2**25)
        option(_M_TRIM_THRESHOLD, 2**26)
