"""Makes small models of transformers' architectures, and inputs for them. The scale of the weights preserves the size
of activations.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
from typing import Any, Optional

SEED = 7
MOST_PARAMETERS = 30_000_000
TOKENS = 7
BATCH = 3

# Values that make a configuration small. The values are used for the fields that the configuration has.
SMALL: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "emb_dim", "embed_dim", "hidden_dim"), 32),
    **dict.fromkeys(("embedding_size", "word_embed_proj_dim", "d_embed", "projection_dim", "text_embed_dim"), 32),
    **dict.fromkeys(("input_embedding_size", "output_embedding_size", "vision_embed_dim", "rotary_value"), 32),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "n_inner", "d_ff", "ffn_hidden_size", "d_inner"), 64),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim", "dim_feedforward", "moe_intermediate_size"), 64),
    **dict.fromkeys(("shared_expert_intermediate_size", "expert_ffn_hidden_size", "intermediate_size_mlp"), 64),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers"), 2),
    **dict.fromkeys(("decoder_layers", "num_encoder_layers", "num_decoder_layers", "num_hidden_groups"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads"), 4),
    **dict.fromkeys(("decoder_attention_heads", "num_encoder_attention_heads", "num_decoder_attention_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads", "multi_query_group_num", "n_head_kv"), 2),
    **dict.fromkeys(("head_dim", "kv_channels", "d_kv", "d_head", "attention_head_dim", "swa_head_dim"), 8),
    **dict.fromkeys(("v_head_dim", "qk_nope_head_dim", "qk_rope_head_dim", "global_head_dim"), 8),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank"), 16),
    **dict.fromkeys(("vocab_size", "n_token", "src_vocab_size", "tgt_vocab_size", "vocab_size_per_layer_input"), 99),
    **dict.fromkeys(("decoder_vocab_size", "text_vocab_size", "audio_vocab_size", "output_vocab_size"), 99),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx", "max_sequence_length", "max_seq_len"), 64),
    **dict.fromkeys(("max_source_positions", "max_target_positions", "block_size", "max_seq_length"), 64),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_k", "num_experts_per_token", "moe_topk"), 2),
    **dict.fromkeys(("n_group", "topk_group", "n_shared_experts", "first_k_dense_replace"), 1),
    "entity_vocab_size": 99,
    "attn_layer_period": 2,
    "attn_layer_offset": 1,
    "image_size": 32,
    "patch_size": 8,
    "sliding_window": 4,
    "attention_window": 4,
    "rotary_dim": 8,
    "hidden_size_per_layer_input": 8,
    "num_kv_shared_layers": 0,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}

OFTEN_NONE = ("num_key_value_heads", "head_dim", "n_routed_experts", "num_experts_per_tok", "vocab_size")

# A configuration may refuse one of these sizes in combination with the others. Further attempts omit these fields.
HEAD_SIZES = ("head_dim", "kv_channels", "d_kv", "v_head_dim", "qk_nope_head_dim", "qk_rope_head_dim", "rotary_dim")
WIDTHS = ("hidden_size", "d_model", "embed_dim", "num_attention_heads", "num_key_value_heads", "num_heads")
MROPE = "sections of rotary angles, whose sum the model takes for granted"
ALIKE = "as many heads of keys as of queries"
ATTEMPTS: tuple[tuple[str, ...], ...] = (
    (), (ALIKE,), HEAD_SIZES, (ALIKE, *HEAD_SIZES), ("layer_types",), (MROPE,), (*HEAD_SIZES, *WIDTHS), tuple(SMALL)
)  # fmt: skip


class NoModelError(LookupError):
    """Raised if transformers cannot make a model from the configuration alone."""


def value_of(config: Any, name: str) -> Any:
    try:
        return getattr(config, name, None)
    except Exception:  # noqa: BLE001 (reading a value that differs between layers raises in some configurations)
        return None


def small_fields(default: Any, without: tuple[str, ...]) -> dict[str, Any]:
    """Returns the fields that make a configuration like `default` small, including fields of its sub-configurations."""
    written = {name for name in dir(default) if not isinstance(getattr(type(default), name, None), property)}
    fields = {name: x for name, x in SMALL.items() if name in written and type(value_of(default, name)) is type(x)}
    fields |= {name: SMALL[name] for name in OFTEN_NONE if name in written}
    kinds = value_of(default, "layer_types")
    if "layer_types" in written and isinstance(kinds, (list, tuple)) and kinds:
        each = list(dict.fromkeys(kinds))
        fields["layer_types"] = each if len(each) > 1 else each * 2
        fields["num_hidden_layers"] = len(fields["layer_types"])
    rope = value_of(default, "rope_parameters")
    if isinstance(rope, dict) and (MROPE in without or "mrope_section" in rope):
        fields["rope_parameters"] = {**rope, "mrope_section": [2, 1, 1]}  # the sections add up to half of head_dim
    if value_of(default, "attention_types"):  # only gpt_neo has this field
        fields["attention_types"] = [[["global", "local"], 1]]
    fields = {name: value for name, value in fields.items() if name not in without}
    if ALIKE in without and "num_key_value_heads" in fields:
        fields["num_key_value_heads"] = SMALL["num_attention_heads"]
    for name in value_of(default, "sub_configs") or {}:
        part = value_of(default, name)
        if part is not None and hasattr(part, "to_dict"):
            fields[name] = {"model_type": part.model_type, **small_fields(part, without)}
    return fields


def configuration(model_type: str, without: tuple[str, ...] = ()) -> Any:
    from transformers import CONFIG_MAPPING

    kind = CONFIG_MAPPING[model_type]
    return kind(**small_fields(kind(), without))


def class_of(config: Any) -> Any:
    """Returns the class with a language model's head if there is one, otherwise the bare model."""
    from transformers.models.auto import modeling_auto as auto

    for mapping in (
        auto.MODEL_FOR_CAUSAL_LM_MAPPING,
        auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
        auto.MODEL_FOR_MASKED_LM_MAPPING,
        auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
        auto.MODEL_MAPPING,
    ):
        with contextlib.suppress(KeyError):
            found = mapping[type(config)]
            return found[0] if isinstance(found, (tuple, list)) else found
    return None


def built(kind: Any, config: Any, implementation: str) -> Any:
    """Returns a model of class `kind` whose weights preserve the size of activations."""
    import torch

    with torch.device("meta"):
        count = sum(p.numel() for p in kind._from_config(copy.deepcopy(config)).parameters())
    if count > MOST_PARAMETERS:
        raise MemoryError(f"{count:,} parameters are left when it is made small")
    model = kind._from_config(copy.deepcopy(config), attn_implementation=implementation).eval()
    generator = torch.Generator().manual_seed(SEED)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.is_floating_point():  # some models leave parameters uninitialised
                fan_in = parameter.shape[-1] if parameter.dim() > 1 else 100
                parameter.copy_(torch.randn(parameter.shape, generator=generator) / fan_in**0.5)
                parameter += float(parameter.dim() == 1)
    return model


def twin(model: Any, implementation: str) -> Any:
    """Returns a copy of the model with the attention `implementation`."""
    import torch

    other = built(type(model), model.config, implementation)
    with torch.no_grad():
        for mine, theirs in zip((*other.parameters(), *other.buffers()), (*model.parameters(), *model.buffers())):
            mine.copy_(theirs)
    return other


def first_that_runs(model_type: str) -> Any:
    """Returns the smallest model of the architecture whose eager attention accepts the inputs.

    Raises:
        The exception of the first attempt, if no attempt succeeds.
    """
    first: Optional[Exception] = None
    for without in ATTEMPTS:
        try:
            config = configuration(model_type, without)
            kind = class_of(config)
            if kind is None:
                raise NoModelError("no class that is tried here")
            model = built(kind, config, "eager")
            first_output(model, inputs_of(model, "none"))
            return model
        except (TimeoutError, NoModelError):
            raise
        except Exception as error:  # noqa: BLE001 (after any error, the next attempt omits other fields)
            first = first or error
    assert first is not None
    raise first


def inputs_of(model: Any, padding: str) -> Optional[dict[str, Any]]:
    """Returns the arguments of a call, including the mask for `padding` if the inputs of the model are tokens."""
    import torch

    generator = torch.Generator().manual_seed(SEED + 1)
    main = model.main_input_name
    if main != "input_ids":
        return signal_of(model, main, generator) if padding == "none" else None
    ids = torch.randint(3, 60, (BATCH, TOKENS), generator=generator)
    mask = torch.ones_like(ids)
    for row in range(1, BATCH):
        hidden = slice(None, 2 * row) if padding == "left" else slice(TOKENS - 2 * row, None)
        mask[row, hidden] = 0 if padding != "none" else 1
    arguments = {main: ids, "attention_mask": mask}
    if "pixel_values" in inspect.signature(model.forward).parameters and hasattr(model.config, "vision_config"):
        with contextlib.suppress(AttributeError):
            if not hasattr(model.config, "image_token_id") and not hasattr(model.config, "image_token_index"):
                arguments |= signal_of(model, "pixel_values", generator)
    if model.config.is_encoder_decoder:
        arguments["decoder_input_ids"] = torch.randint(3, 60, (BATCH, TOKENS - 2), generator=generator)
    return arguments


def signal_of(model: Any, main: str, generator: Any) -> dict[str, Any]:
    """Returns random inputs of a model without tokens: images, waveforms or spectra."""
    import torch

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(BATCH, *shape, generator=generator)

    if main == "pixel_values":
        vision = getattr(model.config, "vision_config", model.config)
        size = getattr(vision, "image_size", 64)
        size = size if isinstance(size, int) else size[0]
        return {main: normal(getattr(vision, "num_channels", 3), size, size)}
    if main == "input_values":
        return {main: normal(2000)}
    if main == "input_features":
        bins = getattr(model.config, "num_mel_bins", 80)
        if not hasattr(model.config, "max_source_positions") or not model.config.is_encoder_decoder:
            return {main: normal(96, bins)}
        ids = torch.randint(3, 60, (BATCH, TOKENS), generator=generator)
        return {main: normal(bins, 2 * model.config.max_source_positions), "decoder_input_ids": ids}
    raise ValueError(f"takes {main}, which is not tried here")


def first_output(model: Any, arguments: dict[str, Any]) -> Any:
    """Returns the first floating-point result, with padded rows set to 0, because their values have no meaning."""
    import torch

    torch.manual_seed(SEED)  # some models draw random numbers even in eval mode
    with torch.no_grad():
        found = model(**arguments)
    values = [x for x in (found.values() if hasattr(found, "values") else found) if isinstance(x, torch.Tensor)]
    result = next(x for x in values if x.is_floating_point() and x.dim() > 0)
    mask = arguments.get("attention_mask")
    if mask is not None and not model.config.is_encoder_decoder and result.shape[:2] == mask.shape:
        result = result * mask.reshape(*mask.shape, *[1] * (result.dim() - 2))
    return result
