"""Makes models of Hugging Face's transformers compute attention with attend.

::

    import attend.transformers
    attend.transformers.register()
    model = AutoModelForCausalLM.from_pretrained(..., attn_implementation="attend")

docs/hugging_face.md lists the architectures that were tested. For continuous batching::

    with attend.transformers.continuous_batching(model):
        outputs = model.generate_batch(prompts, generation_config=...)
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Optional, TypeVar

from attend._api import attention
from attend._continuous_batching import packed_attention, tables_of_pages
from attend._drop_in import refuse_unless, renamed, top_left
from attend._errors import ArgumentError, Error, UnsupportedError

__all__ = ["attention_forward", "continuous_batching", "register"]

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module
    from transformers import PreTrainedConfig

ModelT = TypeVar("ModelT", bound="Module")

# Names of arguments that a model may pass and that attend does not support. A value of None or False means that the
# model does not use the argument.
_LACKING = ("qv_latents", "indices", "cache", "cu_seq_lens_q", "cu_seq_lens_k", "head_mask")

# Attributes of transformers' models.
_CHECK, _SUPPORTS = "get_correct_attn_implementation", "_supports_attention_backend"

# Continuous batching accepts only implementations whose names contain "flash". If a 2 or 3 follows "flash",
# transformers imports a package of that name, so this name contains no number.
_BATCHED = "attend_flash"

_names: set[str] = set()  # names that were registered with register()
_by_mask_alone: set[str] = set()  # model types that do not support sdpa


def register(name: str = "attend") -> None:
    """Registers attend, and a function that makes its masks, in transformers as the attention implementation `name`.

    Afterwards, transformers raises an error if a model is made with `name` and does not use transformers' attention
    interface. Otherwise the model would accept the name and compute attention itself, with a mask in a form that it
    does not support.
    """
    from transformers import AttentionInterface, PreTrainedModel
    from transformers.masking_utils import AttentionMaskInterface

    AttentionInterface.register(name, attention_forward)
    # If no mask function is registered, models pass no mask, so padding and causality would be lost.
    AttentionMaskInterface.register(name, mask_of)
    if not _names and hasattr(PreTrainedModel, _CHECK):
        setattr(PreTrainedModel, _CHECK, _checking(getattr(PreTrainedModel, _CHECK)))
    _names.add(name)


def _checking(plain: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that first applies attend's check to a registered name, then transformers' check `plain`."""

    @functools.wraps(plain)
    def checked(model: Any, requested_attention: Optional[str], *rest: Any, **more: Any) -> Any:
        if requested_attention in _names:
            refuse_without_interface(type(model), requested_attention)
            if not getattr(model, "_supports_sdpa", True):
                _by_mask_alone.add(model.config.model_type)
        return plain(model, requested_attention, *rest, **more)

    return checked


def refuse_without_interface(kind: type, name: str) -> None:
    """Raises UnsupportedError if models of this class ignore the registered attention implementation."""
    said = [base.__dict__[_SUPPORTS] for base in kind.__mro__ if _SUPPORTS in base.__dict__]
    # `said` has the value of _SUPPORTS in each class that sets it. The base class sets False for all models. If no
    # other class sets it, transformers decides from the source code of the model.
    able = any(said[:1]) or (len(said) < 2 and getattr(kind, "_can_set_attn_implementation", lambda: True)())
    if not able or _has_table(kind):
        raise UnsupportedError(
            f"attn_implementation: {name!r} with {kind.__name__}, which computes attention in its own "
            "code; allowed 'eager'"
        )


def mask_of(*arguments: Any, config: Optional[PreTrainedConfig] = None, **options: Any) -> Optional[Tensor]:
    """Returns transformers' mask for sdpa: bool, or None if the flag is_causal is enough.

    A model that was not made for sdpa has no such flag and may add numbers to the mask. For such a model this returns
    the mask that eager would get.
    """
    from transformers.masking_utils import eager_mask, sdpa_mask

    if getattr(config, "model_type", None) in _by_mask_alone:
        options["allow_is_bidirectional_skip"] = False
        mask: Optional[Tensor] = eager_mask(*arguments, config=config, **options)
    else:
        mask = sdpa_mask(*arguments, config=config, **options)
    return mask


def _has_table(kind: type) -> bool:
    """Returns whether the model's source code chooses its attention class from a table, by the name of the
    implementation.
    """
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
    **kwargs: object,
) -> tuple[Tensor, Optional[Tensor]]:
    """Computes attention with the arguments that transformers passes. query is (batch, heads, seqlen_q, head_dim). key
    and value have the same form and may have fewer heads.

    Arguments:
        attention_mask: None, bool (True keeps a pair) or float (added to the scores), (batch, 1 or heads, seqlen_q,
            seqlen_k).
        sliding_window: number of keys that a row sees, including the key at the row's own position. Used only without a
            mask.
        is_causal: None means module.is_causal. Used only if there is no mask and more than one row. Aligned top left.
        s_aux: attention sinks (heads): the score of an additional key that has no value.
        kwargs: output_attentions=True also returns the softmax weights.

    Returns:
        ((batch, seqlen_q, heads, head_dim), None). With output_attentions=True the weights (batch, heads, seqlen_q,
        seqlen_k) replace None. torch computes the weights separately, so they need the memory that attend saves.

    Raises:
        NotImplementedError that names an argument which needs something that attend does not support.
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
    if s_aux is not None:  # attend cannot combine sinks with a one-column bias, so the bias is expanded over the keys
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
    """Returns a context in which `model` computes attention with attend, also in transformers' continuous batching.

    ::

        with attend.transformers.continuous_batching(model):
            outputs = model.generate_batch(prompts, generation_config=..., continuous_batching_config=...)

    The context returns `model`. The model must be on a CPU, and its class must use transformers' attention interface. A
    manager from `init_continuous_batching` must stop before the context ends. `generate` and calls of the model work as
    with attn_implementation="attend". When the context ends, it restores the model's previous implementation.

    `attend.attention_varlen` computes prompts, and batches that combine prompts with other requests. `attend.decode`
    computes a batch in which each request decodes one token, if all layers attend to all tokens. `attend.decode`
    appends to transformers' pages and reads them in place. For layers with a sliding window, transformers keeps no
    block tables and copies the keys and values at each step.

    Other models keep their attention, even if they generate at the same time. One check in transformers changes for all
    models while a context is open. Without a GPU, transformers does not use block tables. With the change, it uses them
    if attend is the implementation.

    Raises:
        attend.Error if the model computes attention itself or is on a GPU.
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
            # Setting a config also sets its sub-configs, so these are restored later.
            for config, implementation in before:
                config._attn_implementation = implementation


def _configs_of(model: Any) -> list[Any]:
    """Returns the configs from which the model and its submodules read their attention implementation. A sub-config
    follows the config that contains it.
    """
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
    s_aux: Optional[Tensor] = None,
    cu_seq_lens_q: Optional[Tensor] = None,
    cu_seq_lens_k: Optional[Tensor] = None,
    max_length_q: Optional[int] = None,
    max_length_k: Optional[int] = None,
    block_table: Optional[Tensor] = None,
    k_cache: Optional[Tensor] = None,
    v_cache: Optional[Tensor] = None,
    **kwargs: Any,
) -> tuple[Tensor, Optional[Tensor]]:
    """Computes attention with the arguments that transformers passes in `continuous_batching`. Without cu_seq_lens_q it
    calls `attention_forward`.

    With cu_seq_lens_q, sequences are packed: query is (1, heads, tokens, head_dim), and key and value have the same
    form. cu_seq_lens_q and cu_seq_lens_k, i32 (sequences + 1), contain the first token of each sequence. There is no
    mask. Rows see only keys of their own sequence, aligned bottom right. With block_table, i32 (sequences, pages), key
    and value hold one new token per sequence. k_cache and v_cache (pages, page_size, heads_k, head_dim) hold all
    earlier tokens and are changed in place.

    Returns:
        ((1, tokens, heads, head_dim), None).

    Raises:
        NotImplementedError that names an argument which needs something that attend does not support.
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
    query: Tensor,
    key: Tensor,
    window: tuple[int, int],
    scaling: Optional[float],
    softcap: Optional[float],
    bias: Optional[Tensor],
    mask: Optional[Tensor],
    s_aux: Optional[Tensor],
    num_keys: int,
) -> Tensor:
    """Returns the softmax weights (batch, heads, seqlen_q, num_keys) in float32, without dropout. The weights of keys
    beyond the length of `key` are 0.
    """
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


def _without_mask(
    query: Tensor, key: Tensor, value: Tensor, causal: bool, sliding_window: Optional[int]
) -> tuple[Tensor, Tensor, tuple[int, int]]:
    """Returns the keys and values that at least one row sees, and the window for attend."""
    window = (-1, -1)
    seqlen_q, seqlen_k = query.shape[2], key.shape[2]
    if causal and seqlen_q > 1:
        key, value, window = top_left(query, key, value)
    if causal and sliding_window is not None:
        if seqlen_q > seqlen_k:  # aligned top left, the left edge of the window can lie beyond the last key
            raise UnsupportedError(
                f"sliding_window: with {seqlen_q} rows on {seqlen_k} keys and no mask, attend needs the mask"
            )
        window = (sliding_window - 1, window[1])
    return key, value, window
