"""Describes the capabilities of this build and this machine."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from attend import _core
from attend._errors import ArgumentError

if TYPE_CHECKING:
    from attend._core import Backend, Gpu, Memory


def backends() -> list[Backend]:
    """Returns every value of `compute` except "auto", best first for each device.

    Each entry has name, description, device, has_backward and aliases. aliases are names of the backend in other
    projects, which `compute` also accepts.
    """
    return _core.backends()


def gpus() -> list[Gpu]:
    """Returns the NVIDIA GPUs of this machine, or an empty list without a driver. Loads the driver and NVRTC.

    `lack` is a one-line reason why attend does not support the GPU, or None if it does. `backends` are the values of
    `compute` that the GPU supports, except "auto".
    """
    return _core.gpus()


def memory(device: str = "cuda", *, reset_peak: bool = False) -> Memory:
    """Returns the state of attend's own memory pool on a GPU, in bytes. The numbers come from the driver, which does
    not wait for the GPU.

    The pool contains the workspace of calls, and the results of calls on arrays that are not torch tensors. Results for
    torch come from torch's allocator. Memory of captured CUDA graphs is not counted. All values are 0 before attend's
    first call on the GPU.

    Args:
        device: "cuda" (the first GPU) or "cuda:N".
        reset_peak: resets the peaks after this call.

    Returns:
        A dict with four keys. `used` is the number of bytes currently allocated, and `peak` is the maximum of `used`
        since the last reset. `reserved` is the GPU memory that the pool occupies; it is at least `used` and grows in
        steps that the driver chooses. `reserved_peak` is its maximum.

    Raises:
        ArgumentError: the device is not a GPU, or the GPU does not exist.
        RunError: there is no driver.
    """
    name, _, index = str(device).partition(":")
    if name != "cuda" or (index and not index.isdigit()) or (not index and ":" in str(device)):
        raise ArgumentError(f"device: {device!r}, allowed 'cuda', 'cuda:N'")
    return _core.memory(int(index or 0), bool(reset_peak))


def cpu_threads() -> int:
    """Returns the number of threads that a CPU call would use now."""
    return _core.cpu_threads()


def set_cpu_threads(threads: int) -> None:
    """Sets the number of threads of all later CPU calls in this process.

    The default is OMP_NUM_THREADS or, if that is not set, the number of cores that the process may use. This setting
    and the thread settings of other libraries, such as torch, do not affect each other. The smallest problems always
    use one thread. Results are bit-identical with every number of threads.

    Arguments:
        threads: at least 1, or 0 to restore the default.

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
    """Returns the SIMD instruction set of the `cpu` backend on this machine, for example "AVX3"."""
    return _core.cpu_simd_target()


def cpu_bf16_unit() -> str:
    """Returns the unit with which the `cpu` backend multiplies bfloat16 on this machine: "AMX", "AVX512_BF16" or
    "float32".

    Tests can also set "emulated AMX" with the environment variable ATTEND_CPU_BF16_DOT.
    """
    return _core.cpu_bf16_unit()


def _libraries() -> dict[str, Any]:
    """Returns the version and path of libcuda and of NVRTC. If one of them is missing, `lack` is the reason, in terms
    of the Python API.
    """
    found: dict[str, Any] = _core.libraries()
    for library in found.values():
        if "lack" in library:
            library["lack"] = library["lack"].replace("a CPU backend (--compute cpu)", "tensors on the CPU")
    return found


def report() -> dict[str, Any]:
    """Returns the data of `python -m attend info --json`."""
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
    """Returns the text of `python -m attend info`."""
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
    lines.append("backends  (compute=NAME; auto picks the one with the lowest estimated time)")
    for backend in backends():
        remark = "" if backend["has_backward"] else " (forward only)"
        lines.append(f"  {backend['name']:<18} {backend['device']:<5} {backend['description']}{remark}")
    return "\n".join(lines)
