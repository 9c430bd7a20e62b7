"""Returns the implementations of attend and its peers for a device and a dtype."""

from __future__ import annotations

from collections.abc import Sequence

import attend
from attend._measure import implementations as make
from attend._measure.catalogue import ALIASES
from attend._measure.errors import UsageError, gpu_is_here, torch_or_none
from attend._measure.implementations import Implementation


def device_of(name: str) -> str:
    """Converts the value of --device, which may be auto, to cpu or cuda.

    Raises:
        UsageError if the value is cuda and there is no GPU.
    """
    if name == "auto":
        return "cuda" if gpu_is_here() else "cpu"
    if name == "cuda" and not gpu_is_here():
        raise UsageError("--device: cuda, but torch finds no GPU; allowed cpu here")
    return name


def ours(computes: Sequence[str], device: str, dtype: str) -> list[Implementation]:
    """Returns the implementations of the backends of attend with these names. A name may be auto.

    Raises:
        UsageError for a backend that does not support the device.
    """
    known = ["auto", *(b["name"] for b in attend.backends() if b["device"] == device)]
    chosen = [ALIASES.get(plain, plain) for plain in (name.replace("-", "_") for name in computes)]
    for name, asked in zip(chosen, computes):
        if name not in known:
            raise UsageError(f"--compute: {asked!r}, allowed on {device}: {', '.join(known)}")
    return [make.attend_backend(name, device, dtype) for name in dict.fromkeys(chosen)]


def theirs(device: str, dtype: str) -> tuple[list[Implementation], list[str]]:
    """Returns the peers, and a line for each missing peer. The peers are PyTorch with its default and with each
    backend, the unfused path, and flash-attn.

    On a GPU in half precision, unfused attention with a fused softmax kernel is also a peer.
    """
    if torch_or_none() is None:
        return [], ["left out, no torch (pip install torch): torch, unfused, fused_softmax, flash_attn"]
    backends = make.SDP_BACKENDS if device == "cuda" else ("math", "flash")
    peers = [make.torch_sdpa("torch", device, dtype)]
    peers += [make.torch_sdpa(f"torch_{backend}", device, dtype, backend) for backend in backends]
    peers.append(make.unfused("unfused", device, dtype))
    if device == "cpu" or dtype == "f32":
        return peers, ["left out, half precision on a GPU only: fused_softmax, flash_attn"]
    peers.append(make.fused_softmax("fused_softmax", dtype))
    if not make.flash_attn_is_here():
        return peers, ["left out, not installed: flash_attn"]
    return [*peers, make.flash_attn("flash_attn", dtype)], []
