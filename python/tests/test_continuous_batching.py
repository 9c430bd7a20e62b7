"""Tests of transformers' generation with attend as the attention. With every cache, the tokens must be the same as with
eager attention.
"""

import copy
import itertools
import runpy

import pytest

pytest.importorskip("numpy")
pytest.importorskip(
    "torch", reason=f"the tests of {__name__} need torch: `make py-test ATTEND_TEST_TORCH=1` installs it"
)
transformers = pytest.importorskip("transformers", reason=f"the tests of {__name__} need transformers")
batching = pytest.importorskip(
    "transformers.generation.continuous_batching", reason="this transformers has no continuous batching"
)

if tuple(int(part) for part in transformers.__version__.split(".")[:2]) < (5, 24):
    pytest.skip("transformers hands its cache to the attention before 5.24", allow_module_level=True)

import attend.transformers
import small_models
import test_documents

TOKENS = 6
LENGTHS = (3, 17, 1, 40)
SIZES = dict(hidden_size=32, head_dim=8, vocab_size=50, num_hidden_layers=2, max_position_embeddings=128)
HEADS = dict(num_attention_heads=4, num_key_value_heads=2, pad_token_id=0)
KINDS = {
    "llama": lambda: (transformers.LlamaForCausalLM, transformers.LlamaConfig(intermediate_size=64, **SIZES, **HEADS)),
    "gpt_oss": lambda: (
        transformers.GptOssForCausalLM,
        transformers.GptOssConfig(
            intermediate_size=32, num_local_experts=2, num_experts_per_tok=2, sliding_window=4,
            layer_types=["sliding_attention", "full_attention"], **SIZES, **HEADS,
        ),
    ),
}  # fmt: skip


def model_of(kind):
    """Returns a small model. The model gpt_oss has sinks and sliding windows."""
    model_class, config = KINDS[kind]()
    model = small_models.built(model_class, config, "eager").eval()
    model.generation_config.eos_token_id = None  # generation must not stop early
    return model


def prompts_of(torch):
    generator = torch.Generator().manual_seed(small_models.SEED)
    return [torch.randint(1, 50, (n,), generator=generator).tolist() for n in LENGTHS]


def words(torch, model, prompts, **options):
    """Returns the generated tokens of each prompt, without batching."""
    found = []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        more = dict(attention_mask=torch.ones_like(ids), max_new_tokens=TOKENS, do_sample=False)
        found.append(model.generate(ids, **more, **options)[0, len(prompt) :].tolist())
    return found


def generation_config():
    return transformers.GenerationConfig(max_new_tokens=TOKENS, do_sample=False, eos_token_id=-1, pad_token_id=0)


def batched(model, prompts, **options):
    """Generates by continuous batching, with pages of 8 tokens and batches of at most 32 tokens, so that long prompts
    are split.
    """
    pool = transformers.ContinuousBatchingConfig(page_size=8, num_blocks=64, max_batch_tokens=32, **options)
    found = model.generate_batch(prompts, generation_config=generation_config(), continuous_batching_config=pool)
    assert not [x.error for x in found.values() if x.error]
    return [x.generated_tokens for x in found.values()]


@pytest.fixture
def calls(monkeypatch):
    """Counts the calls of each function of attend."""
    from attend import _continuous_batching

    counts = {"decode": 0, "attention_varlen": 0}

    def counting(name, plain):
        def run(*arguments, **options):
            counts[name] += 1
            return plain(*arguments, **options)

        return run

    for name in counts:
        monkeypatch.setattr(_continuous_batching, name, counting(name, getattr(_continuous_batching, name)))
    return counts


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_the_tokens_of_eager_from_a_dense_cache(torch, kind, cache):
    attend.transformers.register()
    eager = model_of(kind)
    ours = small_models.twin(eager, "attend")
    ours.generation_config.eos_token_id = None
    ids = torch.randint(1, 50, (3, 11), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[0, :6], mask[1, :3] = 0, 0  # padding of different lengths
    options = dict(attention_mask=mask, max_new_tokens=TOKENS, do_sample=False, cache_implementation=cache)
    with torch.no_grad():
        assert torch.equal(ours.generate(ids, **options), eager.generate(ids, **options))


@pytest.mark.parametrize("kind", KINDS)
def test_the_tokens_of_eager_from_pages(torch, kind, calls):
    model, prompts = model_of(kind), prompts_of(torch)
    want = words(torch, model, prompts)
    with attend.transformers.continuous_batching(model) as same:
        assert same is model
        assert batched(model, prompts) == want
        # The first batches contain prompts and other requests, and later batches only decode. A layer with a window has
        # no page table.
        assert calls["attention_varlen"] > 0 and (calls["decode"] > 0) == (kind == "llama")
        calls["decode"] = 0
        assert batched(model, prompts, max_blocks_per_request=0) == want and calls["decode"] == 0
        assert words(torch, model, prompts[:1]) == want[:1]


def test_the_example_of_the_page_of_serving(torch, tmp_path):
    (part,) = test_documents.blocks("serving.md", "py")
    model, prompts = model_of("llama"), prompts_of(torch)[:2]
    want = words(torch, model, prompts)
    plain = model.generate_batch
    pool = transformers.ContinuousBatchingConfig(page_size=8, num_blocks=64, max_batch_tokens=32)
    model.generate_batch = lambda *arguments, **options: plain(*arguments, continuous_batching_config=pool, **options)
    program = tmp_path / "serving.py"
    program.write_text(part)
    given = {"attend": attend, "model": model, "prompts": prompts, "generation_config": generation_config()}
    names = runpy.run_path(str(program), given)
    assert [x.generated_tokens for x in names["outputs"].values()] == want


def test_pages_beyond_the_lengths_are_not_read(torch, monkeypatch):
    """transformers fills its pages with zeros at the start. This test fills them with NaN."""
    model, prompts = model_of("llama"), prompts_of(torch)
    want = words(torch, model, prompts)
    plain = batching.PagedAttentionCache.__init__

    def poisoned(cache, *arguments, **options):
        plain(cache, *arguments, **options)
        cache.cache_tensor.view(torch.float32).fill_(float("nan"))

    monkeypatch.setattr(batching.PagedAttentionCache, "__init__", poisoned)
    with attend.transformers.continuous_batching(model):
        assert batched(model, prompts) == want


def test_the_context_leaves_nothing_behind(torch):
    from transformers.generation.continuous_batching import initialization

    check = initialization.ensure_decode_fast_path_is_available
    models = [model_of("llama") for _ in range(2)]
    models[1].set_attn_implementation("sdpa")
    with pytest.raises(KeyError, match="mine"), attend.transformers.continuous_batching(models[0]):
        assert initialization.ensure_decode_fast_path_is_available is not check
        with attend.transformers.continuous_batching(models[1]):
            names = {model.config._attn_implementation for model in models}
        assert initialization.ensure_decode_fast_path_is_available is not check
        raise KeyError("mine")
    assert names == {"attend_flash"}
    assert [model.config._attn_implementation for model in models] == ["eager", "sdpa"]
    assert initialization.ensure_decode_fast_path_is_available is check


def test_another_model_keeps_its_attention_meanwhile(torch, calls):
    ours, other, prompts = model_of("llama"), model_of("llama"), prompts_of(torch)[:3]
    want = words(torch, other, prompts)
    with attend.transformers.continuous_batching(ours):
        other.set_attn_implementation("sdpa")
        assert batched(other, prompts, auto_switch_to_flash=False) == want
    assert not any(calls.values())


def test_parts_of_a_model_get_their_own_attention_back(torch):
    config = transformers.LlavaConfig(
        vision_config=dict(hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
                           image_size=8, patch_size=4),
        text_config=transformers.LlamaConfig(intermediate_size=64, **SIZES, **HEADS),
    )  # fmt: skip
    config = copy.deepcopy(config)
    model = transformers.LlavaForConditionalGeneration._from_config(config, attn_implementation="eager")
    parts = (model.config, model.config.text_config, model.config.vision_config)
    model.config.vision_config._attn_implementation = "sdpa"
    with attend.transformers.continuous_batching(model):
        assert [part._attn_implementation for part in parts] == ["attend_flash"] * 3
    assert [part._attn_implementation for part in parts] == ["eager", "eager", "sdpa"]


def test_what_cannot_be_batched_is_refused_in_one_line(torch):
    config = small_models.configuration("bloom")
    bloom = transformers.BloomForCausalLM._from_config(config, attn_implementation="eager")
    with pytest.raises(NotImplementedError, match="^attn_implementation: 'attend_flash' with BloomForCausalLM, "):
        attend.transformers.continuous_batching(bloom).__enter__()
    elsewhere = model_of("llama").to("meta")
    with pytest.raises(NotImplementedError, match="^model: on meta, continuous batching with attend allows cpu$"):
        attend.transformers.continuous_batching(elsewhere).__enter__()
    assert elsewhere.config._attn_implementation == "eager"


def offsets(torch, *numbers):
    return torch.tensor(numbers, dtype=torch.int32)


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("causal", [True, False])
def test_packed_rows_with_padding_behind_them(torch, window, causal):
    """Compares each sequence with eager attention and a mask, in float64."""
    q, k, v = torch.randn(1, 4, 12, 8), torch.randn(1, 2, 14, 8), torch.randn(1, 2, 14, 8)
    for x, last in ((q, 9), (k, 11), (v, 11)):
        x[:, :, last:] = float("nan")
    sinks, cu_q, cu_k = torch.randn(4), (0, 3, 4, 9), (0, 3, 6, 11)
    given = dict(cu_seq_lens_q=offsets(torch, *cu_q, 9), cu_seq_lens_k=offsets(torch, *cu_k, 11), max_length_q=5)
    found, weights = attend.transformers.batched_attention_forward(
        None, q, k, v, None, scaling=0.4, sliding_window=window, is_causal=causal, s_aux=sinks, max_length_k=5, **given
    )
    assert found.shape == (1, 12, 4, 8) and weights is None and not found[:, 9:].any()
    for rows, keys in zip(itertools.pairwise(cu_q), itertools.pairwise(cu_k)):
        parts = (q[:, :, slice(*rows)], *(x[:, :, slice(*keys)] for x in (k, v)))
        a, b, c = (x.double() for x in parts)
        b, c = (x.repeat_interleave(2, 1) for x in (b, c))
        i = torch.arange(a.shape[2])[:, None] + b.shape[2] - a.shape[2]
        j = torch.arange(b.shape[2])[None]
        hidden = (j > i) & causal if window is None else (i - j >= window) | (j > i if causal else j - i >= window)
        scores = (0.4 * a @ b.mT).masked_fill(hidden, float("-inf"))
        scores = torch.cat([scores, sinks.double().reshape(1, 4, 1, 1).expand(1, 4, a.shape[2], 1)], -1)
        want = (scores.softmax(-1)[..., :-1] @ c).transpose(1, 2)
        torch.testing.assert_close(found[:, slice(*rows)].double(), want, atol=1e-5, rtol=1e-5)


def test_padding_beside_sequences_with_tables(torch):
    """A sequence without keys is padding. Its table entries are -1, and no key is written for it."""
    q, k, v = torch.randn(1, 4, 3, 8), torch.randn(1, 2, 3, 8), torch.randn(1, 2, 3, 8)
    caches = [torch.full((3, 4, 2, 8), float("nan")) for _ in "kv"]
    for cache in caches:
        cache[2], cache[1, 0] = torch.randn(4, 2, 8), torch.randn(2, 8)
    before = [x.clone() for x in caches]
    given = dict(cu_seq_lens_q=offsets(torch, 0, 1, 2, 2), cu_seq_lens_k=offsets(torch, 0, 6, 6, 6))
    table = offsets(torch, *[2, 1, -1], *[-1, -1, -1], *[-1, -1, -1]).reshape(3, 3)
    found, _ = attend.transformers.batched_attention_forward(
        None, q, k, v, None, is_causal=True, max_length_q=1, max_length_k=1, block_table=table, k_cache=caches[0],
        v_cache=caches[1], **given,
    )  # fmt: skip
    for cache, old, new in zip(caches, before, (k, v)):
        old[1, 1] = new[0, :, 0]
        assert torch.equal(cache.nan_to_num(7.0), old.nan_to_num(7.0))
    keys = [torch.cat([x[2], x[1, :2]]).transpose(0, 1)[None].double() for x in caches]
    want = attend.attention(q[:, :, :1].double(), *keys)
    torch.testing.assert_close(found[:, :1].double(), want.transpose(1, 2), atol=1e-5, rtol=1e-5)
    assert not found[:, 1:].any()


REFUSED = {
    "attention_mask": "attention_mask with cu_seq_lens_q: Tensor, attend supports None only",
    "dropout": "dropout with cu_seq_lens_q: 0.5, attend supports 0.0",
    "position_bias": "position_bias: Tensor, attend supports None or False only",
    "qv_latents": "qv_latents: Tensor, attend supports None or False only",
    "output_attentions": "output_attentions: True, attend supports None or False only",
    "s_aux": "s_aux: ",
    "cu_seq_lens_k": "cu_seq_lens_k: None with cu_seq_lens_q, allowed a tensor i32",
    "cu_seq_lens_q": "cu_seq_lens_k: Tensor, attend supports None or False only",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_has_transformers_names(torch, name):
    wrong = {"dropout": 0.5, "output_attentions": True, "cu_seq_lens_k": None, "cu_seq_lens_q": None}
    q = torch.randn(1, 2, 4, 8)
    given = dict(attention_mask=None, cu_seq_lens_q=offsets(torch, 0, 4), cu_seq_lens_k=offsets(torch, 0, 4))
    given |= dict(max_length_q=4, max_length_k=4, is_causal=True) | {name: wrong.get(name, torch.zeros(3, 3))}
    with pytest.raises(attend.Error) as caught:
        attend.transformers.batched_attention_forward(None, q, q, q, **given)
    assert str(caught.value).startswith(REFUSED[name]) and "\n" not in str(caught.value)
