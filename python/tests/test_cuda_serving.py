"""Tests of decode, append and merge of torch tensors on a GPU: comparison with float64, streams and graphs, direct
calls and operators.
"""

import cache_problems
import covering
import pytest
from conftest import SEED
from oracle import Problem, Result, check, solve

np = pytest.importorskip("numpy")
pytest.importorskip("ml_dtypes")
torch_here = pytest.importorskip(
    "torch", reason=f"the tests of {__name__} need torch: `make py-test ATTEND_TEST_TORCH=1` installs it"
)

import attend
from append_problems import OPTIONS as APPENDS
from append_problems import AppendProblem

pytestmark = pytest.mark.skipif(not torch_here.cuda.is_available(), reason="no GPU here")

# Only few head_dims, because for each head_dim and dtype a kernel must be compiled.
CACHES = cache_problems.OPTIONS | {"head_dims": [(64, 64), (40, 24), (48, None)]}
CASES = covering.cases(CACHES, SEED)
APPEND_CASES = covering.cases(APPENDS, SEED)[::3]
SPIN_CYCLES = 100_000_000  # about 50 ms, so that work which starts too early reads the old values


def on_gpu(torch, x):
    """Copies an array of a problem to the GPU. Views of caches keep their strides."""
    if isinstance(x, attend.Rotary):
        return attend.Rotary(*(on_gpu(torch, y) for y in x))
    if isinstance(x, np.ndarray):
        cpu = cache_problems.as_torch(torch, x)
        return torch.empty_strided(cpu.shape, cpu.stride(), dtype=cpu.dtype, device="cuda").copy_(cpu)
    return x


def as_numpy(torch, x, like):
    if like.dtype.name == "bfloat16":
        return x.cpu().view(torch.uint16).numpy().view(like.dtype)
    return x.cpu().numpy()


@pytest.mark.parametrize("index", range(len(CASES)))
def test_decode_against_float64(torch, index):
    p = cache_problems.make(CASES[index], np.random.default_rng([SEED, index]))
    given = [on_gpu(torch, x) for x in (p.q, p.k_cache, p.v_cache)]
    options = {name: on_gpu(torch, x) for name, x in p.options.items()}
    o, lse = attend.decode(*given, return_lse=True, **options)
    assert o.device == given[0].device and o.dtype == given[0].dtype and lse.dtype == torch.float32
    o, lse = as_numpy(torch, o, p.q), lse.cpu().numpy()
    for s, want in enumerate(p.truth()):
        found_o, found_lse = p.part(o, s), p.part(lse, s, is_lse=True)
        if want is None:
            assert not found_o.any() and np.all(np.isneginf(found_lse))
            continue
        check("o", found_o, want["o"], p.case["dtype"], by_tensor_cores=True)
        unit = np.log(2.0) if p.options["lse_base2"] else 1.0
        check("lse", found_lse, Result(want["lse"].value / unit, want["lse"].magnitude / unit), "f32")


def small(torch, page_size=16, dtype=None):
    """Returns the arguments of a call with three sequences. Each time the memory is new and the numbers are the
    same.
    """
    generator = torch.Generator("cuda").manual_seed(SEED)

    def normal(*shape):
        return torch.randn(shape, device="cuda", generator=generator).to(dtype or torch.bfloat16)

    blocks = (30, page_size) if page_size else (3, 160)
    given = {"q": normal(3, 8, 1, 64), "k_cache": normal(blocks[0], 2, blocks[1], 64)}
    given |= {"v_cache": normal(blocks[0], 2, blocks[1], 64)}
    given["seqlens_k"] = torch.tensor([150, 7, 81], dtype=torch.int32, device="cuda")
    if page_size:
        given["page_table"] = torch.randperm(30, device="cuda", generator=generator).to(torch.int32).view(3, 10)
    return given


@pytest.mark.parametrize("page_size", [0, 16])
def test_both_routes_give_the_same_bits(torch, page_size):
    given = small(torch, page_size)
    direct = attend.decode(**given, return_lse=True)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        by_operator = attend.decode(**given, return_lse=True)
    assert any(event.name == "attend::decode" for event in profile.events())
    assert all(map(torch.equal, direct, by_operator))
    out = torch.full_like(given["q"], float("nan"))
    assert attend.decode(**given, out=out) is out and torch.equal(out, direct[0])


def test_a_number_stands_for_all_lengths_and_nothing_for_the_capacity(torch):
    given = small(torch)
    full = given | {"seqlens_k": torch.full_like(given["seqlens_k"], 160)}
    want = attend.decode(**full)
    assert torch.equal(attend.decode(**given | {"seqlens_k": 160}), want)
    assert torch.equal(attend.decode(**given | {"seqlens_k": None}), want)


def test_works_in_torchs_current_stream(torch):
    """Work on a side stream writes the inputs late. If attend used another stream, it would read the old values."""
    given = small(torch)
    want = attend.decode(**given, return_lse=True)
    values = {name: given[name].clone() for name in ("q", "k_cache", "v_cache")}
    for name in values:
        given[name].fill_(float("nan"))
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(SPIN_CYCLES)
        for name, value in values.items():
            given[name].copy_(value)
        found = attend.decode(**given, return_lse=True)
        assert not stream.query(), "the call waited for the GPU"
    stream.synchronize()
    assert all(map(torch.equal, found, want))


def test_a_call_does_not_wait_for_the_gpu(torch):
    given = small(torch)
    new = {name: given["k_cache"][:3, :, :1].clone() for name in ("k", "v")}
    calls = (
        lambda: attend.decode(**given, return_lse=True),
        lambda: attend.decode(**given, **new),
        lambda: attend.append(**new, **{name: x for name, x in given.items() if name != "q"}),
        lambda: attend.merge([attend.decode(**given, return_lse=True)] * 2, return_lse=True),
    )
    for call in calls:
        call()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for call in calls:
            call()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("with_new_keys", [False, True])
def test_a_graph_follows_lengths_and_tables(torch, with_new_keys):
    given = small(torch)
    new = {name: torch.randn(3, 2, 1, 64, device="cuda").bfloat16() for name in ("k", "v")} if with_new_keys else {}
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):  # torch requires a warm-up on a side stream
        for _ in range(2):
            attend.decode(**given, **new, return_lse=True)
    side.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = attend.decode(**given, **new, return_lse=True)
    for lengths in ([150, 7, 81], [0, 159, -1], [16, 15, 17]):
        given["seqlens_k"].copy_(torch.tensor(lengths, dtype=torch.int32))
        given["page_table"].copy_(given["page_table"].flip(0))
        for x in found:
            x.fill_(float("nan"))
        graph.replay()
        assert all(map(torch.equal, found, attend.decode(**given, **new, return_lse=True))), lengths


@pytest.mark.parametrize("cache_dtype", ["float8_e4m3fn", "int8"])
def test_caches_of_8_bits(torch, cache_dtype):
    given = small(torch)
    narrow, factors = dict(given), {}
    for name in ("k_cache", "v_cache"):
        values = (given[name].float() / 0.03).clamp(-127, 127)
        narrow[name] = (values.round() if cache_dtype == "int8" else values).to(getattr(torch, cache_dtype))
        factors[f"{name[0]}_descale"] = torch.full((2,), 0.03, device="cuda")
        given[name] = (narrow[name].float() * 0.03).double()  # the numbers that the 8-bit elements represent
    found = attend.decode(**narrow, **factors)
    cpu = {name: x.cpu() for name, x in given.items()}
    want = attend.decode(**cpu | {"q": cpu["q"].double()}, compute="reference")
    torch.testing.assert_close(found.cpu().double(), want, rtol=2**-7, atol=2e-3)


@pytest.mark.parametrize("index", range(len(APPEND_CASES)))
def test_append_gives_the_bytes_of_the_cpu(torch, index):
    """CPU and GPU compute rows in float32 by the same formula. Rows that are only copied have equal bits. Other rows
    may differ by one unit in the last place.
    """
    p = AppendProblem(APPEND_CASES[index], np.random.default_rng([SEED, index]))
    given = p.arguments()
    found = {name: on_gpu(torch, x) for name, x in given.items()}
    want = {name: cache_problems.as_torch(torch, x.copy() if isinstance(x, np.ndarray) else x)
            for name, x in given.items() if name != "rotary"}  # fmt: skip
    if "rotary" in given:
        want["rotary"] = attend.Rotary(*(cache_problems.as_torch(torch, x) for x in given["rotary"]))
    q_out, q_want = attend.append(**found), attend.append(**want)
    pairs = [(found[name], want[name]) for name in ("k_cache", "v_cache") if name in want]
    for x, y in [*pairs, *([] if q_want is None else [(q_out, q_want)])]:
        unit = torch.finfo(y.dtype).eps
        torch.testing.assert_close(x.cpu(), y, rtol=2 * unit, atol=2**-20, equal_nan=True)


def test_new_keys_in_one_call_are_one_call_after_the_other(torch):
    given, other = small(torch), small(torch)
    angles = torch.arange(200 * 32, device="cuda").reshape(200, 32) * 0.01
    new = {name: torch.randn(3, 2, 2, 64, device="cuda").bfloat16() for name in ("k", "v")}
    new["rotary"] = attend.Rotary(angles.cos(), angles.sin())
    found = attend.decode(**given, **new)
    q = attend.append(**new, **other)
    want = attend.decode(**other | {"q": q, "seqlens_k": other["seqlens_k"] + 2})
    assert torch.equal(found, want) and torch.equal(given["k_cache"], other["k_cache"])


def test_merged_parts_against_float64(torch):
    p = Problem(*(np.random.default_rng(SEED + n).standard_normal(x).astype(np.float32)
                  for n, x in enumerate(((2, 4, 5, 64), (2, 2, 90, 64), (2, 2, 90, 64)))))  # fmt: skip
    q, k, v = (on_gpu(torch, x) for x in (p.q, p.k, p.v))
    cuts = ((0, 30), (30, 30), (30, 90))
    states = [attend.decode(q, k[:, :, a:b], v[:, :, a:b], causal=False, return_lse=True) for a, b in cuts if a < b]
    states.insert(1, (torch.full_like(states[0][0], float("nan")), torch.full_like(states[0][1], float("-inf"))))
    o, lse = attend.merge(states, return_lse=True)
    truth = solve(p)
    check("o", o.cpu().numpy(), truth["o"], "f32", by_tensor_cores=True)
    check("lse", lse.cpu().numpy(), truth["lse"], "f32")


@pytest.mark.skipif(torch_here.cuda.device_count() < 2, reason="one GPU, wanted two")
def test_tensors_on_a_gpu_that_is_not_current(torch):
    given = small(torch)
    want = attend.decode(**given, return_lse=True)
    there = {name: x.to("cuda:1") for name, x in given.items()}
    assert torch.cuda.current_device() == 0
    found = attend.decode(**there, return_lse=True)
    assert torch.cuda.current_device() == 0 and all(x.device.index == 1 for x in found)
    assert all(torch.equal(a.cpu(), b.cpu()) for a, b in zip(found, want))


def test_arrays_on_two_devices_are_refused(torch):
    given = small(torch)
    with pytest.raises(ValueError, match="^seqlens_k: on "):
        attend.decode(**given | {"seqlens_k": given["seqlens_k"].cpu()})
    with pytest.raises(ValueError, match="^k_cache: on cpu"):
        attend.decode(**given | {"k_cache": given["k_cache"].cpu()})
