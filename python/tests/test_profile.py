"""python -m attend.profile: reports with known figures in, sentences out. The reports are made up, in ncu's format.

profile_reports/fma.csv: two kernels, base units, everything measured. latency.csv: messages before the header, units
with prefixes, every trouble at once. tensor.csv: much of it "n/a".
"""

import csv
import io
import json
import os
import pathlib
import subprocess
import sys

import attend
import pytest
from attend.profile import __main__ as command
from attend.profile import collect, ladder, metrics, stalls
from attend.profile.diagnosis import THRESHOLDS, diagnose
from attend.profile.measures import measure
from attend.profile.output import Problem
from attend.profile.report import ReportError, parse, scale_of

REPORTS = pathlib.Path(__file__).parent / "profile_reports"
FMA, LATENCY, TENSOR = "fma.csv", "latency.csv", "tensor.csv"
DRAM = "dram__throughput.avg.pct_of_peak_sustained_elapsed"
CONFLICTS = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum"


def launch(name, **changes):
    """The last launch of a report with some values replaced; None: not measured."""
    last = parse((REPORTS / name).read_text())[-1]
    for metric, value in changes.items():
        last.values.pop(metric, None)
        if value is not None:
            last.values[metric] = value
    return last


def said(name, **changes):
    return " ".join(diagnose(measure(launch(name, **changes))).sentences)


def run(*words, path=None):
    environment = os.environ | ({"PATH": str(path)} if path else {})
    command_line = [sys.executable, "-m", "attend.profile", *map(str, words)]
    return subprocess.run(command_line, capture_output=True, text=True, check=False, env=environment, timeout=60)


def test_numbers_come_out_in_base_units():
    base = launch(FMA).values
    assert base["gpu__time_duration.sum"] == pytest.approx(8.390112e-3)
    assert base["sm__cycles_elapsed.avg.per_second"] == pytest.approx(1.7421189e9)
    assert base["dram__bytes.sum"] == 1342177280
    scaled = launch(LATENCY).values
    assert scaled["gpu__time_duration.sum"] == pytest.approx(23.02e-3)
    assert scaled["sm__cycles_elapsed.avg.per_second"] == pytest.approx(1.71e9)
    assert scaled["launch__shared_mem_per_block"] == pytest.approx(66560)
    assert launch(TENSOR).values["sm__cycles_elapsed.avg.per_second"] == pytest.approx(1.52e9)


@pytest.mark.parametrize(
    "unit, scale",
    [("ns", 1e-9), ("us", 1e-6), ("msecond", 1e-3), ("s", 1), ("second", 1), ("Ghz", 1e9), ("hz", 1), ("", 1)]
    + [
        ("Kbyte/block", 1e3),
        ("Gbyte/second", 1e9),
        ("cycle/nsecond", 1e9),
        ("sector/request", 1),
        ("%", 1),
        ("inst", 1),
    ],
)
def test_units(unit, scale):
    assert scale_of(unit) == pytest.approx(scale)


def test_what_is_not_available_is_no_number():
    values = launch(TENSOR)
    assert "smsp__sass_inst_executed_op_local_ld.sum" not in values.values
    assert "smsp__sass_inst_executed_op_local_ld.sum" not in values.texts
    m = measure(values)
    assert m.get("spill_loads") is None and "instructions that load from local memory" in m.missing
    text = said(TENSOR)
    assert "Not in the report:" in text and "instructions that load from local memory" in text
    assert "spilled" not in text  # neither "is" nor "is not" was measured


@pytest.mark.parametrize("report, bound", [(FMA, "issue"), (LATENCY, "latency"), (TENSOR, "tensor")])
def test_what_bounds_the_kernel(report, bound):
    assert diagnose(measure(launch(report))).bound == bound


def test_the_most_used_resource_is_named_with_its_figure():
    assert "Bound by tensor cores, 71 %" in said(TENSOR) and "Close behind: the XU pipe (63 %)" in said(TENSOR)
    text = said(LATENCY, **{DRAM: 92.4})
    assert "Bound by DRAM, 92 %" in text and "close to the ceiling" in text and "Bound by latency" not in text


@pytest.mark.parametrize("metric", metrics.RESOURCES, ids=lambda metric: metric.key)
def test_every_resource_can_bound(metric):
    used = dict.fromkeys(metric.names[1:]) | {metric.names[0]: THRESHOLDS.bound + 0.1}
    assert diagnose(measure(launch(LATENCY, **used))).bound == metric.key
    assert metric.meaning in said(LATENCY, **used)
    used[metric.names[0]] = THRESHOLDS.bound - 0.1
    assert diagnose(measure(launch(LATENCY, **used))).bound == "latency"


def test_a_second_name_counts_where_the_first_has_no_value():
    first, second, _ = metrics.RESOURCES[0].names
    assert measure(launch(TENSOR, **{first: None, second: 42.0})).get("tensor") == 42.0
    assert measure(launch(TENSOR, **{first: 41.0, second: 42.0})).get("tensor") == 41.0


def test_reasons_to_wait_are_shares_of_the_whole():
    shares = {s.reason: s.share for s in measure(launch(LATENCY)).stalls}
    assert shares["short_scoreboard"] == pytest.approx(3.6 / 11.25)
    assert "selected" not in shares and "not_selected" not in shares
    text = said(LATENCY)
    assert text.index("`short_scoreboard`") < text.index("`long_scoreboard`") < text.index("`mio_throttle`")
    assert "`barrier`" not in text and stalls.STALLS["short_scoreboard"].remedy in text
    assert stalls.STALLS["barrier"].remedy not in said(TENSOR)  # a bound kernel has its remedy elsewhere


@pytest.mark.parametrize("reason", stalls.STALLS)
def test_every_reason_has_its_words(reason):
    assert stalls.STALLS[reason].meaning in said(LATENCY, **{metrics.stall_name(reason): 1000.0})


def test_a_reason_of_another_gpu_is_told_as_unknown():
    assert "`new_thing`, for which this table has no words" in said(LATENCY, **{metrics.stall_name("new_thing"): 99.0})


TROUBLES = {
    "are bank conflicts": (CONFLICTS, 0.11 * 8e9, 0.09 * 8e9),
    "neighbouring threads": ("l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_ld.ratio", 17.0, 16.0),
    "has work in": ("sm__cycles_active.avg", 0.84 * 39.4e6, 0.86 * 39.4e6),
    "well below it": ("sm__warps_active.avg.pct_of_peak_sustained_active", 0.74 * 18.75, 0.76 * 18.75),
    "too few to fill": ("launch__waves_per_multiprocessor", 1.99, 2.01),
}


@pytest.mark.parametrize("words", TROUBLES)
def test_a_trouble_is_named_from_its_threshold_on(words):
    metric, above, below = TROUBLES[words]
    assert words in said(LATENCY, **{metric: above})
    assert words not in said(LATENCY, **{metric: below})
    assert words not in said(LATENCY, **{metric: None})


def test_spills_and_what_limits_occupancy():
    assert "131072 loads and 65536 stores" in said(LATENCY)
    assert "No register is spilled" in said(FMA)
    assert "not more than 2 blocks at once because of registers and shared memory" in said(FMA)
    assert "not more than 1 block at once because of shared memory" in said(FMA, launch__occupancy_limit_shared_mem=1.0)


def test_a_report_with_nothing_in_it_says_so():
    empty = parse('"ID","Kernel Name"\n"",""\n"0","attend_fa2_forward"\n')[0]
    verdict = diagnose(measure(empty))
    assert verdict.bound == "unknown" and "cannot be said" in verdict.sentences[0]


LAST = 19  # the products, where the ladder leads


def test_the_rungs_are_those_of_the_ladder():
    described = [(b["description"].split(":")[0], b["name"]) for b in attend.backends() if b["device"] == "cuda"]
    named = {about: name for about, name in described if about.startswith("rung ")}
    lessons = [rung for rung in ladder.RUNGS if rung.number < LAST]
    assert named == {f"rung {rung.number:02}": rung.name for rung in lessons}
    products = {rung.name for rung in ladder.RUNGS if not rung.next_step}
    assert products == {rung.name for rung in ladder.RUNGS if rung.number == LAST}
    assert products and products <= {name for _, name in described} - set(named.values())


@pytest.mark.parametrize(
    "kernel, words",
    [
        ("attend_wgmma_tma_forward", "Rung 18, `wgmma_specialized`"),
        ("attend_wgmma_forward", "Rung 17, `wgmma_tma`"),
        ("attend_mma_qreg_async_forward", "rung 15, `mma_qreg_async`"),
        ("attend_fa2_naive_forward", "rung 06, `fa2_naive`"),
        ("attend_fa2_backward", "the last with a backward pass"),
        ("attend_standard_dscores", "Rung 08, `fa2`, is the next with a backward"),
        ("attend_standard_softmax", "Rung 02, `naive`"),
        ("attend_wgmma_specialized_forward", "Rung 19, `sm90_forward`"),
        ("attend_sm90_forward", "rung 19, `sm90_forward`, the last of the ladder"),
        ("attend_sm90_backward_prepare", "rung 19, `sm90_backward`, the last of the ladder"),
    ],
)
def test_the_next_rung(kernel, words):
    assert words in ladder.place(kernel)


def test_other_kernels_have_no_rung():
    assert ladder.place("ampere_sgemm_128x64_nn") == "" and ladder.place("fa2_forward") == ""


def test_the_command_explains_a_report(tmp_path):
    done = run("--report", REPORTS / FMA, "--json", tmp_path / "deep" / "profile.json")
    assert done.returncode == 0, done.stderr
    assert "attend_fa2_backward grid (4096, 1, 1)" in done.stdout  # the longest of the two
    data = json.loads((tmp_path / "deep" / "profile.json").read_text())
    assert data["kernel"] == "attend_fa2_backward" and data["gpu"] == "NVIDIA H200" and data["problem"] is None
    assert [x["kernel"] for x in data["launches"]] == ["attend_fa2_backward_prepare", "attend_fa2_backward"]
    assert data["measures"]["fma"] == {"label": "the FMA pipe", "value": 83.91, "unit": "%"}
    assert all(sentence in done.stdout for sentence in data["diagnosis"]) and len(data["diagnosis"]) > 3
    done = run("--report", REPORTS / FMA, "--kernel-regex", "prepare")
    assert "Bound by DRAM" in done.stdout and "attend_fa2_backward_prepare grid" in done.stdout


BAD_REPORTS = {
    "missing": (None, "No such file"),
    "prose": ("no kernels were profiled\n", 'no header row that starts with "ID"'),
    "details": ('"ID","Kernel Name","Metric Name","Metric Value"\n"0","k","Duration","1"\n', "--page raw"),
    "no_launch": ('"ID","Kernel Name","gpu__time_duration.sum"\n"","","ns"\n', "no launch in it"),
    "cut": ('"ID","Kernel Name","gpu__time_duration.sum"\n"","","ns"\n"0","attend_x"\n', "cut off"),
    "binary": (b"\xff\xfe\x00\x81", "not a text file"),
}


@pytest.mark.parametrize("name", BAD_REPORTS)
def test_a_bad_report_is_one_line(name, tmp_path):
    content, words = BAD_REPORTS[name]
    path = tmp_path / "report.csv"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    done = run("--report", path)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.count("\n") == 1 and words in done.stderr and str(path) in done.stderr


def test_a_pattern_without_match_or_sense():
    for pattern, words in (("nobody", "matches none of attend_fa2_backward"), ("(", "a regular expression")):
        done = run("--report", REPORTS / FMA, "--kernel-regex", pattern)
        assert done.returncode == 2 and words in done.stderr and done.stderr.count("\n") == 1


def test_without_ncu_one_line(tmp_path):
    if pathlib.Path("/usr/local/cuda/bin/ncu").exists():
        pytest.skip("ncu is installed where an empty PATH does not hide it")
    done = run(path=tmp_path)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "ncu" in done.stderr


def test_without_a_gpu_one_line(tmp_path):
    if attend.gpus():
        pytest.skip("there is a GPU here")
    fake_ncu(tmp_path, "print('Version 2025.1.0.0 (build 1)')")
    done = run(path=tmp_path)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "no NVIDIA GPU" in done.stderr


@pytest.mark.parametrize("words", [["--json", "/proc/x.json"], ["--output-dir", "/proc/x"]], ids=lambda w: w[0])
def test_an_output_that_cannot_be_written_stops_before_the_measurement(words, tmp_path, monkeypatch, capsys):
    fake_ncu(tmp_path, "print('Version 2025.1.0.0 (build 1)')")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(command.attend, "gpus", lambda: [{"name": "a GPU"}])
    monkeypatch.setattr(collect, "collect", lambda *_: pytest.fail("something was measured"))
    assert command.main(words) == 2
    assert capsys.readouterr().err.startswith(f"attend.profile: {words[0]}: {words[1]}: ")


@pytest.mark.parametrize("words", [["--seq_len", "0"], ["--dtype", "f64"], ["--mode", "both"], ["--head_dim", "x"]])
def test_wrong_usage(words):
    done = run(*words)
    assert done.returncode == 2 and words[0] in done.stderr


def fake_ncu(folder, body):
    program = folder / "ncu"
    program.write_text(f"#!{sys.executable}\nimport pathlib, sys\n{body}\n")
    program.chmod(0o755)
    return program


PROBLEM = Problem("fa2", "backward", 8, 16, 2048, 64, "f32", False)
REPORT_BODY = f"""
words = sys.argv[1:]
if words == ['--version']:
    print('NVIDIA (R) Nsight Compute Command Line Profiler'); print('Version 2025.1.0.0 (build 1) (public-release)')
elif '--import' in words:
    assert words[2:] == ['--csv', '--page', 'raw', '--print-units', 'base'], words
    print(pathlib.Path({str(REPORTS / FMA)!r}).read_text(), end='')
else:
    pathlib.Path(words[words.index('--export') + 1]).write_text('report')
"""


def test_the_command_measures_a_call(tmp_path, monkeypatch, capsys):
    """With a stand-in for ncu that writes a fixed report: everything but the measurement."""
    fake_ncu(tmp_path, REPORT_BODY)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(command.attend, "gpus", lambda: [{"name": "a GPU"}])
    kept = tmp_path / "kept"
    words = ["--compute", "fa2", "--mode", "backward", "--output-dir", str(kept), "--json", str(kept / "p.json")]
    assert command.main(words) == 0
    assert {p.name for p in kept.iterdir()} == {"profile.ncu-rep", "profile.csv", "ncu.log", "p.json"}
    data = json.loads((kept / "p.json").read_text())
    assert data["problem"] == PROBLEM._asdict() and data["tool"] == "2025.1.0.0"
    # 10 B H S^2 D operations in the time of both kernels
    expected = 10 * 8 * 16 * 2048**2 * 64 / (8.390112e-3 + 31.008e-6) / 1e12
    assert data["tflops"] == pytest.approx(expected)
    assert f"{expected:.1f} TFLOP/s" in capsys.readouterr().out
    # In the time of one kernel of two the operations of the whole call say nothing.
    assert command.main([*words, "--kernel-regex", "prepare"]) == 0
    data = json.loads((kept / "p.json").read_text())
    assert data["tflops"] is None and data["kernel_regex"] == "prepare" and len(data["launches"]) == 1
    assert "no TFLOP/s of the call: --kernel-regex" in capsys.readouterr().out


FAILURES = {
    "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission": "NVreg_RestrictProfilingToAdminUsers=0",
    "==PROF== Connected\nattend.profile: head_dim: 96, allowed 64\n==ERROR== The application": "head_dim: 96, allowed",
    "==ERROR== Failed to prepare kernel": "Failed to prepare kernel",
    "==WARNING== No kernels were profiled.": "--kernel-regex",
    "Segmentation fault": "Segmentation fault",
    "": "said: nothing",
}


@pytest.mark.parametrize("log", FAILURES)
def test_a_failed_measurement_is_one_line(tmp_path, monkeypatch, log):
    fake_ncu(tmp_path, f"print({log!r})" if log else "")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(collect.CollectError) as caught:
        collect.collect(PROBLEM, tmp_path, "attend_", 30)
    assert FAILURES[log] in str(caught.value) and "\n" not in str(caught.value)


FAILED_CALL = """
print('==PROF== Connected to process 1')
print('attend.profile: o: no memory left')
print('==ERROR== The application returned an error code (2).')
sys.exit(2)
"""
WRITES_REPORT = "pathlib.Path(sys.argv[sys.argv.index('--export') + 1]).write_text('half a report')"


def indented(body):
    return "".join(f"\n    {line}" for line in body.splitlines())


@pytest.mark.parametrize("body", [FAILED_CALL, WRITES_REPORT + FAILED_CALL], ids=["old report", "half a report"])
def test_a_failed_call_is_not_explained_from_a_report(body, tmp_path, monkeypatch, capsys):
    kept = tmp_path / "kept"
    kept.mkdir()
    asks = "'--import' in sys.argv or '--version' in sys.argv"
    fake_ncu(tmp_path, f"if {asks}:{indented(REPORT_BODY)}\nelse:{indented(body)}")
    for name in ("profile.ncu-rep", "profile.csv"):
        (kept / name).write_text("of an earlier run")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(command.attend, "gpus", lambda: [{"name": "a GPU"}])
    assert command.main(["--output-dir", str(kept)]) == 2
    captured = capsys.readouterr()
    assert captured.err == "attend.profile: o: no memory left\n" and captured.out == ""
    assert not (kept / "profile.csv").exists()


def test_a_measurement_that_hangs_is_stopped(tmp_path, monkeypatch):
    fake_ncu(tmp_path, "import time; time.sleep(60)")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(collect.CollectError, match="within 1 s"):
        collect.collect(PROBLEM, tmp_path, "attend_", 1)


def fake_nsys(folder, body):
    fake_ncu(folder, body).rename(folder / "nsys")


WRITES_TIMELINE = """
(report,) = (word.removeprefix('--output=') for word in sys.argv if word.startswith('--output='))
pathlib.Path(report).write_text(' '.join(sys.argv[1:]))
"""


def test_systems_records_a_time_line(tmp_path, monkeypatch, capsys):
    fake_nsys(tmp_path, WRITES_TIMELINE)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(command.attend, "gpus", lambda: [{"name": "a GPU"}])
    kept = tmp_path / "kept"
    assert command.main(["--systems", "--compute", "fa2", "--mode", "backward", "--output-dir", str(kept)]) == 0
    report = kept / "profile.nsys-rep"
    assert capsys.readouterr().out == f"wrote {report}: open it with nsys-ui\n"
    asked = report.read_text()
    assert asked.startswith("profile --trace=cuda,nvtx ") and "--capture-range=cudaProfilerApi" in asked
    assert asked.endswith(f"-m attend.profile.call {json.dumps(PROBLEM._asdict())}")


@pytest.mark.parametrize(
    "body, said",
    [
        ("print('Collecting data...'); print('attend.profile: o: no memory left')", "o: no memory left"),
        (WRITES_TIMELINE + "print('attend.profile: head_dim: 96')", "head_dim: 96"),
        ("print('no such option'); sys.exit(1)", "nsys failed or wrote no report, and said: no such option"),
        ("", "nsys failed or wrote no report, and said: nothing"),
    ],
)
def test_a_time_line_that_fails_is_one_line(body, said, tmp_path, monkeypatch, capsys):
    fake_nsys(tmp_path, body)
    (tmp_path / "profile.nsys-rep").write_text("of an earlier run")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(command.attend, "gpus", lambda: [{"name": "a GPU"}])
    assert command.main(["--systems", "--output-dir", str(tmp_path)]) == 2
    captured = capsys.readouterr()
    assert captured.err == f"attend.profile: {said}\n" and captured.out == ""


def test_systems_without_nsys_or_with_options_of_the_other_tool(tmp_path):
    if not pathlib.Path("/usr/local/cuda/bin/nsys").exists():
        done = run("--systems", path=tmp_path)
        assert done.returncode == 2 and done.stderr.count("\n") == 1 and "nsys (Nsight Systems" in done.stderr
    done = run("--systems", "--kernel-regex", "x")
    assert done.returncode == 2 and "--kernel-regex: given with --systems" in done.stderr


def test_what_ncu_is_asked_for(tmp_path):
    words = collect.profile_command("ncu", PROBLEM, tmp_path / "r", "attend_")
    asked = words[words.index("--metrics") + 1].split(",")
    assert len(asked) == len(set(asked)) and metrics.stall_name("gmma") in asked and DRAM in asked
    child = words[words.index("-m") + 1 :]
    assert child[0] == "attend.profile.call" and json.loads(child[1]) == PROBLEM._asdict()
    header = next(csv.reader(io.StringIO((REPORTS / FMA).read_text())))
    assert set(header[11:]) <= set(asked)  # the fixtures hold nothing that is not asked for


@pytest.mark.parametrize("mode", ["forward", "backward"])
def test_the_profiled_call(mode, torch):
    from attend.profile.call import make_call

    problem = dict(Problem("auto", mode, 1, 2, 8, 4, "f32", True)._asdict())
    results = make_call(torch, problem, "cpu")()
    assert [tuple(x.shape) for x in results] == {
        "forward": [(1, 2, 8, 4), (1, 2, 8)],
        "backward": [(1, 2, 8, 4)] * 3,
    }[mode]
    assert all(torch.isfinite(x).all() for x in results)


def test_the_profiled_process_says_what_is_missing():
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    line = [sys.executable, "-m", "attend.profile.call", json.dumps(PROBLEM._asdict())]
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=120)
    assert (
        done.returncode == 2
        and collect.failure(done.stderr) == "torch finds no GPU (a build for the CPU only, or no driver)"
    )


def test_parse_refuses_nothing():
    with pytest.raises(ReportError):
        parse("")
