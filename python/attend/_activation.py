"""The switch that installs attend behind torch's own attention functions. attend.torch._activate implements it."""

from __future__ import annotations


def activate() -> None:
    """Computes torch's scaled_dot_product_attention and flex_attention with attend until `restore()`, eager and
    compiled.

    torch.nn.functional.scaled_dot_product_attention: torch still chooses among its own implementations first. When it
    chooses its flash attention, attend runs instead. On the CPU this applies to every call without dropout and without
    a mask that requires grad. On CUDA, torch may prefer cuDNN.
    ``torch.nn.attention.sdpa_kernel(SDPBackend.FLASH_ATTENTION)`` makes it choose flash attention. A call that attend
    does not support raises attend.Error; there is no silent fallback. With dropout on CUDA the seed is in GPU memory,
    as in torch, for forward and backward. A CUDA graph of both passes draws new numbers in each replay.

    torch.nn.attention.flex_attention.flex_attention: also applies to code that imported or compiled the function
    before. A call that attend refuses is computed by torch's own function, with one warning for each reason.
    docs/custom_scores.md lists the calls that are not replaced.

    In torch's own registry (torch.nn.attention.register_flash_attention_impl, in versions of torch that have it) the
    name is "attend".
    """
    from attend.torch import _activate

    _activate.activate()


def restore() -> None:
    """Restores torch's own implementation. Does nothing if attend is not active."""
    from attend.torch import _activate

    _activate.restore()
