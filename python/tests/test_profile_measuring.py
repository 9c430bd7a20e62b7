"""Tests of the measurements of python -m attend.profile, mostly with a fake ncu and nsys, and of their possible
failures.
"""

import csv
import io
import json
import pathlib
import subprocess
import sys

import attend
import pytest
from attend.profile import __main__ as command
from attend.profile import collect, metrics
from attend.profile.output import Problem
from profile_command import run

REPORTS = pathlib.Path(__file__).parent / "profile_reports"
FMA = "fma.csv"
DRAM = "dram__throughput.avg.pct_of_peak_sustained_elapsed"


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
    """A fake ncu writes a fixed report, so that everything except the measurement is tested."""
    fake_ncu(tmp_path, REPORT_BODY)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(command.attend, "gpus", lambda: [{"name": "a GPU"}])
    kept = tmp_path / "kept"
    words = ["--compute", "fa2", "--mode", "backward", "--output-dir", str(kept), "--json", str(kept / "p.json")]
    assert command.main(words) == 0
    assert {p.name for p in kept.iterdir()} == {"profile.ncu-rep", "profile.csv", "ncu.log", "p.json"}
    data = json.loads((kept / "p.json").read_text())
    assert data["problem"] == PROBLEM._asdict() and data["tool"] == "2025.1.0.0"
    # 10 B H S^2 D operations (batch, heads, seqlen, head_dim), divided by the time of both kernels.
    expected = 10 * 8 * 16 * 2048**2 * 64 / (8.390112e-3 + 31.008e-6) / 1e12
    assert data["tflops"] == pytest.approx(expected)
    assert f"{expected:.1f} TFLOP/s" in capsys.readouterr().out
    # With only one of two kernels no speed is printed, because the number of operations is that of the full call.
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
    "": "Its last line: nothing",
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
        ("print('no such option'); sys.exit(1)", "nsys failed or wrote no report. Its last line: no such option"),
        ("", "nsys failed or wrote no report. Its last line: nothing"),
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
    assert set(header[11:]) <= set(asked)  # the example reports contain only metrics that are requested


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
