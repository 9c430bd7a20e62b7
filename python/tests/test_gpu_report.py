"""Tests of tools/gpu_test.py with fake programs: a report is begun in one run and finished in the next."""

import json
import pathlib
import subprocess
import sys

import pytest

TOOL = pathlib.Path(__file__).resolve().parents[2] / "tools" / "gpu_test.py"

# The fake programs are shell scripts, because starting a Python interpreter for each of a hundred pieces would take
# half a minute.
TESTS = r"""#!/bin/sh
if [ "$1" = --gtest_list_tests ]; then
  case $2 in
    *=S.*) printf 'S.  # a comment\n  t9  # GetParam() = 9\n  t3\n' ;;
    *) printf 'S.\n'; for n in $(seq 0 97); do echo "  t$n"; done ;;
  esac
  exit
fi
index=$GTEST_SHARD_INDEX
piece=$GTEST_TOTAL_SHARDS/$index
[ $piece = 96/7 ] && exit 139
why= passed=true
[ $piece = 96/9 ] && why='{"failure": "boom"}' passed=false
name=t$index
if [ $GTEST_TOTAL_SHARDS = 24 ]; then
  name=$(echo "${2#*=}:" | cut -d : -f $((index + 1)))
  name=${name#??}
  [ -n "$name" ] || exit 1
fi
cat >"${1#*json:}" <<END
{"testsuites": [{"name": "S", "testsuite": [{"name": "$name", "result": "COMPLETED", "failures": [$why]}]}]}
END
cat >"$ATTEND_GPU_REPORT" <<END
{"kernel_digest": "d", "cases": [{"case": "$2 $index", "compute": "simt", "passed": $passed,
                                  "gpus": "$CUDA_VISIBLE_DEVICES"}]}
END
"""
ATTEND = """#!/bin/sh
echo '{{"kernel_digest": "d", "devices": [{{"type": "cpu"}}{gpus}]}}'
"""
GPU = ', {"type": "cuda"}'
RING = "NcclRing*:GpuRingOfSeveral*:GpuRingError*:RingProcesses*:*EveryWayOfMessages*:SeveralGpus*"


@pytest.fixture
def run(tmp_path):
    """Returns a function that runs the tool and returns the report. The function's arguments become the first arguments
    of the command line.
    """
    report = tmp_path / "report.json"

    def run(*words, gpus=1):
        for name, text in (("tests", TESTS), ("attend", ATTEND.format(gpus=gpus * GPU))):
            (tmp_path / name).write_text(text)
            (tmp_path / name).chmod(0o755)
        command = [sys.executable, TOOL, *words, tmp_path / "tests", tmp_path / "attend", sys.executable, report]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return json.loads(report.read_text()) if report.exists() else None, done

    return run


def test_a_report_goes_on_where_it_stopped(run):
    begun, _ = run("--only", "tests", "--seconds", "0")
    assert begun["tests"]["run"] == 0 and len(begun["tests"]["missing"]) == 102 and not begun["passed"]
    whole, _ = run("--more")
    counts = whole["tests"]
    assert counts["missing"] == [] and counts["run"] == 101 and len(whole["cases"]) == 101 and not whole["passed"]
    assert counts["failed"] == 2
    assert sorted(counts["failures"]) == ["S.t9", "piece 7 ended with status 139"]
    again, _ = run("--more")  # no test is missing, and none is counted twice
    assert again["tests"] == counts and len(again["cases"]) == 101


def test_what_one_is_interested_in_runs_first(run):
    begun, done = run("--only", "tests", "--first", "S.t*", "--seconds", "0")
    assert begun["first"] == {"filter": "S.t*", "run": 2, "failed": 0, "skipped": 0, "failures": [], "cases": 2,
                              "cases_failed": 0}  # fmt: skip
    assert begun["tests"]["run"] == 0 and done.returncode == 0
    whole, _ = run("--more")
    assert whole["first"]["run"] == 2 and whole["tests"]["missing"] == []
    assert whole["tests"]["run"] == 5 + 96 + 1 - 2  # all tests of the pieces 3 and 9 have already run
    of_pieces = [case["case"].split()[0] for case in whole["cases"] if "filter=S.t" in case["case"]]
    assert "--gtest_filter=S.t0:S.t96" in of_pieces and "--gtest_filter=S.t3" not in of_pieces


def test_what_failed_first_may_run_again(run, tmp_path):
    run("--only", "tests", "--first", "S.t*", "--seconds", "0")
    path = tmp_path / "report.json"
    report = json.loads(path.read_text())
    report["first"] |= {"failed": 1, "failures": ["S.t3 did not end"]}
    path.write_text(json.dumps(report))
    again, done = run("--again", "")
    assert again["first"]["failures"] == [] and again["first"]["failed"] == 0 and done.returncode == 0
    assert "S.t3" in again["tests"]["again"]


def test_a_report_of_other_tests_does_not_go_on(run, tmp_path):
    run("--only", "tests", "--seconds", "0")
    path = tmp_path / "report.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"names_digest": "other"}))
    _, done = run("--more")
    assert done.returncode == 1 and "was made with other tests" in done.stderr


def test_what_failed_may_run_again(run):
    run("--only", "tests", "--seconds", "0")
    whole, _ = run("--more")
    assert sorted(whole["tests"]["failures"]) == ["S.t9", "piece 7 ended with status 139"]
    again, done = run("--again", "S.t3")  # t9 passes if it does not run in a piece with other tests
    counts = again["tests"]
    assert counts["failures"] == ["piece 7 ended with status 139"] and counts["failed"] == 1 and done.returncode == 1
    assert counts["run"] == whole["tests"]["run"] and counts["again"] == ["S.t3", "S.t9"]
    assert all(case["passed"] for case in again["cases"]) and len(again["cases"]) == len(whole["cases"]) - 1 + 2


def test_on_several_gpus_those_of_the_ring_are_a_piece(run):
    whole, _ = run("--only", "tests", gpus=3)
    counts = whole["tests"]
    assert counts["missing"] == [] and counts["run"] == 110 and counts["left_out"] == ["*FourGpus*: 3 GPUs"]
    seen = {case["case"].split()[0]: case["gpus"] for case in whole["cases"]}
    assert seen[f"--gtest_filter={RING}-*FourGpus*"] == "0,1,2" and seen["--gtest_filter=Alone.*"] == "0"
    assert {case["gpus"] for case in whole["cases"] if "-Alone" in case["case"]} == {"0", "1", "2"}


def test_what_there_is_none_of_is_refused(run):
    report, done = run("--more")
    assert report is None and "does not exist" in done.stderr
    _, done = run("--only", "bench")
    assert done.returncode == 2 and "--only: bench, allowed tests, sanitizers, python" in done.stderr


def test_racecheck_gets_kernels_in_which_every_lane_arrives(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(TOOL.parent)
    from gpu_report.sanitizers import racecheck_kernels

    folder = pathlib.Path(racecheck_kernels(tmp_path)["ATTEND_KERNEL_DIR"])
    texts = {path.name: path.read_text() for path in folder.rglob("mbarrier.cuh")}
    assert "kLanesThatArrive = 32;" in texts["mbarrier.cuh"] and "kLanesThatArrive = 1;" not in texts["mbarrier.cuh"]


def test_the_text_of_a_failure_names_no_folder_of_a_machine(monkeypatch):
    monkeypatch.syspath_prepend(TOOL.parent)
    import xml.etree.ElementTree

    from gpu_report.python_tests import end_of

    why = xml.etree.ElementTree.Element("failure", message="short")
    assert end_of(why) == "short"
    why.text = f'a line\n  File "/home/x/site-packages/torch/a.py", line 7\n{TOOL.parent.parent}/tools/b.py:8'
    assert end_of(why) == 'a line\n  File "torch/a.py", line 7\ntools/b.py:8'
    why.text = "x" * 5000 + "the end"
    assert end_of(why) == "x" * 3993 + "the end"
