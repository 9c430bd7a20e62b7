"""attend in Hugging Face's transformers.

import attend.transformers
attend.transformers.register()
model = AutoModelForCausalLM.from_pretrained(..., attn_implementation="attend")
"""

from __future__ import annotations

from typing import Any, Optional

from attend._api import attention
from attend._drop_in import dropout_seed, refuse_unless
from attend._errors import ArgumentError, UnsupportedError
from attend._sdpa import top_left

# What a model may pass that attend does not do; None and False ask for nothing.
_LACKING = (
    "s_aux",
    "qv_latents",
    "indices",
    "cache",
    "output_attentions",
    "cu_seq_lens_q",
    "cu_seq_lens_k",
    "head_mask",
)


def register(name: str = "attend") -> None:
    """Makes attend known to transformers as the attention implementation `name`, with its mask function."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

    AttentionInterface.register(name, attention_forward)
    # Without one models pass no mask, and padding and causality are lost. A boolean mask, or None where the flag
    # is_causal says it all.
    AttentionMaskInterface.register(name, sdpa_mask)


def attention_forward(
    module: Any,
    query: Any,
    key: Any,
    value: Any,
    attention_mask: Any,
    dropout: float = 0.0,
    scaling: Optional[float] = None,
    sliding_window: Optional[int] = None,
    softcap: Optional[float] = None,
    is_causal: Optional[bool] = None,
    position_bias: Any = None,
    **kwargs: Any,
) -> tuple[Any, None]:
    """What transformers calls: query (batch, heads, seqlen_q, head_dim), key and value with the heads of keys.

    Arguments:
        attention_mask: None, bool (True keeps) or float (added), (batch, 1 or heads, seqlen_q, seqlen_k).
        sliding_window: keys that a row sees, itself included; used where no mask says so.
        is_causal: None: module.is_causal. Holds where there is no mask and more than one row; aligned top left.

    Returns:
        ((batch, seqlen_q, heads, head_dim), None).

    Raises:
        NotImplementedError naming an argument that asks for what attend lacks.
    """
    for name in _LACKING:
        refuse_unless(kwargs.get(name), (None, False), name)
    if attention_mask is not None and attention_mask.dim() != 4:
        raise ArgumentError(f"attention_mask: {attention_mask.dim()} dimensions, allowed 4")
    causal = is_causal if is_causal is not None else getattr(module, "is_causal", True)
    window: tuple[int, int] = (-1, -1)
    mask, bias = None, position_bias
    if attention_mask is None:
        if causal and query.shape[2] > 1:
            key, value, window = top_left(query, key, value)
            bias = None if bias is None else bias[..., : key.shape[2]]
        if causal and sliding_window is not None:
            window = (_window_left(sliding_window, query.shape[2], key.shape[2]), window[1])
    elif str(attention_mask.dtype) == "torch.bool":
        mask = attention_mask
    else:
        bias = attention_mask if bias is None else bias + attention_mask
    o = attention(
        query,
        key,
        value,
        window=window,
        scale=scaling,
        softcap=softcap or 0.0,
        bias=bias,
        mask=mask,
        dropout_p=dropout,
        seed=dropout_seed(dropout),
    )
    return o.transpose(1, 2).contiguous(), None


def _window_left(sliding_window: int, seqlen_q: int, seqlen_k: int) -> int:
    if seqlen_q > seqlen_k:  # aligned top left, the left side would lie to the right of every row's last key
        raise UnsupportedError(
            f"sliding_window: with {seqlen_q} rows on {seqlen_k} keys and no mask, attend needs the mask"
        )
    return sliding_window - 1
