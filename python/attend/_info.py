"""What this build and this machine can do."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from attend import _core
from attend._errors import ArgumentError

if TYPE_CHECKING:
    from attend._core import Backend, Gpu, Memory


def backends() -> list[Backend]:
    """Every value of `compute` beside "auto", best first for each device.

    Each has name, description, device, has_backward and aliases: names that other projects use for it, which `compute`
    takes too.
    """
    return _core.backends()


def gpus() -> list[Gpu]:
    """The NVIDIA GPUs of this machine; empty where there is no driver. Loads the driver and NVRTC.

    `lack` says in one line why attend cannot compute on one: None where it can. `backends` are the values of `compute`
    that it takes beside "auto".
    """
    return _core.gpus()


def memory(device: str = "cuda", *, reset_peak: bool = False) -> Memory:
    """What attend's own pool of memory on a GPU holds, in bytes, counted by the driver, without waiting for the GPU.

    Scratch of calls comes from it, and the results of calls on arrays that are not torch's: torch's come from torch's
    own allocator. Memory of captured CUDA graphs is not counted. All 0 before attend's first call there.

    Args:
        device: "cuda" (the first GPU) or "cuda:N".
        reset_peak: the peaks start anew after this call.

    Returns:
        A dict: `used`, handed out now; `peak`, the most that was, since the last reset; `reserved` and
        `reserved_peak`, what the pool holds of the GPU's memory, at least `used`, in steps of the driver's own.

    Raises:
        ArgumentError: another device, or one that is not there.
        RunError: there is no driver.
    """
    name, _, index = str(device).partition(":")
    if name != "cuda" or (index and not index.isdigit()) or (not index and ":" in str(device)):
        raise ArgumentError(f"device: {device!r}, allowed 'cuda', 'cuda:N'")
    return _core.memory(int(index or 0), bool(reset_peak))


def cpu_threads() -> int:
    """Threads that a call made now on the CPU would use."""
    return _core.cpu_threads()


def set_cpu_threads(threads: int) -> None:
    """Set the number of threads that calls on the CPU use from now on, in the whole process.

    Without it: OMP_NUM_THREADS, else the cores that the process may use. torch's and other users' own settings change
    nothing here, nor does this there. The smallest problems take one thread whatever is set. Results are the same bits
    with every number.

    Arguments:
        threads: at least 1, or 0: back to the default.

    Raises:
        ArgumentError: another value.
    """
    try:
        count = operator.index(threads)
    except TypeError as error:
        raise ArgumentError(f"threads: {threads!r}, allowed a whole number, at least 0") from error
    if not 0 <= count < 2**31:
        raise ArgumentError(f"threads: {count}, allowed 0 to {2**31 - 1}")
    _core.set_cpu_threads(count)


def cpu_simd_target() -> str:
    """The SIMD instruction set of the `cpu` backend on this machine, for example "AVX3"."""
    return _core.cpu_simd_target()


def cpu_bf16_unit() -> str:
    """What the `cpu` backend multiplies bfloat16 tensors by on this machine: "AMX", "AVX512_BF16" or "float32".

    (Or "emulated AMX", which only the environment variable ATTEND_CPU_BF16_DOT makes it, for tests.)
    """
    return _core.cpu_bf16_unit()


def _libraries() -> dict[str, Any]:
    """The version and path of libcuda and NVRTC, or `lack`, in Python's words: it has no option --compute."""
    found: dict[str, Any] = _core.libraries()
    for library in found.values():
        if "lack" in library:
            library["lack"] = library["lack"].replace("a CPU backend (--compute cpu)", "tensors on the CPU")
    return found


def report() -> dict[str, Any]:
    """What `python -m attend info --json` prints."""
    return {
        "version": _core.__version__,
        "simd": cpu_simd_target(),
        "bf16": cpu_bf16_unit(),
        "threads": cpu_threads(),
        "gpus": gpus(),
        **_libraries(),
        "kernel_digest": _core.kernel_digest(),
        "backends": backends(),
    }


def text() -> str:
    """What `python -m attend info` prints."""
    gpu_list = gpus()
    lines = [
        f"attend    {_core.__version__}",
        f"SIMD      {cpu_simd_target()}, bfloat16 by {cpu_bf16_unit()}",
        f"threads   {cpu_threads()}",
        f"GPUs      {len(gpu_list) or 'none'}",
    ]
    for index, gpu in enumerate(gpu_list):
        gib = gpu["memory_bytes"] / 2**30
        lines.append(f"  {index}: {gpu['name']}, compute capability {gpu['compute_capability']}, {gib:.1f} GiB")
        if gpu["lack"] is not None:
            lines.append(f"     unsupported: {gpu['lack']}")
        else:
            lines.append(f"     can use: {', '.join(gpu['backends'])}")
    found = _libraries()
    for title, name in (("libcuda", "libcuda"), ("NVRTC", "nvrtc")):
        library = found[name]
        shown = f"none: {library['lack']}" if "lack" in library else f"{library['version']}, {library['path']}"
        lines.append(f"{title:<9} {shown}")
    lines.append(f"kernels   {_core.kernel_digest()}")
    lines.append("backends  (compute=NAME; auto takes the one that expects to be done first)")
    for backend in backends():
        remark = "" if backend["has_backward"] else " (forward only)"
        lines.append(f"  {backend['name']:<18} {backend['device']:<5} {backend['description']}{remark}")
    return "\n".join(lines)
