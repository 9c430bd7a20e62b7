"""Tests of bench/h200_vs_peers.py without a GPU: all implementations compute the same problem, and the tables and the
picture match the data.
"""

import importlib
import json
import math
import pathlib
import sys
import types

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
OWN = {
    "batch": 1, "heads": 2, "seqlen": 256, "head_dim": 16, "window": 100, "document": 64, "prefix": 70, "noised": 32,
    "chosen": 64, "image": 32, "neighbourhood": 12, "tile": 8, "image_heads": 1,
}  # fmt: skip
# Small sizes that all differ, so that a mask along the wrong dimension is detected.
SIZES = {"batch": 2, "heads": 4, "seqlen": 96, "head_dim": 16, "window": 24, "document": 32, "gqa_heads": (6, 2)}
TIMES = {"attend": 1.0, "fa3": 1.25, "fa2": 2.0}


@pytest.fixture
def script(monkeypatch):
    """Returns a module of bench/ by its name, newly loaded."""
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    for name in (
        "peer_tables",
        "peer_cases",
        "own_peer_cases",
        "corner_cases",
        "h200_vs_peers",
        "gpu_tables",
        "plot_vs_peers",
        "report",
    ):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return importlib.import_module


@pytest.fixture
def plain_sdpa(script, torch, monkeypatch):
    """Replaces the backends that need a GPU by torch's unfused attention."""
    cases = script("peer_cases")
    math_backend = torch.nn.attention.SDPBackend.MATH
    monkeypatch.setattr(cases, "SDP", dict.fromkeys(cases.SDP, math_backend))
    return cases


def row(mode="fwd", seqlen=512, causal=False, **more):
    """Returns a line in which attend is 1.25 times as fast as FlashAttention-3."""
    tflops = {name: 600.0 / ms for name, ms in TIMES.items()}
    found = {"what": "paper", "dtype": "bf16", "D": 64, "S": seqlen, "B": 4, "H": 8, "causal": causal, "mode": mode}
    return found | {"ms": TIMES, "tflops": tflops, "difference": {"fa3": 1e-3}, "errors": {}} | more


def data(rows):
    versions = {"attend": "1", "torch": "2", "fa3": None}
    head = {"kind": "vs_peers", "device_name": "a GPU", "driver": "1", "versions": versions, "date": "2026-01-01"}
    return head | {"matrix_product_tflops": 700.0, "dtype": "bf16", "rows": rows}


def named(case, mode):
    """Returns the backends of attend that the case measures by name in this pass."""
    return set(case.computes) if mode == "fwd" else set()


@pytest.mark.parametrize("grid", ["masks", "paper", "decode", "own", "corners"])
def test_all_sides_compute_the_same(plain_sdpa, script, grid):
    tool = script("h200_vs_peers")
    sizes = {
        "masks": {"sizes": plain_sdpa.Masked(**SIZES)},
        "paper": {"tokens": 64, "channels": 512, "first": 32, "computes": ("cpu_naive",)},
        "decode": {"shapes": ((1, 40), (3, 24))},
        "own": {"sizes": script("own_peer_cases").Own(**OWN)},
        "corners": {"shapes": ((2, 2, 2, 40, 40, 16, True), (1, 4, 2, 24, 40, 32, False))},
    }[grid]
    limits = tool.timing.Limits(3, sample_ms=0.01)
    rows = []
    for case in tool.GRIDS[grid]("f32", "cpu", **sizes):
        rows += [tool.measure(case, mode, "cpu", limits) for mode in case.modes]
        for one in rows[-len(case.modes) :]:
            cannot = {"flex"} if one["mode"] == "bwd" else set()  # flex_attention has no gradients on a CPU
            assert one["errors"].keys() <= cannot and not tool.wrong(one), one
            assert one["ms"].keys() == case.sides.keys() - one["errors"].keys() | named(case, one["mode"])
            assert all(ms > 0 for ms in one["ms"].values()) and (len(one["ms"]) > 1 or cannot)
            assert all(x <= 1e-5 for x in one.get("difference", {}).values()), one
            assert ("difference" in one) == (one.get("mask") != "dropout-causal")
    if grid == "masks":
        seen = {(one["mask"], one["mode"]) for one in rows}
        plain = ("alibi", "softcap", "dropout", "gqa6:2", "documents32")
        kinds = ("window24", "bias", *(f"{kind}-causal" for kind in plain))
        assert seen == {(kind, mode) for kind in kinds for mode in ("fwd", "bwd")} | {("dbias", "bwd")}
    if grid == "paper":
        assert [(one["D"], one["S"], one["B"], one["H"]) for one in rows[::8]] == [
            (64, 32, 2, 8),
            (128, 32, 2, 4),
            (256, 32, 2, 2),
        ]
    if grid == "own":
        assert len(rows) == 20 and sum("built_in" in one["ms"] for one in rows) == 8
    if grid == "decode":
        assert all(one["gbps"]["attend"] > 0 for one in rows)


def test_operations_are_those_of_the_pairs_that_the_mask_leaves(plain_sdpa):
    sizes = plain_sdpa.Masked(**SIZES)
    full = 4.0 * 2 * 4 * 96 * 96 * 16
    shares = {case.row["mask"]: case.flops / full for case in plain_sdpa.masks("f32", "cpu", sizes)}
    causal = dict.fromkeys(("alibi-causal", "softcap-causal", "dropout-causal"), 0.5)
    assert shares == pytest.approx(
        causal
        | {"window24": 24 / 96, "documents32-causal": 32 / 96 / 2, "bias": 1, "dbias": 1, "gqa6:2-causal": 0.5 * 6 / 4}
    )


def test_the_grid_of_the_papers_is_compiled_at_once(script, torch):
    tool, cases = script("h200_vs_peers"), script("peer_cases")
    shapes = list(cases.paper_shapes())
    assert len(shapes) == 36 and shapes[0] == (32, 32, 512, 64, False) and shapes[-1] == (1, 8, 16384, 256, True)
    assert tool.compile_all("bf16", "cpu", ("fwd", "bwd"), tokens=64, first=32) == 24


@pytest.mark.parametrize("side, name", [("fa3", "flash_attn_interface"), ("fa4", "flash_attn.cute")])
def test_flash_attention_is_a_side_where_it_is_installed(plain_sdpa, script, torch, monkeypatch, side, name):
    module = types.ModuleType(name)
    asked = []

    def function(q, k, v, causal):
        asked.append(causal)
        o = torch.nn.functional.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v)), is_causal=causal)
        return o.transpose(1, 2), None  # some versions return (o, lse)

    module.flash_attn_func = function
    monkeypatch.setitem(sys.modules, "flash_attn", types.ModuleType("flash_attn"))
    monkeypatch.setitem(sys.modules, name, module)
    case = next(plain_sdpa.paper("f32", "cpu", tokens=32, channels=64, first=32))
    tool = script("h200_vs_peers")
    one = tool.measure(case, "bwd", "cpu", tool.timing.Limits(3, sample_ms=0.01))
    assert one["difference"][side] <= 1e-5 and one["ms"][side] > 0 and asked == [False]


def test_a_wrong_result_is_seen_and_a_refusal_kept(plain_sdpa, script):
    def refuse(q, k, v):
        raise RuntimeError("not for me\nsecond line")

    case = next(plain_sdpa.paper("f32", "cpu", tokens=32, channels=64, first=32))
    attend = case.sides["attend"]
    case.sides = {
        "attend": attend,
        "fa3": lambda q, k, v: attend(q, k, v, causal=True),
        "cudnn": lambda q, k, v: attend(q, k, v) * math.nan,
        "fa2": refuse,
    }
    tool = script("h200_vs_peers")
    one = tool.measure(case, "fwd", "cpu", tool.timing.Limits(3, sample_ms=0.01))
    assert tool.wrong(one) == ["fa3", "cudnn"]
    assert one["errors"] == {"fa2": "RuntimeError: not for me"} and "fa2" not in one["ms"]
    case.sides = {"attend": refuse}
    assert tool.wrong(tool.measure(case, "fwd", "cpu", tool.timing.Limits(3, sample_ms=0.01))) == ["attend"]


def test_figures_of_merit(script):
    tables = script("peer_tables")
    assert tables.best_peer(row()) == ("fa3", 480.0) and tables.ratio(row()) == pytest.approx(1.25)
    alone = row(tflops={"attend": 1.0, "sm80_forward": 2.0})  # sm80_forward is a backend of attend, not a peer
    assert tables.best_peer(alone) is None and tables.ratio(alone) is None
    slow = row(seqlen=1024, tflops={"attend": 300.0, "fa3": 480.0})
    assert tables.geometric_mean(tables.ratios([row(), slow, alone])) == pytest.approx(math.sqrt(1.25 * 0.625))
    text = tables.text([row(), slow, row(mode="bwd")])
    assert "fwd, all: 0.884  0.625" in text and "bwd, all: 1.250  1.250" in text
    assert "sm80_forward relative to FlashAttention-2: 0.500, smallest 0.500" in tables.text(
        [row(tflops={"attend": 1.0, "fa2": 4.0, "sm80_forward": 2.0})]
    )


def test_tables_show_what_is_slow(script):
    tables = script("peer_tables")
    slow = row(seqlen=1024, tflops={"attend": 300.0, "fa3": 480.0})
    (line,) = tables.by_length([row(), slow])[2:]
    assert line == "| forward | 64 | full | 600 (480) | **300** (480) | **0.88**x | **0.62**x |"
    assert tables.by_side([row(), slow])[3].endswith("| 300 | 480 | - | **0.62**x |")
    masked = [row(mask="window"), row(mode="bwd", mask="window"), row(mode="bwd", mask="dbias")]
    assert tables.options_table(masked)[2:] == ["| window | 600 (480) | 600 (480) |", "| dbias | - | 600 (480) |"]
    assert tables.line(row(gbps={"attend": 4000.0, "fa3": 3000.0})).endswith("attend=4000 fa3=3000 GB/s  1.33x")


def test_the_pages_are_made_of_the_results(script, monkeypatch, tmp_path):
    tables = script("gpu_tables")
    rows = [row(mode, s, causal) for mode in ("fwd", "bwd") for causal in (False, True) for s in (512, 8192)]
    ladder = tables.RESULTS / "ladder.json"
    (tmp_path / ladder.name).write_text(ladder.read_text())
    for grid, some in (
        ("paper", rows),
        ("masks", [row(mask="window")]),
        ("decode", [row(what="decode", Hkv=2, gbps={"attend": 400.0, "fa3": 300.0})]),
    ):
        (tmp_path / f"vs_peers_{grid}_bf16.json").write_text(json.dumps(data(some)))
    monkeypatch.setattr(tables, "RESULTS", tmp_path)
    cache = {"rows": 1, "B": 4, "H": 8, "Hkv": 2, "S": tables.KEYS_OF_LARGE // 4, "D": 64}
    cache["gbps"] = {"attend": {"cold": 4000.0, "warm": 4500.0}, "fa3": {"cold": 3000.0, "warm": 5000.0}}
    small = cache | {"S": cache["S"] - 1, "D": 32}
    draft = cache | {"rows": 4, "D": 96}
    (tmp_path / "decode.json").write_text(json.dumps({"date": "2026-01-02", "rows": [cache, small, draft]}))
    monkeypatch.setattr(tables, "DECODE", tmp_path / "decode.json")
    readme, page = tables.summary(), tables.vs_peers()
    assert "| backward | 64 | causal | 600 (480) | - | 600 (480) | - | 1.25x | 1.25x |" in readme
    assert "| window | 600 (480) | - |" in readme and "(4, 8:2, 16384, 64) 4000 (3000)." in readme
    assert readme.count("(3000)") == 1  # neither the small cache nor several rows
    (alone,) = tables.float32()
    assert "`fa2` reaches " in alone
    problem = {"B": 8, "H": 16, "D": 64, "mode": "forward", "ms": 2.0, "tflops": 40.0, "torch_tflops": 30.0}
    run = [problem | {"S": 2048, "torch_ms": 3.0}, problem | {"S": 32, "torch_ms": 1.0}]
    found = {"device_name": "a GPU", "torch": "2", "compute": "fa2", "rows": run}
    (tmp_path / "seed_f32.json").write_text(json.dumps(found))
    assert tables.float32()[-1] == "| float32 forward, (8, 16, 32, 64) | `fa2` | **40.0** | 30.0 (memory-efficient) |"
    assert page.count("Grid `") == 3 and "FlashAttention-3 | FlashAttention-2 | attend over the best |" in page


def test_the_picture_has_a_panel_for_each_pass_mask_and_head_dim(script):
    pytest.importorskip("matplotlib")
    rows = [
        row(mode, s, causal, D=d)
        for mode in ("fwd", "bwd")
        for causal in (False, True)
        for s in (512, 1024)
        for d in (64, 128)
    ]
    figure = script("plot_vs_peers").draw(data(rows))
    titles = [axis.get_title() for axis in figure.axes]
    assert len(titles) == 8
    assert titles[0] == "forward, full, head_dim 64" and titles[-1] == "backward, causal, head_dim 128"
    lines = {line.get_label(): list(line.get_ydata()) for line in figure.axes[0].get_lines()}
    assert lines == {"attend": [600.0] * 2, "FlashAttention-3": [480.0] * 2, "FlashAttention-2": [300.0] * 2}
