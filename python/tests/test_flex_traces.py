"""Tests of when score functions are traced again: results are never stale, and changed values of captures cause no
trace.
"""

import functools
import types

import pytest

torch = pytest.importorskip("torch")

import attend
from attend._flex import functions, keys

CPU = torch.device("cpu")
WIDTH = 3  # a global that the function `of_globals` reads
TABLE = torch.arange(8.0)


@pytest.fixture
def traces(monkeypatch):
    """Returns a list with one element, the number of traces so far."""
    count = [0]
    plain = functions.trace

    def counted(*arguments):
        count[0] += 1
        return plain(*arguments)

    monkeypatch.setattr(functions, "trace", counted)
    monkeypatch.setattr(functions, "_known", {})
    return count


def scores(mod, rows=6):
    """Returns the scores of a score_mod. The scores are computed as lse, because with one key lse equals the score."""
    q, k = torch.zeros(1, 1, rows, 8, dtype=torch.float64), torch.zeros(1, 1, 1, 8, dtype=torch.float64)
    return attend.flex_attention(q, k, k, mod, return_lse=True)[1][0, 0]


def of_value(value):
    return lambda score, b, h, q, k: score + value * q


def of_table(table):
    return lambda score, b, h, q, k: score + table[q]


Q = torch.arange(6.0, dtype=torch.float64)


def test_new_functions_of_the_same_code_are_traced_once(traces):
    for _ in range(3):
        assert torch.equal(scores(of_value(2)), 2 * Q)
    assert traces == [1]


def test_numbers_count_by_value_and_type(traces):
    for value in (2, 3, 2.0, True, 0.0, -0.0, float("nan"), 2):
        assert torch.equal(scores(of_value(value)).nan_to_num(9), (value * Q).nan_to_num(9))
    assert traces == [7]
    assert functions.traced("score_mod", of_value(0.0), CPU)[0].text == "score + (float(q) * 0.0)"
    assert functions.traced("score_mod", of_value(-0.0), CPU)[0].text == "score + (float(q) * (-0.0))"


def test_other_tensors_of_the_same_kind_are_no_other_trace(traces):
    for n in range(3):
        table = torch.arange(6.0, dtype=torch.float64) * n
        assert torch.equal(scores(of_table(table)), table)
    assert traces == [1]
    for table in (torch.arange(7.0), torch.arange(6), torch.arange(12.0)[::2]):
        assert torch.equal(scores(of_table(table)), table[:6].double())
    assert traces == [4]


def test_the_extent_of_a_tensor_counts(traces):
    from_the_end = lambda table: lambda score, b, h, q, k: score + table[q - 6]
    for n in (6, 7, 9):
        assert torch.equal(scores(from_the_end(torch.arange(n))), Q + n - 6)


def test_values_changed_in_place_are_seen(traces):
    table = torch.zeros(6)
    mod = of_table(table)
    assert not scores(mod).any()
    table += 1.5
    assert torch.equal(scores(mod), torch.full((6,), 1.5, dtype=torch.float64))
    derived = lambda score, b, h, q, k: score + (table * 2).flip(0)[q]
    assert torch.equal(scores(derived), torch.full((6,), 3.0, dtype=torch.float64))
    table[0] = 0
    assert scores(derived)[5] == 0
    assert traces == [2]


def test_rebound_cells_and_globals_are_seen(traces, monkeypatch):
    width = 1

    def of_cell(score, b, h, q, k):
        return score + width * q

    assert torch.equal(scores(of_cell), Q)
    width = 4
    assert torch.equal(scores(of_cell), 4 * Q)
    table = torch.zeros(6)

    def of_tensor(score, b, h, q, k):
        return score + table[q]

    assert not scores(of_tensor).any()
    table = torch.ones(6)
    assert scores(of_tensor).all()
    assert traces == [3]

    def of_globals(score, b, h, q, k):
        return score + WIDTH * q + TABLE[q]

    assert torch.equal(scores(of_globals), 3 * Q + Q)
    monkeypatch.setitem(globals(), "WIDTH", 5)
    assert torch.equal(scores(of_globals), 5 * Q + Q)
    monkeypatch.setitem(globals(), "TABLE", torch.zeros(8))
    assert torch.equal(scores(of_globals), 5 * Q)
    assert traces == [5]


def test_functions_that_are_reached_count(traces):
    def outer(inner):
        return lambda score, b, h, q, k: inner(score, q)

    first = lambda score, q: score + q
    second = lambda score, q: score + 2 * q
    assert torch.equal(scores(outer(first)), Q) and torch.equal(scores(outer(second)), 2 * Q)
    assert torch.equal(scores(outer(first)), Q) and traces == [2]


def test_functions_that_torch_made_of_others_count(traces):
    torchs = pytest.importorskip("torch.nn.attention.flex_attention")
    width = 2
    inner = lambda b, h, q, k: q - k < width
    for both in (torchs.and_masks, attend.and_masks):
        together = both(inner, inner)
        mod = lambda score, b, h, q, k, together=together: torch.where(together(b, h, q, k), score, 5.0)
        width = 2
        assert scores(mod).tolist() == [0, 0, 5, 5, 5, 5]
        width = 4
        assert scores(mod).tolist() == [0, 0, 0, 0, 5, 5]


def test_the_same_tensor_twice_is_not_two_tensors(traces):
    a, b = torch.ones(6), torch.full((6,), 2.0)
    of_two = lambda x, y: lambda score, bb, h, q, k: score + x[q] + y[q]
    assert scores(of_two(a, a))[0] == 2 and scores(of_two(a, b))[0] == 3 and scores(of_two(b, a))[0] == 3
    assert scores(of_two(b, b))[0] == 4 and traces == [2]


def test_defaults_and_partials(traces):
    def mod(score, b, h, q, k, *, scale=2, table=TABLE):
        return score + scale * table[q]

    assert torch.equal(scores(mod), 2 * Q)
    mod.__kwdefaults__ = {"scale": 5, "table": TABLE}
    assert torch.equal(scores(mod), 5 * Q)
    for scale in (1, 7, 1):
        assert torch.equal(scores(functools.partial(mod, scale=scale)), scale * Q)
    assert torch.equal(scores(functools.partial(mod, table=TABLE * 2)), 10 * Q)
    assert traces == [5]


class Mod:
    def __init__(self, scale):
        self.scale = scale
        self.table = torch.arange(6.0)

    def __call__(self, score, b, h, q, k):
        return score + self.scale * self.table[q]

    def method(self, score, b, h, q, k):
        return self(score, b, h, q, k)


def test_objects_are_traced_at_each_call(traces):
    mod = Mod(2)
    settings = types.SimpleNamespace(scale=1)
    of_settings = lambda score, b, h, q, k: score + settings.scale * q
    assert torch.equal(scores(mod), 2 * Q) and torch.equal(scores(mod.method), 2 * Q)
    assert torch.equal(scores(of_settings), Q)
    mod.scale = settings.scale = 3
    assert torch.equal(scores(mod), 3 * Q) and torch.equal(scores(mod.method), 3 * Q)
    assert torch.equal(scores(of_settings), 3 * Q)
    mod.table = torch.zeros(6)
    assert not scores(mod).any()
    assert traces == [7] and not functions._known


def test_attributes_of_functions_are_seen(traces):
    helper = lambda x: x * helper.scale
    mod = lambda score, b, h, q, k: score + helper(q)
    for scale in (2, 3):
        helper.scale = scale
        assert torch.equal(scores(mod), scale * Q)


def test_attributes_of_tensors_are_seen(traces):
    table = torch.arange(6.0)
    mod = lambda score, b, h, q, k: score + table[q] * table.scale
    for scale in (2, 3):
        table.scale = scale
        assert torch.equal(scores(mod), scale * Q)


def test_rows_that_use_rows_twice_are_traced_in_time(traces):
    def mod(score, b, h, q, k):
        row = torch.arange(4.0)[None].expand(1, 4)[0] * (q % 2)
        for _ in range(60):
            row = row * 0.5 + row / 2
        return score + row.sum()

    assert torch.equal(scores(mod), 6 * (Q % 2))


def test_tensors_that_no_key_finds_are_seen(traces, monkeypatch):
    mod = lambda score, b, h, q, k: score + torch.table_of_a_test[q]
    for scale in (2, 3):
        monkeypatch.setattr(torch, "table_of_a_test", torch.arange(6) * scale, raising=False)
        assert torch.equal(scores(mod), scale * Q)


def test_objects_have_gradients_too(traces):
    mod = Mod(2)
    mod.table.requires_grad_()
    scores(mod).sum().backward()
    assert torch.equal(mod.table.grad, torch.full((6,), 2.0))


def test_parameters_and_views_have_gradients(traces):
    parameter = torch.nn.Parameter(torch.arange(6.0))
    base = torch.arange(24.0).view(6, 4).requires_grad_()
    column = (base * 2)[:, 1]
    scores(lambda score, b, h, q, k: score + parameter[q] + column[q] + base.mT[2, q]).sum().backward()
    assert torch.equal(parameter.grad, torch.ones(6))
    assert torch.equal(base.grad, torch.tensor([0.0, 2.0, 1.0, 0.0]).expand(6, 4))


def test_values_that_a_function_reads_are_no_part_of_a_kept_trace(traces):
    limit = torch.tensor(2)
    for read in (int, torch.Tensor.item, torch.Tensor.tolist, lambda x: int(x.numpy())):
        for value in (2, 4):
            limit.fill_(value)
            assert torch.equal(scores(lambda score, b, h, q, k, read=read: score + read(limit) * q), value * Q)
    assert traces == [8]
    rows = torch.tensor([1.0, 0.0, 1.0, 1.0])
    count = lambda score, b, h, q, k: score + rows.nonzero().shape[0]
    assert scores(count)[0] == 3
    rows[0] = 0
    assert scores(count)[0] == 2


holds_itself = []
holds_itself.append(holds_itself)


def with_cell(x, read):
    return lambda s, b, h, q, k: s + read(x)


@pytest.mark.parametrize(
    "make",
    [
        lambda: lambda s, b, h, q, k: s + __import__("os").getpid(),
        lambda: with_cell(types.SimpleNamespace(y=1), lambda x: x.y),
        lambda: with_cell({"a": types.SimpleNamespace(y=1)}, lambda x: x["a"].y),
        lambda: with_cell(iter([1]), next),
        lambda: lambda s, b, h, q, k: s + globals()["WIDTH"],
        lambda: lambda s, b, h, q, k: s + pytest.approx(1).abs,
        lambda: torch.nn.Identity(),
        lambda: with_cell(holds_itself, len),
    ],
)
def test_there_is_no_key_where_it_cannot_tell(make):
    assert keys.key_of(make()) == (None, [])


def test_cells_that_are_empty_and_functions_that_call_themselves_have_keys():
    def again(score, b, h, q, k):
        return again if later else score

    key, tensors = keys.key_of(again)
    later = False
    assert key is not None and tensors == [] and keys.key_of(again)[0] != key
    hash(key)


def test_other_dtypes_and_gradients_are_other_traces(traces):
    table = torch.arange(6.0)
    q = torch.zeros(1, 1, 6, 8)
    for options in ({}, {"dtype": torch.bfloat16}, {"dtype": torch.float64}):
        x = q.to(**options)
        attend.flex_attention(x, x, x, of_table(table))
    attend.flex_attention(q, q, q, of_table(table.clone().requires_grad_()))
    assert traces == [3]


def test_few_traces_are_kept(traces):
    for n in range(functions._MOST_KNOWN + 3):
        functions.traced("score_mod", of_value(n), CPU)
    assert len(functions._known) == 3


def test_numbers_go_to_the_device_of_the_call():
    number, table = torch.tensor(2.0), torch.arange(6.0)
    mod = lambda score, b, h, q, k: score * number + table[q] + torch.arange(6)[k]
    function, given = functions.traced("score_mod", mod, CPU)
    captures = function.captures(given, torch.device("meta"))
    devices = {tuple(x.shape): x.device.type for x in captures.values() if x.dtype == torch.float32}
    assert devices == {(): "meta", (6,): "cpu"}
    assert [x.device.type for x in captures.values() if x.dtype == torch.int64] == ["meta"]
