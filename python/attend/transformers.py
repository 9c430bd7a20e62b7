"""attend in Hugging Face's transformers.

import attend.transformers
attend.transformers.register()
model = AutoModelForCausalLM.from_pretrained(..., attn_implementation="attend")

docs/hugging_face.md lists the architectures with which it was tried. Continuous batching:

with attend.transformers.continuous_batching(model):
    outputs = model.generate_batch(prompts, generation_config=...)
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import re
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Optional, TypeVar

from attend._api import attention
from attend._continuous_batching import packed_attention, tables_of_pages
from attend._drop_in import refuse_unless, renamed, top_left
from attend._errors import ArgumentError, Error, UnsupportedError

__all__ = ["attention_forward", "continuous_batching", "register"]

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module

ModelT = TypeVar("ModelT", bound="Module")

# Arguments that a model may pass, and attend has not. None and False ask for nothing.
_LACKING = ("qv_latents", "indices", "cache", "cu_seq_lens_q", "cu_seq_lens_k", "head_mask")

_CHECK, _SUPPORTS = "get_correct_attn_implementation", "_supports_attention_backend"  # transformers' names

# Continuous batching takes only implementations with "flash" in their names; those with a 2 or 3 behind it have to be a
# package that transformers imports by itself.
_BATCHED = "attend_flash"

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
    module: Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Optional[Tensor],
    dropout: float = 0.0,
    scaling: Optional[float] = None,
    sliding_window: Optional[int] = None,
    softcap: Optional[float] = None,
    is_causal: Optional[bool] = None,
    position_bias: Optional[Tensor] = None,
    s_aux: Optional[Tensor] = None,
    **kwargs: Any,
) -> tuple[Tensor, Optional[Tensor]]:
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


@contextlib.contextmanager
def continuous_batching(model: ModelT) -> Iterator[ModelT]:
    """While it is open, `model` computes with attend, also in transformers' continuous batching.

    ::

        with attend.transformers.continuous_batching(model):
            outputs = model.generate_batch(prompts, generation_config=..., continuous_batching_config=...)

    A context of `model`, which it gives: on a CPU, of a class that calls transformers' attention interface. Managers of
    `init_continuous_batching` belong inside, until they have stopped. `generate` and calls of the model work inside as
    with attn_implementation="attend". At the end the model has the implementation back that it had.

    Prompts, and batches of them with other requests, go to `attend.attention_varlen`. A batch of which each request
    decodes one token goes to `attend.decode`, which appends to transformers' pages and reads them in place, where all
    layers attend to all tokens. Of layers with a sliding window transformers has no tables of pages: it copies their
    keys and values out at each step.

    Other models keep their attention, also those that generate at the same time. What changes for all of them while a
    context is open: transformers asks whether attend is the implementation before it gives up tables of pages, because
    it finds no GPU.

    Raises:
        attend.Error if the model computes attention by itself or is on a GPU.
    """
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    refuse_without_interface(type(model), _BATCHED)
    device: Any = model.device
    if device.type != "cpu":
        raise UnsupportedError(f"model: on {device}, continuous batching with attend allows cpu")
    AttentionInterface.register(_BATCHED, batched_attention_forward)
    AttentionMaskInterface.register(_BATCHED, mask_of)
    before = [(config, config._attn_implementation) for config in _configs_of(model)]
    with tables_of_pages(_BATCHED):
        try:
            for config, _ in before:
                config._attn_implementation = _BATCHED
            yield model
        finally:
            for config, implementation in before:  # a config sets those inside of it too, which come behind it
                config._attn_implementation = implementation


def _configs_of(model: Any) -> list[Any]:
    """The configurations that the model and its parts ask for their attention, each behind the one it is inside of."""
    found: list[Any] = []

    def walk(config: Any) -> None:
        if hasattr(config, "_attn_implementation") and not any(config is other for other in found):
            found.append(config)
            for name in getattr(config, "sub_configs", {}):
                walk(getattr(config, name, None))

    for module in model.modules():
        walk(getattr(module, "config", None))
    return found


def batched_attention_forward(
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
    s_aux: Any = None,
    cu_seq_lens_q: Any = None,
    cu_seq_lens_k: Any = None,
    max_length_q: Any = None,
    max_length_k: Any = None,
    block_table: Any = None,
    k_cache: Any = None,
    v_cache: Any = None,
    **kwargs: Any,
) -> tuple[Any, Any]:
    """The function that transformers calls inside of `continuous_batching`; without cu_seq_lens_q `attention_forward`.

    With it sequences are packed: query (1, heads, tokens, head_dim), key and value likewise. cu_seq_lens_q and
    cu_seq_lens_k, i32 (sequences + 1), say where they begin. There is no mask: rows see the keys of their sequence,
    aligned bottom right. With block_table, i32 (sequences, pages), key and value have one new token of each sequence,
    and k_cache and v_cache (pages, page_size, heads_k, head_dim) all before it; they are changed in place.

    Returns:
        ((1, tokens, heads, head_dim), None).

    Raises:
        NotImplementedError naming an argument that asks for what attend lacks.
    """
    if cu_seq_lens_q is None:
        return attention_forward(
            module, query, key, value, attention_mask, dropout, scaling, sliding_window, softcap, is_causal,
            s_aux=s_aux, cu_seq_lens_k=cu_seq_lens_k, **kwargs,
        )  # fmt: skip
    for name in (*_LACKING, "position_bias", "output_attentions"):
        refuse_unless(kwargs.get(name), (None, False), name)
    refuse_unless(attention_mask, (None,), "attention_mask with cu_seq_lens_q")
    refuse_unless(dropout, (0.0, 0), "dropout with cu_seq_lens_q")
    causal = is_causal if is_causal is not None else getattr(module, "is_causal", True)
    o = packed_attention(
        query, key, value, cu_seq_lens_q, cu_seq_lens_k, max_length_q, max_length_k,
        None if block_table is None else (k_cache, v_cache, block_table), scaling=scaling, causal=causal,
        sliding_window=sliding_window, softcap=softcap, s_aux=s_aux,
    )  # fmt: skip
    return o, None


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
