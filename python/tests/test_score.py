"""Tests of custom scores, with a text and captures. The results are compared with attention by the definition in
float64.
"""

import pytest

np = pytest.importorskip("numpy")

import attend

TEXT = "doc[q] == doc[k] ? cap * tanh(score / cap) + table[h][clamp(q - k, -4, 3) + 4] : -inf"
BATCH, HEADS, HEADS_K, ROWS, KEYS, DIM = 2, 4, 2, 37, 45, 16


def inputs(rng, dtype=np.float32):
    shapes = [(BATCH, HEADS, ROWS, DIM), (BATCH, HEADS_K, KEYS, DIM), (BATCH, HEADS_K, KEYS, DIM)]
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


def captured(rng):
    return {
        "doc": np.arange(KEYS, dtype=np.int32) // 9,
        "cap": np.float32(2.5) * np.ones((), np.float32),
        "table": rng.standard_normal((HEADS, 8)).astype(np.float32),
    }


def scores(q, k, captures):
    """Computes the scores with NumPy in float64."""
    q, k = (np.asarray(x, np.float64) for x in (q, np.repeat(k, HEADS // HEADS_K, 1)))
    s = np.einsum("bhqd,bhkd->bhqk", q, k) / np.sqrt(DIM)
    i, j = np.arange(ROWS)[:, None], np.arange(KEYS)[None]
    doc, cap, table = (np.asarray(captures[name], np.float64) for name in ("doc", "cap", "table"))
    s = cap * np.tanh(s / cap) + table[:, np.clip(i - j, -4, 3) + 4]
    return np.where(doc[i] == doc[j], s, -np.inf)


def loss(q, k, v, captures, dout, dlse):
    s = scores(q, k, captures)
    lse = np.log(np.exp(s).sum(-1))
    o = np.exp(s - lse[..., None]) @ np.repeat(np.asarray(v, np.float64), HEADS // HEADS_K, 1)
    return (o * dout).sum() + (lse * dlse).sum(), o, lse


def slope_of(function, x, direction, step=1e-6):
    return (function(x + step * direction) - function(x - step * direction)) / (2 * step)


@pytest.mark.parametrize(("dtype", "budget"), [(np.float32, 1e-5), (np.float64, 1e-11)])
def test_numpy_against_the_definition(rng, poisoned_numpy, dtype, budget):
    q, k, v = inputs(rng, dtype)
    captures = captured(rng)
    o, lse = attend.attention(q, k, v, score=TEXT, captures=captures, return_lse=True)
    _, want_o, want_lse = loss(q, k, v, captures, 0, 0)
    print(f"{dtype.__name__}: o {abs(o - want_o).max():.1e}, lse {abs(lse - want_lse).max():.1e}, budget {budget}")
    assert abs(o - want_o).max() <= budget and abs(lse - want_lse).max() <= budget
    swapped = [x.transpose(0, 2, 1, 3) for x in (q, k, v)]
    same = attend.attention(*swapped, layout="bshd", score=TEXT, captures=captures)
    assert (same.transpose(0, 2, 1, 3) == o).all()


def test_gradients_against_finite_differences(rng, poisoned_numpy):
    q, k, v = inputs(rng, np.float64)
    captures = {name: x if name == "doc" else x.astype(np.float64) for name, x in captured(rng).items()}
    dout, dlse = rng.standard_normal((BATCH, HEADS, ROWS, DIM)), rng.standard_normal((BATCH, HEADS, ROWS))
    options = {"score": TEXT, "captures": captures}
    o, lse = attend.forward(q, k, v, **options)
    dq, dk, dv, of_captures = attend.backward(dout, q, k, v, o, lse, dlse=dlse, **options)
    assert list(of_captures) == ["cap", "table"] and of_captures["cap"].shape == ()

    def check(name, gradient, function, x):
        direction = rng.standard_normal(x.shape)
        found, want = (gradient * direction).sum(), slope_of(function, x, direction)
        print(f"{name}: {found:.9f}, finite difference {want:.9f}")
        assert abs(found - want) <= 1e-6 * max(1, abs(want))

    check("dq", dq, lambda x: loss(x, k, v, captures, dout, dlse)[0], q)
    check("dk", dk, lambda x: loss(q, x, v, captures, dout, dlse)[0], k)
    check("dv", dv, lambda x: loss(q, k, x, captures, dout, dlse)[0], v)
    for name in ("cap", "table"):
        function = lambda x, name=name: loss(q, k, v, {**captures, name: x}, dout, dlse)[0]
        check("d" + name, of_captures[name], function, captures[name])


def test_packed_sequences_count_from_their_first_row(rng):
    lengths, heads = [5, 0, 12], 2
    starts = np.cumsum([0, *lengths]).astype(np.int32)
    q, k, v = (rng.standard_normal((17, heads, 8)).astype(np.float32) for _ in range(3))
    options = {"score": "score - rate[b] * abs(q - k) + float(k_len)", "captures": {"rate": np.float32([0.1, 0, 0.7])}}
    packed = {"cu_seqlens_q": starts, "cu_seqlens_k": starts, "max_seqlen_q": 12, "max_seqlen_k": 12}
    o, lse = attend.forward(q, k, v, **packed, **options)
    for n, length in enumerate(lengths):
        x = [np.ascontiguousarray(t[starts[n] : starts[n + 1]].transpose(1, 0, 2))[None] for t in (q, k, v)]
        rate = [0.1, 0, 0.7][n]
        alone, lse_alone = attend.forward(
            *x, score="score - rate * abs(q - k) + float(k_len)", captures={"rate": np.float32([rate])[0:1].reshape(())}
        )
        assert abs(o[starts[n] : starts[n + 1]].transpose(1, 0, 2) - alone[0]).max(initial=0) <= 1e-6, length
        assert abs(lse[:, starts[n] : starts[n + 1]] - lse_alone[0]).max(initial=0) <= 2e-6


def test_numbers_and_arrays_of_any_strides(rng):
    q, k, v = inputs(rng)
    table = rng.standard_normal((8, HEADS)).astype(np.float32)
    want = attend.attention(q, k, v, score="score + t[h][k % 8] * 0.5", captures={"t": np.ascontiguousarray(table.T)})
    for t in (table.T, np.asfortranarray(table.T), table[::-1].T[:, ::-1]):
        got = attend.attention(q, k, v, score="score + t[h][k % 8] * half", captures={"t": t, "half": 0.5})
        assert (got == want).all()


def test_values_may_change_between_calls(rng):
    q, k, v = inputs(rng)
    rate = np.float32([0.5])
    options = {"score": "score - rate[0] * abs(q - k)", "captures": {"rate": rate}}
    first = attend.attention(q, k, v, **options)
    rate[0] = 0
    assert abs(attend.attention(q, k, v, **options) - attend.attention(q, k, v)).max() <= 1e-6
    assert abs(attend.attention(q, k, v, **options) - first).max() > 0.01


def test_refusals_name_the_argument(rng):
    q, k, v = inputs(rng)

    def refused(message, **options):
        with pytest.raises(attend.ArgumentError) as caught:
            attend.attention(q, k, v, **options)
        assert message in str(caught.value) and "\n" not in str(caught.value)

    refused("score: column 9: 'tabel' is not a name here", score="score + tabel[h]")
    refused("score: int, allowed a text", score=3)
    refused("captures: given without score, allowed with it only", captures={})
    refused("captures: list, allowed a dictionary", score="score", captures=[1])
    refused("captures: 't': dtype i16, allowed f32", score="score + t[0]", captures={"t": np.int16([1])})
    refused("score: capture 'q': the name is already in use", score="score", captures={"q": 1})
    for x, why in (
        (np.zeros((0, 3), np.float32), "extent 0, allowed 1 to 2147483647"),
        (np.complex64([1]), "dtype complex64, allowed f32, f16, bf16, f64, i32, i64, bool"),
        (np.zeros(2, [("x", "f4")]), "dtype [('x', '<f4')], allowed f32, f16, bf16, f64, i32, i64, bool"),
        (np.array(["a"]), "dtype <U1, allowed f32, f16, bf16, f64, i32, i64, bool"),
        (2**70, "dtype object, allowed f32, f16, bf16, f64, i32, i64, bool"),
        (np.zeros((1,) * 9, np.float32), "9 dimensions, allowed"),
        ("a", "str, allowed an array"),
        (None, "NoneType, allowed an array"),
    ):
        refused("captures: 't': " + why, score="score + 1", captures={"t": x})
    refused("captures: a name of type int, allowed str", score="score", captures={1: 1})
    refused(r"captures: 'a\nb', allowed a name of letters, digits and _", score="score", captures={"a\nb": 1})
    refused("score: column 9: no character", score="score + \ud800", captures={})
    refused("seed: None with dropout_p", score="score", dropout_p=0.5)


def test_torch_gradients_are_those_of_numpy(torch, rng):
    q, k, v = inputs(rng)
    captures = captured(rng)
    dout = rng.standard_normal((BATCH, HEADS, ROWS, DIM)).astype(np.float32)
    o, lse = attend.forward(q, k, v, score=TEXT, captures=captures)
    dq, dk, dv, of_captures = attend.backward(dout, q, k, v, o, lse, score=TEXT, captures=captures)
    leaves = [torch.from_numpy(np.array(x)).requires_grad_() for x in (q, k, v, captures["cap"], captures["table"])]
    given = {"doc": torch.from_numpy(captures["doc"]), "cap": leaves[3], "table": leaves[4]}
    found = attend.attention(*leaves[:3], score=TEXT, captures=given)
    gradients = torch.autograd.grad(found, leaves, torch.from_numpy(dout))
    assert (found.detach().numpy() == o).all()
    for a, b in zip(gradients, (dq, dk, dv, of_captures["cap"], of_captures["table"])):
        assert (a.numpy() == b).all()
    o, lse = attend.forward(*leaves[:3], score=TEXT, captures=given)
    assert not o.requires_grad
    *asked, of_captures = attend.backward(torch.from_numpy(dout), *leaves[:3], o, lse, score=TEXT, captures=given)
    assert list(of_captures) == ["cap", "table"] and not of_captures["cap"].requires_grad
    for a, b in zip(gradients, (*asked, *of_captures.values())):
        assert (a == b).all()


def layouts(torch, t):
    """Returns tensors with the same values (HEADS, 8) in other memory layouts. attend reads only the last of them in
    place.
    """
    wide = torch.full((HEADS, 16), float("nan"))
    wide[:, ::2] = t
    rows = torch.full((2 * HEADS, 8), float("nan"))
    rows[::2] = t
    return {
        "transposed": t.t().contiguous().t(),
        "every other column": wide[:, ::2],
        "negated": torch._neg_view(-t),
        "negated with gaps": torch.complex(torch.zeros_like(t), -t).conj().imag,
        "every other row": rows[::2],
    }


def test_torch_captures_of_any_layout_give_the_same_bits(torch, rng):
    q, k, v = (torch.from_numpy(x) for x in inputs(rng))
    dout = torch.from_numpy(rng.standard_normal((BATCH, HEADS, ROWS, DIM)).astype(np.float32))

    def results(text, captures):
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        asked = {name: x.detach().requires_grad_() for name, x in captures.items()}
        o = attend.attention(*leaves, score=text, captures=asked)
        by_hand, lse = attend.forward(q, k, v, score=text, captures=captures)
        of_hand = attend.backward(dout, q, k, v, by_hand, lse, score=text, captures=captures)
        gradients = torch.autograd.grad(o, [*leaves, *asked.values()], dout)
        return [o.detach(), *gradients, by_hand, *of_hand[:3], *of_hand[3].values()]

    def check(what, text, captures, wanted):
        for repeat in range(5):
            for a, b in zip(results(text, captures), wanted):
                assert torch.equal(a, b), (what, repeat)

    text = "score + t[h][(q + k) % 8] * u[(q - k) % 8][h]"
    t, u = (torch.from_numpy(rng.standard_normal((HEADS, 8)).astype(np.float32)) for _ in range(2))
    wanted = results(text, {"t": t, "u": u.t().contiguous()})
    for what, x in layouts(torch, t).items():
        assert torch.equal(x, t), what
        check(what, text, {"t": x, "u": u.t()}, wanted)
    row = t[0].clone()
    column = t[:, :1].clone()
    for what, x in (("rows", row.expand(HEADS, 8)), ("columns", column.expand(HEADS, 8))):
        check(what, text, {"t": x, "u": u.t()}, results(text, {"t": x.contiguous(), "u": u.t().contiguous()}))


def test_arrays_of_numpy_beside_torch(torch, rng):
    x = inputs(rng)
    q, k, v = (torch.from_numpy(a) for a in x)
    t = rng.standard_normal((HEADS, 8)).astype(np.float32)
    text = "half * score + t[h][k % 8]"
    want = attend.attention(*x, score=text, captures={"t": t, "half": 0.5})
    for other in (t, t[::-1, ::-1].copy()[::-1, ::-1], np.asfortranarray(t), t.tolist()):
        got = attend.attention(q, k, v, score=text, captures={"t": other, "half": np.float64(0.5)})
        assert (got.numpy() == want).all()


def test_torch_refusals_name_the_capture(torch):
    q = torch.randn(1, 2, 8, 8)
    for x, why in (
        ("a", "str, allowed a value that torch.as_tensor accepts"),
        (None, "NoneType, allowed a value that torch.as_tensor accepts"),
        (2**70, "int, allowed a value that torch.as_tensor accepts"),
        (np.array([object()]), "ndarray, allowed a value that torch.as_tensor accepts"),
        (torch.zeros(2, dtype=torch.complex64), "dtype complex64, allowed f32"),
        (torch.zeros(2, dtype=torch.uint8), "dtype u8, allowed f32"),
        (torch.zeros(2, 2).to_sparse(), "layout torch.sparse_coo, allowed torch.strided"),
        (torch.zeros(0), "extent 0, allowed 1 to 2147483647"),
        (torch.zeros(2, 1, 1, 1, 1), "5 dimensions, allowed 0 to 4"),
        (torch.zeros((1,) * 9), "9 dimensions, allowed"),
    ):
        with pytest.raises(attend.ArgumentError) as caught:
            attend.attention(q, q, q, score="score + 1", captures={"t": x})
        assert "'t': " + why in str(caught.value) and "\n" not in str(caught.value)


def test_transforms_are_refused(torch):
    q = torch.randn(1, 2, 8, 8)
    with pytest.raises(attend.UnsupportedError, match="score: under torch.compile, torch.func"):
        torch.func.grad(lambda q: attend.attention(q, q, q, score="score").sum())(q)


def test_torch_in_bfloat16_with_options(torch):
    q = torch.randn(1, 4, 33, 16, dtype=torch.bfloat16, requires_grad=True)
    bias = torch.randn(1, 1, 33, 33, dtype=torch.bfloat16, requires_grad=True)
    gain = torch.ones(4, requires_grad=True)
    o = attend.attention(q, q, q, causal=True, bias=bias, score="gain[h] * score", captures={"gain": gain})
    want = attend.attention(q, q, q, causal=True, bias=bias)
    torch.testing.assert_close(o, want, rtol=0.02, atol=0.02)
    dq, dbias, dgain = torch.autograd.grad(o.float().square().sum(), (q, bias, gain))
    other_dq, other_dbias = torch.autograd.grad(want.float().square().sum(), (q, bias))
    torch.testing.assert_close(dq, other_dq, rtol=0.05, atol=0.1)
    torch.testing.assert_close(dbias, other_dbias, rtol=0.05, atol=0.1)
    assert dgain.shape == (4,) and dgain.dtype == torch.float32 and torch.isfinite(dgain).all()
