"""Describes the machine of a measurement."""

from __future__ import annotations

import datetime
import os
import pathlib
import platform
from typing import Any

import attend
from attend import _core
from attend._measure.errors import gpu_is_here, torch_or_none


def cpu_model() -> str:
    """Returns the name of the CPU with its family and model, because virtual machines often hide the marketing name."""
    fields: dict[str, str] = {}
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    for line in lines:
        key, _, value = line.partition(":")
        fields.setdefault(key.strip(), value.strip())
    name = fields.get("model name", platform.machine())
    return f"{name} (family {fields.get('cpu family', '?')}, model {fields.get('model', '?')})"


def today() -> str:
    """Returns the date in UTC, such as 2026-01-31."""
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d")


def describe() -> dict[str, Any]:
    """Returns the fields at the beginning of every result file: hardware, versions, digests of the measured code,
    threads and date.
    """
    torch = torch_or_none()
    found: dict[str, Any] = {
        "cpu": cpu_model(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "attend": attend.__version__,
        "attend_threads": attend.cpu_threads(),
        "simd": attend.cpu_simd_target(),
        "python": platform.python_version(),
        "torch": None if torch is None else torch.__version__,
        "torch_threads": None if torch is None else torch.get_num_threads(),
        "gpu": None,
        "sources": _core.source_digests(),
        "date": today(),
    }
    if torch is not None and gpu_is_here():
        properties = torch.cuda.get_device_properties(0)
        found |= {
            "gpu": properties.name,
            "multiprocessors": properties.multi_processor_count,
            "cuda": torch.version.cuda,
        }
    return found


def title(machine: dict[str, Any]) -> str:
    """Returns one line about the machine, for tables and pictures."""
    parts = [machine["gpu"]] if machine.get("gpu") else []
    parts.append(f"{machine['cpu']}, {machine['attend_threads']} threads")
    parts.append(f"PyTorch {machine['torch']}" if machine.get("torch") else "no PyTorch")
    return "; ".join(parts)
