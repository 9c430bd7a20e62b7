"""Tests of attend.xformers. Each bias class is tested with an instance of attend's class and with an instance of
xFormers' class. The results are compared with float64 and the masks with those of xFormers.
"""

import importlib
import inspect
import warnings

import pytest

pytest.importorskip("numpy")
torch = pytest.importorskip(
    "torch", reason=f"the tests of {__name__} need torch: `make py-test ATTEND_TEST_TORCH=1` installs it"
)

import attend.xformers
import xformers_problems as problems
from attend import xformers as ours
from attend.xformers._patterns import KINDS

SIGNATURE = "query key value attn_bias p scale op output_dtype"
CPU = problems.CPU
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 3e-2}
ALL = {**problems.DENSE, **problems.BLOCKS}


def xformers_or_skip():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("xformers.ops", reason="xFormers is not installed")


@pytest.fixture(params=["attend", "xformers"])
def classes(request):
    """Returns the module with the bias classes, attend's or xFormers'."""
    return ours.attn_bias if request.param == "attend" else xformers_or_skip().fmha.attn_bias


def tensors(rows, keys, heads=2, batch=1, dtype=torch.float32):
    shapes = ((batch, rows, heads, 8), (batch, keys, heads, 8), (batch, keys, heads, 12))
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]


def assert_close(found, want, dtype=torch.float32):
    assert found.shape == want.shape
    torch.testing.assert_close(found.double(), want.double(), rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


def check(q, k, v, bias, mask, function=ours.memory_efficient_attention, dtype=torch.float32, **options):
    """Compares o and the gradients of q, k and v with float64, and the gradient of `mask` if it requires grad."""
    o = function(q, k, v, bias, **options)
    assert o.dtype == q.dtype
    want, _ = problems.truth(q, k, v, mask, options.get("scale"))
    dout = torch.randn(o.shape, dtype=o.dtype)
    leaves = [x for x in (q, k, v, mask) if getattr(x, "requires_grad", False)]
    found = torch.autograd.grad(o, leaves, dout)
    wanted = torch.autograd.grad(want, leaves, dout.double())
    assert_close(o, want, dtype)
    for x, y in zip(found, wanted):
        assert x.abs().sum() > 0
        assert_close(x, y, dtype)


def problem(name, classes, dtype=torch.float32, batch=2):
    """Returns q, k, v, the bias object, and the bias as a matrix."""
    bias = ALL[name](classes)
    if name in problems.DENSE:
        q, k, v = tensors(5, 9, batch=batch, dtype=dtype)
    else:
        q, k, v = tensors(sum(problems.ROWS), problems.num_keys(name, bias), dtype=dtype)
    return q, k, v, bias, problems.materialized(name, bias, q.shape[1], k.shape[1])


def test_every_class_is_tried():
    assert {name.partition(",")[0] for name in ALL} == set(KINDS) - {"LowerTriangularMaskWithTensorBias"}
    assert set(ours.attn_bias.__all__) == {*KINDS, "AttentionBias"}


def test_xformers_has_no_other_class():
    theirs = xformers_or_skip().fmha.attn_bias
    classes = {name for name, x in vars(theirs).items() if inspect.isclass(x) and issubclass(x, theirs.AttentionBias)}
    assert classes == set(ours.attn_bias.__all__)
    # The classes from which a class can be made, and to which it can be converted.
    for name in classes - {"AttentionBias"}:
        made = [x for x in vars(getattr(theirs, name)) if x.startswith(("from_", "make_", "split", "add_"))]
        assert all(hasattr(getattr(ours.attn_bias, name), x) for x in made), name


@pytest.mark.parametrize("name", ALL)
def test_masks_are_xformers_own(name):
    _, k, _, _, found = problem(name, ours.attn_bias)
    _, _, _, _, want = problem(name, xformers_or_skip().fmha.attn_bias)
    assert torch.equal(found, want) and found.isinf().any()
    assert k.shape[1] == found.shape[1]


def test_pages_with_gaps_from_lengths():
    """Only attend's class is tested, because in xFormers 0.0.35 this constructor fails."""
    name = "PagedBlockDiagonalGappyKeysMask"
    found = getattr(ours.attn_bias, name).from_seqlens(
        problems.ROWS, problems.GAPS_IN_PAGES, problems.KEYS, torch.tensor(problems.TABLE), problems.PAGE_SIZE
    )
    rows, keys = sum(problems.ROWS), problems.PADDING * len(problems.KEYS)
    want = problem(name, ours.attn_bias)[-1]
    assert torch.equal(found.materialize((rows, keys), torch.float64), want)


@pytest.mark.parametrize("name", ALL)
def test_forward_and_gradients(name, classes):
    check(*problem(name, classes))


@pytest.mark.parametrize("name", problems.BLOCKS)
def test_without_gradients_keys_are_read_in_place(name, classes, monkeypatch):
    q, k, v, bias, mask = problem(name, classes)
    decoded = []
    plain = ours.fmha.decode
    monkeypatch.setattr(ours.fmha, "decode", lambda *a, **o: decoded.append(name) or plain(*a, **o))
    want, want_lse = problems.truth(q, k, v, mask)
    hidden = mask.isinf().all(0)
    with torch.no_grad():
        for x in (k, v):
            x[:, hidden] = float("nan")  # no row sees these keys
    assert_close(ours.memory_efficient_attention_forward(q, k, v, bias), want)
    o, lse = ours.memory_efficient_attention_partial(q, k, v, bias)
    assert o.dtype == torch.float32
    assert_close(o, want)
    assert_close(lse, want_lse)
    assert len(decoded) == (2 if KINDS[name.partition(",")[0]].keys in ("padded", "pages", "gappy_pages") else 0)


@pytest.mark.parametrize("name", [None, "LowerTriangularMask", "BlockDiagonalCausalMask, equal lengths"])
def test_compiled(name):
    torch._dynamo.reset()
    q = torch.randn(1, sum(problems.ROWS), 2, 8, requires_grad=True)
    bias = name and ALL[name](ours.attn_bias)
    function = lambda q: ours.memory_efficient_attention(q * 2, q, q, bias)
    found, want = torch.compile(function, fullgraph=True, backend="aot_eager")(q), function(q)
    assert_close(found, want)
    assert_close(*(torch.autograd.grad(x.square().sum(), q)[0] for x in (found, want)))


def test_where_decode_cannot_keys_are_copied(monkeypatch):
    def too_old(*arguments, **options):
        raise attend.UnsupportedError("compute: compute capability 7.5, allowed 8.0 or higher")

    monkeypatch.setattr(ours.fmha, "decode", too_old)
    q, k, v, bias, mask = problem("PagedBlockDiagonalGappyKeysMask", ours.attn_bias)
    assert_close(ours.memory_efficient_attention_forward(q, k, v, bias), problems.truth(q, k, v, mask)[0])


@pytest.mark.parametrize("name", ALL)
def test_the_backward_function(name, classes):
    q, k, v, bias, mask = problem(name, classes)
    o, lse = ours.memory_efficient_attention_forward_requires_grad(q, k, v, bias, scale=0.3)
    want, want_lse = problems.truth(q, k, v, mask, 0.3)
    assert not o.requires_grad
    assert_close(o, want)
    assert_close(lse, want_lse)
    dout = torch.randn_like(o)
    found = ours.memory_efficient_attention_backward(dout, o, lse, q, k, v, bias, scale=0.3)
    for x, y in zip(found, torch.autograd.grad(want, [q, k, v], dout.double())):
        assert_close(x, y)


@pytest.mark.parametrize("rows, keys", [(5, 9), (9, 5), (7, 7)])
def test_lower_triangles_of_any_shape(rows, keys, classes):
    q, k, v = tensors(rows, keys, batch=2)
    for name in ("LowerTriangularMask", "LowerTriangularFromBottomRightMask"):
        bias = problems.DENSE[name](classes)
        check(q, k, v, bias, bias.materialize((rows, keys), torch.float64))
    tensor = torch.randn(2, 2, rows, keys, requires_grad=True)
    with_bias = classes.LowerTriangularMask().add_bias(tensor)
    assert type(with_bias).__name__ == "LowerTriangularMaskWithTensorBias"
    o = ours.memory_efficient_attention(q, k, v, with_bias)
    want, _ = problems.truth(q, k, v, with_bias.materialize((2, 2, rows, keys), torch.float64))
    assert_close(o, want)
    dout = torch.randn_like(o)
    for x, y in zip(*(torch.autograd.grad(x, [q, tensor], y) for x, y in ((o, dout), (want, dout.double())))):
        assert_close(x, y)


def test_a_tensor_and_a_scale():
    q, k, v = tensors(6, 9, batch=2)
    padded = torch.randn(2, 2, 6, 16, requires_grad=True)  # xFormers requires rows of aligned length
    check(q, k, v, None, 0, scale=0.2)
    o = ours.memory_efficient_attention(q, k, v, padded[..., :9], 0.0, 0.2)
    want, _ = problems.truth(q, k, v, padded[..., :9], 0.2)
    assert_close(o, want)
    for x, y in zip(*(torch.autograd.grad(x.square().sum(), [v, padded]) for x in (o, want))):
        assert_close(x, y)
    hidden = torch.zeros(1, 1, 6, 9).masked_fill(torch.rand(6, 9) < 0.4, float("-inf"))
    hidden[..., 2, :] = float("-inf")
    check(q, k, v, hidden, hidden)


def test_bfloat16_and_the_dtype_of_results():
    q, k, v, bias, mask = problem("BlockDiagonalCausalWithOffsetPaddedKeysMask", ours.attn_bias, torch.bfloat16)
    check(q, k, v, bias, mask, dtype=torch.bfloat16)
    o = ours.memory_efficient_attention(q, k, v, bias, output_dtype=torch.float32)
    assert o.dtype == torch.float32 and o.requires_grad
    assert ours.memory_efficient_attention_partial(q, k, v, bias)[0].dtype == torch.float32


def test_one_head_of_three_dimensions(classes):
    q, k, v = (x[:, :, 0].detach().requires_grad_() for x in tensors(6, 9, batch=2))
    four = [x.unsqueeze(2) for x in (q, k, v)]
    tensor = torch.randn(2, 6, 9)
    mask = classes.LowerTriangularMask()
    for bias, matrix in ((None, 0), (tensor, tensor[:, None]), (mask, mask.materialize((6, 9), torch.float64))):
        o = ours.memory_efficient_attention(q, k, v, bias)
        want, _ = problems.truth(*four, matrix)
        assert_close(o, want.squeeze(2))
        assert_close(torch.autograd.grad(o.sum(), k)[0], torch.autograd.grad(want.sum(), k)[0])
    lse = ours.memory_efficient_attention_forward_requires_grad(q, k, v)[1]
    assert lse.shape == (2, 1, 6)
    bias = classes.LowerTriangularFromBottomRightMask()
    with pytest.raises(ValueError, match="^attn_bias: LowerTriangularFromBottomRightMask with 3 dimensions, allowed"):
        ours.memory_efficient_attention(q, k, v, bias)


@pytest.mark.parametrize("is_expanded", [True, False])
def test_groups_of_heads(is_expanded):
    q = torch.randn(2, 6, 2, 3, 8, requires_grad=True)
    few = [torch.randn(2, 9, 2, 1, n, requires_grad=True) for n in (8, 12)]
    k, v = (x.expand(-1, -1, -1, 3, -1) for x in few)
    flat = [x.flatten(2, 3) for x in (q, k, v)]
    tensor = torch.randn(2, 2, 3, 6, 9)
    given = (k, v) if is_expanded else few
    o = ours.memory_efficient_attention(q, *given, tensor)
    want, want_lse = problems.truth(*flat, tensor.flatten(1, 2))
    assert_close(o, want.unflatten(2, (2, 3)))
    for x, y in zip(*(torch.autograd.grad(x.square().sum(), [q, *few]) for x in (o, want))):
        assert_close(x, y)
    lse = ours.memory_efficient_attention_forward_requires_grad(q, *given, tensor)[1]
    assert_close(lse, want_lse.unflatten(1, (2, 3)))


def test_shared_heads_are_read_once(monkeypatch):
    """Heads of a leaf tensor are read separately, because its gradient has an entry for each head."""
    seen = []
    plain = ours.fmha._api.attention
    monkeypatch.setattr(
        ours.fmha._api, "attention", lambda q, k, v, **o: seen.append(k.shape[2]) or plain(q, k, v, **o)
    )
    q, k, v = torch.randn(2, 6, 4, 8), torch.randn(2, 9, 1, 8), torch.randn(2, 9, 1, 8)
    wide = [x.expand(-1, -1, 4, -1) for x in (k, v)]
    want, _ = problems.truth(q, *wide, 0)
    assert_close(ours.memory_efficient_attention(q, *wide), want)
    leaves = [x.detach().requires_grad_() for x in wide]
    ours.memory_efficient_attention(q, *leaves).sum().backward()
    assert seen == [1, 4]
    assert_close(leaves[1].grad, torch.autograd.grad(problems.truth(q, *leaves, 0)[0].sum(), leaves)[1])


def test_parts_are_merged(classes):
    q, k, v = tensors(6, 9, batch=2)
    parts = [ours.memory_efficient_attention_partial(q, k[:, a:b], v[:, a:b]) for a, b in ((0, 4), (4, 9))]
    want, want_lse = problems.truth(q, k, v, 0)
    for given in (zip(*parts), [torch.stack(x) for x in zip(*parts)]):
        o, lse = ours.merge_attentions(*given)
        assert_close(o, want)
        assert_close(lse, want_lse)
    differentiable = [ours.memory_efficient_attention(q, k[:, a:b], v[:, a:b]) for a, b in ((0, 4), (4, 9))]
    o, lse = ours.merge_attentions(differentiable, [lse for _, lse in parts], write_lse=False)
    assert o.requires_grad and lse is None
    assert_close(o, want)
    unseen = torch.full_like(parts[0][1], float("-inf"))
    o, lse = ours.merge_attentions([torch.zeros_like(want), parts[0][0].double()], [unseen, parts[0][1]])
    assert_close(o, parts[0][0])


def test_dropout_follows_torchs_generator(classes):
    q, k, v, bias, _ = problem("BlockDiagonalCausalMask", classes)
    ones = torch.ones_like(v)
    runs = []
    for _ in range(2):
        torch.manual_seed(3)
        runs += [ours.memory_efficient_attention(q, k, ones, bias, 0.4) for _ in range(2)]
    assert torch.equal(runs[0], runs[2]) and not torch.equal(runs[0], runs[1])
    dense = torch.ones(1, 512, 2, 4)
    kept = ours.memory_efficient_attention(torch.randn(1, 512, 2, 8), torch.randn(1, 512, 2, 8), dense, p=0.4)
    assert abs(float(kept.mean()) - 1) < 0.02


def test_tensors_become_blocks_and_tensors_again(classes):
    listed = [torch.randn(2, 3, 2, 8), torch.randn(1, 5, 2, 8)]
    bias, packed = classes.BlockDiagonalMask.from_tensor_list(listed)
    o = bias.split(ours.memory_efficient_attention(packed, packed, packed, bias.to(CPU)))
    for x, found in zip(listed, o):
        assert_close(found, problems.truth(x, x, x, 0)[0])
    keys = [torch.randn(2, 4, 2, 8), torch.randn(1, 1, 2, 8)]
    bias, q, k, v = classes.BlockDiagonalMask.from_tensor_lists_qkv(listed, keys, keys)
    o = bias.split_queries(ours.memory_efficient_attention(q, k, v, bias.to(CPU)))
    for x, y, found in zip(listed, keys, o):
        assert_close(found, problems.truth(x, y, y, 0)[0])
    for x, y in zip(keys, bias.split_kv(k)):
        assert torch.equal(x, y)


@pytest.mark.parametrize(
    "name", ["attention", "attention_forward", "attention_forward_requires_grad", "attention_partial"]
)
def test_positional_orders(name):
    parameters = inspect.signature(getattr(ours, f"memory_efficient_{name}")).parameters
    assert list(parameters) == SIGNATURE.split()
    theirs = inspect.signature(getattr(xformers_or_skip().fmha, f"memory_efficient_{name}")).parameters
    assert [(x.name, x.kind, x.default) for x in parameters.values()] == [
        (x.name, x.kind, x.default) for x in theirs.values()
    ]


def test_refusals_name_the_argument():
    q, k, v = (x.detach() for x in tensors(6, 9))
    block = ours.attn_bias.BlockDiagonalMask.from_seqlens([4, 2], [4, 5], device=CPU)

    class Own(ours.attn_bias.AttentionBias):
        pass

    for arguments, options, message in (
        ((q[0], k, v), {}, "query|key: . dimensions, allowed 3"),
        ((q.numpy(), k, v), {}, "query: ndarray, allowed a torch.Tensor"),
        ((q[:, :, :, :5], k, v), {}, "key: "),
        ((q, k.bfloat16(), v), {}, "key: "),
        ((q, k, v, torch.ones(6, 9)), {}, r"attn_bias: 2 dimensions, allowed 4 \(batch"),
        ((q, k, v, torch.ones(1, 2, 6, 8)), {}, "attn_bias: "),
        ((q, k, v, torch.ones(1, 2, 6, 9, dtype=torch.bool)), {}, "attn_bias: torch.bool, attend supports a float"),
        ((q, k, v, Own()), {}, "attn_bias: Own, attend supports None, a tensor, or one of Lower"),
        ((q.expand(2, -1, -1, -1), k, v, block), {}, "query: batch 2 with BlockDiagonalMask, allowed 1"),
        ((q[:, :5], k, v, block), {}, "query: 5 rows, allowed 6"),
        ((q, k[:, :8], v, block), {}, "key: 8 keys, allowed 9"),
        ((q, k, v), {"p": 1.5}, "p: "),
        ((q, k, v), {"scale": float("inf")}, "scale: "),
    ):
        with pytest.raises(attend.Error, match=f"^({message})") as caught:
            ours.memory_efficient_attention(*arguments, **options)
        assert "\n" not in str(caught.value)
    with pytest.raises(NotImplementedError, match="^p: 0.5, attend supports 0.0 only"):
        ours.memory_efficient_attention_partial(q, k, v, p=0.5)
    for make in (
        lambda c: c.BlockDiagonalMask.from_seqlens([4], [3]).make_causal_from_bottomright(),
        lambda c: c.BlockDiagonalMask.from_seqlens([4], [1]).make_local_attention(3),
        lambda c: c.LocalAttentionFromBottomRightMask(-1, 0),
        lambda c: c.LowerTriangularFromBottomRightLocalAttentionMask(0),
        lambda c: c.BlockDiagonalPaddedKeysMask.from_seqlens([1], 3, [4]),
    ):
        with pytest.raises(ValueError, match="allowed"):
            make(ours.attn_bias)


def test_xformers_is_not_imported():
    import subprocess
    import sys

    code = (
        "import sys; sys.modules['xformers'] = None; import torch, attend.xformers as x; b = x.LowerTriangularMask()\n"
    )
    code += "q = torch.ones(1, 3, 1, 4); print(float(x.memory_efficient_attention(q, q, q, b).sum()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    assert done.stdout == "12.0\n", done.stderr


def test_activation(monkeypatch):
    ops = xformers_or_skip()
    own = ops.memory_efficient_attention
    q, k, v = tensors(6, 9)
    called = []
    ours.activate()
    try:
        ours.activate()
        assert ops.memory_efficient_attention.__name__ == own.__name__
        for bias in (None, ops.LowerTriangularMask()):
            matrix = 0 if bias is None else bias.materialize((6, 9), torch.float64)
            check(q, k, v, bias, matrix, ops.memory_efficient_attention)
            check(q, k, v, bias, matrix, ops.fmha.memory_efficient_attention)
        key = ("xformers.ops", "memory_efficient_attention")
        activation = importlib.import_module("attend.xformers._activate")
        ours.restore()
        monkeypatch.setattr(ops, "memory_efficient_attention", lambda *a, **o: called.append(a) or "theirs")
        ours.activate()
        assert activation._own[key] is not own
        with pytest.warns(UserWarning, match="xFormers' own attention runs: attn_bias: torch.bool"):
            found = ops.memory_efficient_attention(q, k, v, torch.ones(1, 2, 6, 9, dtype=torch.bool))
        assert found == "theirs" and len(called) == 1
    finally:
        ours.restore()
    monkeypatch.undo()
    assert ops.memory_efficient_attention is own
