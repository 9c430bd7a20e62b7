"""Tests of python -m attend.bench: small runs on the CPU, consistent figures, detected faults, and pictures from JSON
files.
"""

import dataclasses
import importlib.util
import json
import os
import sys
import threading
import time
import types

import pytest

np = pytest.importorskip("numpy")
pytest.importorskip("tqdm")

import attend
from attend._measure import errors
from attend._measure.memory import MIB, Meter
from attend._measure.problems import Problem, grid
from attend.bench import __main__ as bench
from attend.bench.compare import best_ratio, rows_of
from result_files import KINDS, MACHINE

HAS_TORCH = importlib.util.find_spec("torch") is not None


@pytest.fixture
def small_grid(monkeypatch):
    def small(name, causal):
        return [Problem(1, 2, s, 16, causal) for s in (32, 40, 400)]

    monkeypatch.setattr("attend.bench.compare.grid", small)


def compare_to(path, *more):
    arguments = ["compare", "--max-seqlen", "64", "--samples", "3", "--device", "cpu", "--output", str(path)]
    status = bench.main([*arguments, *more])
    return status, json.loads(path.read_text())


def test_compare_measures_a_grid(no_torch, small_grid, tmp_path, capsys):
    status, data = compare_to(tmp_path / "c.json", "--compute", "cpu,cpu_naive", "--mode", "both", "--causal")
    assert status == 0 and data["kind"] == "compare" and data["causal"] is True
    shapes = [(1, 2, 32, 16), (1, 2, 40, 16)]
    assert list(dict.fromkeys((r["B"], r["H"], r["S"], r["D"]) for r in data["rows"])) == shapes
    assert len(data["rows"]) == 2 * 2 * 2 and all(r["passed"] and r["causal"] for r in data["rows"])
    for r in data["rows"]:
        flops = 2 * r["B"] * r["H"] * r["S"] ** 2 * r["D"] * (2.5 if r["mode"] == "backward" else 1)
        assert r["tflops"] == pytest.approx(flops / r["ms"] / 1e9)
    out = capsys.readouterr().out
    assert "left out, beyond --max-seqlen 64: (1, 2, 400, 16) causal" in out and "no torch" in out


def test_compare_takes_sizes(no_torch, tmp_path):
    path = tmp_path / "c.json"
    sizes = ["--batch-size", "2", "--num-heads", "1", "--seq-lengths", "16,24", "--head-dims", "8,16"]
    arguments = ["compare", *sizes, "--samples", "3", "--device", "cpu", "--compute", "cpu", "--output", str(path)]
    assert bench.main(arguments) == 0
    data = json.loads(path.read_text())
    shapes = [(r["B"], r["H"], r["S"], r["D"]) for r in data["rows"]]
    assert shapes == [(2, 1, 16, 8), (2, 1, 24, 8), (2, 1, 16, 16), (2, 1, 24, 16)] and data["grid"] == "given"


@pytest.mark.parametrize("command", ["compare", "roofline"])
def test_ctrl_c_keeps_what_was_measured(no_torch, small_grid, monkeypatch, tmp_path, command, capsys):
    plain = bench.compare.Measurement.measure
    calls = []

    def measure(self, *arguments):
        calls.append(1)
        if len(calls) > 1:
            raise KeyboardInterrupt
        return plain(self, *arguments)

    monkeypatch.setattr(bench.compare.Measurement, "measure", measure)
    monkeypatch.setattr(bench.roofline, "measure_ceilings", lambda *_: KINDS["roofline"]["ceilings"])
    path = tmp_path / "c.json"
    more = {
        "compare": ["--max-seqlen", "64", "--compute", "cpu"],
        "roofline": ["--seqlens", "32,64", "--kernel", "cpu"],
    }
    assert bench.main([command, "--device", "cpu", "--samples", "3", "--output", str(path), *more[command]]) == 130
    data = json.loads(path.read_text())
    assert len(data["rows"]) == 1 and data["rows"][0]["ms"] > 0
    assert "interrupted: the results so far are here" in data["notes"]


def test_a_share_above_the_ceiling_is_marked():
    data = json.loads(json.dumps({"machine": MACHINE, "notes": [], **KINDS["roofline"]}))
    assert "!" not in bench.roofline.text(data)
    data["rows"][0]["tflops"] = 0.4
    text = bench.roofline.text(data)
    assert "133.3 %!" in text and "!: above the ceiling" in text
    data["ceilings"]["peak_of"] = "matrix product"
    assert "!: faster than a large matrix product" in bench.roofline.text(data)


@pytest.mark.skipif(not HAS_TORCH, reason="torch is not installed: the peers are its")
def test_compare_has_peers(small_grid, tmp_path, capsys):
    status, data = compare_to(tmp_path / "c.json", "--dtype", "bf16", "--mode", "both")
    assert status == 0
    names = {r["implementation"] for r in data["rows"]}
    assert names == {"auto", "torch", "torch_math", "torch_flash", "unfused"}
    assert all(r["passed"] and r["dtype"] == "bf16" and r["ms"] > 0 for r in data["rows"])
    rows = [r for r in rows_of(data) if r.mode == "forward"]
    ratios = []
    for s in {r.S for r in rows}:
        ours, theirs = ([r.ms for r in rows if s == r.S and (r.library == "attend") == x] for x in (True, False))
        ratios.append(min(theirs) / min(ours))
    assert best_ratio(rows) == pytest.approx(np.exp(np.mean(np.log(ratios))))
    assert f"geometric mean: {best_ratio(rows):.2f} times" in capsys.readouterr().out


def test_compare_finds_a_wrong_gradient(no_torch, small_grid, monkeypatch, tmp_path, capsys):
    plain = attend.backward

    def wrong(*args, **options):
        dq, dk, dv = plain(*args, **options)
        return dq, dk * 1.01, dv

    monkeypatch.setattr(attend, "backward", wrong)
    status, data = compare_to(tmp_path / "c.json", "--compute", "cpu", "--mode", "both")
    assert status == 1
    assert {r["mode"]: r["passed"] for r in data["rows"]} == {"forward": True, "backward": False}
    assert "FAILED:" in capsys.readouterr().out


def test_memory_in_processes_of_their_own(tmp_path):
    path = tmp_path / "m.json"
    arguments = ["memory", "--seqlens", "128,256", "--num_heads", "2", "--mode", "forward", "--device", "cpu"]
    assert bench.main([*arguments, "--no-peers", "--compute", "cpu", "--output", str(path)]) == 0
    data = json.loads(path.read_text())
    assert [(r["implementation"], r["S"]) for r in data["rows"]] == [("cpu", 128), ("cpu", 256)]
    assert [r["inputs_mib"] for r in data["rows"]] == [4 * 2 * s * 64 * 4 / MIB for s in (128, 256)]


def test_the_warm_length_gives_no_row(no_torch, capsys):
    arguments = ["memory", "--seqlens", "128,64,128", "--num_heads", "1", "--device", "cpu", "--only", "cpu"]
    assert bench.main([*arguments, "--compute", "cpu"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(r["S"], r["mode"]) for r in rows] == [(s, mode) for s in (64, 128) for mode in ("forward", "backward")]


def test_the_meter_sees_what_a_call_takes_and_gives_back(no_torch):
    def take():
        scratch = np.ones(8 << 20)  # 64 MiB
        return float(scratch.sum())

    total, peak = Meter("cpu").peak(take)
    if peak is None:
        pytest.skip("this system does not let a process reset its peak")
    assert total == 8 << 20 and 60 < peak < 80


def test_scratch_that_threads_keep_is_counted_at_every_call(no_torch):
    """If a library keeps 256 MiB for each thread, this memory is counted in every call, not only in the first. attend's
    scratch memory is counted in the same way.

    The system's page count may be wrong by some MiB, because Linux has a separate counter for each processor.
    """
    kept = threading.local()

    def call():
        if not hasattr(kept, "scratch"):
            kept.scratch = np.ones(32 << 20)
        return float(kept.scratch[0])

    peaks = [Meter("cpu").peak(call)[1] for _ in range(3)]
    if None in peaks:
        pytest.skip("this system does not let a process reset its peak")
    assert all(240 < peak < 272 for peak in peaks), peaks

    def forward(seqlen):
        # Makes the scratch memory of a thread larger than the error of the measurement.
        q = np.ones((1, 2, seqlen, 512), np.float32)
        return Meter("cpu").peak(lambda: attend.forward(q, q, q))[1] - q.nbytes / MIB

    forward(64)
    # The memory of the result and of some scratch memory, which does not depend on earlier calls.
    taken = [forward(seqlen) for seqlen in (512, 2048, 512, 2048)]
    off = os.cpu_count() / 16  # possible error of the page count in MiB, because Linux has a counter per processor
    # The real value is some MiB.
    assert max(taken[1:]) > 1 - off and all(-1 - off < each < 16 + off for each in taken), taken


def test_on_a_gpu_the_meter_adds_torchs_peak_and_that_of_attends_pool(monkeypatch):
    held = {"torch": [100, 100], "pool": [30, 500]}  # current and peak bytes; the pool's peak is from an earlier call

    def memory(device="cuda", *, reset_peak=False):
        used, peak = held["pool"]
        if reset_peak:
            held["pool"][1] = used
        return {"used": used, "peak": peak, "reserved": 1 << 25, "reserved_peak": 1 << 25}

    def call():
        held["torch"] = [164, 228]  # includes the results and torch's temporary tensors
        held["pool"] = [30, 30 + 4097]

    cuda = types.SimpleNamespace(
        synchronize=lambda: None,
        reset_peak_memory_stats=lambda: None,
        memory_allocated=lambda: held["torch"][0],
        max_memory_allocated=lambda: held["torch"][1],
    )
    kept = []  # simulates the workspaces of cuBLAS
    workspaces = types.SimpleNamespace(_cuda_clearCublasWorkspaces=lambda: kept.append("cleared"))
    torch = types.SimpleNamespace(cuda=cuda, empty=lambda *_, **__: None, _C=workspaces)
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(attend, "memory", memory)
    for _ in range(2):  # in the second iteration the pool already has the memory, which must still be counted
        held.update(torch=[100, 100], pool=[30, 500])
        _, peak = Meter("cuda").peak(call)
        assert peak * MIB == 128 + 4097  # the exact number, not rounded up to the pool's reservations
    assert kept == ["cleared"] * 2


def test_roofline_measures_its_ceilings(no_torch, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("attend.bench.roofline.COPY_BYTES", {"cpu": 1 << 20})
    peaks = iter([1.0, 2.0])
    monkeypatch.setattr("attend.bench.roofline.cpu_peak_tflops", lambda: {"f32": next(peaks)})
    path = tmp_path / "r.json"
    arguments = ["roofline", "--device", "cpu", "--seqlens", "32,64", "--num_heads", "2"]
    assert bench.main([*arguments, "--samples", "3", "--output", str(path)]) == 0
    data = json.loads(path.read_text())
    # The peak is the larger of the values before and after the kernels, because other load on the machine can only
    # lower a value.
    assert data["ceilings"]["copy_gbps"] > 0 and data["ceilings"]["peak_tflops"] == {"f32": 2.0}
    for r in data["rows"]:
        assert r["intensity"] == pytest.approx(1e3 * r["tflops"] / r["gbps"])
        assert r["intensity"] == pytest.approx(4 * r["S"] * 64 / (4 * 64 * 4 + 4))
    assert "multiply-adds, TFLOP/s: f32 2" in capsys.readouterr().out


def test_the_peak_of_a_cpu_is_above_what_attention_reaches(no_torch):
    """attend executes the same multiply-adds as the peak measurement, and exponentials in addition. The two
    measurements alternate and have about the same duration. Otherwise other programs would disturb the longer one more
    often.
    """
    from attend import _core

    seqlen = 3072
    q = np.random.default_rng(0).standard_normal((1, 1, seqlen, 128), dtype=np.float32)
    threads = attend.cpu_threads()
    reached, peaks = 0.0, []
    for turn in range(30):
        begin = time.perf_counter()
        attend.forward(q, q, q)
        reached = max(reached, 4 * seqlen * seqlen * 128 / (time.perf_counter() - begin) * 1e-9)
        peaks.append(_core.cpu_peak_gflops(threads))
        peak = max(each["f32"] for each in peaks)
        if turn >= 4 and peak > 0.95 * reached:
            break
    assert peak > 0.95 * reached
    assert all(set(peak) == {"f32"} | ({"bf16"} if attend.cpu_bf16_unit() != "float32" else set()) for peak in peaks)
    with pytest.raises(ValueError, match="threads: 0, allowed 1 to 4096"):
        _core.cpu_peak_gflops(0)


@pytest.fixture
def two_devices(monkeypatch, no_torch):
    """Makes the bench treat cpu_naive as an implementation of the other device."""
    choose = bench.roofline.catalogue.choose

    def with_another(names, *more):
        chosen, notes = choose(names, *more)
        return [dataclasses.replace(x, device="cuda" if x.name == "cpu_naive" else "cpu") for x in chosen], notes

    monkeypatch.setattr(bench.roofline.catalogue, "choose", with_another)
    monkeypatch.setattr(bench.roofline, "measure_ceilings", lambda *_: KINDS["roofline"]["ceilings"])


def test_roofline_says_which_names_are_of_the_other_device(two_devices, tmp_path, capsys):
    path = tmp_path / "r.json"
    arguments = ["roofline", "--device", "cpu", "--seqlens", "32", "--samples", "3", "--output", str(path)]
    assert bench.main([*arguments, "--kernel", "cpu,cpu_naive"]) == 0
    data = json.loads(path.read_text())
    note = "left out, not of --device cpu: cpu_naive"
    assert note in data["notes"] and note in capsys.readouterr().out
    assert {r["implementation"] for r in data["rows"]} == {"cpu"}
    assert bench.main([*arguments, "--kernel", "cpu_naive"]) == 2
    assert capsys.readouterr().err == "--kernel: cpu_naive, allowed on --device cpu: cpu\n"


BAD = {
    "abbreviation": (["compare", "--max-seq", "64"], "unrecognized arguments: --max-seq 64"),
    "head_dims": (["compare", "--head-dims", "64,700"], "argument --head-dims: 700, allowed 1 to 512"),
    "no list": (["memory", "--seqlens", "128,abc"], "argument --seqlens: 'abc', allowed whole numbers from 1"),
    "grid and sizes": (["compare", "--grid", "seed", "--head-dims", "64"], "--head-dims: given with --grid seed"),
    "nothing": ([], "required: command"),
    "grid": (["compare", "--grid", "mine"], "invalid choice: 'mine'"),
    "compute": (
        ["compare", "--compute", "nobody", "--device", "cpu"],
        "--compute: 'nobody', allowed on cpu: auto, cpu",
    ),
    "device": (["compare", "--device", "cuda"], "--device: cuda, but torch finds no GPU"),
    "max_seqlen": (["compare", "--max-seqlen", "8"], "--max-seqlen: 8, allowed 32 or more"),
    "kernel": (["roofline", "--kernel", "fa2"], "--kernel: 'fa2' cannot run here"),
    "seqlens": (["memory", "--seqlens", "128,0"], "0, allowed 1 or more"),
    "no_file": (["visualize", "nowhere.json"], "nowhere.json"),
    "output": (["compare", "--output", "/proc/x.json"], "--output: /proc/x.json: "),
    "memory_output": (["memory", "--output", "/proc/x.json"], "--output: /proc/x.json: "),
    "roofline_output": (["roofline", "--output", "/proc/x.json"], "--output: /proc/x.json: "),
    "output_dir": (["visualize", "nowhere.json", "--output-dir", "/proc/x"], "--output-dir: /proc/x: "),
    "product_size": (["roofline", "--device", "cpu", "--product-size", "64"], "--product-size: 64, allowed on a GPU"),
    "rows": (["decode", "--seqlen", "64,4", "--rows", "5"], "--rows: 5, allowed 1 to 4: the least --seqlen"),
    "heads": (["decode", "--heads", "6:4"], "argument --heads: 6:4, allowed a number of query heads that is a"),
    "no_heads": (["decode", "--heads", "6:"], "argument --heads: '', allowed whole numbers from 1"),
    "page_size": (["decode", "--page-size", "0,-1"], "argument --page-size: -1, allowed 0 (contiguous) or more"),
    "cache": (["decode", "--cache", "f16", "--dtype", "bf16"], "--cache: f16, allowed with --dtype bf16: bf16, f8e4m3"),
    "plot": (["decode", "--plot", "x.txt"], "--plot: x.txt, allowed a file that ends in .png or .svg"),
    "json": (["decode", "--json", "/proc/x.json"], "--json: /proc/x.json: "),
    "decode_size": (["decode", "--seqlen", "100000000"], "1x100000000 needs 762.9 GiB of memory, allowed 16 GiB"),
    "decode_batch": (["decode", "--batch", "1000000000000"], "1000000000000x512 needs 3.906e+09 GiB of memory"),
    "decode_pages": (["decode", "--page-size", "1000000000"], "1x512 in pages of 1000000000 needs 7629 GiB"),
    "no_torch": (["decode"], "attend.bench decode needs torch: pip install torch"),
    "roofline_size": (["roofline", "--seqlens", "64,100000000"], "(2, 8, 100000000, 64) needs 1526 GiB of memory"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_usage_exits_with_2_and_one_line(no_torch, monkeypatch, tmp_path, capsys, name):
    arguments, message = BAD[name]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("attend._measure.memory.total_bytes", lambda device: 16 * 2.0**30)
    monkeypatch.setattr(
        "attend._measure.measurement.Measurement.measure", lambda *_: pytest.fail("something was measured")
    )
    try:
        status = bench.main(arguments)
    except SystemExit as end:
        status = end.code
    assert status == 2 and message in capsys.readouterr().err.strip().splitlines()[-1]


def test_a_product_that_finds_no_memory_is_one_line(no_torch, monkeypatch):
    with pytest.raises(
        errors.UsageError, match="--product-size: 4000000 needs 1.788e.05 GiB of memory, allowed 16 GiB"
    ):
        monkeypatch.setattr("attend._measure.memory.total_bytes", lambda device: 16 * 2.0**30)
        bench.roofline.measure_ceilings("cuda", 4000000)

    def full(device, size):
        raise MemoryError("Unable to allocate 1 GiB")

    monkeypatch.setattr("attend.bench.roofline.measure_ceilings", full)
    with pytest.raises(errors.UsageError, match="--product-size: 2048: Unable to allocate 1 GiB, allowed"):
        bench.roofline._ceilings_that_fit("cuda", 2048)


def test_grids_are_those_of_the_papers():
    assert all(p.batch * p.seqlen == 16384 and p.num_heads * p.head_dim == 2048 for p in grid("paper"))
    assert len(grid("seed")) == 10 and [p.seqlen for p in grid("seqlen")] == [128, 256, 512, 1024, 2048, 4096]
    assert Problem(2, 3, 5, 7).flops("backward") == 2.5 * 4 * 2 * 3 * 5 * 5 * 7


def test_missing_packages_are_named_together(monkeypatch):
    monkeypatch.setitem(sys.modules, "seaborn", None)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(errors.UsageError, match="drawing needs matplotlib seaborn: pip install matplotlib seaborn"):
        errors.require("matplotlib", "seaborn", purpose="drawing")
