"""Tests of custom masks. The results are compared with those of the same mask as an array of bools."""

import copy

import pytest

np = pytest.importorskip("numpy")

import attend

BATCH, HEADS, HEADS_K, ROWS, KEYS, DIM = 2, 4, 2, 150, 277, 16
TEXT = "k <= q + 40 && doc[b][q] == doc[b][k] && k % (h + 2) != 1"


@pytest.fixture
def doc(rng):
    return np.sort(rng.integers(0, 5, (BATCH, KEYS)), axis=1).astype(np.int32)


def bools(doc):
    b, h, q, k = np.ogrid[:BATCH, :HEADS, :ROWS, :KEYS]
    return (k <= q + 40) & (doc[b, q] == doc[b, k]) & (k % (h + 2) != 1)


def inputs(rng, dtype=np.float32):
    shapes = [(BATCH, HEADS, ROWS, DIM), (BATCH, HEADS_K, KEYS, DIM), (BATCH, HEADS_K, KEYS, DIM)]
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


def make(doc):
    return attend.make_block_mask(TEXT, ROWS, KEYS, batch=BATCH, num_heads=HEADS, captures={"doc": doc})


def test_it_sees_what_the_text_says(doc):
    mask, wanted = make(doc), bools(doc)
    assert isinstance(mask, attend.BlockMask)
    assert mask.shape == (BATCH, HEADS, ROWS, KEYS)
    seen = [[[[mask.sees(b, h, q, k) for k in range(KEYS)] for q in range(0, ROWS, 7)] for h in range(HEADS)]
            for b in range(BATCH)]  # fmt: skip
    assert (np.array(seen) == wanted[:, :, ::7]).all()
    assert mask.density == pytest.approx(wanted.mean())
    tiles = mask.tiles
    assert tiles["all"] == BATCH * HEADS * 3 * 5
    assert 0 < tiles["partial"] <= tiles["all"] and tiles["patterns"] <= tiles["partial"]
    assert mask.nbytes > 512 * tiles["patterns"]
    assert attend.make_block_mask("k <= q", ROWS, KEYS, batch=BATCH, num_heads=HEADS).shape == (1, 1, ROWS, KEYS)
    for other in (copy.copy(mask), copy.deepcopy(mask)):
        assert other.tiles == mask.tiles


def test_numpy_both_passes(rng, doc, poisoned_numpy):
    q, k, v = inputs(rng)
    mask = make(doc)
    found = attend.forward(q, k, v, block_mask=mask)
    wanted = attend.forward(q, k, v, mask=bools(doc))
    dout = rng.standard_normal(wanted[0].shape).astype(np.float32)
    found += attend.backward(dout, q, k, v, *found, block_mask=mask)
    wanted += attend.backward(dout, q, k, v, *wanted, mask=bools(doc))
    assert len(found) == len(wanted) == 5
    for name, a, b in zip(("o", "lse", "dq", "dk", "dv"), found, wanted):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5, err_msg=name)
    assert (attend.attention(q, k, v, block_mask=mask) == found[0]).all()


def test_with_a_score_function(rng, doc):
    q, k, v = inputs(rng)
    options = {"score": "cap * tanh(score / cap)", "captures": {"cap": np.float32(2)}}
    o, lse = attend.forward(q, k, v, block_mask=make(doc), **options)
    *_, gradients = attend.backward(np.ones_like(o), q, k, v, o, lse, block_mask=make(doc), **options)
    whole = {"score": options["score"], "captures": options["captures"], "mask": bools(doc)}
    want_o, want_lse = attend.forward(q, k, v, **whole)
    *_, want = attend.backward(np.ones_like(o), q, k, v, want_o, want_lse, **whole)
    np.testing.assert_allclose(o, want_o, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(gradients["cap"], want["cap"], rtol=1e-3, atol=1e-4)


def test_torch_by_autograd(rng, doc):
    torch = pytest.importorskip("torch")
    leaves = [torch.from_numpy(x).requires_grad_() for x in inputs(rng)]
    mask = make(torch.from_numpy(doc))
    o, lse = attend.attention(*leaves, block_mask=mask, return_lse=True)
    dout, dlse = torch.from_numpy(rng.standard_normal(o.shape).astype(np.float32)), torch.ones_like(lse)
    seen = lse != -np.inf
    found = torch.autograd.grad((o * dout).sum() + lse[seen].sum(), leaves)
    other = attend.attention(*leaves, mask=torch.from_numpy(bools(doc)), return_lse=True)
    wanted = torch.autograd.grad((other[0] * dout).sum() + (other[1] * dlse)[seen].sum(), leaves)
    torch.testing.assert_close(o, other[0], rtol=1e-4, atol=1e-5)
    for a, b in zip(found, wanted):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
    with pytest.raises(attend.UnsupportedError, match="block_mask: under torch.compile"):
        torch.func.vmap(lambda q: attend.attention(q, q, q, block_mask=mask))(leaves[0][None])
    with pytest.raises(attend.ArgumentError, match="captures: 'w': layout torch.sparse_coo, allowed torch.strided"):
        attend.make_block_mask("w[k] < 1", 4, 4, captures={"w": torch.zeros(4).to_sparse()})


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: attend.make_block_mask("k <= tabel", 4, 4), "mask: column 6: 'tabel' is not a name here"),
        (lambda: attend.make_block_mask("score > 0", 4, 4), "mask: column 1"),
        (lambda: attend.make_block_mask(3, 4, 4), "mask: int, allowed a text"),
        (lambda: attend.make_block_mask("k <= q", -1, 4), "seqlen_q: -1, allowed 0 to 2147483647"),
        (lambda: attend.make_block_mask("k <= q", 2**70, 4), "seqlen_q: 1180591620717411303424, allowed"),
        (lambda: attend.make_block_mask("k <= q", 4.0, 4), "seqlen_q: float, allowed an integer"),
        (lambda: attend.make_block_mask("k <= q + b", 4, 4, batch=0), "batch: 0, allowed 1 to"),
        (lambda: attend.make_block_mask("x[k]", 4, 4, captures=[1]), "captures: list, allowed a dictionary"),
        (lambda: attend.make_block_mask("x[k]", 4, 4, captures={"x": np.zeros((0,))}), "captures: 'x': extent 0"),
        (lambda: attend.attention(*[np.zeros((1, 1, 5, 8), np.float32)] * 3,
                                  block_mask=attend.make_block_mask("k <= q", 4, 5)),
         "block_mask: seqlen_q 4, allowed"),
        (lambda: attend.attention(*[np.zeros((2, 1, 5, 8), np.float32)] * 3,
                                  block_mask=attend.make_block_mask("k <= q + b", 5, 5)),
         "block_mask: batch 1, from a text that reads b, allowed 2"),
        (lambda: attend.attention(*[np.zeros((1, 1, 5, 8), np.float32)] * 3, block_mask=np.ones((5, 5), bool)),
         "block_mask: ndarray, allowed a mask from attend.make_block_mask"),
    ],
)  # fmt: skip
def test_refusals_name_the_argument(call, message):
    with pytest.raises(attend.ArgumentError) as raised:
        call()
    assert str(raised.value).startswith(message)


@pytest.mark.parametrize("device", ["gpu", "cuda:", "cuda:-1", "cuda:1x", 0, "cpu:0"])
def test_a_device_that_is_none_is_refused(device):
    with pytest.raises(attend.ArgumentError, match=r"^device: .*, allowed 'cpu', 'cuda' or 'cuda:N'$"):
        attend.make_block_mask("k <= q", 8, 8, device=device)


def test_the_cpu_may_be_named(doc):
    given = {"batch": BATCH, "num_heads": HEADS, "captures": {"doc": doc}}
    assert attend.make_block_mask(TEXT, ROWS, KEYS, device="cpu", **given).tiles == make(doc).tiles
