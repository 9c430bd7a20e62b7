"""Tests of python -m attend.bench decode with small runs on the CPU. Unfused attention replaces the peers that need a
GPU.
"""

import dataclasses
import functools
import json
import math
import re
import subprocess
import sys
import types

import pytest

pytest.importorskip("numpy")
pytest.importorskip("tqdm")

import attend
from attend._measure.decode_shapes import NARROW, Setting, Shape
from attend._measure.timing import Limits, Timing
from attend.bench import __main__ as bench
from attend.bench import decode_rows

SMALL = ["--heads", "6:2", "--head-dim", "16", "--samples", "3", "--device", "cpu"]


@pytest.fixture
def sides(torch):
    from attend._measure import decode_sides

    decode_sides.peer_module.cache_clear()
    yield decode_sides
    decode_sides.peer_module.cache_clear()


def run(path, *more):
    status = bench.main(["decode", *SMALL, "--json", str(path), *more])
    return status, json.loads(path.read_text())


def test_a_grid_is_measured(torch, tmp_path, capsys):
    pages = ["--page-size", "0,7,7", "--batch", "1,3", "--seqlen", "32,40"]
    status, data = run(tmp_path / "d.json", *pages)
    assert status == 0 and data["kind"] == "decode" and (data["H"], data["Hkv"], data["D"]) == (6, 2, 16)
    places = [(row["B"], row["S"], row["page_size"]) for row in data["rows"] if row["implementation"] == "attend"]
    assert places == [(b, s, page) for page in (0, 7) for b in (1, 3) for s in (32, 40)]
    assert [row["page_size"] for row in data["rows"] if row["implementation"] == "torch"] == [0] * 4
    for row in data["rows"]:
        assert row["passed"] and row["difference"] <= row["allowed"] and row["state"] == "warm"
        assert row["bytes"] == 2 * row["B"] * row["S"] * 2 * 16 * 2 and row["cache"] == "bf16"
        assert row["gbps"] == pytest.approx(row["bytes"] / row["us"] / 1e3)
        assert row["us_min"] <= row["us_p25"] <= row["us"] <= row["us_p75"] and row["samples"] == 3
        assert (row["variant"] in ("flash", "math")) == (row["implementation"] == "torch")
    out = capsys.readouterr().out
    assert "contiguous: us, median" in out and "pages of 7: GB/s of keys and values, read once" in out
    assert "attend over the best of its peers, geometric mean: " in out
    assert "left out, on a GPU only: flash_attn_3, flash_attn_2, flashinfer" in out


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("more", [[], ["--rows", "5"], ["--page-size", "3", "--rows", "2"]])
def test_every_dtype_and_several_rows(torch, tmp_path, dtype, more):
    status, data = run(tmp_path / "d.json", "--dtype", dtype, "--batch", "2", "--seqlen", "5,33", *more)
    assert status == 0 and all(row["passed"] and row["cache"] == dtype for row in data["rows"])
    assert {row["implementation"] for row in data["rows"]} == {"attend"} | (
        {"torch"} - {*more[:1]} if "3" not in more else set()
    )


@pytest.mark.parametrize("cache", NARROW)
def test_a_cache_of_8_bits_stands_beside_a_wide_one(torch, tmp_path, capsys, cache):
    status, data = run(tmp_path / "d.json", "--cache", cache, "--batch", "2", "--seqlen", "33", "--page-size", "0,16")
    assert status == 0 and data["cache"] == cache and data["dtype"] == "bf16"
    found = {(row["implementation"], row["page_size"]): row for row in data["rows"]}
    assert set(found) == {(name, page) for name in ("attend", "attend_wide") for page in (0, 16)}
    for page in (0, 16):
        own, wide = found["attend", page], found["attend_wide", page]
        assert 2 * own["bytes"] == wide["bytes"] and own["difference"] < 0.01 < wide["allowed"]
        assert wide["difference"] > 1e-4 and (own["cache"], wide["cache"]) == (cache, "bf16")
    assert f"bf16, cache {cache}" in capsys.readouterr().out


def test_the_cache_says_the_dtype(torch, tmp_path):
    assert run(tmp_path / "d.json", "--cache", "f16", "--batch", "1", "--seqlen", "8")[1]["dtype"] == "f16"


def times(factor):
    def wrong(function):
        return lambda *given, **named: function(*given, **named) * factor

    return wrong


def test_a_wrong_peer_fails(sides, monkeypatch, tmp_path, capsys):
    plain = sides.sdpa
    monkeypatch.setattr(sides, "sdpa", lambda one, backend: times(1.1)(plain(one, backend)))
    status, data = run(tmp_path / "d.json", "--batch", "1", "--seqlen", "32")
    assert status == 1 and {row["implementation"]: row["passed"] for row in data["rows"]} == {
        "attend": True,
        "torch": False,
    }
    assert re.search(
        r"FAILED:\n  torch 1x32 warm: differs from attend by 0\.\d+ of the norm, allowed 0\.05", capsys.readouterr().out
    )


@pytest.mark.parametrize("factor", [1.1, math.nan])
def test_attend_is_compared_with_the_definition(torch, monkeypatch, tmp_path, capsys, factor):
    monkeypatch.setattr(attend, "decode", times(factor)(attend.decode))
    status, data = run(tmp_path / "d.json", "--batch", "2", "--seqlen", "32", "--no-peers", "--page-size", "16")
    assert status == 1 and [row["passed"] for row in data["rows"]] == [False]
    assert re.search(r"differs from the definition by .* of the norm, allowed 0\.05", capsys.readouterr().out)


def test_attend_that_refuses_fails_and_a_peer_is_left_out(sides, monkeypatch, tmp_path, capsys):
    def refuse(*_, **__):
        raise ValueError("not for me\nsecond line")

    plain = sides.sdpa
    monkeypatch.setattr(sides, "sdpa", lambda *_: refuse)
    status, data = run(tmp_path / "d.json", "--batch", "1", "--seqlen", "32")
    assert status == 0 and {row["variant"] for row in data["rows"]} == {"", "flash", "math"}
    assert "left out:\n  torch flash at 1x32: ValueError: not for me\n" in capsys.readouterr().out
    monkeypatch.setattr(sides, "sdpa", plain)
    monkeypatch.setattr(attend, "decode", refuse)
    status, data = run(tmp_path / "d.json", "--batch", "1", "--seqlen", "32")
    assert status == 1 and "FAILED:\n  attend 1x32 warm: ValueError: not for me" in capsys.readouterr().out
    assert [row["us"] is None for row in data["rows"]] == [False, True]  # only torch was timed


def test_a_problem_without_memory_is_left_out(torch, monkeypatch, tmp_path, capsys):
    from attend._measure import decode_problem

    plain = decode_problem.problem

    def problem(shape, setting):
        if max(shape.lengths) > 32:
            raise MemoryError("1 GiB")
        return plain(shape, setting)

    monkeypatch.setattr(decode_problem, "problem", problem)
    picture = tmp_path / "d.svg"
    status, data = run(tmp_path / "d.json", "--batch", "1", "--seqlen", "64,32", "--no-peers", "--plot", str(picture))
    assert status == 0 and [row["us"] is None for row in data["rows"]] == [True, False]
    assert "left out:\n  attend at 1x64: 1 GiB" in capsys.readouterr().out and picture.exists()


def test_ctrl_c_keeps_what_was_measured(torch, monkeypatch, tmp_path):
    plain, calls = decode_rows.measure, []

    def measure(*given, **named):
        calls.append(1)
        if len(calls) > 1:
            raise KeyboardInterrupt
        return plain(*given, **named)

    monkeypatch.setattr(decode_rows, "measure", measure)
    status, data = run(tmp_path / "d.json", "--batch", "1", "--seqlen", "8,16", "--no-peers")
    assert status == 130 and len(data["rows"]) == 1 and "interrupted" in data["notes"][-1]


def test_pictures_name_their_figures(torch, tmp_path, capsys):
    pytest.importorskip("seaborn")
    from attend._measure import style

    path, picture = tmp_path / "d.json", tmp_path / "new" / "p.svg"
    sizes = ["--batch", "1,2", "--seqlen", "8,16", "--page-size", "0,4"]
    assert run(path, *sizes, "--plot", str(picture))[0] == 0
    for name in ("p.svg", "p_grid.svg"):
        (source,) = style.sources_of((picture.parent / name).read_text())
        assert source == style.source_line(path)
    assert f"wrote {picture.parent / 'p_grid.svg'}" in capsys.readouterr().out
    assert bench.main(["visualize", str(path), "--output-dir", str(tmp_path)]) == 0
    assert (tmp_path / "d.png").exists() and (tmp_path / "d_grid.png").exists()


def test_help_does_not_import_torch():
    code = (
        "import sys\nfrom attend.bench.__main__ import main\n"
        "try:\n    main(['decode', '--help'])\nexcept SystemExit:\n    pass\nsys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, capture_output=True).returncode == 0


def problem(sides, setting, **more):
    from attend._measure import decode_problem

    shape = Shape(**({"lengths": (32, 32), "heads": 6, "heads_k": 2, "head_dim": 16} | more))
    one = decode_problem.problem(shape, setting)
    one.sides = sides.ours(one)
    return one


class FakeFlashInfer:
    """Has the arguments and layouts of FlashInfer's wrapper, and computes with attend over the given pages."""

    planned = 0

    def __init__(self, workspace, kv_layout, use_tensor_cores):
        assert kv_layout == "NHD" and not workspace.any()

    def plan(self, indptr, indices, last_page_len, heads, heads_k, head_dim, page_size, *, q_data_type, kv_data_type):
        FakeFlashInfer.planned += 1
        self.sizes = heads, heads_k, head_dim, page_size
        self.dtypes = q_data_type, kv_data_type
        counts = indptr.diff()
        assert ((last_page_len >= 1) & (last_page_len <= page_size)).all() and indptr[-1] == len(indices)
        self.lengths = ((counts - 1) * page_size + last_page_len).int()
        self.table = indices.new_zeros(len(counts), int(counts.max()))
        for row, pages in zip(self.table, indices.split(counts.tolist())):
            row[: len(pages)] = pages

    def run(self, q, cache, k_scale=1.0, v_scale=1.0):
        k, v = cache
        assert q.ndim == 3 and self.sizes == (q.shape[1], k.shape[2], q.shape[2], k.shape[1])
        assert self.dtypes == (q.dtype, k.dtype)
        options = {}
        if k.dtype != q.dtype:
            scales = (q.new_full((k.shape[2],), x, dtype=self.lengths.float().dtype) for x in (k_scale, v_scale))
            options = dict(zip(("k_descale", "v_descale"), scales))
        o = attend.decode(q[:, None], k, v, layout="bshd", seqlens_k=self.lengths, page_table=self.table, **options)
        return o[:, 0]


@pytest.mark.parametrize(
    ("page_size", "lengths"), [(0, (32, 32)), (0, (33, 33, 33)), (5, (32, 32)), (5, (30, 7)), (64, (1, 65))]
)
@pytest.mark.parametrize("cache", [None, "f8e4m3"])
def test_flashinfer_is_told_of_the_same_pages(sides, page_size, lengths, cache):
    from attend._measure import decode_turns

    one = problem(sides, Setting(cache=cache, page_size=page_size, device="cpu"), lengths=lengths)
    module = types.SimpleNamespace(BatchDecodeWithPagedKVCacheWrapper=FakeFlashInfer)
    before = FakeFlashInfer.planned
    one.sides["flashinfer cores"] = sides.flashinfer(one, module, False)
    difference, errors = decode_turns.compare(one)
    assert errors == {} and difference["flashinfer cores"] <= 1e-2
    one.sides["flashinfer cores"](one.cache_of("attend"))
    assert FakeFlashInfer.planned == before + 1  # the plan was made in the first call, which is not captured


def test_peers_on_a_gpu_have_what_the_problem_needs(sides, monkeypatch):
    def of(setting, **more):
        one = problem(sides, dataclasses.replace(setting, device="cpu"), **more)
        one.setting = dataclasses.replace(setting, device="cuda")
        return list(sides.theirs(one))

    torch_ways = ["torch cudnn", "torch flash", "torch efficient"]
    assert of(Setting()) == torch_ways and set(sides.absent()) == set(sides.MODULES)
    missing, paged = decode_rows.notes([Setting(), Setting(page_size=16)], 1)
    assert missing == "left out, not installed: flash_attn_3, flash_attn_2, flashinfer" and paged.endswith("torch")
    for name in ("flash_attn_interface", "flash_attn"):
        monkeypatch.setitem(sys.modules, name, types.SimpleNamespace(flash_attn_with_kvcache=None))
    wrapper = {"BatchDecodeWithPagedKVCacheWrapper": None}
    monkeypatch.setitem(sys.modules, "flashinfer", types.SimpleNamespace(**wrapper))
    sides.peer_module.cache_clear()
    assert sides.absent() == [] == decode_rows.notes([Setting()], 1)
    assert decode_rows.notes([Setting()], 2) == ["left out, one query row only: flashinfer"]
    (narrow,) = decode_rows.notes([Setting(cache="f8e4m3")], 1)
    assert narrow == "left out, no f8e4m3 caches with a q of bf16: torch, flash_attn_3, flash_attn_2"
    both, pages = ["flash_attn_3", "flash_attn_2"], ["flashinfer cores", "flashinfer tensor_cores"]
    assert of(Setting()) == torch_ways + both + pages
    assert of(Setting(), rows=2) == torch_ways + both
    assert of(Setting(page_size=16)) == both + pages == of(Setting(page_size=16), lengths=(9, 17))
    assert of(Setting(), lengths=(9, 17)) == both
    assert of(Setting(cache="f8e4m3")) == pages and of(Setting(cache="i8")) == []
    assert of(Setting("f32")) == ["torch efficient", "torch math"]
    assert of(Setting(), heads_k=1, head_dim_v=8) == []


def test_masks_of_several_rows_align_bottom_right(sides, torch):
    one = problem(sides, Setting("f32", device="cpu"), rows=5)
    q, cache = one.q.transpose(1, 2), one.cache_of("attend")
    want = one.sides["attend"](cache)
    for as_bias in (False, True):
        mask = sides.rows_mask(one, as_bias)
        k, v = cache.k.transpose(1, 2), cache.v.transpose(1, 2)
        o = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
        assert torch.allclose(o.transpose(1, 2), want, atol=1e-5)


@pytest.mark.parametrize("table", ["page_table", "block_table"])
def test_flash_attns_functions_get_their_names(sides, table):
    one = problem(sides, Setting(page_size=16, device="cpu"), rows=2)

    def kvcache(q, k, v, *, cache_seqlens, causal, **pages):
        assert list(pages) == [table] and causal and pages[table] is one.page_table and cache_seqlens is one.lengths
        return attend.decode(q, k, v, layout="bshd", seqlens_k=cache_seqlens, page_table=pages[table]), None

    module = types.SimpleNamespace(flash_attn_with_kvcache=kvcache)
    side = sides.flash_attn_kvcache(one, module, table)
    assert side(one.cache_of("attend")).equal(one.sides["attend"](one.cache_of("attend")))


def test_the_fastest_way_of_a_library_stays(sides):
    from attend._measure import decode_turns

    one = problem(sides, Setting(device="cpu"))
    one.setting = dataclasses.replace(one.setting, device="cuda")
    us = {"torch cudnn": 3.0, "torch flash": 2.0, "attend": 9.0}
    one.sides |= dict.fromkeys(("torch cudnn", "torch flash", "torch efficient", "other a", "other b"))
    names = {id(side): name for name, side in one.sides.items() if side}

    def graph(side, caches, calls):
        return types.SimpleNamespace(us=lambda: us[names[id(side)]])

    one.sides["torch cudnn"], one.sides["torch flash"] = (lambda cache: 1), (lambda cache: 2)
    names |= {id(one.sides[name]): name for name in ("torch cudnn", "torch flash")}
    errors = {}
    decode_turns.keep_the_fastest(one, decode_turns.Sampling(graph=graph), errors)
    assert list(one.sides) == ["attend", "torch flash"]
    assert set(errors) == {"torch efficient", "other a", "other b"}


def test_on_a_gpu_graphs_take_turns(sides, monkeypatch):
    """Tests the timing on a GPU. Graphs and kernels are replaced by fakes."""
    from attend._measure import decode_problem, decode_turns

    class Graph:
        def __init__(self, side, caches, calls):
            self.caches = len(caches)
            for n in range(calls):
                side(caches[n % len(caches)])

        def us(self):
            return 10.0 * self.caches

    plain = decode_problem.problem

    def problem(shape, setting):
        one = plain(shape, dataclasses.replace(setting, device="cpu"))
        one.setting = setting
        return one

    monkeypatch.setattr(decode_problem, "problem", problem)
    monkeypatch.setattr("torch.cuda.synchronize", lambda: None)
    monkeypatch.setattr("torch.cuda.empty_cache", lambda: None)
    shape = Shape((32, 32), heads=6, heads_k=2, head_dim=16)
    sampling = functools.partial(decode_turns.Sampling, graph=Graph, copies_bytes=2.5 * shape.elements() * 2)
    monkeypatch.setattr(decode_turns, "Sampling", sampling)
    rows = decode_rows.measure(shape, Setting(), Limits(3), with_peers=True)
    found = {(row.implementation, row.variant, row.state): (row.us, row.samples) for row in rows}
    ways = ((name, way, state) for name, way in (("attend", ""), ("torch", "flash")) for state in ("warm", "cold"))
    assert found == {key: (pytest.approx(10.0 if key[2] == "warm" else 30.0), 3) for key in ways}
    assert all(row.passed for row in rows)


def test_a_large_cache_is_cold_as_it_is_warm(sides, monkeypatch):
    from attend._measure import decode_problem, decode_turns

    plain = decode_problem.problem
    on_cpu = lambda shape, setting: plain(shape, dataclasses.replace(setting, device="cpu"))
    monkeypatch.setattr(decode_problem, "problem", on_cpu)
    warm, cold = Timing(1.0, 1.0, 1.0, 1.0, 3), Timing(2.0, 2.0, 2.0, 2.0, 3)

    def timings(one, *_):
        (torch_side,) = (name for name in one.sides if name.startswith("torch"))
        return {("attend", "warm"): warm, (torch_side, "warm"): warm, (torch_side, "cold"): cold}

    monkeypatch.setattr(decode_turns, "timings", timings)
    shape = Shape((32, 32), heads=6, heads_k=2, head_dim=16)
    rows = decode_rows.measure(shape, Setting(), Limits(3), with_peers=True)
    assert [(row.implementation, row.state, row.us) for row in rows] == [
        ("attend", "warm", 1e3), ("attend", "cold", 1e3), ("torch", "warm", 1e3), ("torch", "cold", 2e3),
    ]  # fmt: skip
    about = {"machine": {"gpu": "a GPU", "cpu": "a CPU", "attend_threads": 2}, "device": "cuda", "notes": []}
    about |= {"dtype": "bf16", "cache": "bf16", "H": 6, "Hkv": 2, "D": 16, "rows_of_q": 1}
    data = about | {"rows": decode_rows.as_dicts(rows)}
    text = decode_rows.text(data)
    assert "contiguous, cold caches: us, median" in text and "2.00x" in text and "1.00x" in text
    pytest.importorskip("seaborn")
    from attend.bench import decode_pictures

    figures = decode_pictures.draw(data, False)
    titles = [axis.get_title() for axis in figures["grid"].axes]
    assert titles == ["attend, GB/s, warm caches", "attend, GB/s, cold caches"]
    lines = {line.get_label(): line.get_ydata()[0] for line in figures[""].axes[0].get_lines()}
    assert lines["attend"] == 2 * lines["torch"] == rows[1].gbps
