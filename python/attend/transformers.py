"""attend in Hugging Face's transformers.

import attend.transformers
attend.transformers.register()
model = AutoModelForCausalLM.from_pretrained(..., attn_implementation="attend")

docs/hugging_face.md lists the architectures with which it was tried.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
from typing import Any, Optional

from attend._api import attention
from attend._drop_in import refuse_unless, renamed, top_left
from attend._errors import ArgumentError, Error, UnsupportedError

# Arguments that a model may pass, and attend has not. None and False ask for nothing.
_LACKING = ("qv_latents", "indices", "cache", "cu_seq_lens_q", "cu_seq_lens_k", "head_mask")

_CHECK, _SUPPORTS = "get_correct_attn_implementation", "_supports_attention_backend"  # transformers' names

_names: set[str] = set()  # what register() was given
_by_mask_alone: set[str] = set()  # model types that were not made for sdpa


def register(name: str = "attend") -> None:
    """Makes attend known to transformers as the attention implementation `name`, with its mask function.

    A model without transformers' attention interface, which would take the name and then compute by itself (with a mask
    it cannot read), is refused from now on when it is made with it.
    """
    from transformers import AttentionInterface, PreTrainedModel
    from transformers.masking_utils import AttentionMaskInterface

    AttentionInterface.register(name, attention_forward)
    # Without one models pass no mask, and padding and causality are lost.
    AttentionMaskInterface.register(name, mask_of)
    if not _names and hasattr(PreTrainedModel, _CHECK):
        setattr(PreTrainedModel, _CHECK, _checking(getattr(PreTrainedModel, _CHECK)))
    _names.add(name)


def _checking(plain: Any) -> Any:
    """transformers' own check of a model's attention, after ours if it asks for a name of ours."""

    @functools.wraps(plain)
    def checked(model: Any, requested_attention: Any, *rest: Any, **more: Any) -> Any:
        if requested_attention in _names:
            refuse_without_interface(type(model), requested_attention)
            if not getattr(model, "_supports_sdpa", True):
                _by_mask_alone.add(model.config.model_type)
        return plain(model, requested_attention, *rest, **more)

    return checked


def refuse_without_interface(kind: type, name: str) -> None:
    """UnsupportedError if models of this class do not call the attention that they are asked to use."""
    said = [base.__dict__[_SUPPORTS] for base in kind.__mro__ if _SUPPORTS in base.__dict__]
    # The base class says False of all models. If no other class says anything, the source tells.
    able = any(said[:1]) or (len(said) < 2 and getattr(kind, "_can_set_attn_implementation", lambda: True)())
    if not able or _has_table(kind):
        raise UnsupportedError(
            f"attn_implementation: {name!r} with {kind.__name__}, which computes attention by itself; allowed 'eager'"
        )


def mask_of(*arguments: Any, config: Any = None, **options: Any) -> Any:
    """transformers' mask for sdpa: bool, or None if the flag is_causal is enough.

    A model that was not made for sdpa has no such flag, and may add to the mask: it gets what it would give to eager.
    """
    from transformers.masking_utils import eager_mask, sdpa_mask

    if getattr(config, "model_type", None) in _by_mask_alone:
        return eager_mask(*arguments, config=config, **{**options, "allow_is_bidirectional_skip": False})
    return sdpa_mask(*arguments, config=config, **options)


def _has_table(kind: type) -> bool:
    """Whether the layers of the class are looked up by the implementation's name in a table of the model's own."""
    module = sys.modules.get(kind.__module__)
    try:
        source = inspect.getsource(module) if module is not None else ""
    except (OSError, TypeError):
        return False
    return re.search(r"_ATTENTION_CLASSES\[.*attn_implementation", source) is not None


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
    s_aux: Any = None,
    **kwargs: Any,
) -> tuple[Any, Any]:
    """The function that transformers calls: query (batch, heads, seqlen_q, head_dim), key and value with their heads.

    Arguments:
        attention_mask: None, bool (True keeps) or float (added), (batch, 1 or heads, seqlen_q, seqlen_k).
        sliding_window: keys that a row sees, itself included; used without a mask.
        is_causal: None: module.is_causal. Used without a mask and with more than one row; aligned top left.
        s_aux: (heads) attention sinks: the score of a key more that has no value.
        kwargs: output_attentions=True asks for the weights.

    Returns:
        ((batch, seqlen_q, heads, head_dim), None). The weights (batch, heads, seqlen_q, seqlen_k) replace None if they
        are asked for: torch computes them once more, and they take the memory that attend saves.

    Raises:
        NotImplementedError naming an argument that asks for what attend lacks.
    """
    for name in _LACKING:
        refuse_unless(kwargs.get(name), (None, False), name)
    if attention_mask is not None and attention_mask.dim() != 4:
        raise ArgumentError(f"attention_mask: {attention_mask.dim()} dimensions, allowed 4")
    num_keys = key.shape[2]
    causal = is_causal if is_causal is not None else getattr(module, "is_causal", True)
    bias, mask, window = position_bias, None, (-1, -1)
    if attention_mask is None:
        key, value, window = _without_mask(query, key, value, causal, sliding_window)
        bias = None if bias is None else bias[..., : key.shape[2]]
    elif str(attention_mask.dtype) == "torch.bool":
        mask = attention_mask
    else:
        bias = attention_mask if bias is None else bias + attention_mask
    if s_aux is not None:  # with sinks a column is no constant of its row: it is repeated over the keys
        bias, mask = (None if x is None else x.expand(*x.shape[:-1], key.shape[2]) for x in (bias, mask))
    try:
        o = attention(
            query, key, value, window=window, scale=scaling, softcap=softcap or 0.0, bias=bias, mask=mask,
            sinks=s_aux, dropout_p=dropout,
        )  # fmt: skip
    except Error as error:
        raise renamed(error, {"sinks": "s_aux"}) from None
    weights = None
    if kwargs.get("output_attentions"):
        weights = _weights(query, key, window, scaling, softcap, bias, mask, s_aux, num_keys)
    return o.transpose(1, 2).contiguous(), None if weights is None else weights.to(query.dtype)


def _weights(
    query: Any, key: Any, window: Any, scaling: Any, softcap: Any, bias: Any, mask: Any, s_aux: Any, num_keys: int
) -> Any:
    """The softmax, (batch, heads, seqlen_q, num_keys) in float32, without dropout; 0 for keys behind those of `key`."""
    import torch

    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    key = key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
    scores = scale * (query.float() @ key.float().transpose(-1, -2))
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    if bias is not None:
        scores = scores + bias
    rows = torch.arange(query.shape[2], device=query.device)[:, None] + key.shape[2] - query.shape[2]
    keys = torch.arange(key.shape[2], device=query.device)[None]
    left, right = window
    hidden = (rows - keys > left) & (left >= 0) | (keys - rows > right) & (right >= 0)
    if mask is not None:
        hidden = hidden | ~mask
    scores = scores.masked_fill(hidden, float("-inf"))
    weights = scores.softmax(-1)
    if s_aux is not None:
        weights = weights * (scores.logsumexp(-1, keepdim=True) - s_aux.float()[:, None, None]).sigmoid()
    weights = weights.masked_fill(hidden.all(-1, keepdim=True), 0.0)
    return torch.nn.functional.pad(weights, (0, num_keys - key.shape[2]))


def _without_mask(query: Any, key: Any, value: Any, causal: bool, sliding_window: Optional[int]) -> Any:
    """The keys and values that are seen at all, and the window."""
    window = (-1, -1)
    seqlen_q, seqlen_k = query.shape[2], key.shape[2]
    if causal and seqlen_q > 1:
        key, value, window = top_left(query, key, value)
    if causal and sliding_window is not None:
        if seqlen_q > seqlen_k:  # aligned top left, the left side would lie to the right of every row's last key
            raise UnsupportedError(
                f"sliding_window: with {seqlen_q} rows on {seqlen_k} keys and no mask, attend needs the mask"
            )
        window = (sliding_window - 1, window[1])
    return key, value, window
