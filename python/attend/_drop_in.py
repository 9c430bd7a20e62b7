"""What the front doors of other packages have in common."""

from __future__ import annotations

from typing import Any

from attend._errors import UnsupportedError


def refuse_unless(value: Any, allowed: tuple[Any, ...], name: str) -> None:
    """Nothing that a caller asks for is silently ignored."""
    if not any(value is x or (type(value) is type(x) and value == x) for x in allowed):
        shown = type(value).__name__ if hasattr(value, "shape") else repr(value)
        raise UnsupportedError(f"{name}: {shown}, attend takes {' or '.join(map(repr, allowed))} only")


def dropout_seed(dropout_p: float) -> int:
    """A seed from torch's default generator, so that torch.manual_seed repeats a run; 0 where nothing is dropped."""
    if dropout_p == 0.0:
        return 0
    import torch

    return int(torch.randint(2**62, ()))


def activate() -> None:
    """Puts attend behind torch.nn.functional.scaled_dot_product_attention until `restore()`: eager and compiled.

    torch still chooses among its own implementations first; where it would run its flash attention, attend runs. On the
    CPU that is every call without dropout and without a mask that requires grad. On CUDA torch may prefer cuDNN:
    ``torch.nn.attention.sdpa_kernel(SDPBackend.FLASH_ATTENTION)`` makes it choose flash attention. What attend lacks
    raises attend.Error; nothing falls back in silence.

    In torch's own registry (torch.nn.attention.register_flash_attention_impl, where torch has it) the name is "attend".
    """
    from attend.torch import _activate

    _activate.activate()


def restore() -> None:
    """Puts torch's own implementation back; nothing where attend is not active."""
    from attend.torch import _activate

    _activate.restore()
