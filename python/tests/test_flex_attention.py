"""Tests of flex_attention with functions as users write them. The results are compared with attention by its definition
in float64 and with torch's implementation.
"""

import pathlib
import re
import runpy

import pytest

torch = pytest.importorskip("torch")

import attend
import flex_masks
import flex_problems as problems
from flex_masks import MASKS
from flex_problems import BATCH, HEADS, SCORES, check, reference, tensors

BUDGETS = {torch.float64: 1e-11, torch.float32: 1e-5, torch.bfloat16: 1.5e-2}


def compare(dtype, given, score=None, mask=None, seed=0, device="cpu", **options):
    """Compares forward and backward of the cases `score` and `mask` on the tensors `given`."""
    budget, of_gradients = BUDGETS[dtype], 4 if device == "cpu" else 8  # on a GPU, p and ds are rounded to 16 bits
    captures = problems.captures_of(score or mask, seed)
    there = problems.leaves(captures, torch.float64)
    captures = {name: x.to(device) for name, x in captures.items()}
    here = problems.leaves(captures, torch.float64 if dtype == torch.float64 else None)
    q, k, v = (x.to(device, copy=True).requires_grad_() for x in given)
    exact = [x.detach().double().requires_grad_() for x in given]
    shape = (q.shape[0], HEADS, q.shape[2], k.shape[2])
    block_mask = None if score else attend.create_block_mask(mask(here), *shape, device=device)
    mods = {"score_mod": score(here)} if score else {"block_mask": block_mask}
    o, lse = attend.flex_attention(q, k, v, enable_gqa=True, return_lse=True, **mods, **options)
    want_o, want_lse = reference(*exact, score_mod=score and score(there), mask_mod=mask and mask(there))
    assert o.dtype == dtype and lse.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    check("o", budget, o.cpu(), want_o)
    check("lse", budget, lse.cpu(), want_lse)
    generator = torch.Generator().manual_seed(seed + 1)
    dout = torch.randn(want_o.shape, generator=generator, dtype=torch.float64).to(dtype)
    dlse = torch.where(torch.isfinite(want_lse), torch.randn(want_lse.shape, generator=generator), 0.0)
    named = [name for name, x in vars(here).items() if score and x.is_floating_point()]
    asked = [q, k, v, *(getattr(here, name) for name in named)]
    wanted = [*exact, *(getattr(there, name) for name in named)]
    found = torch.autograd.grad((o, lse), asked, (dout.to(device), dlse.to(device, lse.dtype)))
    want = torch.autograd.grad((want_o, want_lse), wanted, (dout.double(), dlse.double()))
    for name, a, b in zip(("dq", "dk", "dv", *named), found, want):
        check(name, budget * of_gradients, a.cpu(), b)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=lambda x: str(x)[6:])
@pytest.mark.parametrize("name", SCORES)
def test_scores_both_passes(name, dtype):
    if dtype == torch.bfloat16 and name == "whole_numbers":
        pytest.skip("a step of the score: inputs of 16 bits lie on either side of it")
    if dtype == torch.float64 and name in ("whole_numbers", "sandwich"):
        pytest.skip("torch computes parts of it in float32")
    compare(dtype, tensors(dtype), score=SCORES[name])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=lambda x: str(x)[6:])
@pytest.mark.parametrize("name", MASKS)
def test_masks_both_passes(name, dtype):
    compare(dtype, tensors(dtype, *flex_masks.lengths(MASKS[name])), mask=MASKS[name])


# The case `low_rank` is omitted, because torch does not support subscripts that mix tensors and slices.
@pytest.mark.parametrize("name", [name for name in (*SCORES, *MASKS) if name != "low_rank"])
def test_beside_torchs_own(name):
    torchs = pytest.importorskip("torch.nn.attention.flex_attention")
    make = SCORES.get(name) or MASKS[name]
    c = problems.leaves(problems.captures_of(make, 3))
    rows, keys = flex_masks.lengths(make) if name in MASKS else (problems.ROWS, problems.KEYS)
    given = tensors(torch.float32, rows, keys)
    mod = make(c)
    torchs._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = True
    try:
        with torch.no_grad():
            mask = torchs.create_block_mask(mod, BATCH, HEADS, rows, keys, device="cpu") if name in MASKS else None
            options = {"block_mask": mask} if name in MASKS else {"score_mod": mod}
            want = torchs.flex_attention(*given, enable_gqa=True, **options)
            check("o", 1e-5, attend.flex_attention(*given, enable_gqa=True, **options), want)
            if name in MASKS:
                ours = attend.create_block_mask(mod, BATCH, HEADS, rows, keys, device="cpu")
                check("o by attend's mask", 1e-5, attend.flex_attention(*given, block_mask=ours, enable_gqa=True), want)
                check("torch with it", 1e-6, torchs.flex_attention(*given, block_mask=ours, enable_gqa=True), want)
    finally:
        torchs._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = False


@pytest.mark.parametrize("name", MASKS)
def test_lists_are_those_of_torch(name):
    torchs = pytest.importorskip("torch.nn.attention.flex_attention")
    make = MASKS[name]
    mod = make(problems.leaves(problems.captures_of(make, 5)))
    for block_size, options in ((32, {}), ((16, 64), {}), (128, {"separate_full_blocks": False})):
        if "separate_full_blocks" in options and torch.__version__ < "2.12":
            continue
        arguments = (BATCH, HEADS, *flex_masks.lengths(make))
        ours = attend.create_block_mask(mod, *arguments, device="cpu", BLOCK_SIZE=block_size, **options)
        want = torchs.create_block_mask(mod, *arguments, device="cpu", BLOCK_SIZE=block_size, **options)
        assert ours.shape == want.shape and ours.numel() == want.numel() and ours.sparsity() == want.sparsity()
        assert torch.equal(ours.to_dense(), want.to_dense()) and ours.to_string() == want.to_string()
        for attribute in ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "q_num_blocks", "full_q_num_blocks"):
            a, b = getattr(ours, attribute), getattr(want, attribute)
            assert (a is None and b is None) or torch.equal(a, b), attribute
        for attribute in ("kv", "full_kv", "q", "full_q"):
            count, a, b = (getattr(x, f"{attribute}{y}") for x, y in
                           ((want, "_num_blocks"), (ours, "_indices"), (want, "_indices")))  # fmt: skip
            if count is not None:
                listed = torch.arange(a.shape[-1]) < count[..., None]
                assert a.shape == b.shape and torch.equal(a[listed], b[listed]), attribute
        assert len(ours.as_tuple()) == len(want.as_tuple())


def test_a_score_and_a_mask_together():
    c = problems.leaves(problems.captures_of(problems.band, 1))
    q, k, v = tensors(torch.float32)
    mask = attend.create_block_mask(flex_masks.causal(None), None, None, problems.ROWS, problems.KEYS)
    o, lse = attend.flex_attention(q, k, v, problems.band(c), mask, 0.7, True, True)
    want_o, want_lse = reference(
        q.double(), k.double(), v.double(), problems.band(c), flex_masks.causal(None), scale=0.7
    )
    check("o", 1e-5, o, want_o)
    check("lse", 1e-5, lse, want_lse)


def test_rows_that_see_nothing():
    q, k, v = (x.clone().requires_grad_() for x in tensors(torch.float32))
    mask = attend.create_block_mask(lambda b, h, q, k: (q % 3 > 0) & (k > 9), 1, 1, problems.ROWS, problems.KEYS)
    for options in ({"block_mask": mask}, {"score_mod": lambda s, b, h, q, k: torch.where(q % 3 > 0, s, -torch.inf)}):
        o, lse = attend.flex_attention(q, k, v, enable_gqa=True, return_lse=True, **options)
        assert not o[:, :, ::3].any() and torch.isneginf(lse[:, :, ::3]).all()
        assert torch.isfinite(lse[:, :, 1::3]).all() and torch.isfinite(lse[:, :, 2::3]).all()
        gradients = torch.autograd.grad(o.sum(), (q, k, v))
        assert all(torch.isfinite(x).all() for x in gradients) and not gradients[0][:, :, ::3].any()


def test_without_functions_it_is_attention():
    q, k, v = tensors(torch.float32)
    o, lse = attend.flex_attention(q, k, v, enable_gqa=True, return_lse=True)
    want = attend.attention(q, k, v, return_lse=True)
    assert torch.equal(o, want[0]) and torch.equal(lse, want[1])
    assert torch.equal(attend.flex_attention(q, k, v, attend.noop_mask and None, None, None, True), o)


def test_one_sequence_of_keys_serves_all():
    q, k, v = tensors(torch.float32)
    k, v = (x[:1].clone().requires_grad_() for x in (k, v))
    mod = problems.alibi(None)
    o = attend.flex_attention(q, k, v, mod, enable_gqa=True)
    check("o", 1e-5, o, reference(q.double(), k.double(), v.double(), mod)[0])
    assert torch.autograd.grad(o.sum(), k)[0].shape == k.shape


def test_autocast_is_that_of_q_k_and_v():
    q, k, v = (x.clone().requires_grad_() for x in tensors(torch.float32))
    c = problems.leaves(problems.captures_of(problems.low_rank, 1))
    mod = problems.low_rank(c)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        o = attend.flex_attention(q, k, v, mod, enable_gqa=True)
    low = [x.detach().bfloat16().requires_grad_() for x in (q, k, v)]
    want = attend.flex_attention(*low, mod, enable_gqa=True)
    assert o.dtype == torch.bfloat16 and torch.equal(o, want)
    found = torch.autograd.grad(o.float().sum(), (q, k, v, c.rows))
    wanted = torch.autograd.grad(want.float().sum(), (*low, c.rows))
    assert all(torch.equal(a, b.to(a.dtype)) for a, b in zip(found, wanted)) and found[0].dtype == torch.float32


@pytest.mark.parametrize(("batch", "rows", "keys"), [(2, 0, 5), (2, 5, 0), (0, 5, 5), (1, 1, 1)])
def test_small_sizes(batch, rows, keys):
    q, k, v = tensors(torch.float32, rows, keys, batch)
    mask = attend.create_block_mask(lambda b, h, q, k: q >= k, None, None, rows, keys)
    for options in ({"score_mod": problems.alibi(None)}, {"block_mask": mask}, {}):
        o, lse = attend.flex_attention(q, k, v, enable_gqa=True, return_lse=True, **options)
        assert o.shape == (batch, HEADS, rows, problems.DIM + 8) and lse.shape == (batch, HEADS, rows)
        assert keys or (not o.any() and torch.isneginf(lse).all())


# A selection of cases: no capture, numbers, tables, a bias, values that torch computes from captures, and rows that see
# no key.
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=lambda x: str(x)[6:])
@pytest.mark.parametrize(
    "name", ["alibi", "softcap", "band", "t5", "full_bias", "computed_captures", "padding_by_score", "more_functions"]
)
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_scores_on_a_gpu(name, dtype):
    captures = problems.captures_of(SCORES[name], 0)
    here = problems.leaves({name: x.cuda() for name, x in captures.items()})
    for x in vars(here).values():
        x.requires_grad_(False)
    given = tensors(dtype)
    q, k, v = (x.cuda().requires_grad_() for x in given)
    exact = [x.detach().double().requires_grad_() for x in given]
    o, lse = attend.flex_attention(q, k, v, SCORES[name](here), enable_gqa=True, return_lse=True)
    want_o, want_lse = reference(*exact, score_mod=SCORES[name](problems.leaves(captures, torch.float64)))
    check("o", BUDGETS[dtype] * 2, o.cpu(), want_o)
    check("lse", BUDGETS[dtype] * 2, lse.cpu(), want_lse)
    dout = torch.ones_like(o)
    want = torch.autograd.grad(want_o, exact, dout.cpu().double())
    for letter, a, b in zip("qkv", torch.autograd.grad(o, (q, k, v), dout), want):
        check(f"d{letter}", BUDGETS[dtype] * 8, a.cpu(), b)


# The derivative of these scores with respect to the product of q and k is 1. Only in such scores can captures have
# gradients on a GPU.
SLOPE_OF_1 = ("band", "t5", "full_bias", "computed_captures", "negative_subscripts", "embedded")


@pytest.mark.parametrize("name", [*MASKS, *SLOPE_OF_1])
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_masks_and_gradients_of_captures_on_a_gpu(name):
    rows_and_keys = flex_masks.lengths(MASKS[name]) if name in MASKS else ()
    given = tensors(torch.bfloat16, *rows_and_keys)
    compare(torch.bfloat16, given, score=SCORES.get(name), mask=MASKS.get(name), device="cuda")


@pytest.mark.parametrize("ask", ["lse", "nothing"])
def test_auxiliary_results(ask):
    from attend.torch.flex_attention import AuxOutput, AuxRequest, flex_attention

    q, k, v = tensors(torch.float32)
    want = attend.flex_attention(q, k, v, problems.relative(None), enable_gqa=True, return_lse=True)
    o, aux = flex_attention(q, k, v, problems.relative(None), enable_gqa=True, return_aux=AuxRequest(lse=ask == "lse"))
    assert isinstance(aux, AuxOutput) and aux.max_scores is None and torch.equal(o, want[0])
    assert torch.equal(aux.lse, want[1]) if ask == "lse" else aux.lse is None


def test_the_example_of_the_documentation_runs(tmp_path):
    page = pathlib.Path(__file__).resolve().parents[2] / "docs" / "custom_scores.md"
    section = page.read_text().split("## FlexAttention's functions")[1].split("\n## ")[0]
    (example,) = re.findall(r"^```python\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    program = tmp_path / "flex.py"
    program.write_text(example)
    names = runpy.run_path(str(program))
    exact = [names[name].double() for name in "qkv"]
    want_o, want_lse = reference(*exact, score_mod=names["alibi"], mask_mod=names["documents"])
    check("o", 1e-5, names["o"], want_o)
    check("lse", 1e-5, names["lse"], want_lse)
    check("slope", 1e-3, names["slope"].grad, torch.autograd.grad(want_o.sum() + want_lse.sum(), names["slope"])[0])
