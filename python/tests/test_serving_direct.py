"""Tests of the direct route of attend.decode and attend.append: which calls use it, and that its results equal those of
the Python route.

On the direct route, _core.decode_of_options or _core.append_of_options computes the call. If it returns None, the
Python code of the two functions handles the call, which is called the Python route.
"""

import inspect

import append_problems
import cache_problems
import covering
import pytest
import serving_calls
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
    return cache_problems.as_torch(torch, x)


def bits(torch, x):
    """Returns a value by which two results or arguments can be compared. For a tensor it contains the dtype, the shape
    and the bytes of the memory, so that equal NaNs are equal.
    """
    if isinstance(x, (tuple, list)):
        return tuple(bits(torch, part) for part in x)
    if not isinstance(x, torch.Tensor):
        return x.tobytes() if isinstance(x, np.ndarray) else x
    if x.layout != torch.strided or x.is_meta:
        return x.dtype, x.shape, x.layout, x.device
    memory = x.detach().resolve_neg().cpu().clone(memory_format=torch.contiguous_format).reshape(-1)
    return x.dtype, x.shape, x.stride(), x.device, memory.view(torch.uint8).numpy().tobytes()


def outcome(torch, function, arguments):
    """Returns the result of a call or the text of its error, and all tensors that the call may have written."""
    try:
        found = bits(torch, function(**arguments))
    except attend.Error as error:
        found = type(error), str(error)
    versions = {name: x._version for name, x in arguments.items() if type(x) is torch.Tensor and not x.is_inference()}
    return found, {name: bits(torch, x) for name, x in arguments.items()}, versions


@pytest.fixture
def compare(torch, monkeypatch):
    """Returns compare(function, make), which checks that both routes have equal results for the arguments `make()`. It
    returns whether the first call was direct.
    """

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

    queries = make().get("q")
    is_empty = queries is not None and queries.numel() == 0  # for an empty array, NumPy sets all strides to 0
    assert compare(attend.append, make) or is_empty
    if queries is not None:
        assert compare(attend.append, lambda: make(in_place=True))


@needs_exchange_table
@pytest.mark.parametrize("page_size", [0, 5])
@pytest.mark.parametrize("name", serving_calls.USUAL)
def test_usual_calls_are_direct(torch, compare, name, page_size):
    def make():
        given = serving_calls.small(torch, page_size=page_size)
        return given | serving_calls.USUAL[name](torch, given)

    if name == "bshd" and page_size:
        assert make()["k_cache"].shape[1] == page_size
    assert compare(attend.decode, make)
    with torch.inference_mode():
        assert compare(attend.decode, make)
    with torch.autocast("cpu", torch.bfloat16):  # has no effect on these calls
        assert compare(attend.decode, make)


@pytest.mark.parametrize("name", serving_calls.UNUSUAL)
def test_unusual_calls_give_the_same(torch, compare, name):
    def make():
        given = serving_calls.small(torch)
        return given | serving_calls.UNUSUAL[name](torch, given)

    is_direct = compare(attend.decode, make)
    assert not is_direct or name == "rows of q that are one"


@pytest.mark.parametrize("name", serving_calls.WRONG)
def test_refusals_are_the_same_and_nothing_is_written(torch, compare, name):
    def make():
        given = serving_calls.small(torch) | {"out": torch.full((2, 4, 1, 8), 7.0)}
        return given | serving_calls.WRONG[name](torch, given)

    check_refused(torch, compare, attend.decode, make)


def check_refused(torch, compare, function, make):
    arguments = make()
    before = {name: bits(torch, x) for name, x in arguments.items()}
    with pytest.raises(attend.Error):
        function(**arguments)
    assert {name: bits(torch, x) for name, x in arguments.items()} == before
    assert not compare(function, make)


def is_direct(torch, arguments, function=attend.decode):
    """Returns whether the library computes the call without Python code."""
    names = [name for name in inspect.signature(function).parameters if name not in function.__kwdefaults__]
    options = tuple(arguments.get(name, default) for name, default in function.__kwdefaults__.items())
    return getattr(_core, OF[function])(*(arguments.get(name) for name in names), options) is not None


@pytest.mark.parametrize("name", serving_calls.WRONG_APPENDS)
def test_refusals_of_append_are_the_same(torch, compare, name):
    def make():
        caches = {name: x for name, x in serving_calls.small(torch).items() if name != "q"}
        given = caches | serving_calls.new_keys(torch)
        return given | serving_calls.WRONG_APPENDS[name](torch, given)

    check_refused(torch, compare, attend.append, make)


@needs_exchange_table
def test_the_dispatcher_sees_what_is_for_it(torch, compare):
    """Calls under modes, transforms and tracers, and calls with wrapped tensors, use torch's dispatcher."""
    from torch._subclasses import FakeTensorMode

    given = serving_calls.small(torch)
    assert is_direct(torch, given)
    appended = given | serving_calls.new_keys(torch)
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
    want = attend.decode(**serving_calls.small(torch), return_lse=True)
    try:
        for names in (
            _direct.names_of_torch(has_exchange_table=False),
            _direct.names_of_torch() | dict(has_watchers=False, call_watchers=(), tensor_watchers=()),
        ):
            _core.learn_torch(names)
            assert not is_direct(torch, serving_calls.small(torch))
            for a, b in zip(attend.decode(**serving_calls.small(torch), return_lse=True), want):
                assert torch.equal(a, b)
    finally:
        _core.learn_torch(_direct.names_of_torch())


def test_writes_are_counted_where_autograd_counts(torch):
    for mode, count in ((torch.no_grad, 1), (torch.inference_mode, None)):
        with mode():
            given = serving_calls.small(torch) | {"out": torch.zeros(2, 4, 1, 8)}
            written = [given["out"], given["k_cache"], given["v_cache"]]
            attend.decode(**given)
            if count is not None:
                assert [x._version for x in written] == [1, 0, 0]
            attend.decode(**given, **serving_calls.new_keys(torch))
            if count is not None:
                assert [x._version for x in written] == [2, 1, 1]
            keys = {name: given[name] for name in ("k_cache", "v_cache", "seqlens_k")} | serving_calls.new_keys(torch)
            q_out = attend.append(**keys, q=given["q"], q_out=given["out"])
            assert q_out is given["out"] and attend.append(**keys) is None
            if count is not None:
                assert [x._version for x in written] == [3, 3, 3]


@needs_exchange_table
@pytest.mark.parametrize("door", [flash_attn, flash_attn_3])
def test_flash_attn_with_kvcache_is_direct(torch, compare, door):
    def make(**options):
        given = serving_calls.small(torch)
        caches = {name: given[name].transpose(1, 2).contiguous() for name in ("q", "k_cache", "v_cache")}
        return caches | {"cache_seqlens": given["seqlens_k"]} | options

    new = {name: x.transpose(1, 2).contiguous() for name, x in serving_calls.new_keys(torch).items()}
    tables = dict(zip(("rotary_cos", "rotary_sin"), serving_calls.rotary(torch)))
    for options in ({}, {"causal": True, "window_size": [4, 0]}, new, {**new, **tables}, {"cache_seqlens": 9}):
        for wants_lse in (False, True):
            called = dict(options, return_softmax_lse=wants_lse)
            assert compare(attend.decode, lambda options=called: make(**options), door.flash_attn_with_kvcache)
    both = [door.flash_attn_with_kvcache(**make(return_softmax_lse=x)) for x in (False, True)]
    assert torch.equal(both[0], both[1][0]) and both[1][1].shape == (2, 4, 1)


def test_a_compiled_call_gives_the_same(torch):
    given = serving_calls.small(torch, page_size=5)
    q = given.pop("q")
    torch._dynamo.reset()
    compiled = torch.compile(lambda q: attend.decode(q, **given), fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(q), attend.decode(q, **given))


def test_on_every_device(torch, compare, device):
    """On a GPU too, both routes have the same result or the same error."""
    for options in ({}, {"seqlens_k": 7, "return_lse": True}, serving_calls.new_keys(torch, device)):
        compare(attend.decode, lambda options=options: serving_calls.small(torch, device) | options)


def test_options_without_one_of_them_and_unknown_ones_are_refused(torch):
    x = torch.zeros(1)
    with pytest.raises(attend.Error, match="without one of the call's keyword arguments"):
        _core.decode_of_options(x, x, x, ())
    with pytest.raises(attend.Error, match="^nothing: a keyword argument without a field$"):
        _core.learn_append({"nothing": 0})
    assert _core.append_of_options(x, None, x, None, tuple(attend.append.__kwdefaults__.values())) is None
