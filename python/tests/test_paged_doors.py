"""Tests of packed query rows on paged caches, by the functions of flash-attn 2, flash-attn 3 and vLLM. The results are
compared with float64.
"""

import pytest

np = pytest.importorskip("numpy")
pytest.importorskip(
    "torch", reason=f"the tests of {__name__} need torch: `make py-test ATTEND_TEST_TORCH=1` installs it"
)

import attend
import cache_problems
import covering
from attend import flash_attn, flash_attn_3, vllm_flash_attn
from conftest import SEED
from oracle import check

FIXED = {
    "layout": ["bshd"], "batch_idx": [False], "packed": [True], "tree": [False], "leftpad": [False],
    "lse_base2": [False], "page_size": [1, 3, 16], "head_dims": [(16, 16), (40, 24), (64, 64)], "dtype": ["f32", "f16"],
}  # fmt: skip
DOOR = {"door": ["2", "3", "vllm"], "torch": [False, True]}
CASES = covering.cases({**cache_problems.OPTIONS, **FIXED, **DOOR}, SEED)


def arguments_of(case, problem):
    """Returns the keyword arguments of the function's call. For vLLM they include an array for the result, filled with
    NaN.
    """
    given = problem.options
    lengths, rows = given["seqlens_k"], given["cu_seqlens_q"]
    found = {
        "q": problem.q, "k": problem.k_cache, "v": problem.v_cache, "cu_seqlens_q": rows, "max_seqlen_k": 1,
        "max_seqlen_q": given["max_seqlen_q"], "softmax_scale": given["scale"], "softcap": given["softcap"],
        "causal": given.get("causal", True), "window_size": given.get("window", (-1, -1)),
    }  # fmt: skip
    sums = np.cumsum([0, *np.maximum(lengths, 0)], dtype=np.int32)
    if case["door"] == "2":
        return found | {"cu_seqlens_k": sums, "block_table": given["page_table"], "return_attn_probs": True}
    if case["door"] == "3":
        keys = {"cu_seqlens_k": None, "seqused_k": lengths} if case["rows"] > 1 else {"cu_seqlens_k": sums}
        return found | keys | {"page_table": given["page_table"], "return_attn_probs": True}
    out = np.full((*problem.q.shape[:2], problem.v_cache.shape[-1]), np.nan, problem.q.dtype)
    return found | {
        "seqused_k": lengths, "block_table": given["page_table"], "return_softmax_lse": True, "out": out,
        "k_descale": np.ones((1, 1), np.float32), "scheduler_metadata": np.zeros(3, np.int32), "fa_version": 3,
    }  # fmt: skip


DOORS = {
    "2": flash_attn.flash_attn_varlen_func,
    "3": flash_attn_3.flash_attn_varlen_func,
    "vllm": vllm_flash_attn.flash_attn_varlen_func,
}


@pytest.mark.parametrize("index", range(len(CASES)))
def test_every_door_against_float64(torch, poisoned_numpy, rng, index):
    case = CASES[index]
    has = {"2": ["alibi"], "3": ["sinks"], "vllm": ["alibi", "sinks"]}[case["door"]]
    case = case | {name: None for name in ("alibi", "sinks") if name not in has}
    problem = cache_problems.make(case, rng)
    arguments = arguments_of(case, problem)
    names = {"alibi_slopes": "alibi_slopes", "sinks": "s_aux"}
    arguments |= {names[name]: problem.options[name] for name in names if problem.options.get(name) is not None}
    if case["torch"]:
        arguments = {name: torch.from_numpy(x) if isinstance(x, np.ndarray) else x for name, x in arguments.items()}
    found, lse, *rest = DOORS[case["door"]](**arguments)
    assert rest == ([None] if case["door"] == "2" else [])
    if case["door"] == "vllm":
        assert found is arguments["out"]
    found, lse = np.asarray(found), np.asarray(lse)
    # With offsets no sequence can be dead, so one without keys has its sink.
    by_offsets = arguments.get("seqused_k") is None
    for s, want in enumerate(problem.truth()):
        o, its_lse = problem.part(found, s), problem.part(lse, s, is_lse=True)
        if want is None:
            assert not o.any()
            if not by_offsets or "s_aux" not in arguments:
                assert np.isneginf(its_lse).all()
            continue
        check("o", o, want["o"], case["dtype"])
        check("lse", its_lse, want["lse"], "f32")


def paged(torch, lengths=(5, 9), page_size=4, heads_k=2, dim=16):
    """Returns the caches, the page table, and the keys and values of each sequence. All memory of the caches that
    belongs to no sequence contains NaN.
    """
    pages = [-(-n // page_size) for n in lengths]
    table = torch.full((len(lengths), max(pages) + 1), -1, dtype=torch.int32)
    free = iter((torch.randperm(sum(pages)) + 1).tolist())
    caches = [torch.full((sum(pages) + 1, page_size, heads_k, dim), float("nan")) for _ in "kv"]
    parts = [[torch.randn(n, heads_k, dim) for n in lengths] for _ in "kv"]
    for s, n in enumerate(lengths):
        for page in range(pages[s]):
            table[s, page] = next(free)
        for j in range(n):
            for cache, part in zip(caches, parts):
                cache[table[s, j // page_size], j % page_size] = part[s][j]
    return caches, table, parts


@pytest.mark.parametrize("as_numpy", [False, True])
def test_used_rows_of_flash_attn_3(torch, as_numpy):
    """Only the first rows of each sequence are used, and the mask aligns with the last used row."""
    caches, table, parts = paged(torch)
    lengths, used = torch.tensor([5, 9], dtype=torch.int32), torch.tensor([2, 0], dtype=torch.int32)
    q, cu = torch.randn(7, 4, 16), torch.tensor([0, 4, 7], dtype=torch.int32)
    q[2:] = float("nan")
    sinks = torch.randn(4)
    given = (q, *caches, cu)
    options = {"seqused_q": used, "seqused_k": lengths, "page_table": table, "s_aux": sinks}
    if as_numpy:
        given, options = [x.numpy() for x in given], {name: x.numpy() for name, x in options.items()}
    out, lse = DOORS["3"](*given, None, 4, 9, causal=True, return_attn_probs=True, **options)
    out, lse = torch.as_tensor(out), torch.as_tensor(lse)
    keys = [x[0].transpose(0, 1)[None].double() for x in parts]
    want, want_lse = attend.attention(
        q[:2].transpose(0, 1)[None].double(), *keys, causal=True, sinks=sinks.double(), return_lse=True
    )
    torch.testing.assert_close(out[:2].double(), want[0].transpose(0, 1), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(lse[:, :2].double(), want_lse[0], atol=1e-5, rtol=1e-5)
    assert not out[2:].any() and torch.allclose(lse[:, 2:], sinks[:, None].expand(4, 5))


def test_vllm_of_packed_keys_and_of_a_cache_in_one_piece(torch):
    run = DOORS["vllm"]
    q, k, v = torch.randn(7, 4, 16), torch.randn(11, 2, 16), torch.randn(11, 2, 16)
    cu_q, cu_k = (torch.tensor(x, dtype=torch.int32) for x in ([0, 4, 7], [0, 5, 11]))
    want, want_lse = attend.attention_varlen(q, k, v, cu_q, cu_k, 4, 6, causal=True, window=(3, -1), return_lse=True)
    out = torch.full_like(q, float("nan"))
    found, lse = run(
        q, k, v, 4, cu_q, 6, cu_k, causal=True, window_size=[3, -1], out=out, return_softmax_lse=True, fa_version=4
    )
    assert found is out and torch.equal(out, want) and torch.equal(lse, want_lse)
    caches = [torch.full((2, 8, 2, 16), float("nan")) for _ in "kv"]
    for cache, x in zip(caches, (k, v)):
        cache[0, :5], cache[1, :6] = x[:5], x[5:]
    lengths = torch.tensor([5, 6], dtype=torch.int32)
    found = run(q, *caches, 4, cu_q, 6, seqused_k=lengths, causal=True, window_size=[3, -1])
    torch.testing.assert_close(found, want, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("heads_first", [False, True])
def test_vllm_writes_rows_into_slots(torch, dtype, heads_first):
    dtype = getattr(torch, dtype)
    shape = (4, 2, 3, 16) if heads_first else (4, 3, 2, 16)  # three tokens per page
    caches = [torch.full(shape, 7.0, dtype=dtype) for _ in "kv"]
    views = [x.transpose(1, 2) for x in caches] if heads_first else caches
    qkv = torch.randn(6, 3, 2, 16).to(dtype)  # key and value are parts of qkv and therefore not contiguous
    qkv[5:] = float("nan")  # padding after the rows that have slots
    slots = torch.tensor([11, -1, 0, 4, 5])
    vllm_flash_attn.reshape_and_cache_flash(qkv[:, 1], qkv[:, 2], *views, slots, "auto", torch.ones(()), torch.ones(()))
    for view, x in zip(views, (qkv[:, 1], qkv[:, 2])):
        want = torch.full((12, 2, 16), 7.0, dtype=dtype)
        want[[11, 0, 4, 5]] = x[[0, 2, 3, 4]]
        assert torch.equal(view.reshape(12, 2, 16), want)


@pytest.mark.parametrize("as_numpy", [False, True])
@pytest.mark.parametrize("with_context", [None, 0, 3, 5])
def test_vllm_merges_a_prefix(torch, with_context, as_numpy):
    q, k, v = torch.randn(5, 4, 16), torch.randn(12, 4, 16), torch.randn(12, 4, 16)
    rows = lambda x: x.transpose(0, 1)[None]
    part = lambda keys: [x[0] for x in attend.attention(rows(q), rows(k[keys]), rows(v[keys]), return_lse=True)]
    prefix, prefix_lse = part(slice(0, 7))
    suffix, suffix_lse = part(slice(7, None))
    wide = [x.double() for x in (q, k, v)]
    scores = torch.einsum("qhd,khd->hqk", wide[0], wide[1]) * 16**-0.5
    whole_lse = scores.logsumexp(-1)
    whole = torch.einsum("hqk,khd->qhd", scores.softmax(-1), wide[2])
    prefix, suffix = prefix.transpose(0, 1).contiguous(), suffix.transpose(0, 1).contiguous()
    count = 5 if with_context is None else with_context
    prefix[count:], prefix_lse[:, count:] = float("nan"), float("nan")
    if count == 5:
        # These rows see no key in the prefix. Their lse is -inf as in attend, or +inf as in flash-attn 2.
        prefix_lse[0, 1], prefix_lse[1, 1], prefix[1, :2] = float("-inf"), float("inf"), float("nan")
        whole[1, :2], whole_lse[:2, 1] = suffix[1, :2].double(), suffix_lse[:2, 1].double()
    whole[count:], whole_lse[:, count:] = suffix[count:].double(), suffix_lse[:, count:].double()
    output, lse = torch.full((5, 4, 16), float("nan")), torch.full((4, 5), float("nan"))
    given = [output, prefix, prefix_lse, suffix, suffix_lse, lse]
    if as_numpy:
        given = [x.numpy() for x in given]
    assert vllm_flash_attn.merge_attn_states(*given, with_context) is None
    torch.testing.assert_close(output.double(), whole, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(lse.double(), whole_lse, atol=1e-5, rtol=1e-5)
    again = torch.full_like(output, float("nan"))
    vllm_flash_attn.merge_attn_states(again, *(torch.as_tensor(x) for x in given[1:5]), None, with_context)
    assert torch.equal(again, output)


@pytest.mark.parametrize("door", [flash_attn_3, vllm_flash_attn])
def test_metadata_costs_nothing_and_is_ignored(torch, door):
    lengths = torch.tensor([3, 4], dtype=torch.int32)
    found = door.get_scheduler_metadata(2, 1, 4, 4, 2, 16, lengths, page_size=4, causal=True)
    assert found.dtype == torch.int32 and found.numel() == 0 and found.device == lengths.device
    assert door.get_scheduler_metadata(2, 1, 4, 4, 2, 16, lengths.numpy()).dtype == np.int32
    with pytest.raises(ValueError, match="^cache_seqlens: list, allowed an array"):
        door.get_scheduler_metadata(2, 1, 4, 4, 2, 16, [3, 4])
    caches, table, _ = paged(torch)
    q, cu = torch.randn(2, 4, 16), torch.tensor([0, 1, 2], dtype=torch.int32)
    options = {"seqused_k": lengths, "block_table": table, "max_seqlen_q": 1, "max_seqlen_k": 4, "cu_seqlens_q": cu}
    options |= {"cu_seqlens_k": None}
    run = door.flash_attn_varlen_func
    assert torch.equal(run(q, *caches, **options, scheduler_metadata=found), run(q, *caches, **options))


def test_vllm_versions():
    assert [vllm_flash_attn.is_fa_version_supported(n) for n in (1, 2, 3, 4)] == [False, True, True, True]
    assert vllm_flash_attn.fa_version_unsupported_reason(3) is None
    assert vllm_flash_attn.fa_version_unsupported_reason(1) == "fa_version: 1, allowed 2, 3 or 4"


BY_ALL = {
    "gradients": ({"q": "grad"}, NotImplementedError, "q: requires grad, decode gives no gradients"),
    "k": ({"k": "grad"}, NotImplementedError, "k: requires grad, decode gives no gradients"),
    "no k": ({"k": None}, ValueError, "k: None, allowed an array"),
    "cu_seqlens_q": ({"cu_seqlens_q": None}, ValueError, "cu_seqlens_q: None, allowed an array i32 (sequences + 1)"),
    "window": ({"window_size": (3,)}, ValueError, "window_size: 1 values, allowed (left, right)"),
    "scale": ({"softmax_scale": float("nan")}, ValueError, "softmax_scale: nan, allowed"),
    "v": ({"v": "flat"}, ValueError, "v: 3 dimensions, allowed 4"),
}
BY_2 = {
    "dropout": ({"dropout_p": 0.1}, NotImplementedError, "dropout_p with block_table: 0.1, attend supports"),
    "no lengths": ({"cu_seqlens_k": None}, ValueError, "cu_seqlens_k: None with block_table, allowed an array i32"),
    "lengths": ({"cu_seqlens_k": "short"}, ValueError, "cu_seqlens_k: shape (2,), allowed that of cu_seqlens_q, (3,)"),
    "list": ({"cu_seqlens_k": [0, 5, 9]}, ValueError, "cu_seqlens_k: list, allowed an array"),
    "array": ({"cu_seqlens_k": "numpy"}, ValueError, "cu_seqlens_k: ndarray, allowed an array of the framework of"),
    "dtype": ({"cu_seqlens_k": "long"}, ValueError, "cu_seqlens_k: dtype i64, allowed i32"),
    "table": ({"block_table": "flat"}, ValueError, "block_table: "),
}
BY_3 = {
    "two tables": ({"block_table": "table"}, ValueError, "block_table: given with page_table, allowed one of the two"),
    "qv": ({"qv": "flat"}, NotImplementedError, "qv: Tensor, attend supports None only"),
    "descale": ({"k_descale": "flat"}, NotImplementedError, "k_descale: Tensor, attend supports None only"),
    "sinks": ({"s_aux": "long"}, ValueError, "s_aux: dtype i64, allowed"),
    "lengths": ({"seqused_k": "short", "seqused_q": "few"}, ValueError, "seqused_k: (1,), allowed an array i32"),
    "more": ({"seqused_k": "short"}, ValueError, "seqused_k: shape (1), allowed (2)"),
    "used": ({"seqused_q": "many"}, ValueError, "seqused_q: 5 of sequence 0, allowed 0 to its length, 3"),
}
BY_VLLM = {
    "q_v": ({"q_v": "flat"}, NotImplementedError, "q_v: Tensor, attend supports None only"),
    "dropout": ({"dropout_p": 0.1}, NotImplementedError, "dropout_p: 0.1, attend supports 0.0"),
    "pattern": (
        {"return_attn_probs": True},
        NotImplementedError,
        "return_attn_probs: True, attend supports False only",
    ),
    "ranks": ({"cp_world_size": 2}, NotImplementedError, "cp_world_size: 2, attend supports 1 only"),
    "8 bits": ({"k": "fp8"}, NotImplementedError, "k: dtype torch.float8_e4m3fn, attend supports 16 bits or more only"),
    "output_scale": ({"output_scale": 1.0}, NotImplementedError, "output_scale: 1.0, attend supports None only"),
    "mask_mod": ({"mask_mod": len}, NotImplementedError, "mask_mod: "),
    "version": ({"fa_version": 5}, ValueError, "fa_version: 5, allowed 2, 3 or 4"),
    "both": ({"cu_seqlens_k": "table"}, ValueError, "seqused_k: given with cu_seqlens_k, allowed one of the two"),
    "neither": ({"seqused_k": None}, ValueError, "seqused_k: None without cu_seqlens_k, allowed one of the two"),
    "offsets": ({"seqused_k": None, "cu_seqlens_k": "cu"}, ValueError, "seqused_k: None with block_table, allowed"),
    "out": ({"out": "flat"}, ValueError, "out: "),
    "sinks": ({"s_aux": "long"}, ValueError, "s_aux: dtype i64, allowed"),
}


@pytest.mark.parametrize("door, name", [
    *((door, name) for door in DOORS for name in BY_ALL), *(("2", name) for name in BY_2),
    *(("3", name) for name in BY_3), *(("vllm", name) for name in BY_VLLM),
])  # fmt: skip
def test_what_is_refused_has_the_doors_names(torch, door, name):
    change, kind, start = {**BY_ALL, **{"2": BY_2, "3": BY_3, "vllm": BY_VLLM}[door]}[name]
    caches, table, _ = paged(torch)
    cu, cu_k = (torch.tensor(x, dtype=torch.int32) for x in ([0, 3, 4], [0, 5, 14]))
    lengths = torch.tensor([5, 9], dtype=torch.int32)
    given = {"q": torch.randn(4, 4, 16), "k": caches[0], "v": caches[1], "cu_seqlens_q": cu, "max_seqlen_q": 3}
    given["max_seqlen_k"] = 9
    own = {"2": {"cu_seqlens_k": cu_k, "block_table": table},
           "3": {"cu_seqlens_k": None, "seqused_k": lengths, "page_table": table},
           "vllm": {"seqused_k": lengths, "block_table": table}}  # fmt: skip
    stand_ins = {
        "grad": lambda x: x.clone().requires_grad_(), "flat": lambda x: torch.zeros(3, 2, 16),
        "long": lambda x: cu_k.long(), "short": lambda x: x[:-1], "numpy": lambda x: x.numpy(),
        "table": lambda x: table, "few": lambda x: torch.tensor([2, 1], dtype=torch.int32),
        "many": lambda x: torch.tensor([5, 1], dtype=torch.int32), "fp8": lambda x: x.to(torch.float8_e4m3fn),
        "cu": lambda x: cu_k,
    }  # fmt: skip
    given |= own[door]
    given |= {
        key: stand_ins[x](given.get(key)) if isinstance(x, str) and x in stand_ins else x for key, x in change.items()
    }
    with pytest.raises(attend.Error) as caught:
        DOORS[door](**given)
    assert isinstance(caught.value, kind) and "\n" not in str(caught.value)
    assert str(caught.value).startswith(start)


def test_vllm_names_what_cannot_be_written_or_merged(torch):
    cache, rows, slots = torch.zeros(2, 4, 2, 16), torch.zeros(3, 2, 16), torch.tensor([0, 1, 2])
    write = vllm_flash_attn.reshape_and_cache_flash
    o, lse = torch.zeros(3, 2, 16), torch.zeros(2, 3)
    merge = vllm_flash_attn.merge_attn_states
    eight = torch.float8_e4m3fn
    cases = [
        (
            "kv_cache_dtype: 'fp8', attend supports 'auto'",
            lambda: write(rows, rows, cache, cache.clone(), slots, "fp8"),
        ),
        ("value_cache: dtype torch.float8", lambda: write(rows, rows, cache, cache.to(eight), slots, "auto")),
        ("key: 4 dimensions, allowed 3", lambda: write(rows[None], rows, cache, cache.clone(), slots, "auto")),
        ("value_cache: shape", lambda: write(rows, rows[..., :8], cache, cache.clone(), slots, "auto")),
        ("slot_mapping: dtype i32, allowed i64", lambda: write(rows, rows, cache, cache.clone(), slots.int(), "auto")),
        ("slot_mapping: list, allowed an array", lambda: write(rows, rows, cache, cache, [0, 1, 2], "auto")),
        ("value_cache: None, allowed", lambda: write(rows, rows, cache, None, slots, "auto")),
        ("output_scale: 1.0, attend supports None", lambda: merge(o, o, lse, o, lse, output_scale=1.0)),
        ("output: shape (2, 2, 16), allowed (3, 2, 16)", lambda: merge(o[:2], o, lse, o, lse)),
        ("output_lse: shape (3, 2), allowed (2, 3)", lambda: merge(o, o, lse, o, lse, lse.T)),
        ("prefix_lse: ", lambda: merge(o, o, lse[:, :2], o, lse)),
        ("prefix_output: ", lambda: merge(o, o.long(), lse, o, lse)),
        ("suffix_lse: shape (1, 3), allowed (2, 3)", lambda: merge(o, o, lse, o, lse[:1])),
        ("prefix_output: None, allowed an array", lambda: merge(o, None, lse, o, lse)),
        ("prefill_tokens_with_context: 4, allowed 0 to", lambda: merge(o, o, lse, o, lse, None, 4)),
    ]
    for line, call in cases:
        with pytest.raises(attend.Error) as caught:
            call()
        assert str(caught.value).startswith(line) and "\n" not in str(caught.value), caught.value
    assert not cache.any() and not o.any()
