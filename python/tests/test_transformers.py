"""Hugging Face models with attend as their attention: the same logits and gradients as with torch's."""

import copy

import pytest

pytest.importorskip("numpy")
pytest.importorskip(
    "torch", reason=f"the tests of {__name__} need torch: `make py-test ATTEND_TEST_TORCH=1` installs it"
)
transformers = pytest.importorskip("transformers", reason=f"the tests of {__name__} need transformers")

import attend.transformers


def models(torch, device, **options):
    """The same random model twice: with torch's attention, with attend's."""
    attend.transformers.register()
    sizes = dict(vocab_size=50, hidden_size=32, intermediate_size=64, num_hidden_layers=2, max_position_embeddings=64)
    heads = dict(num_attention_heads=4, num_key_value_heads=2)
    config = transformers.MistralConfig(**sizes, **heads, **options, pad_token_id=0)
    # Of a config each: the implementation is written into it.
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
    seen = mask.bool()  # rows of padding are nobody's business
    torch.testing.assert_close(logits[1][seen], logits[0][seen], atol=1e-5, rtol=1e-4)
    for x in logits:
        x[seen].logsumexp(-1).sum().backward()
    for a, b in zip(ours.parameters(), theirs.parameters()):
        torch.testing.assert_close(a.grad, b.grad, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_the_same_words(torch, device, cache):
    theirs, ours = models(torch, device, sliding_window=None)
    ids = torch.randint(1, 50, (2, 5), device=device)
    options = dict(max_new_tokens=8, do_sample=False, cache_implementation=cache, attention_mask=torch.ones_like(ids))
    assert torch.equal(ours.generate(ids, **options), theirs.generate(ids, **options))


def test_what_is_lacking_is_named(torch):
    q = torch.randn(1, 2, 4, 8)
    run = attend.transformers.attention_forward
    with pytest.raises(NotImplementedError, match="^s_aux: "):
        run(None, q, q, q, None, s_aux=torch.zeros(2))
    with pytest.raises(NotImplementedError, match="^output_attentions: "):
        run(None, q, q, q, None, output_attentions=True)
    out, weights = run(None, q, q, q, None, position_ids=torch.arange(4))
    assert out.shape == (1, 4, 2, 8) and weights is None
