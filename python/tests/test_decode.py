"""Tests of attend.decode with all forms of caches and all options, for NumPy and torch, and of its refusals. The
results are compared with float64.
"""

import itertools
import os
import subprocess
import sys

import cache_problems
import covering
import pytest
from conftest import SEED
from oracle import Result, check

np = pytest.importorskip("numpy")
pytest.importorskip("ml_dtypes")

import attend
from attend import _core
from attend._serving import Numbers, Tensors

pytestmark = pytest.mark.usefixtures("poisoned_numpy")

CASES = [case for seed in (SEED, SEED + 1) for case in covering.cases(cache_problems.OPTIONS, seed)]


def assert_right(p, o, lse):
    """Compares every sequence with float64. Dead sequences must have o = 0 and lse = -inf."""
    assert o.dtype == p.q.dtype and lse.dtype == np.float32
    for s, want in enumerate(p.truth()):
        found_o, found_lse = p.part(o, s), p.part(lse, s, is_lse=True)
        if want is None:
            assert not found_o.any() and np.all(np.isneginf(found_lse))
            continue
        check("o", found_o, want["o"], p.case["dtype"])
        unit = np.log(2.0) if p.options["lse_base2"] else 1.0
        check("lse", found_lse, Result(want["lse"].value / unit, want["lse"].magnitude / unit), "f32")


@pytest.mark.parametrize("index", range(len(CASES)))
def test_covering_array(index):
    p = cache_problems.make(CASES[index], np.random.default_rng([SEED, index]))
    o, lse = attend.decode(p.q, p.k_cache, p.v_cache, return_lse=True, **p.options)
    assert_right(p, o, lse)


@pytest.mark.parametrize("index", range(0, len(CASES), 4))
def test_torch_tensors_give_the_same_bits(torch, index):
    p = cache_problems.make(CASES[index], np.random.default_rng([SEED, index]))
    want = attend.decode(p.q, p.k_cache, p.v_cache, return_lse=True, **p.options)
    tensors = [cache_problems.as_torch(torch, x) for x in (p.q, p.k_cache, p.v_cache)]
    options = {name: cache_problems.as_torch(torch, x) for name, x in p.options.items()}
    found = attend.decode(*tensors, return_lse=True, **options)
    by_operator = [torch.full_like(x, float("nan")) for x in found]
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        by_operator = attend.decode(*tensors, return_lse=True, **options)
    assert any(event.name == "attend::decode" for event in profile.events())
    for a, b, c in zip(want, found, by_operator):
        # Rows that belong to no sequence are not written.
        rows = p.options["cu_seqlens_q"][-1] if p.case["packed"] else None
        a, b, c = ([x[..., :rows] if x.ndim == 2 else x[:rows] for x in (a, b, c)]) if rows is not None else (a, b, c)
        assert torch.equal(cache_problems.as_torch(torch, a.copy()), b) and torch.equal(b, c)


def small(rng, dtype=np.float32, heads=(4, 2), page_size=0, length=20):
    """Returns q (2, 4, 1, 8), caches of 2 rows or 8 pages, seqlens_k (2)."""
    shape = (8, heads[1], page_size, 8) if page_size else (2, heads[1], length, 8)
    q, k, v = (rng.standard_normal(x).astype(dtype) for x in ((2, heads[0], 1, 8), shape, shape))
    return q, k, v, np.array([length // 2, length], np.int32)


def test_a_number_stands_for_all_lengths_and_nothing_for_the_capacity(rng, torch):
    q, k, v, _ = small(rng)
    for length in (7, np.int64(7), np.int32(7)):
        want = attend.decode(q, k, v, seqlens_k=np.full(2, 7, np.int32))
        assert np.array_equal(attend.decode(q, k, v, seqlens_k=length), want)
        found = attend.decode(*map(torch.from_numpy, (q, k, v)), seqlens_k=length)
        assert np.array_equal(found.numpy(), want)
    full = attend.decode(q, k, v, seqlens_k=20)
    assert np.array_equal(attend.decode(q, k, v), full)
    packed = q[:, :, 0]
    cu = np.array([0, 1, 2], np.int32)
    assert np.array_equal(attend.decode(packed, k, v, seqlens_k=7, cu_seqlens_q=cu), want[:, :, 0])


def test_results_go_where_the_caller_says(rng, torch):
    q, k, v, n = small(rng)
    want = attend.decode(q, k, v, seqlens_k=n)
    room = np.full((2, 1, 4, 16), np.nan, np.float32)
    out = room[..., :8].swapaxes(1, 2)  # an `out` that is not contiguous and has another order of dimensions
    assert attend.decode(q, k, v, seqlens_k=n, out=out) is out
    assert np.array_equal(out, want) and np.isnan(room[..., 8:]).all()
    tensor = torch.full((2, 4, 1, 8), float("nan"))
    tensors = [torch.from_numpy(x) for x in (q, k, v)]
    assert attend.decode(*tensors, seqlens_k=torch.from_numpy(n), out=tensor) is tensor
    assert np.array_equal(tensor.numpy(), want)


def test_arrays_of_another_framework(rng):
    xp = pytest.importorskip("array_api_strict")
    q, k, v, n = small(rng)
    want, want_lse = attend.decode(q, k, v, seqlens_k=n, return_lse=True)
    o, lse = attend.decode(*(xp.asarray(x) for x in (q, k, v)), seqlens_k=xp.asarray(n), return_lse=True)
    assert type(o) is type(xp.asarray(q))
    assert np.array_equal(np.from_dlpack(o), want) and np.array_equal(np.from_dlpack(lse), want_lse)


def test_a_row_is_the_same_alone_and_in_any_batch_and_for_any_page_size(rng):
    lengths = np.array([700, 3, 1500], np.int32)
    k, v = (rng.standard_normal((3, 2, 1500, 16)).astype(np.float32) for _ in range(2))
    q = rng.standard_normal((3, 4, 1, 16)).astype(np.float32)
    want = attend.decode(q, k, v, seqlens_k=lengths)
    for s in range(3):
        row = np.array([s], np.int32)
        alone = attend.decode(q[s : s + 1], k, v, seqlens_k=lengths[s : s + 1], cache_batch_idx=row)
        assert np.array_equal(alone, want[s : s + 1])
    for page_size in (1, 30, 500):
        pages = [x.reshape(3, 2, -1, page_size, 16).swapaxes(1, 2).reshape(-1, 2, page_size, 16) for x in (k, v)]
        table = np.arange(3 * 1500 // page_size, dtype=np.int32).reshape(3, -1)
        assert np.array_equal(attend.decode(q, *pages, seqlens_k=lengths, page_table=table), want)


def test_float64_goes_to_the_reference(rng):
    q, k, v, n = small(rng, np.float64)
    o, lse = attend.decode(q, k, v, seqlens_k=n, return_lse=True)
    want, want_lse = attend.decode(*(x.astype(np.float32) for x in (q, k, v)), seqlens_k=n, return_lse=True)
    assert o.dtype == np.float64 and lse.dtype == np.float32
    np.testing.assert_allclose(o, want, atol=1e-5)
    np.testing.assert_allclose(lse, want_lse, atol=1e-5)


def ints(*values):
    return np.array(values, np.int32)


# The arguments that differ from those of a valid call, and the beginning of the error message.
REFUSED = {
    "q_none": (lambda q, k, v, n: {"q": None}, "q: None, allowed an array"),
    "q_dims": (lambda q, k, v, n: {"q": q[0]}, "q: 3 dimensions, allowed 4 (batch, heads, seqlen, head_dim)"),
    "q_list": (lambda q, k, v, n: {"q": q.tolist()}, "q: list, allowed an array"),
    "k_none": (lambda q, k, v, n: {"k_cache": None}, "k_cache: None, allowed an array"),
    "k_dims": (lambda q, k, v, n: {"k_cache": k[0]}, "k_cache: 3 dimensions, allowed 4 (rows or pages, heads,"),
    "k_list": (lambda q, k, v, n: {"k_cache": k.tolist()}, "k_cache: list, allowed an array"),
    "k_dtype": (lambda q, k, v, n: {"k_cache": k.astype(np.float16)}, "k_cache: dtype f16, allowed the dtype of q"),
    "v_dims": (lambda q, k, v, n: {"v_cache": v[0]}, "v_cache: 3 dimensions, allowed 4 (rows or pages, heads,"),
    "v_shape": (lambda q, k, v, n: {"v_cache": v[:, :, :5]}, "v_cache: shape "),
    "heads": (lambda q, k, v, n: {"q": q[:, :3], "out": None}, "k_cache: num_heads_k 2, allowed a divisor of"),
    "head_dim": (lambda q, k, v, n: {"q": q[..., :4]}, "k_cache: shape "),
    "few_rows": (lambda q, k, v, n: {"k_cache": k[:1], "v_cache": v[:1]}, "k_cache: 1 rows for 2 sequences"),
    "gaps": (lambda q, k, v, n: {"k_cache": k[..., ::2]}, "k_cache: strides (1280, 640, 32, 8) bytes, allowed a dense"),
    "backwards": (lambda q, k, v, n: {"k_cache": k[:, :, ::-1]}, "k_cache: strides (1280, 640, -32, 4) bytes, allowed"),
    "unaligned": (lambda q, k, v, n: {"k_cache": unaligned(k)}, "k_cache: unaligned memory, allowed elements at"),
    "no_width": (lambda q, k, v, n: {"v_cache": None}, "v_cache: None without head_dim_v"),
    "width": (lambda q, k, v, n: {"v_cache": None, "head_dim_v": 9}, "head_dim_v: 9, allowed 1 to the head_dim of k"),
    "two_widths": (lambda q, k, v, n: {"head_dim_v": 4}, "head_dim_v: 4, allowed the head_dim of v_cache"),
    "layout": (lambda q, k, v, n: {"layout": "thd"}, "layout: 'thd', allowed 'bhsd', 'bshd'"),
    "lengths": (lambda q, k, v, n: {"seqlens_k": n[:1]}, "seqlens_k: shape (1), allowed (2)"),
    "lengths_64": (lambda q, k, v, n: {"seqlens_k": n.astype(np.int64)}, "seqlens_k: dtype i64, allowed i32"),
    "lengths_list": (lambda q, k, v, n: {"seqlens_k": [1, 2]}, "seqlens_k: list, allowed a whole number or"),
    "length": (lambda q, k, v, n: {"seqlens_k": 2**31}, "seqlens_k: 2147483648, allowed -2147483648 to"),
    "table_dims": (lambda q, k, v, n: {"page_table": n}, "page_table: 1 dimensions, allowed 2 (rows, pages of a row)"),
    "table_rows": (lambda q, k, v, n: {"page_table": n[None]}, "page_table: 1 rows for 2 sequences"),
    "batch_idx": (lambda q, k, v, n: {"cache_batch_idx": n[:1]}, "cache_batch_idx: shape (1), allowed (2)"),
    "leftpad": (lambda q, k, v, n: {"cache_leftpad": n * 1.0}, "cache_leftpad: dtype f64, allowed i32"),
    "max_alone": (lambda q, k, v, n: {"max_seqlen_q": 3}, "max_seqlen_q: 3 without cu_seqlens_q, allowed"),
    "offsets": (
        lambda q, k, v, n: {"q": q[:, :, 0], "cu_seqlens_q": ints(0, 2, 1), "out": None},
        "cu_seqlens_q: entry 2 is 1 after 2, allowed non-decreasing",
    ),
    "offsets_dense": (lambda q, k, v, n: {"cu_seqlens_q": ints(0, 1, 2)}, "q: 4 dimensions, allowed 3 (tokens,"),
    "bound": (
        lambda q, k, v, n: {"q": q[:, :, 0], "cu_seqlens_q": ints(0, 2, 2), "max_seqlen_q": 1, "out": None},
        "cu_seqlens_q: sequence 0 has length 2, allowed <= max_seqlen_q = 1",
    ),
    "window": (lambda q, k, v, n: {"window": (-2, 0)}, "window: left -2, allowed"),
    "scale": (lambda q, k, v, n: {"scale": float("inf")}, "scale: inf, allowed"),
    "softcap": (lambda q, k, v, n: {"softcap": -1.0}, "softcap: -1, allowed"),
    "causal": (lambda q, k, v, n: {"causal": "yes"}, "causal: 'yes', allowed True or False"),
    "slopes": (lambda q, k, v, n: {"alibi_slopes": np.ones(3, np.float32)}, "alibi_slopes: shape"),
    "sinks": (lambda q, k, v, n: {"sinks": n}, "sinks: dtype i32, allowed"),
    "tree": (lambda q, k, v, n: {"tree_mask": n}, "tree_mask: dtype i32, allowed u64, i64"),
    "tree_shape": (
        lambda q, k, v, n: {"tree_mask": np.ones((2, 2), np.int64)},
        "tree_mask: shape (2, 2), allowed (2) or",
    ),
    "compute": (lambda q, k, v, n: {"compute": "nobody"}, "compute: 'nobody', decode allows auto, cpu, reference"),
    "out_shape": (lambda q, k, v, n: {"out": np.zeros_like(q[:1])}, "out: shape (1, 4, 1, 8), allowed (2, 4, 1, 8)"),
    "out_dtype": (lambda q, k, v, n: {"out": np.zeros_like(q, np.float16)}, "out: dtype f16, allowed the dtype of q"),
    "out_is_q": (lambda q, k, v, n: {"out": q}, "out: shares memory with q"),
    "out_gaps": (lambda q, k, v, n: {"out": np.zeros((2, 4, 1, 16), np.float32)[..., ::2]}, "out: strides ("),
    "out_read": (lambda q, k, v, n: {"out": np.broadcast_to(q[:1], q.shape)}, "out: read-only, allowed"),
    "no_k_for_rows": (lambda q, k, v, n: {"query_positions": "one"}, "query_positions: given without k, allowed"),
    "no_k": (lambda q, k, v, n: {"positions": n}, "positions: given without k, allowed with it only"),
    "no_k_norm": (lambda q, k, v, n: {"k_norm": q[0, 0, 0]}, "k_norm: given without k, allowed with it only"),
}


def unaligned(x):
    memory = np.zeros(x.nbytes + 1, np.uint8)[1:].view(x.dtype).reshape(x.shape)
    memory[...] = x
    return memory


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_wrong_is_named_and_nothing_is_written(rng, name):
    change, start = REFUSED[name]
    q, k, v, n = small(rng)
    out = np.full((2, 4, 1, 8), 7.0, np.float32)
    arguments = {"q": q, "k_cache": k, "v_cache": v, "seqlens_k": n, "out": out} | change(q, k, v, n)
    before = [x.copy() for x in (q, k, v, out)]
    with pytest.raises(attend.Error) as caught:
        attend.decode(**arguments)
    assert isinstance(caught.value, ValueError)
    assert str(caught.value).startswith(start) and "\n" not in str(caught.value)
    for x, y in zip((q, k, v, out), before):
        assert np.array_equal(x, y)


def test_wide_values_are_named(rng):
    q, k, v = (rng.standard_normal(x).astype(np.float32) for x in ((1, 1, 1, 8), (1, 1, 4, 8), (1, 1, 4, 600)))
    with pytest.raises(ValueError, match="^v_cache: head_dim 600, allowed 1 to 512$"):
        attend.decode(q, k, v)
    wide = [rng.standard_normal((1, 1, n, 700)).astype(np.float32) for n in (1, 4)]
    with pytest.raises(ValueError, match="^head_dim_v: head_dim 600, allowed 1 to 512$"):
        attend.decode(*wide, head_dim_v=600)


def test_a_gpu_is_refused_in_one_line(rng):
    addresses = itertools.count(1 << 40, 1 << 30)

    def on_gpu(*shape, dtype="f32"):
        strides = [int(np.prod(shape[d + 1 :])) for d in range(len(shape))]
        return _core.Array.at("nobody", next(addresses), dtype, 0, shape, strides)

    q, k, v, o = (on_gpu(*shape) for shape in ((2, 4, 1, 8), (2, 2, 20, 8), (2, 2, 20, 8), (2, 4, 1, 8)))
    with pytest.raises((RuntimeError, NotImplementedError), match="^q: on CUDA device 0, but "):
        _core.decode(Tensors(q, k, v, o, None, on_gpu(2, dtype="i32")), Numbers(), 0)
    with pytest.raises(ValueError, match="^seqlens_k: on another device than the tensors, allowed the same device$"):
        _core.decode(Tensors(q, k, v, o, None, _core.Array.of(np.ones(2, np.int32))), Numbers(), 0)

    class OnGpu:
        shape, ndim, dtype = (2, 4, 1, 8), 4, np.dtype(np.float32)

        def __dlpack_device__(self):
            return 2, 0

        def __dlpack__(self, **options):
            raise AssertionError("memory of a GPU was asked for")

    _, k, v, _ = small(rng)
    with pytest.raises(NotImplementedError, match="^q: .*OnGpu, whose framework has no from_dlpack "):
        attend.decode(OnGpu(), k, v)


CHECKED = """
import numpy as np, attend
q, k = np.ones((2, 1, 1, 4), np.float32), np.ones((3, 1, 4, 4), np.float32)
for options in (dict(seqlens_k=np.array([4, 5], np.int32)), dict(cache_batch_idx=np.array([0, 3], np.int32)),
                dict(page_table=np.array([[0], [7]], np.int32))):
    try:
        attend.decode(q, k, k, **options)
    except attend.ArgumentError as error:
        print(error)
"""


def test_a_checked_run_names_the_entry():
    environment = os.environ | {"ATTEND_CHECK": "1"}
    done = subprocess.run(
        [sys.executable, "-c", CHECKED], capture_output=True, text=True, check=True, env=environment, timeout=120
    )
    assert done.stdout.splitlines() == [
        "seqlens_k: entry 1 is 5, allowed at most the capacity, 4",
        "cache_batch_idx: entry 1 is 3, allowed 0 to 2",
        "page_table: entry (1, 0) is 7, and sequence 1 has keys there; allowed 0 to 2",
    ]
    assert attend.decode(np.ones((1, 1, 1, 4), np.float32), *[np.ones((1, 1, 4, 4), np.float32)] * 2, seqlens_k=9).all()


# torch


def tensors_of(torch, rng, **options):
    q, k, v, n = small(rng, **options)
    return [torch.from_numpy(x) for x in (q, k, v, n)]


def line_of(call, kind):
    with pytest.raises(attend.Error) as caught:
        call()
    assert isinstance(caught.value, kind) and "\n" not in str(caught.value)
    return str(caught.value)


def test_tensors_that_require_grad_are_refused_where_gradients_are_recorded(rng, torch):
    q, k, v, n = tensors_of(torch, rng)
    want = attend.decode(q, k, v, seqlens_k=n)
    for name in ("q", "k_cache", "v_cache", "sinks"):
        arguments = {"q": q, "k_cache": k, "v_cache": v, "seqlens_k": n, "sinks": torch.full((4,), -200.0)}
        arguments[name] = torch.nn.Parameter(arguments[name])
        line = line_of(lambda given=arguments: attend.decode(**given), NotImplementedError)
        assert line == f"{name}: requires grad, decode gives no gradients: call it under torch.no_grad()"
        for mode in (torch.no_grad, torch.inference_mode):
            with mode():
                assert torch.equal(attend.decode(**arguments), want)


def test_tensors_of_other_kinds_are_refused(rng, torch):
    q, k, v, n = tensors_of(torch, rng)
    refused = (
        ({"k_cache": k.numpy()}, ValueError, "k_cache: ndarray, allowed a torch.Tensor"),
        ({"seqlens_k": n.numpy()}, ValueError, "seqlens_k: ndarray, allowed a torch.Tensor"),
        ({"seqlens_k": [1, 2]}, ValueError, "seqlens_k: list, allowed a whole number or an array i32"),
        ({"k_cache": k.to_sparse()}, NotImplementedError, "k_cache: layout torch.sparse_coo"),
        ({"k_cache": k[..., ::2], "q": q[..., ::2]}, ValueError, "k_cache: last stride 2, allowed 1"),
        ({"k_cache": k.to("meta")}, ValueError, "k_cache: on meta, allowed the device of the call, cpu"),
        ({"q": torch.nested.nested_tensor([q[0], q[1]])}, (ValueError, NotImplementedError), "q: "),
    )
    for change, kind, start in refused:
        given = {"q": q, "k_cache": k, "v_cache": v, "seqlens_k": n} | change
        assert line_of(lambda given=given: attend.decode(**given), kind).startswith(start)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(q, q)
        line = line_of(lambda: attend.decode(dual, k, v), NotImplementedError)
        assert line == "q: has a tangent, decode has no derivatives"


def test_the_operator_is_what_torch_expects(rng, torch):
    q, k, v, n = tensors_of(torch, rng)
    given = Tensors(q, k, v, torch.zeros(2, 4, 1, 8), torch.zeros(2, 4, 1), n)
    torch.library.opcheck(torch.ops.attend.decode, (*given, *Numbers()))


def test_compiled_calls(rng, torch):
    q, k, v, n = tensors_of(torch, rng, page_size=5)
    table = torch.tensor([[3, 1, 0, 2], [7, 4, 6, 5]], dtype=torch.int32)
    options = {"page_table": table, "return_lse": True, "sinks": torch.ones(4)}
    out = torch.full((2, 4, 1, 8), float("nan"))

    def layer(q, k, v, n):
        o, lse = attend.decode(q * 2, k, v, seqlens_k=n, **options)
        same = attend.decode(q * 2, k, v, seqlens_k=n, page_table=table, sinks=options["sinks"], out=out)
        return o + 1, lse, same

    torch._dynamo.reset()
    want_o, want_lse = attend.decode(q * 2, k, v, seqlens_k=n, **options)
    o, lse, same = torch.compile(layer, fullgraph=True, backend="aot_eager")(q, k, v, n)
    assert torch.equal(o, want_o + 1) and torch.equal(lse, want_lse)
    assert torch.equal(same, want_o) and torch.equal(out, want_o)


def test_under_torchs_transforms_and_modes(rng, torch):
    from torch._subclasses import FakeTensorMode

    q, k, v, n = tensors_of(torch, rng)
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(x) for x in (q, k, v, n)]
        o, lse = attend.decode(*fakes[:3], seqlens_k=fakes[3], return_lse=True)
        assert o.shape == (2, 4, 1, 8) and lse.shape == (2, 4, 1) and lse.dtype == torch.float32
    meta = [x.to("meta") for x in (q, k, v, n)]
    assert attend.decode(*meta[:3], seqlens_k=meta[3]).is_meta
    for change, start in (
        ({"k_cache": meta[1][..., :4]}, "k_cache: shape (2, 2, 20, 4), allowed"),
        ({"k_cache": meta[1].mT.contiguous().mT}, "k_cache: last stride "),
        ({"seqlens_k": meta[3].long()}, "seqlens_k: dtype i64, allowed i32"),
        ({"k": meta[1][:, :, :1]}, "v_cache: given without v, allowed"),
    ):
        given = dict(zip(("q", "k_cache", "v_cache", "seqlens_k"), meta)) | change
        assert line_of(lambda given=given: attend.decode(**given), ValueError).startswith(start)
    with mode:
        for change, start in ((3, "seqlens_k: shape (3), allowed (2)"), (2, "causal: 'x', allowed True or False")):
            lengths = torch.ones(change, dtype=torch.int32)
            line = line_of(lambda n=lengths: attend.decode(*fakes[:3], seqlens_k=n, causal="x"), ValueError)
            assert line == start
    for transform in (torch.func.vmap, torch.func.grad, torch.func.functionalize):
        call = transform(lambda q: attend.decode(q, k, v).sum())
        line = line_of(lambda call=call: call(q), NotImplementedError)
        assert line == "decode: under a transform of torch.func, allowed outside of one"
