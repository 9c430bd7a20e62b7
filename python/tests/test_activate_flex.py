"""Tests that attend.activate replaces torch's flex_attention and that restore undoes it."""

import copy
import warnings

import pytest

torch = pytest.importorskip("torch")

import attend
import flex_problems as problems
from attend.torch import _activate_flex, _score
from flex_problems import HEADS, KEYS, ROWS, SCORES, check, reference, tensors
from torch.nn.attention import flex_attention as module
from torch.nn.attention.flex_attention import create_block_mask
from torch.nn.attention.flex_attention import flex_attention as imported_before


@pytest.fixture
def calls(monkeypatch):
    """Activates attend and returns a list, to which each call adds the text that ran in attend."""
    seen = []
    plain = _score.run_forward
    monkeypatch.setattr(_score, "run_forward", lambda score, *rest: seen.append(score.text) or plain(score, *rest))
    torch._dynamo.reset()
    attend.activate()
    yield seen
    attend.restore()
    torch._dynamo.reset()


def torchs(*arguments, **options):
    """Calls torch's implementation without a compiler."""
    attend.restore()
    try:
        with torch.no_grad(), torch.compiler.set_stance("force_eager"):
            return imported_before(*arguments, enable_gqa=True, **options)
    finally:
        attend.activate()


def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


def refused(score, b, h, q_idx, kv_idx):
    return score + torch.lgamma(q_idx + 1.0)


def less_by_distance(slope):
    return lambda score, b, h, q_idx, kv_idx: score - slope * (q_idx - kv_idx).abs()


@pytest.mark.parametrize("name", ["alibi", "softcap", "band", "t5", "full_bias", "padding_by_score"])
def test_beside_torchs_own(calls, name):
    given = tensors(torch.float32)
    mod = SCORES[name](problems.leaves(problems.captures_of(SCORES[name], 3)))
    mask = create_block_mask(causal, None, None, ROWS, KEYS, device="cpu")
    for block_mask in (None, mask):
        with torch.no_grad():
            o, lse = imported_before(*given, mod, block_mask, enable_gqa=True, return_lse=True)
        assert "score" in calls.pop()
        want, want_lse = torchs(*given, mod, block_mask, return_lse=True)
        seen = torch.isfinite(want_lse)
        assert torch.equal(seen, torch.isfinite(lse)) and lse.dtype == want_lse.dtype
        check("o", 1e-5, o, want)
        check("lse", 1e-5, lse[seen], want_lse[seen])
    assert not calls


@pytest.mark.parametrize(
    "way", ["imported before", "imported after", "by its module", "compiled before", "compiled after"]
)
def test_every_way_to_call_it_has_gradients(calls, way):
    attend.restore()
    compiled_before = torch.compile(imported_before, backend="eager")
    attend.activate()
    from torch.nn.attention.flex_attention import flex_attention as imported_after

    call = {
        "imported before": imported_before,
        "imported after": imported_after,
        "by its module": lambda *given, **options: module.flex_attention(*given, **options),
        "compiled before": compiled_before,
        "compiled after": torch.compile(imported_after, backend="eager"),
    }[way]
    q, k, v = (x.clone().requires_grad_() for x in tensors(torch.float32))
    c = problems.leaves(problems.captures_of(problems.band, 1))
    o = call(q, k, v, score_mod=problems.band(c), scale=0.7, enable_gqa=True)
    assert len(calls) == 1
    exact = [x.detach().double().requires_grad_() for x in (q, k, v)]
    there = problems.leaves(problems.captures_of(problems.band, 1), torch.float64)
    want, _ = reference(*exact, score_mod=problems.band(there), scale=0.7)
    check("o", 1e-5, o, want)
    names = [name for name, x in vars(c).items() if x.is_floating_point()]
    found = torch.autograd.grad(o.sum(), [q, k, v, *(getattr(c, name) for name in names)])
    wanted = torch.autograd.grad(want.sum(), [*exact, *(getattr(there, name) for name in names)])
    for name, a, b in zip(("dq", "dk", "dv", *names), found, wanted):
        check(name, 4e-5, a, b)


def test_a_function_that_calls_it_and_is_compiled(calls):
    """A compiler that has already compiled torch's implementation compiles again."""
    given = tensors(torch.float32)
    scale_by = torch.tensor(0.5)
    mod = lambda score, b, h, q_idx, kv_idx: score * scale_by
    run = torch.compile(lambda q, k, v: imported_before(q * 2, k, v, mod, enable_gqa=True) + 1, backend="eager")
    want = torchs(given[0] * 2, *given[1:], mod) + 1
    with torch.no_grad():
        check("activated", 1e-5, run(*given), want)
        assert len(calls) == 1
        attend.restore()
        check("restored", 1e-6, run(*given), want)
        assert len(calls) == 1
        attend.activate()
        check("activated again", 1e-5, run(*given), want)
    assert len(calls) == 2


def test_new_functions_at_each_call_of_what_is_compiled(calls):
    """A model may make a new score function in each call. There are more functions than a compiler would compile
    separately.
    """
    given = tensors(torch.float32)
    compiled = torch.compile(imported_before, backend="eager")
    for n in range(12):
        mod = less_by_distance(torch.tensor(float(n)))
        with torch.no_grad():
            o = compiled(*given, mod, enable_gqa=True)
        check("o", 1e-5, o, reference(*(x.double() for x in given), score_mod=mod)[0])
    assert len(calls) == 12


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_a_whole_graph(calls, backend):
    """The complete model with torch's mask is one graph. Forward and backward run, and run again with other values."""
    table = torch.randn(HEADS, requires_grad=True)

    def run(q, k, v):
        mask = create_block_mask(causal, None, None, q.shape[2], k.shape[2], device="cpu")
        mod = lambda score, b, h, q_idx, kv_idx: score + table[h] * kv_idx / 50
        return imported_before(q * 1, k, v, mod, mask, enable_gqa=True)

    compiled = torch.compile(run, backend=backend, fullgraph=True)
    for factor in (1, 2):
        given = [(x * factor).requires_grad_() for x in tensors(torch.float32)]
        exact = [x.detach().double().requires_grad_() for x in given]
        there = table.detach().double().requires_grad_()
        mod = lambda s, b, h, q, k: s + there[h] * k / 50  # noqa: B023 (called in the same iteration)
        o, want = compiled(*given), reference(*exact, score_mod=mod, mask_mod=causal)[0]
        check("o", 1e-5, o, want)
        found = torch.autograd.grad(o.sum(), [*given, table])
        for n, (a, b) in enumerate(zip(found, torch.autograd.grad(want.sum(), [*exact, there]))):
            check(f"gradient {n}", 4e-5, a, b)
    assert len(calls) == 2


@pytest.mark.parametrize("is_compiled", [False, True])
def test_what_attend_refuses_torch_computes_and_it_says_so_once(calls, is_compiled):
    given = tensors(torch.float32)
    call = torch.compile(imported_before, backend="eager") if is_compiled else imported_before
    want = torchs(*given, refused)
    with warnings.catch_warnings(record=True) as caught, torch.no_grad():
        warnings.simplefilter("always")
        found = [call(*given, refused, enable_gqa=True) for _ in range(3)]
        other = call(*given, problems.alibi(None), enable_gqa=True)
    said = [str(x.message) for x in caught if "attend" in str(x.message)]
    assert len(said) == 1 and "aten.lgamma.default: an operator that attend cannot translate" in said[0]
    assert "torch's own flex_attention runs" in said[0]
    assert len(calls) == 1
    for o in found:
        check("o", 1e-6, o, want)
    check("another one", 1e-5, other, reference(*(x.double() for x in given), score_mod=problems.alibi(None))[0])


@pytest.mark.parametrize("strict", [False, True])
def test_exported_graphs_have_torchs_own(calls, strict):
    class Layer(torch.nn.Module):
        def forward(self, q, k, v):
            return imported_before(q, k, v, problems.alibi(None), enable_gqa=True)

    given = tuple(x.detach() for x in tensors(torch.float32))
    program = torch.export.export(Layer(), given, strict=strict)
    assert any("flex_attention" in str(x.target) and "attend" not in str(x.target) for x in program.graph.nodes)
    assert not calls


def test_what_both_refuse_is_torchs_error(calls):
    q, k, v = tensors(torch.float32)
    with pytest.warns(UserWarning, match="attend refuses: key: "), pytest.raises(ValueError, match="number of heads"):
        imported_before(q, k, v)


def test_restore_puts_torch_back():
    code, defaults = imported_before.__code__, imported_before.__defaults__
    for _ in range(2):
        attend.activate()
        attend.activate()
        assert imported_before.__code__ is not code and imported_before.__defaults__ is defaults
        attend.restore()
        attend.restore()
        assert imported_before.__code__ is code


def test_a_function_that_attend_does_not_know_stays(monkeypatch):
    def flex_attention(query, key, value, something_new=None):
        raise AssertionError

    code = flex_attention.__code__
    monkeypatch.setattr(module, "flex_attention", flex_attention)
    with pytest.warns(UserWarning, match="not the function that attend recognises"):
        attend.activate()
    assert flex_attention.__code__ is code and _activate_flex._code is None
    attend.restore()


@pytest.fixture
def model():
    """Returns a small model with random weights that calls torch's flex_attention, compiled by transformers."""
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    sizes = dict(vocab_size=50, hidden_size=32, intermediate_size=64, num_hidden_layers=2, max_position_embeddings=64)
    heads = dict(num_attention_heads=4, num_key_value_heads=2, sliding_window=9)
    config = transformers.MistralConfig(**sizes, **heads, pad_token_id=0)
    torch.manual_seed(11)
    return transformers.MistralForCausalLM._from_config(config, attn_implementation="flex_attention")


def batch_of_tokens():
    ids = torch.randint(1, 50, (2, 21), generator=torch.Generator().manual_seed(5))
    mask = torch.ones_like(ids)
    mask[0, :4] = 0
    labels = ids.clone()
    labels[0, :5] = -100  # this includes the first token, which would be predicted from padding, whose rows see no key
    return ids, mask, labels


def test_a_model_of_hugging_face_gives_the_same_logits(calls, model):
    ids, mask, _ = batch_of_tokens()
    with torch.no_grad():
        found = model.eval()(ids, attention_mask=mask).logits
        assert len(calls) == 2  # one call for each layer
        attend.restore()
        with torch.compiler.set_stance("force_eager"):
            want = model(ids, attention_mask=mask).logits
    assert len(calls) == 2
    check("logits", 1e-5, found[mask.bool()], want[mask.bool()])


def test_a_model_of_hugging_face_is_trained(calls, model):
    """torch's flex_attention has no gradients on a CPU, so eager attention is the reference."""
    ids, mask, labels = batch_of_tokens()
    eager = copy.deepcopy(model)
    eager.set_attn_implementation("eager")
    losses = []
    for trained in (model, eager):
        trained.train()
        optimizer = torch.optim.SGD(trained.parameters(), lr=0.5)
        losses.append([])
        for _ in range(4):
            loss = trained(ids, attention_mask=mask, labels=labels).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses[-1].append(loss.item())
    assert len(calls) == 8
    found, want = torch.tensor(losses, dtype=torch.float64)
    print(f"losses: {found.tolist()}")
    assert want[-1] < want[0] - 0.1
    check("losses", 1e-5, found, want)


def test_a_model_of_hugging_face_is_compiled(calls, model):
    """The model is not compiled as one graph, because transformers breaks the graph where it makes the mask."""
    ids, mask, labels = batch_of_tokens()
    compiled = torch.compile(model.train(), backend="aot_eager")
    found, want = (x(ids, attention_mask=mask, labels=labels).loss for x in (compiled, model))
    assert len(calls) == 4
    check("loss", 1e-6, found, want)
    gradients = [torch.autograd.grad(loss, list(model.parameters())) for loss in (found, want)]
    for n, (a, b) in enumerate(zip(*gradients)):
        check(f"gradient {n}", 1e-5, a, b)
