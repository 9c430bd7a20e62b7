"""Tests of bench/decode_vs_peers.py without a GPU: all implementations compute the same problem, and the table matches
the data.
"""

import importlib
import math
import pathlib
import sys
import types

import pytest

pytest.importorskip("numpy")
ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture
def script(monkeypatch):
    """Returns a module of bench/ by its name, newly loaded."""
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    for name in ("decode_vs_peers", "decode_peer_cases", "h200_vs_peers", "peer_tables", "peer_cases", "report"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return importlib.import_module


@pytest.fixture
def peers(script, torch, monkeypatch):
    """Returns the problems with unfused attention in place of the peers, which need a GPU."""
    cases = script("peer_cases")
    monkeypatch.setattr(cases, "SDP", dict.fromkeys(cases.SDP, torch.nn.attention.SDPBackend.MATH))
    module = types.ModuleType("flash_attn_interface")
    module.flash_attn_func = None

    def kvcache(q, k, v, cache_seqlens, page_table, causal):
        rows = []
        for s, length in enumerate(cache_seqlens.tolist()):
            keys, values = ((x[s] if page_table is None else x[page_table[s].long()].flatten(0, 1)) for x in (k, v))
            hidden = torch.ones(q.shape[1], length, dtype=torch.bool).triu(1 + length - q.shape[1])
            bias = torch.zeros(hidden.shape).masked_fill(hidden & causal, -math.inf)
            one = [x.transpose(0, 1).float() for x in (q[s], keys[:length], values[:length])]
            o = torch.nn.functional.scaled_dot_product_attention(*one, attn_mask=bias, enable_gqa=True)
            rows.append(o.transpose(0, 1).to(q.dtype))
        return torch.stack(rows), None

    module.flash_attn_with_kvcache = kvcache
    monkeypatch.setitem(sys.modules, "flash_attn_interface", module)
    return script("decode_peer_cases")


def small(peers, **more):
    return peers.Shape(**({"lengths": (65, 40, 3), "heads": 6, "heads_k": 2, "head_dim": 16} | more))


@pytest.mark.parametrize("heads_first", [False, True])
@pytest.mark.parametrize("page_size", [0, 1, 16])
@pytest.mark.parametrize("shape", [{}, {"lengths": (32,) * 3}, {"rows": 3}, {"heads_k": 1, "head_dim_v": 8}])
def test_all_sides_compute_the_same(script, peers, shape, page_size, heads_first):
    one = peers.problem(small(peers, **shape), peers.Setting("bf16", None, page_size, heads_first, "cpu"))
    expected = {"attend", "fa3"} if "head_dim_v" not in shape else {"attend"}
    if "lengths" in shape and page_size == 0:
        expected.add("cudnn")
    assert set(one.sides) == expected
    difference, errors = script("decode_vs_peers").compare(one)
    assert errors == {} and set(difference) == expected - {"attend"}
    assert all(x < 0.01 for x in difference.values()), difference
    copy = one.caches["attend"].copy()
    assert copy.k.stride() == one.caches["attend"].k.stride() and copy.k.equal(one.caches["attend"].k)
    assert copy.k.data_ptr() != one.caches["attend"].k.data_ptr()


@pytest.mark.parametrize("cache", ["f8e4m3", "i8"])
def test_caches_of_8_bits_stand_beside_wide_ones(script, peers, cache):
    for shape in ({}, {"heads_k": 1, "head_dim_v": 8}):
        one = peers.problem(small(peers, **shape), peers.Setting("f16", cache, 16, False, "cpu"))
        assert list(one.sides) == ["attend", "attend_wide"]
        difference, errors = script("decode_vs_peers").compare(one)
        assert errors == {} and 1e-4 < difference["attend_wide"] < 0.1
        keys = 65 + 40 + 3
        assert one.bytes_moved == (2 * 2 if shape == {} else 1) * keys * 16


def test_a_cache_that_is_cut_into_parts_is_whole(peers, torch):
    one = small(peers, lengths=(8,) * 3, head_dim=128, heads_k=64, heads=64)
    setting = peers.Setting("bf16", "f8e4m3", 0, False, "cpu")
    wide = peers.problem(one, peers.Setting("bf16", None, 0, False, "cpu")).caches["attend"]
    limit = peers.narrowed(wide, setting)
    assert limit.k.dtype == torch.float8_e4m3fn and limit.k.shape == wide.k.shape
    assert (limit.k.float() * peers.DESCALE - wide.k.float()).abs().max() < 0.3


def test_cases_are_chosen_by_sets_and_names(peers):
    table = peers.chosen("table")
    assert len(table) == 13 and table[0].name == "1x131072" and table[6].name == "64x4096-r4"
    assert [x.name for x in peers.chosen("16x8192-*:*,rows")] == [
        "16x8192-32:32", "16x8192-64:8-d64", "16x8192-32:1", "16x8192-40:8", "16x8192-56:8", "16x8192-128:8",
        "64x4096", "64x4096-r2", "64x4096-r4", "64x4096-r16",
    ]  # fmt: skip
    ragged = peers.chosen("ragged")
    assert len(ragged[0].lengths) == 64 and sum(ragged[0].lengths) == sum(ragged[1].lengths)
    assert abs(sum(ragged[2].lengths) - sum(ragged[3].lengths)) < 64
    assert [x.heads for x in peers.chosen("mla")] == [16, 128]
    with pytest.raises(ValueError, match="^'nobody' names no case, allowed table, ragged"):
        peers.chosen("nobody")


def lines(script, peers, us, **shape):
    tool = script("decode_vs_peers")
    one = peers.problem(small(peers, **shape), peers.Setting("bf16", None, 0, False, "cpu"))
    row = {**tool.row_of(one), "difference": {}, "errors": {}} | tool.speeds(one, us)
    return tool, row


def test_lines_say_what_was_measured(script, peers):
    us = {"attend": {"warm": 2.0, "cold": 4.0}, "cudnn": {"warm": 3.0, "cold": 3.0}, "fa3": {"warm": 5.0}}
    tool, row = lines(script, peers, us)
    assert row["bytes"] == 2 * (65 + 40 + 3) * 2 * 16 * 2 and row["keys"] == 108
    assert row["gbps"]["attend"] == {"warm": row["bytes"] / 2e3, "cold": row["bytes"] / 4e3}
    assert row["us"]["fa3"]["cold"] == 5.0  # the cache is too large for copies, so the warm time is also the cold time
    assert tool.best_peer(row, "warm") == ("cudnn", 3.0)
    assert tool.ratio(row, "warm") == 1.5 and tool.ratio(row, "cold") == 0.75
    text = tool.line(row)
    assert "2.00 us" in text and "1.500x" in text and "0.750x" in text and tool.heading().count("attend") == 2
    assert tool.wrong(row) == []
    _, alone = lines(script, peers, {"attend": {"warm": 1.0}}, heads_k=1, head_dim_v=8)
    assert tool.ratio(alone, "warm") is None and "TFLOP/s" in tool.line(alone)
    _, none = lines(script, peers, {"fa3": {"warm": 1.0}})
    assert tool.wrong(none) == ["attend"] and tool.ratio(none, "warm") is None
    assert tool.wrong(row | {"difference": {"fa3": math.nan, "cudnn": 0.01}}) == ["fa3"]
    assert "no pages" in tool.line(none | {"errors": {"attend": "no pages"}})


def test_a_side_that_refuses_is_kept_as_an_error(script, peers):
    def refuse(cache):
        raise RuntimeError("not for me\nsecond line")

    one = peers.problem(small(peers), peers.Setting("bf16", None, 0, False, "cpu"))
    one.sides["cudnn"] = refuse
    difference, errors = script("decode_vs_peers").compare(one)
    assert errors == {"cudnn": "RuntimeError: not for me"} and "cudnn" not in one.sides and set(difference) == {"fa3"}


def test_options_and_the_files_name(script, peers):
    tool = script("decode_vs_peers")
    options = tool.arguments(["--cases", "rows", "--page-size", "0,16", "--cache", "i8"])
    assert options.page_size == [0, 16] and len(options.cases) == 4
    assert tool.file_name(peers.Setting("bf16", "i8"), options.page_size) == "decode_bf16_i8_page16.json"
    assert tool.file_name(peers.Setting("f16"), [0]) == "decode_f16.json"
    for words in (["--page-size", "x"], ["--cases", "nobody"]):
        with pytest.raises(SystemExit):
            tool.arguments(words)


def test_graphs_of_all_sides_take_turns(script, peers, monkeypatch):
    tool = script("decode_vs_peers")
    replayed = []

    class Graph:
        """Makes the calls immediately instead of capturing a CUDA graph. The time of each call in microseconds is the
        number of caches.
        """

        def __init__(self, side, caches, calls):
            self.calls, self.caches, self.key = calls, caches, (side, len(caches))
            for n in range(calls):
                side(caches[n % len(caches)])

        def us(self):
            replayed.append(self.key)
            return float(len(self.caches))

    monkeypatch.setattr(tool, "Graph", Graph)
    one = peers.problem(small(peers, lengths=(32,) * 3), peers.Setting("bf16", None, 0, False, "cpu"))
    monkeypatch.setattr(tool, "COPIES_BYTES", 2.5 * 2 * one.caches["attend"].k.nbytes)
    broken = [0]

    # Raises an error when it is captured, but not when results are compared.
    def not_twice(cache, side=one.sides["cudnn"]):
        broken[0] += 1
        if broken[0] > 1:
            raise RuntimeError("not while a stream is captured")
        return side(cache)

    one.sides["cudnn"] = not_twice
    options = types.SimpleNamespace(rounds=3, sample_ms=0.002)
    row = tool.measure(one, options)
    assert row["us"] == {name: {"warm": 1.0, "cold": 3.0} for name in ("attend", "fa3")}
    assert row["errors"] == {"cudnn": "RuntimeError: not while a stream is captured"} and tool.wrong(row) == []
    rounds = replayed[-16:]  # four rounds of four graphs, in alternating order
    assert rounds[:4] == rounds[4:8][::-1] == rounds[8:12] and len(set(rounds[:4])) == 4
