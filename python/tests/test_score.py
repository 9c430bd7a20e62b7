"""Scores of the caller's own: text and captures, against attention by the definition in float64."""

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
    """By NumPy in float64."""
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

    refused("score: column 9: 'tabel' is no name here", score="score + tabel[h]")
    refused("score: int, allowed a text", score=3)
    refused("captures: given without score, allowed with it only", captures={})
    refused("captures: list, allowed a dictionary", score="score", captures=[1])
    refused("captures: 't': dtype i16, allowed f32", score="score + t[0]", captures={"t": np.int16([1])})
    refused("score: column 1: capture 'q': the name has a meaning already", score="score", captures={"q": 1})
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


def test_torch_compile_is_refused(torch):
    q = torch.randn(1, 2, 8, 8)
    with pytest.raises(Exception, match="score: under torch.compile"):
        torch.compile(lambda q: attend.attention(q, q, q, score="score"), backend="eager", fullgraph=True)(q)
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
