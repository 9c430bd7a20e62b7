"""The switch that puts attend behind torch's own attention; attend.torch._activate does it."""

from __future__ import annotations


def activate() -> None:
    """Puts attend behind torch's scaled_dot_product_attention and flex_attention until `restore()`: eager and compiled.

    torch.nn.functional.scaled_dot_product_attention: torch still chooses among its own implementations first; where it
    would run its flash attention, attend runs. On the CPU that is every call without dropout and without a mask that
    requires grad. On CUDA torch may prefer cuDNN: ``torch.nn.attention.sdpa_kernel(SDPBackend.FLASH_ATTENTION)`` makes
    it choose flash attention. What attend lacks raises attend.Error; nothing falls back in silence. With dropout on
    CUDA the seed lies on the GPU, as torch has it, forward and backward: a CUDA graph of both draws anew with each
    replay.

    torch.nn.attention.flex_attention.flex_attention: also for whoever has imported or compiled it before. What attend
    refuses when it is called, torch's own function computes, and a warning says so, once for each reason.
    docs/custom_scores.md says what is not reached.

    In torch's own registry (torch.nn.attention.register_flash_attention_impl, where torch has it) the name is "attend".
    """
    from attend.torch import _activate

    _activate.activate()


def restore() -> None:
    """Puts torch's own implementation back; nothing where attend is not active."""
    from attend.torch import _activate

    _activate.restore()
