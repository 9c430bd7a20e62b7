"""Lists all implementations by name, and determines which of them this machine can run."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence
from typing import Optional

import attend
from attend._measure import implementations as make
from attend._measure.errors import UsageError, gpu_is_here, torch_or_none
from attend._measure.implementations import Implementation

BASELINE = "torch_cpu"
# Maps names of attend's kernels in other projects (docs/names.md) to the names of backends.
ALIASES = {alias: backend["name"] for backend in attend.backends() for alias in backend["aliases"]}
_HALF = "bf16"
_NEEDS_TORCH = "no torch (pip install torch)"
_NEEDS_GPU = "torch finds no GPU"


def catalogue() -> dict[str, tuple[str, Callable[[], Implementation]]]:
    """Returns for each name the reason why this machine cannot run it (or ""), and a function that makes it.

    PyTorch on CPU and GPU and the unfused path come first. Then follow attend's backends in the order of
    docs/ladder.md, and then attend's "auto" in half precision on a GPU.
    """
    has_torch = torch_or_none() is not None
    torch_lack = "" if has_torch else _NEEDS_TORCH
    gpu_lack = torch_lack or ("" if gpu_is_here() else _NEEDS_GPU)
    entries: dict[str, tuple[str, Callable[[], Implementation]]] = {
        BASELINE: (torch_lack, lambda: make.torch_sdpa(BASELINE, "cpu", "f32")),
        "unfused_cpu": (torch_lack, lambda: make.unfused("unfused_cpu", "cpu", "f32")),
        "unfused_gpu": (gpu_lack, lambda: make.unfused("unfused_gpu", "cuda", "f32")),
    }
    for backend in make.SDP_BACKENDS:
        entries[f"torch_{backend}"] = (gpu_lack, _sdpa_on_gpu(backend))
    entries["unfused_bf16"] = (gpu_lack, lambda: make.unfused("unfused_bf16", "cuda", _HALF))
    entries["fused_softmax"] = (gpu_lack, lambda: make.fused_softmax("fused_softmax", _HALF))
    for name in ("cpu", "cpu_naive"):
        entries[name] = ("", _rung(name, "cpu", "f32"))
    for backend in reversed([b["name"] for b in attend.backends() if b["device"] == "cuda"]):
        entries[backend] = (gpu_lack, _rung(backend, "cuda", "f32" if backend in make.FLOAT32_RUNGS else _HALF))
    entries["auto"] = (gpu_lack, _rung("auto", "cuda", _HALF))
    return entries


def choose(names: Optional[Sequence[str]], option: str = "--kernel") -> tuple[list[Implementation], list[str]]:
    """Returns the implementations with these names (None means all that can run here), and one line for each missing
    requirement.

    Raises:
        UsageError for an unknown name, or for a requested implementation that cannot run here.
    """
    entries = catalogue()
    names = [_known(name, entries, option) for name in names] if names else None
    for name in names or ():
        if entries[name][0]:
            raise UsageError(f"{option}: {name!r} cannot run here: {entries[name][0]}")
    chosen = [name for name in entries if name in names] if names else list(entries)
    missing: dict[str, list[str]] = {}
    for name in chosen:
        if entries[name][0]:
            missing.setdefault(entries[name][0], []).append(name)
    notes = [f"left out, {lack}: {', '.join(without)}" for lack, without in missing.items()]
    if BASELINE in missing.get(_NEEDS_TORCH, ()):
        notes.append(f"no speed-ups, because their baseline is {BASELINE}")
    return [entries[name][1]() for name in chosen if not entries[name][0]], notes


def _known(name: str, entries: Iterable[str], option: str) -> str:
    """Returns the catalogue's form of a name. The characters - and _ are equivalent, and aliases are resolved."""
    plain = name.replace("-", "_")
    plain = ALIASES.get(plain, plain)
    if plain in entries:
        return plain
    close = difflib.get_close_matches(plain, entries, n=1)
    hint = f" (did you mean {close[0]!r}?)" if close else ""
    raise UsageError(f"{option}: {name!r}{hint}, allowed {', '.join(entries)}")


def that_have(modes: Sequence[str], chosen: Sequence[Implementation]) -> tuple[list[Implementation], list[str]]:
    """Returns the implementations that support at least one mode, and a note about implementations without a requested
    backward pass.

    Raises:
        UsageError if no implementation remains.
    """
    without = ", ".join(x.name for x in chosen if not x.has_backward)
    if "backward" not in modes or not without:
        return list(chosen), []
    able = [x for x in chosen if x.has_backward or "forward" in modes]
    if not able:
        raise UsageError(f"--mode: backward with {without}, allowed forward")
    return able, [f"left out, no backward: {without}"]


def in_half(chosen: Sequence[Implementation], option: str) -> list[Implementation]:
    """Returns the half-precision implementations on a GPU. `option` is the command-line option that requires them.

    Raises:
        UsageError if there is no such implementation.
    """
    found = [x for x in chosen if x.device == "cuda" and x.dtype == _HALF]
    if not found:
        names = ", ".join(x.name for x in chosen)
        raise UsageError(f"{option}: {names}, allowed implementations in {_HALF} on a GPU that torch finds")
    return found


def count(implementations: Sequence[Implementation], modes: Sequence[str]) -> int:
    """Returns the number of result rows of one problem."""
    return sum(mode == "forward" or x.has_backward for x in implementations for mode in modes)


def _sdpa_on_gpu(backend: str) -> Callable[[], Implementation]:
    dtype = "f32" if backend in ("math", "efficient") else _HALF
    return lambda: make.torch_sdpa(f"torch_{backend}", "cuda", dtype, backend)


def _rung(name: str, device: str, dtype: str) -> Callable[[], Implementation]:
    return lambda: make.attend_backend(name, device, dtype)
