"""Handles errors that end a command early, and optional packages."""

from __future__ import annotations

import importlib
import signal
import sys
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any, Optional

FAILED, BAD_USAGE, INTERRUPTED = 1, 2, 130  # exit statuses


class UsageError(Exception):
    """Ends a command with one line. The line has the argument, the value found and the allowed values, or names a
    requirement that is not met.
    """


def require(*packages: str, purpose: str) -> list[ModuleType]:
    """Returns the modules of these packages.

    Raises:
        UsageError naming the missing packages and the command that installs them.
    """
    modules, missing = [], []
    for package in packages:
        try:
            modules.append(importlib.import_module(package))
        except ImportError:
            missing.append(package)
    if missing:
        names = " ".join(missing)
        raise UsageError(f"{purpose} needs {names}: pip install {names}")
    return modules


def torch_or_none() -> Optional[Any]:
    """Returns the module torch if it is installed, otherwise None."""
    try:
        import torch
    except ImportError:
        return None
    return torch


def gpu_is_here() -> bool:
    """Returns whether torch is installed and finds a GPU. torch is required, because it allocates the data on the
    GPU.
    """
    torch = torch_or_none()
    return torch is not None and bool(torch.cuda.is_available())


def _interrupt(number: int, frame: Any) -> None:
    raise KeyboardInterrupt


def run(command: Callable[[], int]) -> int:
    """Runs `command` and returns its exit status. For wrong usage it prints one line on stderr and returns 2, and for
    Ctrl-C it returns 130.

    SIGTERM and SIGHUP have the same effect as Ctrl-C, so that measured results are kept. If the parent process ignores
    these signals, they stay ignored.
    """
    if threading.current_thread() is threading.main_thread():
        for name in ("SIGTERM", "SIGHUP"):
            number = getattr(signal, name, None)
            if number is not None and signal.getsignal(number) == signal.SIG_DFL:
                signal.signal(number, _interrupt)
    try:
        return command()
    except UsageError as error:
        print(error, file=sys.stderr)
        return BAD_USAGE
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
