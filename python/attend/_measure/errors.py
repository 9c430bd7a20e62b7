"""What ends a command early, and optional packages."""

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
    """One line: the argument, the value found, what is allowed; or what this machine lacks."""


def require(*packages: str, purpose: str) -> list[ModuleType]:
    """The modules of these packages.

    Raises:
        UsageError naming those that are missing and the command that installs them.
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
    """The module torch where it is installed."""
    try:
        import torch
    except ImportError:
        return None
    return torch


def gpu_is_here() -> bool:
    """Whether torch sees a GPU: data on it comes from torch."""
    torch = torch_or_none()
    return torch is not None and bool(torch.cuda.is_available())


def _interrupt(number: int, frame: Any) -> None:
    raise KeyboardInterrupt


def run(command: Callable[[], int]) -> int:
    """The exit status of `command`: what it returns, or after one line on stderr 2 for wrong usage, 130 for Ctrl-C.

    SIGTERM and SIGHUP are taken as Ctrl-C is, unless the parent ignores them: what was measured is kept.
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
