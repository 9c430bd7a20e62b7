"""The direct route of attend.decode and attend.append: which calls take it, and that it gives what Python's way gives.

Python's way is the rest of the two functions, which a call takes for which _core.decode_of_options or
_core.append_of_options gives None.
"""

import inspect

import append_problems
import cache_problems
import covering
import pytest
from conftest import SEED

np = pytest.importorskip("numpy")
pytest.importorskip("ml_dtypes")
pytest.importorskip(
    "torch", reason=f"the tests of {__name__} need torch: `make py-test ATTEND_TEST_TORCH=1` installs it"
)

import attend
import attend.torch
from attend import _core, flash_attn, flash_attn_3
from attend.torch import _direct

OF = {attend.decode: "decode_of_options", attend.append: "append_of_options"}
DECODES = covering.cases(cache_problems.OPTIONS, SEED)
APPENDS = covering.cases(append_problems.OPTIONS, SEED)

needs_exchange_table = pytest.mark.skipif(
    not _direct.HAS_EXCHANGE_TABLE, reason="torch has no table of C functions: no call takes the direct route"
)


def as_torch(torch, x):
    if isinstance(x, attend.Rotary):
        return attend.Rotary(*(as_torch(torch, part) for part in x))
    if not isinstance(x, np.ndarray):
        return x
    if x.dtype == np.uint64:
        return torch.from_numpy(x.astype(np.int64))
    if x.dtype.name != "bfloat16":
        return torch.from_numpy(x)
    return torch.from_numpy(x.view(np.uint16)).view(torch.bfloat16)


def bits(torch, x):
    """What tells two results or arguments apart: of a tensor its kind and its memory, NaN as it is."""
    if isinstance(x, (tuple, list)):
        return tuple(bits(torch, part) for part in x)
    if not isinstance(x, torch.Tensor):
        return x.tobytes() if isinstance(x, np.ndarray) else x
    if x.layout != torch.strided or x.is_meta:
        return x.dtype, x.shape, x.layout, x.device
    memory = x.detach().resolve_neg().cpu().clone(memory_format=torch.contiguous_format).reshape(-1)
    return x.dtype, x.shape, x.stride(), x.device, memory.view(torch.uint8).numpy().tobytes()


def outcome(torch, function, arguments):
    """The result of a call or the refusal in its words, then all that the call may have written."""
    try:
        found = bits(torch, function(**arguments))
    except attend.Error as error:
        found = type(error), str(error)
    versions = {name: x._version for name, x in arguments.items() if type(x) is torch.Tensor and not x.is_inference()}
    return found, {name: bits(torch, x) for name, x in arguments.items()}, versions


@pytest.fixture
def compare(torch, monkeypatch):
    """compare(function, make): both ways give the same for the arguments `make()`. Whether the first was direct."""

    def compare(function, make, door=None):
        name, ways = OF[function], []
        taken = []
        library = getattr(_core, name)
        for is_direct in (True, False):
            with monkeypatch.context() as patch:
                way = (lambda *a: taken.append(library(*a)) or taken[-1]) if is_direct else (lambda *a: None)
                patch.setattr(_core, name, way)
                ways.append(outcome(torch, function if door is None else door, make()))
        assert ways[0] == ways[1]
        return bool(taken) and taken[-1] is not None

    return compare


@pytest.mark.parametrize("function", OF)
def test_options_are_handed_over_in_the_order_of_the_signature(torch, monkeypatch, function):
    marks = {name: object() for name in function.__kwdefaults__}
    seen = []
    monkeypatch.setattr(_core, OF[function], lambda *call: seen.append(call[-1]) or ("taken",))
    positional = len(inspect.signature(function).parameters) - len(marks)
    assert function(*[torch.zeros(1)] * positional, **marks) in ("taken", ("taken",))
    assert seen == [tuple(marks.values())]


@needs_exchange_table
@pytest.mark.parametrize("index", range(0, len(DECODES), 2))
def test_decode_over_a_covering_array(torch, compare, index):
    p = cache_problems.make(DECODES[index], np.random.default_rng([SEED, index]))
    arguments = {"q": p.q, "k_cache": p.k_cache, "v_cache": p.v_cache, "return_lse": index % 4 == 0, **p.options}
    arguments = {name: as_torch(torch, x) for name, x in arguments.items()}
    shape = (*p.q.shape[:-1], arguments["head_dim_v"] if p.v_cache is None else p.v_cache.shape[-1])

    def with_out():
        room = torch.full((*shape[:-1], shape[-1] + 3), 7, dtype=arguments["q"].dtype)
        return arguments | {"out": room[..., : shape[-1]]}

    for make in (lambda: dict(arguments), with_out):
        assert compare(attend.decode, make)


@needs_exchange_table
@pytest.mark.parametrize("index", range(0, len(APPENDS), 2))
def test_append_over_a_covering_array(torch, compare, index):
    def make(in_place=False):
        p = append_problems.AppendProblem(APPENDS[index], np.random.default_rng([SEED, index]))
        arguments = {name: as_torch(torch, x) for name, x in p.arguments().items()}
        return arguments | {"q_out": arguments["q"]} if in_place else arguments

    assert compare(attend.append, make)
    if APPENDS[index]["queries"]:
        assert compare(attend.append, lambda: make(in_place=True))


def small(torch, device="cpu", dtype=None, page_size=0):
    """q (2, 4, 1, 8), caches of 2 rows or 8 pages, seqlens_k (2), in new memory with the same numbers each time."""
    generator = torch.Generator().manual_seed(SEED)
    shape = (8, 2, page_size, 8) if page_size else (2, 2, 20, 8)
    given = {
        name: torch.randn(s, generator=generator).to(device, dtype or torch.float32)
        for name, s in (("q", (2, 4, 1, 8)), ("k_cache", shape), ("v_cache", shape))
    }
    given["seqlens_k"] = torch.tensor([10, 13], dtype=torch.int32, device=device)
    if page_size:
        given["page_table"] = torch.tensor([[3, 1, 0, 2], [7, 4, 6, 5]], dtype=torch.int32, device=device)
    return given


def new_keys(torch, device="cpu", rows=2):
    generator = torch.Generator().manual_seed(SEED + 1)
    k, v = (torch.randn(2, 2, rows, 8, generator=generator).to(device) for _ in range(2))
    return {"k": k, "v": v}


def rotary(torch, device="cpu", **fields):
    angles = torch.arange(160.0, device=device).reshape(40, 4)
    return attend.Rotary(angles.cos(), angles.sin(), **fields)


def packed(given):
    """One row of q for each sequence, and offsets."""
    return given | {"q": given["q"][:, :, 0], "cu_seqlens_q": given["seqlens_k"].new_tensor([0, 1, 2])}


# Usual calls: what differs from decode(**small()).
USUAL = {
    "nothing": lambda torch, x: {},
    "capacity": lambda torch, x: {"seqlens_k": None},
    "a number": lambda torch, x: {"seqlens_k": 7},
    "a number of dead sequences": lambda torch, x: {"seqlens_k": -1},
    "a number of packed rows": lambda torch, x: packed(x) | {"seqlens_k": 7},
    "packed": lambda torch, x: packed(x),
    "packed with a bound": lambda torch, x: packed(x) | {"max_seqlen_q": 1, "return_lse": True},
    "bshd": lambda torch, x: (
        {"layout": "bs" + "hd"}
        | {name: x[name].transpose(1, 2) for name in ("q", "k_cache")}
        | {"v_cache": x["v_cache"].transpose(1, 2)}
    ),
    "columns of the keys": lambda torch, x: {"v_cache": None, "head_dim_v": 5, "return_lse": True},
    "a width that is right": lambda torch, x: {"head_dim_v": 8},
    "narrow values": lambda torch, x: {"v_cache": x["v_cache"][..., :4], "return_lse": True},
    "window of None": lambda torch, x: {"window": (3, None)},
    "window in a list": lambda torch, x: {"window": [-1, 2], "causal": False},
    "numbers": lambda torch, x: {"scale": 1, "softcap": 3, "causal": 1, "lse_base2": True, "return_lse": 1},
    "numbers of NumPy": lambda torch, x: {"scale": np.float64(0.3), "softcap": np.float64(3)},
    "no rows": lambda torch, x: {"q": x["q"][:, :, :0], "return_lse": True},
    "no sequences": lambda torch, x: {"q": x["q"][:0], "seqlens_k": 3, "return_lse": True},
    "parameters": lambda torch, x: {"q": torch.nn.Parameter(x["q"], requires_grad=False)},
    "reference": lambda torch, x: {"compute": "reference"},
    "float64": lambda torch, x: {name: x[name].double() for name in ("q", "k_cache", "v_cache")},
    "options of heads": lambda torch, x: {"sinks": x["q"][0, :, 0, 0], "alibi_slopes": x["q"][:, :, 0, 0].abs()},
    "new keys": lambda torch, x: new_keys(torch),
    "new keys at a number": lambda torch, x: new_keys(torch) | {"seqlens_k": 4, "return_lse": True},
    "rotated keys": lambda torch, x: new_keys(torch) | {"rotary": rotary(torch), "query_positions": "first"},
    "rotated columns": lambda torch, x: (
        new_keys(torch)
        | {"rotary": rotary(torch, interleaved=True, seqlens=x["seqlens_k"] + 1), "k_norm": x["q"][0, 0, 0]}
    ),
    "slots": lambda torch, x: new_keys(torch) | {"slot_mapping": torch.tensor([[3, -1], [25, 26]])},
    "packed new keys": lambda torch, x: (
        packed(x)
        | {name: y.transpose(1, 2).flatten(0, 1) for name, y in new_keys(torch).items()}
        | {"cu_seqlens_new": torch.tensor([0, 1, 4], dtype=torch.int32)}
    ),
}


@needs_exchange_table
@pytest.mark.parametrize("page_size", [0, 5])
@pytest.mark.parametrize("name", USUAL)
def test_usual_calls_are_direct(torch, compare, name, page_size):
    def make():
        given = small(torch, page_size=page_size)
        return given | USUAL[name](torch, given)

    if name == "bshd" and page_size:
        assert make()["k_cache"].shape[1] == page_size
    assert compare(attend.decode, make)
    with torch.inference_mode():
        assert compare(attend.decode, make)
    with torch.autocast("cpu", torch.bfloat16):  # which changes nothing
        assert compare(attend.decode, make)


# Calls that Python resolves, with the same result.
UNUSUAL = {
    "a number of NumPy": lambda torch, x: {"seqlens_k": np.int32(7)},
    "a flag for a number": lambda torch, x: {"seqlens_k": True},
    "a tensor for a number": lambda torch, x: {"scale": torch.tensor(0.3), "softcap": torch.tensor(2.0)},
    "a width of NumPy": lambda torch, x: {"v_cache": None, "head_dim_v": np.int64(5)},
    "a window of NumPy": lambda torch, x: {"window": np.array([3, 0])},
    "columns of q apart": lambda torch, x: {"q": torch.stack([x["q"], x["q"]], -1)[..., 0]},
    "rows of q that are one": lambda torch, x: {"q": x["q"].expand(2, 4, 3, 8), "return_lse": True},
    "a subclass": lambda torch, x: {"q": x["q"].as_subclass(type("OfAUser", (torch.Tensor,), {}))},
    "a negated view": lambda torch, x: {"q": torch._neg_view(x["q"])},
}


@pytest.mark.parametrize("name", UNUSUAL)
def test_unusual_calls_give_the_same(torch, compare, name):
    def make():
        given = small(torch)
        return given | UNUSUAL[name](torch, given)

    is_direct = compare(attend.decode, make)
    assert not is_direct or name == "rows of q that are one"


# What is wrong, of decode.
WRONG = {
    "q None": lambda torch, x: {"q": None},
    "k_cache None": lambda torch, x: {"k_cache": None},
    "q dims": lambda torch, x: {"q": x["q"][0]},
    "q no dims": lambda torch, x: {"q": x["q"][0, 0, 0, 0]},
    "k_cache dims": lambda torch, x: {"k_cache": x["k_cache"][0]},
    "v_cache dims": lambda torch, x: {"v_cache": x["v_cache"][0]},
    "v_cache shape": lambda torch, x: {"v_cache": x["v_cache"][:, :, :5]},
    "dtypes": lambda torch, x: {"k_cache": x["k_cache"].half()},
    "heads": lambda torch, x: {"q": x["q"][:, :3], "out": None},
    "head_dim": lambda torch, x: {"q": x["q"][..., :4]},
    "few rows": lambda torch, x: {"k_cache": x["k_cache"][:1], "v_cache": x["v_cache"][:1]},
    "gaps": lambda torch, x: {"k_cache": torch.stack([x["k_cache"]] * 2, -1)[..., 0]},
    "no width": lambda torch, x: {"v_cache": None},
    "width 9": lambda torch, x: {"v_cache": None, "head_dim_v": 9},
    "width 0": lambda torch, x: {"v_cache": None, "head_dim_v": 0},
    "two widths": lambda torch, x: {"head_dim_v": 4},
    "width as text": lambda torch, x: {"head_dim_v": "8"},
    "layout thd": lambda torch, x: {"layout": "thd"},
    "layout of packed": lambda torch, x: packed(x) | {"layout": "thd", "out": None},
    "layout 3": lambda torch, x: {"layout": 3},
    "layout of no text": lambda torch, x: {"layout": "\ud800"},
    "lengths shape": lambda torch, x: {"seqlens_k": x["seqlens_k"][:1]},
    "lengths dtype": lambda torch, x: {"seqlens_k": x["seqlens_k"].long()},
    "lengths list": lambda torch, x: {"seqlens_k": [1, 2]},
    "lengths array": lambda torch, x: {"seqlens_k": np.ones(2, np.int32)},
    "length 2**31": lambda torch, x: {"seqlens_k": 2**31},
    "length 2**80": lambda torch, x: {"seqlens_k": -(2**80)},
    "length 1.5": lambda torch, x: {"seqlens_k": 1.5},
    "table dims": lambda torch, x: {"page_table": x["seqlens_k"]},
    "table rows": lambda torch, x: {"page_table": x["seqlens_k"][None]},
    "batch_idx": lambda torch, x: {"cache_batch_idx": x["seqlens_k"][:1]},
    "leftpad": lambda torch, x: {"cache_leftpad": x["seqlens_k"] * 1.0},
    "bound alone": lambda torch, x: {"max_seqlen_q": 3},
    "bound as text": lambda torch, x: {"max_seqlen_q": "3"},
    "offsets": lambda torch, x: packed(x) | {"cu_seqlens_q": x["seqlens_k"].new_tensor([0, 2, 1]), "out": None},
    "offsets dense": lambda torch, x: {"cu_seqlens_q": x["seqlens_k"].new_tensor([0, 1, 2])},
    "offsets no dims": lambda torch, x: packed(x) | {"cu_seqlens_q": x["seqlens_k"][0], "seqlens_k": 3, "out": None},
    "window": lambda torch, x: {"window": (-2, 0)},
    "window of three": lambda torch, x: {"window": (1, 2, 3)},
    "window None": lambda torch, x: {"window": None},
    "window of text": lambda torch, x: {"window": ("a", 0)},
    "scale": lambda torch, x: {"scale": float("inf")},
    "scale text": lambda torch, x: {"scale": "1"},
    "softcap": lambda torch, x: {"softcap": -1.0},
    "softcap None": lambda torch, x: {"softcap": None},
    "causal": lambda torch, x: {"causal": "yes"},
    "causal None": lambda torch, x: {"causal": None},
    "lse_base2": lambda torch, x: {"lse_base2": 3},
    "slopes": lambda torch, x: {"alibi_slopes": torch.ones(3)},
    "sinks": lambda torch, x: {"sinks": x["seqlens_k"]},
    "tree": lambda torch, x: {"tree_mask": x["seqlens_k"]},
    "compute": lambda torch, x: {"compute": "nobody"},
    "compute 3": lambda torch, x: {"compute": 3},
    "out shape": lambda torch, x: {"out": x["q"][:1].clone()},
    "out dims": lambda torch, x: {"out": x["q"][0].clone()},
    "out dtype": lambda torch, x: {"out": x["q"].half()},
    "out is q": lambda torch, x: {"out": x["q"]},
    "out gaps": lambda torch, x: {"out": torch.zeros(2, 4, 1, 8, 2)[..., 0]},
    "out repeated": lambda torch, x: {"out": x["q"][:1].clone().expand(2, 4, 1, 8)},
    "out list": lambda torch, x: {"out": [1]},
    "requires grad": lambda torch, x: {"k_cache": x["k_cache"].requires_grad_()},
    "meta": lambda torch, x: {"k_cache": x["k_cache"].to("meta")},
    "sparse": lambda torch, x: {"k_cache": x["k_cache"].to_sparse()},
    "negated cache": lambda torch, x: {"k_cache": torch._neg_view(x["k_cache"])},
    "positions alone": lambda torch, x: {"query_positions": "one"},
    "positions without k": lambda torch, x: {"positions": x["seqlens_k"]},
    "rotary without k": lambda torch, x: {"rotary": rotary(torch)},
    "bound without k": lambda torch, x: {"max_seqlen_new": 0},
    "norm without k": lambda torch, x: {"k_norm": x["q"][0, 0, 0]},
    "v without k": lambda torch, x: {"v": x["q"]},
    "k without v": lambda torch, x: new_keys(torch) | {"v": None},
    "k without lengths": lambda torch, x: new_keys(torch) | {"seqlens_k": None},
    "k of one sequence": lambda torch, x: {name: y[:1] for name, y in new_keys(torch).items()},
    "rotary tuple": lambda torch, x: new_keys(torch) | {"rotary": tuple(rotary(torch))},
    "rotary None": lambda torch, x: new_keys(torch) | {"rotary": attend.Rotary(None, torch.ones(4, 4))},
    "rotary flag": lambda torch, x: new_keys(torch) | {"rotary": rotary(torch, interleaved="no")},
    "rotary column": lambda torch, x: new_keys(torch) | {"rotary": rotary(torch, first_column=7)},
    "query_positions": lambda torch, x: new_keys(torch) | {"query_positions": "all"},
    "norm_eps": lambda torch, x: new_keys(torch) | {"norm_eps": -1.0},
}


@pytest.mark.parametrize("name", WRONG)
def test_refusals_are_the_same_and_nothing_is_written(torch, compare, name):
    def make():
        given = small(torch) | {"out": torch.full((2, 4, 1, 8), 7.0)}
        return given | WRONG[name](torch, given)

    check_refused(torch, compare, attend.decode, make)


def check_refused(torch, compare, function, make):
    arguments = make()
    before = {name: bits(torch, x) for name, x in arguments.items()}
    with pytest.raises(attend.Error):
        function(**arguments)
    assert {name: bits(torch, x) for name, x in arguments.items()} == before
    assert not compare(function, make)


def is_direct(torch, arguments, function=attend.decode):
    """Whether the library takes the call past Python."""
    names = [name for name in inspect.signature(function).parameters if name not in function.__kwdefaults__]
    options = tuple(arguments.get(name, default) for name, default in function.__kwdefaults__.items())
    return getattr(_core, OF[function])(*(arguments.get(name) for name in names), options) is not None


WRONG_APPENDS = {
    "k None": lambda torch, x: {"k": None},
    "k_cache None": lambda torch, x: {"k_cache": None},
    "k list": lambda torch, x: {"v": [1]},
    "no lengths": lambda torch, x: {"seqlens_k": None},
    "shape": lambda torch, x: {"v": x["v"][:, :, :1]},
    "layout thd": lambda torch, x: {"layout": "thd"},
    "packed": lambda torch, x: {"cu_seqlens_new": x["seqlens_k"].new_tensor([0, 1, 2])},
    "bound": lambda torch, x: {"max_seqlen_new": 3},
    "q_out without q": lambda torch, x: {"q_out": x["k"].clone()},
    "q_norm without q": lambda torch, x: {"q_norm": x["k"][0, 0, 0]},
    "offsets without q": lambda torch, x: {"cu_seqlens_q": x["seqlens_k"]},
    "bound without q": lambda torch, x: {"max_seqlen_q": 0},
    "positions without q": lambda torch, x: {"query_positions": "first"},
    "q no dims": lambda torch, x: {"q": x["k"][0, 0, 0, 0]},
    "q_out shape": lambda torch, x: {"q": x["k"].clone(), "q_out": x["k"][:1].clone()},
    "q_out is k": lambda torch, x: {"q": x["k"].clone(), "q_out": x["k"]},
    "caches": lambda torch, x: {"v_cache": x["k_cache"]},
    "slots": lambda torch, x: {"slot_mapping": torch.ones(2, 2, dtype=torch.int32)},
    "requires grad": lambda torch, x: {"v": x["v"].requires_grad_()},
}


@pytest.mark.parametrize("name", WRONG_APPENDS)
def test_refusals_of_append_are_the_same(torch, compare, name):
    def make():
        caches = {name: x for name, x in small(torch).items() if name != "q"}
        given = caches | new_keys(torch)
        return given | WRONG_APPENDS[name](torch, given)

    check_refused(torch, compare, attend.append, make)


@needs_exchange_table
def test_the_dispatcher_sees_what_is_for_it(torch, compare):
    """Modes, transforms, tracers and wrapped tensors take torch's way."""
    from torch._subclasses import FakeTensorMode

    given = small(torch)
    assert is_direct(torch, given)
    appended = given | new_keys(torch)
    assert is_direct(torch, {name: x for name, x in appended.items() if name != "q"}, attend.append)
    with torch.profiler.profile():
        assert not is_direct(torch, given)
    with torch.utils._python_dispatch.TorchDispatchMode():
        assert not is_direct(torch, given)
    with torch.overrides.TorchFunctionMode():
        assert not is_direct(torch, given)
    with torch.autograd.forward_ad.dual_level():
        assert not is_direct(torch, given)
    with FakeTensorMode() as mode:
        assert not is_direct(torch, given)
        assert not is_direct(torch, {name: mode.from_tensor(x) for name, x in given.items()})
    for transform in (torch.func.vmap, torch.func.functionalize):
        seen = []
        transform(lambda x, seen=seen: seen.append(is_direct(torch, given | {"q": x})) or x)(given["q"])
        transform(lambda x, seen=seen: seen.append(is_direct(torch, given)) or x)(given["q"])
        assert seen == [False, False]
    leaf = given | {"sinks": torch.zeros(4, requires_grad=True)}
    assert not is_direct(torch, leaf)
    with torch.no_grad():
        assert is_direct(torch, leaf)
    with torch.inference_mode():
        assert is_direct(torch, leaf)
    traced = torch.jit.trace(lambda q: attend.decode(**(given | {"q": q})), given["q"], check_trace=False)
    assert torch.equal(traced(given["q"] * 2), attend.decode(**(given | {"q": given["q"] * 2})))
    assert is_direct(torch, given)


def test_a_torch_without_what_the_route_needs_gives_the_same(torch):
    want = attend.decode(**small(torch), return_lse=True)
    try:
        for names in (
            _direct.names_of_torch(has_exchange_table=False),
            _direct.names_of_torch() | dict(has_watchers=False, call_watchers=(), tensor_watchers=()),
        ):
            _core.learn_torch(names)
            assert not is_direct(torch, small(torch))
            for a, b in zip(attend.decode(**small(torch), return_lse=True), want):
                assert torch.equal(a, b)
    finally:
        _core.learn_torch(_direct.names_of_torch())


def test_writes_are_counted_where_autograd_counts(torch):
    for mode, count in ((torch.no_grad, 1), (torch.inference_mode, None)):
        with mode():
            given = small(torch) | {"out": torch.zeros(2, 4, 1, 8)}
            written = [given["out"], given["k_cache"], given["v_cache"]]
            attend.decode(**given)
            if count is not None:
                assert [x._version for x in written] == [1, 0, 0]
            attend.decode(**given, **new_keys(torch))
            if count is not None:
                assert [x._version for x in written] == [2, 1, 1]
            keys = {name: given[name] for name in ("k_cache", "v_cache", "seqlens_k")} | new_keys(torch)
            q_out = attend.append(**keys, q=given["q"], q_out=given["out"])
            assert q_out is given["out"] and attend.append(**keys) is None
            if count is not None:
                assert [x._version for x in written] == [3, 3, 3]


@needs_exchange_table
@pytest.mark.parametrize("door", [flash_attn, flash_attn_3])
def test_flash_attn_with_kvcache_is_direct(torch, compare, door):
    def make(**options):
        given = small(torch)
        caches = {name: given[name].transpose(1, 2).contiguous() for name in ("q", "k_cache", "v_cache")}
        return caches | {"cache_seqlens": given["seqlens_k"]} | options

    new = {name: x.transpose(1, 2).contiguous() for name, x in new_keys(torch).items()}
    tables = dict(zip(("rotary_cos", "rotary_sin"), rotary(torch)))
    for options in ({}, {"causal": True, "window_size": [4, 0]}, new, {**new, **tables}, {"cache_seqlens": 9}):
        for wants_lse in (False, True):
            called = dict(options, return_softmax_lse=wants_lse)
            assert compare(attend.decode, lambda options=called: make(**options), door.flash_attn_with_kvcache)
    both = [door.flash_attn_with_kvcache(**make(return_softmax_lse=x)) for x in (False, True)]
    assert torch.equal(both[0], both[1][0]) and both[1][1].shape == (2, 4, 1)


def test_a_compiled_call_gives_the_same(torch):
    given = small(torch, page_size=5)
    q = given.pop("q")
    torch._dynamo.reset()
    compiled = torch.compile(lambda q: attend.decode(q, **given), fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(q), attend.decode(q, **given))


def test_on_every_device(torch, compare, device):
    """On a GPU the library computes or refuses, by either way alike."""
    for options in ({}, {"seqlens_k": 7, "return_lse": True}, new_keys(torch, device)):
        compare(attend.decode, lambda options=options: small(torch, device) | options)


def test_options_without_one_of_them_and_unknown_ones_are_refused(torch):
    x = torch.zeros(1)
    with pytest.raises(attend.Error, match="without one of the call's keyword arguments"):
        _core.decode_of_options(x, x, x, ())
    with pytest.raises(attend.Error, match="^nothing: a keyword argument without a field$"):
        _core.learn_append({"nothing": 0})
    assert _core.append_of_options(x, None, x, None, tuple(attend.append.__kwdefaults__.values())) is None
