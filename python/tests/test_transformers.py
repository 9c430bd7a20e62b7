"""Tests of Hugging Face models with attend as their attention. Logits and gradients must be the same as with torch's
attention.
"""

import copy

import pytest

pytest.importorskip("numpy")
pytest.importorskip(
    "torch", reason=f"the tests of {__name__} need torch: `make py-test ATTEND_TEST_TORCH=1` installs it"
)
transformers = pytest.importorskip("transformers", reason=f"the tests of {__name__} need transformers")

import architectures
import attend.transformers
import small_models


def models(torch, device, **options):
    """Returns the same random model twice: with torch's attention and with attend's."""
    attend.transformers.register()
    sizes = dict(vocab_size=50, hidden_size=32, intermediate_size=64, num_hidden_layers=2, max_position_embeddings=64)
    heads = dict(num_attention_heads=4, num_key_value_heads=2)
    config = transformers.MistralConfig(**sizes, **heads, **options, pad_token_id=0)
    # Each model gets a copy of the config, because the implementation is written into it.
    pair = [
        transformers.MistralForCausalLM._from_config(copy.deepcopy(config), attn_implementation=name)
        for name in ("sdpa", "attend")
    ]
    assert [model.config._attn_implementation for model in pair] == ["sdpa", "attend"]
    pair[1].load_state_dict(pair[0].state_dict())
    return [model.eval().to(device) for model in pair]


@pytest.mark.parametrize("sliding_window", [None, 4])
@pytest.mark.parametrize("padding", [False, True])
def test_the_same_logits_and_gradients(torch, device, padding, sliding_window):
    theirs, ours = models(torch, device, sliding_window=sliding_window)
    ids = torch.randint(1, 50, (2, 11), device=device)
    mask = torch.ones_like(ids)
    if padding:
        mask[0, :3] = 0
    logits = [model(ids, attention_mask=mask).logits for model in (theirs, ours)]
    seen = mask.bool()  # the results of padding rows have no meaning
    torch.testing.assert_close(logits[1][seen], logits[0][seen], atol=1e-5, rtol=1e-4)
    for x in logits:
        x[seen].logsumexp(-1).sum().backward()
    for a, b in zip(ours.parameters(), theirs.parameters()):
        torch.testing.assert_close(a.grad, b.grad, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("padding", [False, True])
def test_sinks_of_a_model_learn_as_in_eager(torch, device, padding):
    """The model is a gpt-oss with one layer with a sliding window and one without. Each layer has a sink for every
    head.
    """
    attend.transformers.register()
    layers = dict(layer_types=["sliding_attention", "full_attention"], sliding_window=4)
    sizes = dict(hidden_size=32, intermediate_size=32, head_dim=8, vocab_size=50, num_hidden_layers=2)
    heads = dict(num_attention_heads=4, num_key_value_heads=2, num_local_experts=2, num_experts_per_tok=2)
    config = transformers.GptOssConfig(**sizes, **heads, **layers, max_position_embeddings=64, pad_token_id=0)
    theirs = small_models.built(transformers.GptOssForCausalLM, config, "eager")
    ours = small_models.twin(theirs, "attend")
    theirs, ours = theirs.to(device), ours.to(device)
    ids = torch.randint(1, 50, (2, 11), device=device)
    mask = torch.ones_like(ids)
    if padding:
        mask[0, :3] = 0
    seen = mask.bool()
    logits = [model(ids, attention_mask=mask).logits[seen] for model in (theirs, ours)]
    torch.testing.assert_close(logits[1], logits[0], atol=1e-5, rtol=1e-4)
    for x in logits:
        x.logsumexp(-1).sum().backward()
    for (name, a), b in zip(ours.named_parameters(), theirs.parameters()):
        scale = b.grad.abs().max().item()
        torch.testing.assert_close(a.grad, b.grad, atol=1e-4 * scale, rtol=1e-3)
        assert not name.endswith("sinks") or a.grad.all()


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_the_same_words(torch, device, cache):
    theirs, ours = models(torch, device, sliding_window=None)
    ids = torch.randint(1, 50, (2, 5), device=device)
    options = dict(max_new_tokens=8, do_sample=False, cache_implementation=cache, attention_mask=torch.ones_like(ids))
    assert torch.equal(ours.generate(ids, **options), theirs.generate(ids, **options))


def test_what_is_lacking_is_named(torch):
    q = torch.randn(1, 2, 4, 8)
    run = attend.transformers.attention_forward
    with pytest.raises(NotImplementedError, match="^qv_latents: "):
        run(None, q, q, q, None, qv_latents=torch.zeros(2))
    out, weights = run(None, q, q, q, None, position_ids=torch.arange(4))
    assert out.shape == (1, 4, 2, 8) and weights is None


REFUSED = {
    "adds the mask": ["bloom", "mpt", "codegen", "xglm", "mpnet", "megatron-bert", "rembert", "convbert"],
    "adds it too": ["roformer", "squeezebert", "ibert", "nystromformer", "deberta", "deberta-v2", "openai-gpt", "xlm"],
    "by a table of names": ["falcon", "gptj", "gpt_neo", "sam_vision_model"],
}


# Since these releases of transformers, the model calls the attention interface and must have correct results.
RELEASE = tuple(int(part) for part in transformers.__version__.split(".")[:2])
GOT_THE_INTERFACE = {"codegen": (5, 24), "gptj": (5, 24)}


@pytest.mark.parametrize("model_type", [name for names in REFUSED.values() for name in names])
def test_a_model_without_the_interface_is_refused_in_one_line(torch, model_type):
    """Without the refusal, the model would accept the name and then lose the mask, not call attend, or raise a KeyError
    without explanation.
    """
    attend.transformers.register()
    if model_type not in transformers.CONFIG_MAPPING:
        pytest.skip("this transformers has no such architecture")
    config = small_models.configuration(model_type)
    kind = small_models.class_of(config)
    if model_type in GOT_THE_INTERFACE and GOT_THE_INTERFACE[model_type] <= RELEASE:
        assert architectures.examine(model_type).verdict == "same"
        return
    with pytest.raises(NotImplementedError) as caught:
        kind._from_config(config, attn_implementation="attend")
    line = str(caught.value)
    assert line.startswith("attn_implementation: 'attend' with ") and "allowed 'eager'" in line and "\n" not in line
    kind._from_config(config, attn_implementation="eager")


def test_another_name_is_refused_as_well(torch):
    attend.transformers.register("my_attention")
    with pytest.raises(NotImplementedError, match="^attn_implementation: 'my_attention' with BloomForCausalLM"):
        transformers.BloomForCausalLM._from_config(
            small_models.configuration("bloom"), attn_implementation="my_attention"
        )


SAMPLE = ["llama", "bert", "gpt2", "bart", "t5", "vit", "gemma2", "qwen3_moe", "gpt_oss", "whisper", "bloom", "deberta"]


@pytest.mark.parametrize("model_type", SAMPLE)
def test_the_table_of_architectures_is_true(torch, model_type):
    """Tests a sample of the architectures. `python python/tests/architectures.py --write` runs all of them."""
    if model_type not in transformers.CONFIG_MAPPING:
        pytest.skip("this transformers has no such architecture")
    outcome = architectures.examine(model_type)
    assert outcome.verdict in ("same", "refused"), outcome
    documented = architectures.documented()
    if documented is None:
        pytest.skip("docs/hugging_face.md is not beside the tests")
    assert documented[model_type] == outcome.verdict


def test_the_examination_finds_a_lost_mask(torch, monkeypatch):
    plain = attend.transformers.attention_forward
    forgetful = lambda *a, **o: plain(*a[:4], None, *a[5:], **{**o, "is_causal": False})
    monkeypatch.setattr(attend.transformers, "attention_forward", forgetful)
    try:
        assert architectures.examine("llama").verdict == "differs"
    finally:
        monkeypatch.undo()
        attend.transformers.register()


@pytest.mark.parametrize("padding", ["none", "left"])
@pytest.mark.parametrize("model_type", ["llama", "gemma2", "gpt_oss", "t5"])
def test_the_weights_are_those_of_eager(torch, model_type, padding):
    """The models have softcap, sliding windows, sinks, a learnt bias and grouped heads."""
    attend.transformers.register()
    eager = small_models.first_that_runs(model_type)
    ours = small_models.twin(eager, "attend")
    arguments = small_models.inputs_of(eager, padding)
    found, want = (model(**arguments, output_attentions=True) for model in (ours, eager))
    pairs = [
        (a, b)
        for name in ("attentions", "encoder_attentions", "decoder_attentions", "cross_attentions")
        for a, b in zip(getattr(found, name, None) or (), getattr(want, name, None) or ())
    ]
    assert len(pairs) >= 2
    rows = arguments["attention_mask"].bool()
    for a, b in pairs:
        assert a.shape == b.shape
        if a.shape[2] == rows.shape[1]:
            a, b = (x.transpose(1, 2)[rows] for x in (a, b))
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", ["bool", "float32"])
def test_sinks_beside_a_mask_of_one_column(torch, device, kind):
    q, k, v = (torch.randn(2, 4, 9, 8, device=device) for _ in range(3))
    sinks = torch.randn(4, device=device)
    column = torch.arange(9, device=device).reshape(1, 1, 9, 1) % 3 > 0 if kind == "bool" else torch.randn(2, 1, 9, 1)
    column = column.to(device)
    found, want = (
        attend.transformers.attention_forward(None, q, k, v, mask, s_aux=sinks)[0]
        for mask in (column, column.expand(*column.shape[:-1], 9).contiguous())
    )
    torch.testing.assert_close(found, want, rtol=0, atol=0)


def test_sinks_have_gradients(torch, device):
    q, k, v = (torch.randn(2, 4, 9, 8, device=device, requires_grad=True) for _ in range(3))
    sinks = torch.randn(4, device=device, requires_grad=True)
    found = attend.transformers.attention_forward(None, q, k, v, None, is_causal=True, s_aux=sinks)[0].transpose(1, 2)
    hidden = torch.ones(9, 9, dtype=torch.bool, device=device).triu(1)
    scores = (q @ k.transpose(-1, -2) * 8**-0.5).masked_fill(hidden, float("-inf"))
    column = sinks.reshape(1, 4, 1, 1).expand(2, 4, 9, 1)
    want = torch.cat([scores, column], -1).softmax(-1)[..., :-1] @ v
    torch.testing.assert_close(found, want, atol=1e-5, rtol=1e-4)
    inputs, dout = (q, k, v, sinks), torch.randn_like(want)
    for a, b in zip(torch.autograd.grad(found, inputs, dout), torch.autograd.grad(want, inputs, dout)):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)


def test_bert_trains_compiled_with_dropout(torch, device):
    attend.transformers.register()
    torch._dynamo.reset()
    config = small_models.configuration("bert")
    model = transformers.BertModel._from_config(config, attn_implementation="attend").train().to(device)
    ids = torch.randint(3, 60, (2, 7), device=device)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    first = compiled(ids).last_hidden_state
    first.square().sum().backward()
    assert not torch.equal(first, compiled(ids).last_hidden_state)
    assert all(p.grad.isfinite().all() for p in model.encoder.parameters())
