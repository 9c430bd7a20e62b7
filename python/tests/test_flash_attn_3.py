"""Tests of options of flash-attn 3 that attend's own functions do not have: seqused_q, seqused_k and qv. The reference
is a softmax of the full score matrix.
"""

import pytest

np = pytest.importorskip("numpy")
pytest.importorskip(
    "torch", reason=f"the tests of {__name__} need torch: `make py-test ATTEND_TEST_TORCH=1` installs it"
)

from attend.flash_attn_3 import flash_attn_func, flash_attn_varlen_func

HEADS, HEADS_K, DIM, DIM_V = 4, 2, 8, 16
LENGTHS_Q, LENGTHS_K = (7, 5, 4, 0, 3), (9, 5, 6, 4, 0)
USED_Q, USED_K = (4, 5, 0, 0, 2), (6, 3, 6, 0, 0)


def standard(q, k, v, qv=None, causal=False, left=-1):
    """Computes o and lse of one sequence (seqlen, heads, head_dim) by the definition."""
    import torch

    q, k, v = (x.transpose(-2, -3) for x in (q, k, v))
    k, v = (x.repeat_interleave(HEADS // HEADS_K, -3) for x in (k, v))
    width = q.shape[-1] + (0 if qv is None else v.shape[-1])
    scores = q @ k.mT + (0 if qv is None else qv.transpose(-2, -3) @ v.mT)
    scores = scores * width**-0.5
    rows = torch.arange(q.shape[-2], device=q.device)[:, None] + k.shape[-2] - q.shape[-2]
    keys = torch.arange(k.shape[-2], device=q.device)
    hidden = (keys > rows) & causal | (keys < rows - left) & (left >= 0)
    scores = scores.masked_fill(hidden, float("-inf"))
    is_empty = hidden.expand(scores.shape).all(-1, keepdim=True)
    weights = scores.masked_fill(is_empty, 0.0).softmax(-1).masked_fill(is_empty, 0.0)
    return (weights @ v).transpose(-2, -3), scores.logsumexp(-1)


def packed(torch, device, lengths, heads, width):
    return torch.randn(sum(lengths), heads, width, device=device, requires_grad=True)


def offsets(torch, device, lengths):
    return torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int32, device=device)


def of_used(tensors, used_q, used_k, **options):
    """Computes packed sequences, each reduced to its used rows and keys. The results of unused rows and keys are the
    documented values.
    """
    import torch

    q, k, v, *qv = (x.double() for x in tensors)
    o = q.new_zeros(q.shape[0], HEADS, v.shape[-1])
    lse = q.new_full((HEADS, q.shape[0]), float("-inf"))
    at_q = at_k = 0
    for length_q, length_k, n, m in zip(LENGTHS_Q, LENGTHS_K, used_q, used_k):
        rows, keys = slice(at_q, at_q + n), slice(at_k, at_k + m)
        some, its_lse = standard(q[rows], k[keys], v[keys], *(x[rows] for x in qv), **options)
        o = torch.cat((o[:at_q], some, o[at_q + n :]))
        lse = torch.cat((lse[:, :at_q], its_lse, lse[:, at_q + n :]), 1)
        at_q, at_k = at_q + length_q, at_k + length_k
    return o, lse


def assert_close(found, want):
    for a, b in zip(found, want):
        assert a.shape == b.shape
        assert ((a == b) | ((a - b).abs() <= 1e-5 * max(1.0, b[b.isfinite()].abs().max().item()))).all()


@pytest.mark.parametrize("options", [{}, {"causal": True}, {"causal": True, "left": 2}], ids=str)
@pytest.mark.parametrize("which", ["seqused_q", "seqused_k", "seqused_q seqused_k"])
@pytest.mark.parametrize("with_qv", [False, True])
def test_only_used_tokens_count(torch, device, which, options, with_qv):
    q, k, v = (
        packed(torch, device, lengths, heads, width)
        for lengths, heads, width in ((LENGTHS_Q, HEADS, DIM), (LENGTHS_K, HEADS_K, DIM), (LENGTHS_K, HEADS_K, DIM_V))
    )
    tensors = (q, k, v, packed(torch, device, LENGTHS_Q, HEADS, DIM_V)) if with_qv else (q, k, v)
    numbers = {"seqused_q": USED_Q, "seqused_k": USED_K}
    used = {name: torch.tensor(numbers[name], dtype=torch.int32, device=device) for name in which.split()}
    used_q, used_k = (USED_Q if "seqused_q" in used else LENGTHS_Q), (USED_K if "seqused_k" in used else LENGTHS_K)

    found = flash_attn_varlen_func(
        q, k, v, offsets(torch, device, LENGTHS_Q), offsets(torch, device, LENGTHS_K), max(LENGTHS_Q), max(LENGTHS_K),
        causal=options.get("causal", False), window_size=(options.get("left", -1), -1), return_attn_probs=True,
        qv=tensors[3] if with_qv else None, **used,
    )  # fmt: skip
    want = of_used(tensors, used_q, used_k, **options)
    assert_close(found, want)
    weights = torch.randn_like(found[0])
    found = torch.autograd.grad((found[0] * weights).sum(), tensors)
    assert_close(found, torch.autograd.grad((want[0] * weights).sum(), tensors))


def test_what_is_not_used_is_not_read(torch, device):
    q, k, v = (
        packed(torch, device, lengths, heads, DIM).detach()
        for lengths, heads in ((LENGTHS_Q, HEADS), (LENGTHS_K, HEADS_K), (LENGTHS_K, HEADS_K))
    )
    arguments = (offsets(torch, device, LENGTHS_Q), offsets(torch, device, LENGTHS_K), max(LENGTHS_Q), max(LENGTHS_K))
    used = [torch.tensor(x, dtype=torch.int32, device=device) for x in (USED_Q, USED_K)]
    want = flash_attn_varlen_func(q, k, v, *arguments, *used)
    for x, lengths, counts in ((q, LENGTHS_Q, USED_Q), (k, LENGTHS_K, USED_K), (v, LENGTHS_K, USED_K)):
        for end, length, count in zip(np.cumsum(lengths), lengths, counts):
            x[end - length + count : end] = float("nan")
    assert torch.equal(flash_attn_varlen_func(q, k, v, *arguments, *used), want)


def test_used_tokens_of_numpy_and_of_a_compiler(torch):
    q, k, v = (packed(torch, "cpu", LENGTHS_Q, HEADS, DIM).detach() for _ in range(3))
    cu, used = offsets(torch, "cpu", LENGTHS_Q), torch.tensor(USED_Q, dtype=torch.int32)
    want = flash_attn_varlen_func(q, k, v, cu, cu, 7, 7, used, used, causal=True, qv=q)
    as_numpy = [x.numpy() for x in (q, k, v, cu, cu)]
    found = flash_attn_varlen_func(*as_numpy, 7, 7, used.numpy(), used.numpy(), causal=True, qv=q.numpy())
    assert np.array_equal(found, want.numpy())
    torch._dynamo.reset()
    run = lambda q, used: flash_attn_varlen_func(q, k, v, cu, cu, 7, 7, used, used, causal=True, qv=q)
    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(q, used), want)
    other = torch.tensor((1, 2, 3, 0, 1), dtype=torch.int32)
    torch.testing.assert_close(compiled(q, other), run(q, other))


@pytest.mark.parametrize("scale", [None, 0.3])
@pytest.mark.parametrize("dim, dim_v", [(DIM, DIM_V), (64, 448)])
def test_qv_adds_scores_of_v(torch, device, scale, dim, dim_v):
    shapes = ((2, 5, HEADS, dim), (2, 7, HEADS_K, dim), (2, 7, HEADS_K, dim_v), (2, 5, HEADS, dim_v))
    tensors = [torch.randn(*shape, device=device, requires_grad=True) for shape in shapes]
    q, k, v, qv = tensors
    found = flash_attn_func(q, k, v, scale, causal=True, qv=qv, return_attn_probs=True)
    wide = [x.double() for x in tensors]
    if scale is not None:  # `standard` uses the default scale, so q is scaled
        factor = scale * (dim + dim_v) ** 0.5
        wide[0], wide[3] = wide[0] * factor, wide[3] * factor
    want = standard(*wide, causal=True)
    assert_close(found, want)
    weights = torch.randn_like(found[0])
    found = torch.autograd.grad((found[0] * weights).sum(), tensors)
    assert_close(found, torch.autograd.grad((want[0] * weights).sum(), tensors))


def test_wrong_numbers_and_shapes_are_refused_by_name(torch, device):
    q, k, v = (torch.randn(9, 2, 8, device=device) for _ in range(3))
    cu = torch.tensor([0, 4, 9], dtype=torch.int32, device=device)

    def refused(kind, text, **options):
        with pytest.raises(kind, match=text):
            flash_attn_varlen_func(q, k, v, cu, cu, 5, 5, **options)

    refused(ValueError, r"^seqused_q: torch.int32 \(3,\), allowed int32 \(2,\), one for each sequence$", seqused_q=cu)
    refused(ValueError, r"^seqused_k: torch.int64 \(2,\), allowed int32", seqused_k=cu[1:].long())
    refused(ValueError, "^seqused_k: list, allowed an array i32$", seqused_k=[1, 2])
    if device == "cpu":  # on a GPU values are not checked, because the host would have to wait
        few = torch.tensor([2, 6], dtype=torch.int32)
        refused(ValueError, "^seqused_q: 6 of sequence 1, allowed 0 to its length, 5$", seqused_q=few)
        refused(ValueError, "^seqused_k: -1 of sequence 0, allowed 0 to its length, 4$", seqused_k=few - 3)
    refused(ValueError, r"^qv: shape \(8, 2, 8\), allowed \(9, 2, 8\), as q with the head_dim of v$", qv=q[1:])
    refused(ValueError, "^qv: dtype torch.float16, allowed that of q, torch.float32$", qv=q.half())
    refused(ValueError, "^qv: bool, allowed", qv=True)
    q, k, v = (torch.randn(1, 3, 1, width, device=device) for width in (64, 64, 512))
    with pytest.raises(NotImplementedError, match="^qv: head_dim 64 of q . 512 of v = 576, attend supports up to 512$"):
        flash_attn_func(q, k, v, qv=v)


def test_what_cannot_be_put_side_by_side_is_named(torch):
    x = torch.ones(1, 4, 2, 8)
    cases = {
        "q: NoneType, ": {"q": None},
        "k: NoneType, ": {"k": None},
        "v: NoneType, ": {"v": None},
        "k: ndarray, allowed an array of the framework of q, Tensor": {"k": x.numpy()},
        "qv: ndarray, allowed an array of the framework of q, Tensor": {"qv": x.numpy()},
        "v: shape (1, 3, 2, 8), allowed that of k": {"v": x[:, :3]},
        "k: dtype torch.float16, allowed that of q": {"k": x.half()},
        "qv: on meta, allowed the device of q": {"qv": x.to("meta")},
        "q: 0 dimensions, ": {"q": torch.tensor(1.0)},
    }
    for line, wrong in cases.items():
        given = dict.fromkeys(("q", "k", "v", "qv"), x) | wrong
        with pytest.raises(ValueError) as caught:
            flash_attn_func(**given)
        assert str(caught.value).startswith(line) and "\n" not in str(caught.value)


def test_numbers_of_used_tokens_are_of_the_framework_and_the_sequences_of_the_offsets(torch):
    p, cu, used = torch.ones(4, 2, 8), torch.tensor([0, 4], dtype=torch.int32), torch.tensor([3], dtype=torch.int32)
    more = torch.tensor([0, 2, 4], dtype=torch.int32)
    cases = [
        ("seqused_k: ndarray, allowed an array of the framework of cu_seqlens_k, Tensor", cu, cu, used.numpy()),
        ("cu_seqlens_k: ndarray, allowed an array of the framework of cu_seqlens_q, Tensor", cu, cu.numpy(), None),
        ("cu_seqlens_k: 3 entries, allowed as many as cu_seqlens_q, 2", cu, more, None),
        ("cu_seqlens_q: 0 dimensions, allowed 1 (sequences + 1)", cu[0], cu, None),
        ("cu_seqlens_q: NoneType, allowed an array i32", None, cu, None),
    ]
    for line, cu_q, cu_k, used_k in cases:
        with pytest.raises(ValueError) as caught:
            flash_attn_varlen_func(p, p, p, cu_q, cu_k, 4, 4, None if used_k is not None else used, used_k)
        assert str(caught.value) == line
