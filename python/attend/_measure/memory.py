"""Measures the peak memory of a call beyond the memory in use before it: results, tensors saved for backward, and
workspace.

If a library reused memory that it cached in an earlier call, the peak would not rise, and the result would depend on
earlier measurements. The measurement prevents this reuse as follows.

On a CPU, the result is the peak of the process's resident set (VmHWM, which Linux lets a process reset) minus the
resident set before the call. The call runs on a new thread with a new OpenMP team, so a workspace that a library caches
for each thread (as attend does) is allocated again. The result is None if the system does not report the peak.

On a GPU, torch's allocator reports the exact peak of torch's allocations, which include the workspace of torch's
kernels and attend's results. attend's workspace is in a separate pool (attend.memory), whose peak the driver reports
exactly. Both peaks count allocated memory, not the reserves of the pools, so memory that a call reuses is counted
again. The two peaks are added, because results and workspace exist at the same time while the kernels of a pass run.
The workspaces of cuBLAS, which torch keeps permanently, are released before each measurement.
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
    """Returns the memory of the device or machine in bytes, or infinity if the system does not report it."""
    if device == "cuda":
        import torch

        return float(torch.cuda.get_device_properties(0).total_memory)
    try:
        return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, ValueError, OSError):
        return float("inf")


def lacking(needed_bytes: int, device: str) -> str:
    """Returns the reason why the device does not have this amount of memory, or "" if it has."""
    total = total_bytes(device)
    if needed_bytes <= total:
        return ""
    needed = f"{needed_bytes / GIB:.4g} GiB"
    return (
        f"{needed} of memory, allowed {total / GIB:.4g} GiB, the size of {'GPU' if device == 'cuda' else 'main'} memory"
    )


class Meter:
    """Measures calls on one device."""

    def __init__(self, device: str) -> None:
        self.device = device
        if device == "cuda":
            import torch

            torch.empty(1, device="cuda")

    def peak(self, call: Callable[[], T]) -> tuple[T, Optional[float]]:
        """Returns the result of `call`, and its peak in MiB."""
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
        pathlib.Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
        before = _status("VmRSS")
    except OSError:
        return call(), None
    with _blocks_of_their_own():
        result = on_a_fresh_thread(call)
    return result, max(0.0, _status("VmHWM") - before) / MIB


def _status(field: str) -> float:
    """Returns a field of /proc/self/status in bytes."""
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return 1024.0 * float(line.split()[1])
    raise OSError(f"/proc/self/status has no {field}")


def _give_freed_memory_back() -> None:
    """Returns memory that is freed but still mapped to the system. Otherwise a call could reuse it without raising the
    peak.
    """
    gc.collect()
    trim: Any = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # from glibc's malloc.h


@contextlib.contextmanager
def _blocks_of_their_own() -> Iterator[None]:
    """Makes glibc map every larger block separately and unmap it when it is freed.

    Otherwise memory that a thread frees stays in an arena, which malloc_trim does not shrink, and the next thread
    reuses it. When the context ends, glibc allocates blocks from the heap again as far as it allows. Otherwise timings
    would include the system's work for mapping.
    """
    option: Any = getattr(ctypes.CDLL(None), "mallopt", lambda *_: 0)
    option(_M_MMAP_THRESHOLD, 2**16)
    try:
        yield
    finally:
        option(_M_MMAP_THRESHOLD, 2**25)
        option(_M_TRIM_THRESHOLD, 2**26)
