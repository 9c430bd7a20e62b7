"""Tests of attend.merge, which merges results over parts of the keys into the result over all keys."""

import itertools

import pytest

np = pytest.importorskip("numpy")
pytest.importorskip("ml_dtypes")

import attend
from oracle import Problem, check, solve
from problems import dtype_of

pytestmark = pytest.mark.usefixtures("poisoned_numpy")

CUTS = (0, 3, 3, 40, 64)  # bounds of the parts of the keys; one part has no key


def problem(rng, dtype="f32"):
    """Returns q (2, 4, 5, 16) and 64 keys."""
    of = dtype_of(dtype)
    q, k, v = (rng.standard_normal(x).astype(of) for x in ((2, 4, 5, 16), (2, 2, 64, 16), (2, 2, 64, 24)))
    return Problem(q, k, v, sinks=rng.standard_normal(4).astype(np.float32))


def states_of(p, **options):
    parts = [slice(*cut) for cut in itertools.pairwise(CUTS)]
    found = [attend.attention(p.q, p.k[:, :, x], p.v[:, :, x], return_lse=True) for x in parts]
    if options.get("lse_base2"):
        found = [(o, lse / np.float32(np.log(2))) for o, lse in found]
    return found


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("lse_base2", [False, True])
@pytest.mark.parametrize("with_sinks", [False, True])
def test_parts_of_the_keys_merge_to_all_of_them(rng, dtype, lse_base2, with_sinks):
    p = problem(rng, dtype)
    sinks = p.sinks if with_sinks else None
    o, lse = attend.merge(states_of(p, lse_base2=lse_base2), sinks=sinks, return_lse=True, lse_base2=lse_base2)
    p.sinks = sinks
    truth = solve(p)
    assert o.dtype == p.q.dtype and lse.dtype == np.float32
    check("o", o, truth["o"], dtype)
    check("lse", lse * np.float32(np.log(2)) if lse_base2 else lse, truth["lse"], "f32")


def test_a_state_without_keys_counts_for_nothing(rng):
    p = problem(rng)
    states = states_of(p)
    states[1][0][...] = np.nan
    assert np.isneginf(states[1][1]).all()
    want = attend.merge([states[0], *states[2:]])
    assert np.array_equal(attend.merge(states), want) and np.isfinite(want).all()
    o, lse = attend.merge(states[1:2], return_lse=True)
    assert not o.any() and np.isneginf(lse).all()
    o, lse = attend.merge(states[1:2], sinks=p.sinks, return_lse=True)
    assert not o.any() and np.array_equal(lse, np.broadcast_to(p.sinks[:, None], lse.shape))


def test_layouts_and_results_of_the_caller(rng):
    states = states_of(problem(rng))
    want, want_lse = attend.merge(states, return_lse=True)
    other = [(np.ascontiguousarray(o.swapaxes(1, 2)), lse) for o, lse in states]
    assert np.array_equal(attend.merge(other, layout="bshd").swapaxes(1, 2), want)
    packed = [(o[0].swapaxes(0, 1), lse[0]) for o, lse in states]
    o, lse = attend.merge(packed, return_lse=True)
    assert np.array_equal(o.swapaxes(0, 1), want[0]) and np.array_equal(lse, want_lse[0])
    half = np.full(want.shape, np.nan, np.float16)
    assert attend.merge(states, out=half) is half and np.array_equal(half, want.astype(np.float16))
    assert attend.merge(states, out=states[2][0]) is states[2][0]
    assert np.array_equal(states[2][0], want)


def test_shared_prefix(rng):
    """One call of decode reads a shared prefix once, for the rows of all sequences."""
    prefix_k, prefix_v = (rng.standard_normal((1, 2, 30, 8)).astype(np.float32) for _ in range(2))
    k, v = (rng.standard_normal((3, 2, 10, 8)).astype(np.float32) for _ in range(2))
    q = rng.standard_normal((3, 4, 1, 8)).astype(np.float32)
    rows = q.swapaxes(0, 2)  # passes the rows of three sequences as those of one sequence
    o, lse = attend.decode(rows, prefix_k, prefix_v, causal=False, return_lse=True)
    shared = o.swapaxes(0, 2), lse.swapaxes(0, 2)
    own = attend.decode(q, k, v, seqlens_k=np.array([10, 0, 4], np.int32), return_lse=True)
    found = attend.merge([shared, own])
    for s, length in enumerate((10, 0, 4)):
        keys, values = (np.concatenate([a[0], b[s][:, :length]], 1)[None] for a, b in ((prefix_k, k), (prefix_v, v)))
        check("o", found[s : s + 1], solve(Problem(q[s : s + 1], keys, values))["o"], "f32")


REFUSED = {
    "none": (lambda x: {"states": []}, "states: 0, allowed at least 1"),
    "no sequence": (lambda x: {"states": None}, "states: NoneType, allowed a sequence of (o, lse)"),
    "two dimensions": (lambda x: {"states": [(x[0][0][0, 0], x[0][1])]}, "states[0].o: 2 dimensions, allowed 4"),
    "base": (lambda x: {"lse_base2": None}, "lse_base2: None, allowed True or False"),
    "no pair": (lambda x: {"states": [x[0][0]]}, "states[0]: ndarray, allowed a tuple (o, lse)"),
    "lse": (lambda x: {"states": [x[0], (x[1][0], x[1][1][:1])]}, "states[1].lse: shape (1, 4, 5, 1), allowed"),
    "dtype": (lambda x: {"states": [(x[0][0].astype(np.float64), x[0][1])]}, "states[0].o: dtype f64, allowed"),
    "other dtype": (lambda x: {"states": [x[0], (x[1][0].astype(np.int32), x[1][1])]}, "states[1].o: dtype i32"),
    "shape": (lambda x: {"states": [x[0], (x[1][0][..., :3], x[1][1])]}, "states[1].o: shape (2, 4, 5, 3), allowed"),
    "layout": (lambda x: {"layout": "thd"}, "layout: 'thd', allowed"),
    "sinks": (lambda x: {"sinks": np.ones(3, np.float32)}, "sinks: shape"),
    "out": (lambda x: {"out": np.zeros((2, 4, 5, 3), np.float32)}, "out: shape (2, 4, 5, 3), allowed (2, 4, 5, 24)"),
    "overlap": (lambda x: {"out": x[0][0][:, ::-1]}, "out: strides "),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_wrong_is_named(rng, name):
    change, start = REFUSED[name]
    states = states_of(problem(rng))
    with pytest.raises(attend.Error) as caught:
        attend.merge(**({"states": states} | change(states)))
    assert isinstance(caught.value, ValueError)
    assert str(caught.value).startswith(start) and "\n" not in str(caught.value)


def test_torch(rng, torch):
    p = problem(rng)
    arrays = states_of(p)
    states = [tuple(map(torch.from_numpy, pair)) for pair in arrays]
    sinks = torch.from_numpy(p.sinks)
    want, want_lse = attend.merge(arrays, sinks=p.sinks, return_lse=True)
    o, lse = attend.merge(states, sinks=sinks, return_lse=True)
    assert np.array_equal(o.numpy(), want) and np.array_equal(lse.numpy(), want_lse)
    torch._dynamo.reset()
    merged = torch.compile(lambda *x: attend.merge(list(zip(x[:4], x[4:])), sinks=sinks) + 1, fullgraph=True,
                           backend="aot_eager")  # fmt: skip
    assert torch.equal(merged(*(x for x, _ in states), *(x for _, x in states)), o + 1)
    states[1][0].requires_grad_()
    with pytest.raises(NotImplementedError, match=r"^states\[1\].o: requires grad, merge gives no gradients"):
        attend.merge(states)
    with pytest.raises(ValueError, match=r"^states\[0\].lse: ndarray, allowed a torch.Tensor like states\[0\].o$"):
        attend.merge([(states[0][0], arrays[0][1])])
    with pytest.raises(ValueError, match=r"^states\[1\].o: torch.Tensor, allowed an array of the kind of states"):
        attend.merge([arrays[0], states[0]])
    meta = [tuple(x.detach().to("meta") for x in pair) for pair in states]
    assert attend.merge(meta).is_meta
    with pytest.raises(ValueError, match=r"^states\[1\].lse: shape "):
        attend.merge([meta[0], (meta[1][0], meta[1][1][:1])])
