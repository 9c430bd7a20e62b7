"""Tests of python -m attend.experiments with small runs on the CPU: its files agree, and faults are detected."""

import csv
import importlib.util
import json
import subprocess
import sys

import pytest

pytest.importorskip("numpy")
pytest.importorskip("tqdm")

import attend
from attend._measure import catalogue
from attend._measure.measurement import COLUMNS
from attend._measure.problems import Problem
from attend.experiments import __main__ as experiments
from attend.experiments import runner

HAS_TORCH = importlib.util.find_spec("torch") is not None
HAS_PLOTS = all(importlib.util.find_spec(name) for name in ("matplotlib", "seaborn"))
needs_plots = pytest.mark.skipif(not HAS_PLOTS, reason="matplotlib and seaborn are not installed")
SMALL = ["--batch_size", "1", "--num_heads", "2", "--seq_len", "40", "--head_dim", "16", "--samples", "3"]


def run(*arguments):
    return experiments.main([*SMALL, *arguments])


def saved(folder):
    """Returns the results of the latest run below the folder."""
    folder = folder / "latest"
    with (folder / "results.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    return json.loads((folder / "results.json").read_text()), table


def test_files_come_out_and_agree(no_torch, tmp_path, capsys):
    assert run("--mode", "both", "--save-results", "--no-plots", "--output-dir", str(tmp_path)) == 0
    data, table = saved(tmp_path)
    assert list(table[0]) == COLUMNS
    assert [(r["implementation"], r["mode"]) for r in table] == [
        (name, mode) for mode in ("forward", "backward") for name in ("cpu", "cpu_naive")
    ]
    for row, cells in zip(data["rows"], table):
        assert cells["ms"] == str(row["ms"]) and cells["passed"] == "True"
        scores = 1 * 2 * 40 * 40
        flops = 4 * scores * 16 * (2.5 if row["mode"] == "backward" else 1)
        tensors = 4 if row["mode"] == "forward" else 8
        assert row["tflops"] == pytest.approx(flops / row["ms"] / 1e9)
        assert row["gbps"] == pytest.approx((tensors * 2 * 40 * 16 * 4 + 2 * 40 * 4) / row["ms"] / 1e6)
        assert 0 < row["ms_min"] <= row["ms_p25"] <= row["ms"] <= row["ms_p75"] and row["samples"] == 3
        assert 0 < row["mean_abs_err"] <= row["max_abs_err"] < 1e-5 and row["max_abs_allowed"] == 1e-3
        assert row["mse"] <= row["max_abs_err"] ** 2 and row["speedup"] is None
    text = (tmp_path / "latest" / "summary.txt").read_text()
    assert text in capsys.readouterr().out
    assert "no torch" in text and "no speed-ups, because" in text and "4 of 4 checks" in text


@pytest.mark.skipif(not HAS_TORCH, reason="torch is not installed: speed-ups are over it")
def test_speedups_are_over_torch(tmp_path):
    assert run("--kernel", "torch_cpu,unfused_cpu", "--kernel", "cpu", "--save-results", "--no-plots",
               "--output-dir", str(tmp_path)) == 0  # fmt: skip
    rows = saved(tmp_path)[0]["rows"]
    assert [r["implementation"] for r in rows] == ["torch_cpu", "unfused_cpu", "cpu"]
    assert rows[0]["speedup"] == 1
    for row in rows:
        assert row["speedup"] == pytest.approx(rows[0]["ms"] / row["ms"])


def plant_fault(monkeypatch):
    plain = attend.forward

    def wrong(*args, **options):
        o, lse = plain(*args, **options)
        return (o * 1.01 if options["compute"] == "cpu" else o), lse

    monkeypatch.setattr(attend, "forward", wrong)


@pytest.mark.parametrize("goes_on", [False, True])
def test_a_fault_of_one_percent_is_found(no_torch, monkeypatch, tmp_path, capsys, goes_on):
    plant_fault(monkeypatch)
    more = ["--no-stop-on-failure"] if goes_on else []
    assert run("--save-results", "--no-plots", "--output-dir", str(tmp_path), *more) == 1
    wrong, other = saved(tmp_path)[0]["rows"]
    assert wrong["passed"] is False and wrong["max_abs_err"] > 1e-3
    assert wrong["max_rel_err"] == pytest.approx(0.01, rel=0.01)
    assert (other["passed"] is True) == goes_on and (other["ms"] is not None) == goes_on
    out = capsys.readouterr().out
    assert "FAILED:\n  cpu forward (1, 2, 40, 16): max abs error" in out
    assert ("stopped at the first failed check" in out) != goes_on


def test_results_that_are_not_finite_fail(no_torch, monkeypatch, tmp_path):
    plain = attend.forward

    def nan(*args, **options):
        o, lse = plain(*args, **options)
        o[0, 1, 7, 3] = float("nan")
        return o, lse

    monkeypatch.setattr(attend, "forward", nan)
    assert run("--kernel", "cpu", "--save-results", "--no-plots", "--output-dir", str(tmp_path)) == 1
    assert saved(tmp_path)[0]["rows"][0]["passed"] is False


def test_an_error_fails_and_a_refusal_leaves_out(no_torch, monkeypatch, tmp_path, capsys):
    def picky(*args, **options):
        if options["compute"] == "cpu":
            raise attend.UnsupportedError("q: of no kind that is known")
        raise attend.RunError("it broke")

    monkeypatch.setattr(attend, "forward", picky)
    assert run("--no-stop-on-failure", "--save-results", "--no-plots", "--output-dir", str(tmp_path)) == 1
    refused, broken = saved(tmp_path)[0]["rows"]
    assert refused["passed"] is None and broken["passed"] is False
    out = capsys.readouterr().out
    assert "left out:\n  cpu forward at (1, 2, 40, 16): q: of no kind that is known" in out
    assert "FAILED:\n  cpu_naive forward (1, 2, 40, 16): RunError: it broke" in out


def test_a_refusal_takes_no_failed_check_back(no_torch, monkeypatch, tmp_path):
    plain, calls = attend.forward, []

    def wrong_then_refusing(*args, **options):
        calls.append(options["compute"])
        if len(calls) > 1:
            raise attend.UnsupportedError("q: no more")
        o, lse = plain(*args, **options)
        return 2 * o, lse

    monkeypatch.setattr(attend, "forward", wrong_then_refusing)
    arguments = ["--kernel", "cpu", "--no-stop-on-failure", "--save-results", "--no-plots"]
    assert run(*arguments, "--output-dir", str(tmp_path)) == 1
    (row,) = saved(tmp_path)[0]["rows"]
    assert row["passed"] is False and row["ms"] is None and "max abs error" in row["remark"]


def test_limits_leave_out_and_say_so(no_torch, tmp_path, capsys):
    arguments = ["--seqlen-experiment", "--max-seqlen", "256", "--max-seconds", "0.05", "--kernel", "cpu_naive"]
    assert experiments.main([*arguments, "--save-results", "--no-plots", "--output-dir", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "left out, beyond --max-seqlen 256: (4, 8, 512, 64), (4, 8, 1024, 64)" in out
    assert "cpu_naive forward at (4, 8, 256, 64)" in out and "beyond --max-seconds 0.05" in out
    rows = saved(tmp_path)[0]["rows"]
    assert [r["S"] for r in rows] == [128, 256]
    assert rows[1]["ms"] is None and "beyond --max-seconds" in rows[1]["remark"]


@needs_plots
def test_plots_are_drawn_from_json(no_torch, tmp_path):
    assert experiments.main(["--seqlen-experiment", "--max-seqlen", "128", "--kernel", "cpu", "--samples", "3",
                             "--save-results", "--output-dir", str(tmp_path)]) == 0  # fmt: skip
    stems = {path.stem for path in (tmp_path / "latest").glob("*.png")}
    assert {f"experiments_{name}" for name in ("time", "tflops", "bandwidth", "scaling")} <= stems
    again = tmp_path / "again"
    source = tmp_path / "latest" / "results.json"
    assert experiments.main(["--plot-from", str(source), "--output-dir", str(again), "--plot-format", "svg"]) == 0
    assert {path.stem for path in again.glob("*.svg")} == stems
    assert all(path.read_text().startswith("<?xml") for path in again.glob("*.svg"))


@needs_plots
def test_an_experiment_without_memory_leaves_its_table_empty(no_torch, tmp_path):
    """Small problems need no memory beyond the inputs, but the problems of another experiment do."""
    assert experiments.main(["--seqlen-experiment", "--max-seqlen", "128", "--kernel", "cpu", "--samples", "3",
                             "--save-results", "--no-plots", "--output-dir", str(tmp_path)]) == 0  # fmt: skip
    source = tmp_path / "latest" / "results.json"
    data = json.loads(source.read_text())
    rows = [{**row, "peak_mib": 0.0} for row in data["rows"]]
    data["rows"] = rows + [{**row, "experiment": "batch", "peak_mib": 1.0} for row in rows]
    path = tmp_path / "results.json"
    path.write_text(json.dumps(data))
    assert experiments.main(["--plot-from", str(path), "--output-dir", str(tmp_path), "--plot-format", "svg"]) == 0
    assert (tmp_path / "experiments_memory.svg").exists()


def test_each_run_has_a_folder_of_its_own(no_torch, tmp_path):
    arguments = ["--kernel", "cpu", "--save-results", "--no-plots", "--output-dir", str(tmp_path)]
    for mode in ("forward", "backward", "backward"):
        assert run("--mode", mode, *arguments) == 0
    runs = sorted(path for path in tmp_path.iterdir() if not path.is_symlink())
    assert len(runs) == 3 and sum("_forward" in path.name for path in runs) == 1
    modes = [json.loads((path / "results.json").read_text())["rows"][0]["mode"] for path in runs]
    assert sorted(modes) == ["backward", "backward", "forward"]
    assert (tmp_path / "latest").is_symlink() and saved(tmp_path)[0]["rows"][0]["mode"] == "backward"


def interrupt_at(monkeypatch, seqlen):
    """Raises KeyboardInterrupt in the first call of attend with this length."""
    plain = attend.forward

    def forward(q, *args, **options):
        if seqlen in q.shape:
            raise KeyboardInterrupt
        return plain(q, *args, **options)

    monkeypatch.setattr(attend, "forward", forward)


def test_ctrl_c_keeps_what_was_measured(no_torch, monkeypatch, tmp_path, capsys):
    arguments = ["--seqlen-experiment", "--max-seqlen", "512", "--kernel", "cpu", "--samples", "3", "--save-results"]
    interrupt_at(monkeypatch, 256)
    assert experiments.main([*arguments, "--no-plots", "--output-dir", str(tmp_path)]) == 130
    data, _ = saved(tmp_path)
    assert data["stopped"] == "interrupted" and data["rows"][0]["ms"] > 0 and data["rows"][-1]["ms"] is None
    assert "not timed, because the run was interrupted" in data["rows"][-1]["remark"]
    assert "interrupted: the results so far are here" in capsys.readouterr().out


def test_what_is_measured_is_saved_as_it_goes(no_torch, monkeypatch, tmp_path):
    """If the process is killed, the files contain the problems that were measured before."""
    arguments = ["--seqlen-experiment", "--max-seqlen", "256", "--kernel", "cpu", "--samples", "3", "--save-results"]
    monkeypatch.setattr(experiments.report, "text", lambda data: (_ for _ in ()).throw(SystemExit))
    seen = []
    monkeypatch.setattr(experiments.report.files, "write_json", lambda path, data: seen.append(len(data["rows"])))
    with pytest.raises(SystemExit):
        experiments.main([*arguments, "--no-plots", "--output-dir", str(tmp_path)])
    assert seen == [1]


def test_quartiles_and_noise_are_shown(no_torch, tmp_path, capsys):
    assert run("--kernel", "cpu", "--save-results", "--no-plots", "--output-dir", str(tmp_path)) == 0
    data, _ = saved(tmp_path)
    (row,) = data["rows"]
    capsys.readouterr()
    for width, noisy in ((0.1, False), (0.3, True)):
        row |= {"ms": 2.0, "ms_p25": 1.9, "ms_p75": 1.9 + 2 * width}
        text = experiments.report.text(data)
        assert ("2.00~" in text) == noisy and ("~: noisy" in text) == noisy
        assert f"1.90-{1.9 + 2 * width:.2f}" in text


@pytest.mark.parametrize("spelled", ["--seq-len", "--seq_len"])
def test_words_of_options_are_joined_either_way(no_torch, spelled, capsys):
    arguments = [spelled, "24", "--batch-size=1", "--num_heads=1", "--kernel", "cpu-naive", "--samples", "3"]
    assert experiments.main(arguments) == 0
    assert "1,1,24,64" in capsys.readouterr().out


BAD = {
    "abbreviation": (["--max-seq", "64"], "unrecognized arguments: --max-seq 64"),
    "size beside a grid": (["--experiment"], "--batch_size: 1 with an experiment, whose sizes are fixed"),
    "head_dim": (["--head_dim", "700"], "argument --head_dim: 700, allowed 1 to 512"),
    "no number": (["--seq_len", "abc"], "argument --seq_len: 'abc', allowed whole numbers from 1"),
    "nearly a name": (["--kernel", "cpu_naiv"], "--kernel: 'cpu_naiv' (did you mean 'cpu_naive'?), allowed torch_cpu"),
    "kernel": (["--kernel", "nobody"], "--kernel: 'nobody', allowed torch_cpu"),
    "gpu": (["--kernel", "fa2"], "--kernel: 'fa2' cannot run here: no "),
    "mode": (["--mode", "sideways"], "invalid choice: 'sideways'"),
    "tolerance": (["--tolerance", "0"], "0, allowed finite numbers above 0"),
    "tolerance_nan": (["--tolerance", "nan"], "nan, allowed finite numbers above 0"),
    "size": (["--seq_len", "0"], "0, allowed 1 or more"),
    "max_seqlen": (["--max-seqlen", "8"], "--max-seqlen: 8, allowed 40 or more"),
    "plot_from": (["--plot-from", "nowhere.json"], "nowhere.json"),
    "memory": (["--seq_len", "100000000", "--kernel", "cpu"], "(1, 2, 100000000, 16) needs 47.68 GiB of memory, "),
    "seed": (["--seed", "99999999999999999999"], "99999999999999999999, allowed 0 to 9223372036854775807"),
    "seed_below": (["--seed", "-1"], "-1, allowed 0 to"),
    "output_dir": (["--save-results", "--no-plots", "--output-dir", "/proc/x"], "--output-dir: /proc/x: "),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_usage_exits_with_2_and_one_line(no_torch, monkeypatch, capsys, name):
    arguments, message = BAD[name]
    monkeypatch.setattr("attend._measure.memory.total_bytes", lambda device: 16 * 2.0**30)
    monkeypatch.setattr("attend.experiments.runner.run", lambda *_: pytest.fail("something was measured"))
    try:
        status = run(*arguments)
    except SystemExit as end:
        status = end.code
    captured = capsys.readouterr()
    assert status == 2 and message in captured.err.strip().splitlines()[-1]


def test_a_problem_of_a_grid_that_does_not_fit_is_left_out(no_torch, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("attend._measure.memory.total_bytes", lambda device: 4 * 4 * 4 * 8 * 128 * 64)
    arguments = ["--seqlen-experiment", "--max-seqlen", "256", "--kernel", "cpu", "--samples", "3"]
    assert experiments.main([*arguments, "--save-results", "--no-plots", "--output-dir", str(tmp_path)]) == 0
    fits, too_large = saved(tmp_path)[0]["rows"]
    assert fits["passed"] and too_large["passed"] is None and too_large["S"] == 256
    assert "cpu forward at (4, 8, 256, 64): inputs need 0.007812 GiB of memory" in capsys.readouterr().out


@pytest.mark.parametrize("data", [{}, {"machine": {}, "rows": [{"S": 1}]}, {"machine": {}, "rows": 3}], ids=str)
@needs_plots
def test_a_saved_file_without_sense_is_one_line(no_torch, data, tmp_path, capsys):
    path = tmp_path / "results.json"
    path.write_text(json.dumps({"kind": "experiments", **data}))
    assert experiments.main(["--plot-from", str(path), "--output-dir", str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("package", ["tqdm", "matplotlib", "seaborn"])
def test_a_missing_package_exits_with_2(monkeypatch, capsys, tmp_path, package):
    monkeypatch.setitem(sys.modules, package, None)
    for needed in {"matplotlib", "seaborn"} - {package}:
        monkeypatch.setitem(sys.modules, needed, sys)
    assert run("--save-results", "--output-dir", str(tmp_path / "none")) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"needs {package}: pip install {package}" in line and not (tmp_path / "none").exists()


def test_import_attend_imports_none_of_this():
    code = (
        "import attend, sys; print([m for m in sys.modules if m.startswith(('attend._measure', 'attend.exp', 'tqdm'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_gpt3_is_for_tensor_cores(no_torch, capsys):
    assert experiments.main(["--gpt3-experiment", "--kernel", "cpu"]) == 2
    assert (
        capsys.readouterr().err == "--gpt3-experiment: cpu, allowed implementations in bf16 on a GPU that torch finds\n"
    )
    shapes = [problem.shape for problem in runner.grid("gpt3")]
    assert shapes[0] == (4, 96, 512, 128) and shapes[-1] == (4, 96, 16384, 128) and len(shapes) == 6


@needs_plots
def test_gpt3_beside_another_experiment_and_its_picture(no_torch, monkeypatch, tmp_path):
    """Each experiment measures different implementations. cpu_naive replaces those that need tensor cores."""
    small = {"gpt3": (16, 32), "seqlen": (24,)}
    monkeypatch.setattr(runner, "grid", lambda name: [Problem(1, 2, s, 8) for s in small[name]])
    monkeypatch.setattr(catalogue, "in_half", lambda chosen, option: [x for x in chosen if x.name == "cpu_naive"])
    arguments = ["--gpt3-experiment", "--seqlen-experiment", "--samples", "3", "--save-results", "--plot-format", "svg"]
    assert experiments.main([*arguments, "--output-dir", str(tmp_path)]) == 0
    rows = saved(tmp_path)[0]["rows"]
    found = [(r["experiment"], r["implementation"], r["S"]) for r in rows]
    assert found == [("seqlen", "cpu", 24), ("seqlen", "cpu_naive", 24), ("gpt3", "cpu_naive", 16),
                     ("gpt3", "cpu_naive", 32)]  # fmt: skip
    pictures = {path.name for path in (tmp_path / "latest").glob("*.svg")}
    assert {"experiments_gpt3.svg", "experiments_scaling.svg"} <= pictures
