"""Makes torch's own attention functions call attend. attend.torch._activate implements it."""

from __future__ import annotations


def activate() -> None:
    """Makes torch's scaled_dot_product_attention and flex_attention compute with attend until `restore()`, in eager and
    in compiled code.

    In torch.nn.functional.scaled_dot_product_attention, torch still chooses one of its own implementations. If it
    chooses its flash attention, attend runs instead. On the CPU torch chooses flash attention for every call without
    dropout and without a mask that requires grad. On CUDA, torch may prefer cuDNN.
    ``torch.nn.attention.sdpa_kernel(SDPBackend.FLASH_ATTENTION)`` makes torch choose flash attention. If attend does
    not support the call, it raises attend.Error, without a fallback. With dropout on CUDA, the seed for forward and
    backward is in GPU memory, as in torch. A CUDA graph of both passes uses a new seed in each replay.

    torch.nn.attention.flex_attention.flex_attention is replaced even in code that imported or compiled it before. If
    attend refuses a call, torch's own function computes it, with one warning for each reason. docs/custom_scores.md
    lists the calls that are not replaced.

    Versions of torch that have torch.nn.attention.register_flash_attention_impl also register attend there, under the
    name "attend".
    """
    from attend.torch import _activate

    _activate.activate()


def restore() -> None:
    """Restores torch's own implementations. Does nothing if attend is not active."""
    from attend.torch import _activate

    _activate.restore()
