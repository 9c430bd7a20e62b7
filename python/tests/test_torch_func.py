"""Tests of torch.func: first derivatives of every public function are compared with those of a softmax of the full
score matrix in float64.
"""

import pytest

pytest.importorskip("numpy")

pytest.importorskip(
    "torch", reason=f"the tests of {__name__} need torch: `make py-test ATTEND_TEST_TORCH=1` installs it"
)

import attend
import attend.flash_attn
import attend.flash_attn_3

HEADS, ROWS, KEYS, DIM = 4, 6, 6, 8
BUDGET = 2e-5  # allowed error relative to the largest entry, in float32


def standard(q, k, v, bias=None, slopes=None, causal=True):
    """Computes attention of (batch, heads, seqlen, head_dim) by the definition."""
    import torch

    k, v = (x.repeat_interleave(q.shape[-3] // x.shape[-3], -3) for x in (k, v))
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    distance = torch.arange(ROWS, device=q.device)[:, None] - torch.arange(KEYS, device=q.device)
    if slopes is not None:
        scores = scores - slopes[:, None, None] * distance.abs()
    if bias is not None:
        scores = scores + bias
    if causal:
        scores = scores.masked_fill(distance < 0, float("-inf"))
    return scores.softmax(-1) @ v


def swapped(function):
    """Returns `function`, which has layout "bshd", as a function of tensors in layout "bhsd"."""
    return lambda *tensors: function(*(x.transpose(1, 2) for x in tensors)).transpose(1, 2)


def packed(q, k, v):
    """Computes attention_varlen, with the batch entries as consecutive packed sequences."""
    import torch

    batch, _, rows, _ = q.shape
    cu = torch.arange(batch + 1, dtype=torch.int32, device=q.device) * rows
    q, k, v = (x.transpose(1, 2).flatten(0, 1) for x in (q, k, v))
    o = attend.attention_varlen(q, k, v, cu, cu, rows, rows, causal=True)
    return o.unflatten(0, (batch, rows)).transpose(1, 2)


def side_by_side(function):
    """Wraps `function`, whose argument is one tensor with q, k and v, for three tensors with equal numbers of heads."""
    import torch

    def of_three(q, k, v):
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
        return function(torch.stack([x.transpose(1, 2) for x in (q, k, v)], 2)).transpose(1, 2)

    return of_three


DOORS = {
    "attention": lambda q, k, v: attend.attention(q, k, v, causal=True),
    "attention with lse": lambda q, k, v: attend.attention(q, k, v, causal=True, return_lse=True)[0],
    "attention of rows first": swapped(lambda q, k, v: attend.attention(q, k, v, causal=True, layout="bshd")),
    "sdpa": lambda q, k, v: attend.sdpa(q, k, v, is_causal=True, enable_gqa=True),
    "attention_varlen": packed,
    "attention_qkvpacked": side_by_side(lambda qkv: attend.attention_qkvpacked(qkv, causal=True)),
    "flash_attn": swapped(lambda q, k, v: attend.flash_attn.flash_attn_func(q, k, v, causal=True)),
    "flash_attn packed": side_by_side(lambda qkv: attend.flash_attn.flash_attn_qkvpacked_func(qkv, causal=True)),
    "flash_attn_3": swapped(lambda q, k, v: attend.flash_attn_3.flash_attn_func(q, k, v, causal=True)),
}


def gradients(attention, x, w):
    import torch

    return torch.func.grad(lambda *x: (attention(*x) * w[0]).sum(), (0, 1, 2))(*(t[0] for t in x))


def vjp(attention, x, w):
    import torch

    return torch.func.vjp(attention, *(t[0] for t in x))[1](w[0])


def jacobians(attention, x, w):
    import torch

    return torch.func.jacrev(lambda *x: attention(*x)[..., -2:, :3], (0, 1, 2))(*(t[0] for t in x))


def gradients_of_each(attention, x, w):
    import torch

    return torch.func.vmap(torch.func.grad(lambda w, *x: (attention(*x) * w).sum(), (1, 2, 3)))(w, *x)


def gradients_with_shared_keys(attention, x, w):
    import torch

    function = torch.func.grad(lambda *x: (attention(*x) * w[0]).sum(), (0, 1, 2))
    return torch.func.vmap(function, (0, None, None))(x[0], x[1][0], x[2][0])


def gradients_of_all(attention, x, w):
    import torch

    return torch.func.grad(lambda *x: (torch.func.vmap(attention)(*x) * w).sum(), (0, 1, 2))(*x)


TRANSFORMS = (gradients, vjp, jacobians, gradients_of_each, gradients_with_shared_keys, gradients_of_all)


def assert_close(found, want):
    import torch

    for a, b in zip(torch.utils._pytree.tree_leaves(found), torch.utils._pytree.tree_leaves(want), strict=True):
        assert a.shape == b.shape
        error, largest = (a - b).abs().max().item(), b.abs().max().item()
        assert error <= BUDGET * largest, f"error {error:.1e}, budget {BUDGET * largest:.1e}"


def inputs(torch, device):
    """Returns q, k, v and weights of o for three calls, with two query heads for each key head."""
    q, w = (torch.randn(3, 2, HEADS, ROWS, DIM, device=device) for _ in range(2))
    k, v = (torch.randn(3, 2, HEADS // 2, KEYS, DIM, device=device) for _ in range(2))
    return (q, k, v), w


@pytest.mark.parametrize("transform", TRANSFORMS, ids=lambda x: x.__name__)
@pytest.mark.parametrize("door", DOORS)
def test_first_derivatives(torch, device, door, transform):
    x, w = inputs(torch, device)
    want = transform(standard, [t.double() for t in x], w.double())
    assert_close(transform(DOORS[door], x, w), want)


@pytest.mark.parametrize("shape", [(HEADS, ROWS, KEYS), (2, 1, ROWS, KEYS), (KEYS,), (HEADS, ROWS, 1)])
def test_first_derivatives_of_a_bias(torch, device, shape):
    (q, k, v), w = inputs(torch, device)
    bias = torch.randn(shape, device=device)

    def run(attention, q, k, v, w, bias):
        loss = lambda bias, q, k, v, w: (attention(q, k, v, bias=bias) * w).sum()
        alone = torch.func.grad(loss)(bias, q[0], k[0], v[0], w[0])
        each = torch.func.vmap(torch.func.grad(loss), (None, 0, 0, 0, 0))(bias, q, k, v, w)
        both = torch.func.grad(lambda bias: torch.func.vmap(loss, (None, 0, 0, 0, 0))(bias, q, k, v, w).sum())(bias)
        return alone, each, both

    found = run(lambda *x, bias: attend.attention(*x, causal=True, bias=bias), q, k, v, w, bias)
    want = run(standard, *(x.double() for x in (q, k, v, w, bias)))
    for a, b in zip(found, want):
        assert a.shape == b.shape
        # A bias of one column does not change o, so its gradient is 0 except for rounding.
        torch.testing.assert_close(a.double(), b, atol=1e-5, rtol=1e-4)


def test_the_gradient_of_lse(torch, device):
    (q, k, v), _ = inputs(torch, device)
    found = torch.func.grad(lambda k: attend.attention(q[0], k, v[0], return_lse=True)[1].sum())(k[0])
    wide = q[0].double() * DIM**-0.5

    def lse(k):
        return (wide @ k.repeat_interleave(2, 1).transpose(-1, -2)).logsumexp(-1).sum()

    assert_close(found, torch.func.grad(lse)(k[0].double()))


@pytest.mark.parametrize("transform", [gradients, jacobians, gradients_of_each], ids=lambda x: x.__name__)
def test_a_compiler_takes_the_transforms_whole(torch, device, transform):
    x, w = inputs(torch, device)
    torch._dynamo.reset()
    door = DOORS["attention"]
    compiled = torch.compile(lambda x, w: transform(door, x, w), fullgraph=True, backend="aot_eager")
    assert_close(compiled(x, w), transform(door, x, w))


def test_autocast_reaches_the_transforms(torch, device):
    x, w = inputs(torch, device)
    with torch.autocast(device, dtype=torch.bfloat16):
        found = gradients(DOORS["attention"], x, w)
    half = [t.bfloat16() for t in x]
    for a, b in zip(found, gradients(lambda *x: DOORS["attention"](*x).float(), half, w)):
        assert a.dtype == torch.float32
        torch.testing.assert_close(a, b.float(), atol=1e-2, rtol=1e-2)


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_what_has_no_rule_is_refused_in_one_line(torch, device):
    (q, k, v), _ = inputs(torch, device)
    loss = lambda q: attend.attention(q, k[0], v[0]).square().sum()
    second = lambda q: torch.func.grad(loss)(q).sum()
    with pytest.raises(NotImplementedError, match="^attend::backward: double backward, .* first derivatives only$"):
        torch.func.grad(second)(q[0])
    with pytest.raises(NotImplementedError, match="^torch.func.jvp: .* use torch.func.grad, vjp or jacrev$"):
        torch.func.jvp(loss, (q[0],), (q[0],))
    with pytest.raises(NotImplementedError, match="^torch.func.jvp: "):
        torch.func.hessian(loss)(q[0])
    slopes = torch.rand(HEADS, device=device)
    with pytest.raises(NotImplementedError, match="^alibi_slopes: requires grad"):
        torch.func.grad(lambda x: attend.attention(q[0], k[0], v[0], alibi_slopes=x).sum())(slopes)
    with pytest.raises(NotImplementedError, match="^dropout_p: with vmap"):
        torch.func.vmap(torch.func.grad(lambda q: attend.attention(q, k[0], v[0], dropout_p=0.1).sum()))(q)


@pytest.mark.parametrize("rows", [1, 2])
def test_slopes_of_a_batch_are_mapped(torch, device, rows):
    """The slopes are mapped by vmap, and shared by the batch."""
    x = torch.randn(3, 2, HEADS, 5, 8, device=device)
    slopes = torch.rand(3, rows, HEADS, device=device)
    run = lambda x, slopes: attend.attention(x, x, x, alibi_slopes=slopes)
    torch.testing.assert_close(torch.func.vmap(run)(x, slopes), torch.stack([run(*some) for some in zip(x, slopes)]))


def test_slopes_and_dropout_are_constants_of_a_gradient(torch, device):
    (q, k, v), w = inputs(torch, device)
    slopes = torch.rand(HEADS, device=device)
    run = lambda q, k, v: attend.attention(q, k, v, causal=True, alibi_slopes=slopes)
    wide = lambda q, k, v: standard(q, k, v, slopes=slopes.double())
    want = gradients_of_each(wide, [x.double() for x in (q, k, v)], w.double())
    assert_close(gradients_of_each(run, (q, k, v), w), want)
    dropping = lambda q: (attend.attention(q, k[0], v[0], dropout_p=0.4, seed=3) * w[0]).sum()
    leaf = q[0].clone().requires_grad_()
    assert torch.equal(torch.func.grad(dropping)(q[0]), torch.autograd.grad(dropping(leaf), leaf)[0])
