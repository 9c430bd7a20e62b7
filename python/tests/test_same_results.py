"""Tests of tools/same_results.py, which compares the installed package with itself and with packages that simulate
later builds.
"""

import json
import pathlib
import subprocess
import sys

import pytest

np = pytest.importorskip("numpy")
pytest.importorskip("ml_dtypes")
pytest.importorskip("tqdm")

import attend

TOOLS = pathlib.Path(__file__).resolve().parents[2] / "tools"
sys.path.append(str(TOOLS))

from same_bits import cases
from same_bits.compare import Outcome, Result, difference
from same_bits.run import passes_of

INSTALLED = pathlib.Path(attend.__file__).resolve().parent
# The __init__ of a package that loads the installed package, to which the code of a test is appended.
PRETENDED = """
import pathlib
_installed = pathlib.Path({installed!r})
__path__ = [str(_installed)]
exec(compile((_installed / "__init__.py").read_text(), str(_installed / "__init__.py"), "exec"))
_forward, _backward, _attention = forward, backward, attention
"""
ONE_BIT = """
import numpy as np
def backward(*inputs, **options):
    found = _backward(*inputs, **options)
    if found[1].dtype == np.float32 and found[1].size:
        found[1].view(np.uint32).flat[found[1].size // 2] ^= 1
    return found
"""
REFUSES = """
def forward(q, *rest, **options):
    if q.dtype.name == "float16":
        raise UnsupportedError("q: dtype f16, allowed others")
    return _forward(q, *rest, **options)
"""
OTHER_WORDS = """
def forward(q, *rest, compute, **options):
    try:
        return _forward(q, *rest, compute=compute, **options)
    except ArgumentError as error:
        raise ArgumentError("in other words") from error
    except UnsupportedError as error:
        raise UnsupportedError("in other words") from error
"""
UNWRITTEN = """
def forward(q, *rest, **options):
    import numpy as np
    o, lse = _forward(q, *rest, **options)
    return np.empty(o.shape, o.dtype), lse
"""
WITHOUT_SINKS = """
def attention(q, k, v, *, softcap=0.0, bias=None, mask=None, alibi_slopes=None, dropout_p=0.0): ...
def forward(*inputs, **options):
    assert "sinks" not in options
    return _forward(*inputs, **options)
"""

ENDS = """
def backward(dout, q, *rest, **options):
    import os
    if q.dtype.name == "bfloat16":
        os._exit(7)
    return _backward(dout, q, *rest, **options)
"""


@pytest.fixture
def pretended(tmp_path):
    """Returns pretended(text), which makes a folder with a package: the installed package with the code `text`
    appended.
    """

    def make(text):
        (tmp_path / "attend").mkdir()
        whole = PRETENDED.format(installed=str(INSTALLED)) + text
        (tmp_path / "attend" / "__init__.py").write_text(whole)
        return tmp_path

    return make


def run(tmp_path, base, new, *words, num_cases=40):
    """Runs the tool. Returns its JSON report and the finished process."""
    report = tmp_path / "report.json"
    given = ["--base", base, "--new", new, "--seed", "3", "--cases", num_cases, "--json", report, *words]
    done = subprocess.run(
        [sys.executable, TOOLS / "same_results.py", *map(str, given)], capture_output=True, text=True, check=False
    )
    print(done.stdout, done.stderr)
    return json.loads(report.read_text()) if report.exists() else None, done


def test_a_build_is_the_same_as_itself(tmp_path):
    report, done = run(tmp_path, INSTALLED.parent, INSTALLED.parent, "--compute", "cpu", "--jobs", "2")
    assert done.returncode == 0 and report["passed"]
    assert report["computes"]["cpu"]["same"] == 40 and report["differing"] == []


def test_a_changed_bit_is_found_and_named(tmp_path, pretended):
    report, done = run(tmp_path, INSTALLED.parent, pretended(ONE_BIT), "--compute", "cpu")
    assert done.returncode == 1 and not report["passed"]
    changed = [x["case"]["number"] for x in report["differing"]]
    assert report["computes"]["cpu"]["differs"] == len(changed) > 0
    for x in report["differing"]:
        (found,) = x["differences"]
        assert x["case"]["dtype"] == "f32" and found["result"] == "dk" and found["elements"] == 1
        if x["case"]["values"] != "not finite":
            assert 0 < found["largest_difference"] <= found["largest_value"] * 2.0**-22 + 1e-44
        assert f"cpu case {x['case']['number']}: " in done.stdout
    assert "dk: 1 of " in done.stdout
    again, _ = run(tmp_path, INSTALLED.parent, tmp_path, "--compute", "cpu", "--only", changed[-1])
    assert again["differing"] == report["differing"][-1:]


def test_a_case_that_one_build_refuses_differs(tmp_path, pretended):
    report, done = run(tmp_path, pretended(REFUSES), INSTALLED.parent, "--compute", "cpu")
    assert done.returncode == 1 and {x["case"]["dtype"] for x in report["differing"]} == {"f16"}
    assert report["differing"][0]["differences"] == [
        {"refused": "forward", "base": "q: dtype f16, allowed others", "new": None}
    ]


def test_what_both_refuse_is_counted(tmp_path, pretended):
    report, done = run(tmp_path, INSTALLED.parent, pretended(OTHER_WORDS), "--compute", "cpu_naive", num_cases=300)
    counts = report["computes"]["cpu_naive"]
    assert done.returncode == 0 and counts["refused"] > 0 and counts["same"] + counts["refused"] == 300
    assert {x["new"] for x in counts["refusals"]} == {"in other words"}
    assert "became 'in other words'" in done.stdout


def test_nothing_computed_is_no_success(tmp_path):
    report, done = run(tmp_path, INSTALLED.parent, INSTALLED.parent, "--compute", "simt")
    assert done.returncode == 1 and report["computes"]["simt"]["refused"] == 40 and "NONE was computed" in done.stdout


def test_cases_that_did_not_run_are_no_success(tmp_path):
    report, done = run(tmp_path, INSTALLED.parent, INSTALLED.parent, "--compute", "cpu", "--seconds", "0")
    assert done.returncode == 1 and report["missing"] == 40 and "40 of 40 runs are missing" in done.stdout


def test_a_result_that_is_not_written_differs(tmp_path, pretended):
    report, done = run(tmp_path, INSTALLED.parent, pretended(UNWRITTEN), "--compute", "cpu", num_cases=10)
    names = {found["result"] for x in report["differing"] for found in x["differences"]}
    assert done.returncode == 1 and "o" in names and "lse" not in names


def test_an_option_that_one_build_lacks_is_left_out(tmp_path, pretended):
    report, done = run(tmp_path, pretended(WITHOUT_SINKS), INSTALLED.parent, "--compute", "cpu")
    assert done.returncode == 0 and report["computes"]["cpu"]["same"] == 40


@pytest.mark.parametrize("jobs", [1, 3])
def test_a_process_that_ends_early_ends_all(tmp_path, pretended, jobs):
    report, done = run(tmp_path, INSTALLED.parent, pretended(ENDS), "--compute", "cpu", "--jobs", jobs)
    assert done.returncode == 1 and 0 < report["missing"] < 40 and "runs are missing: a process ended" in done.stdout
    assert "dtype=bf16" in done.stderr and f"the process of {tmp_path} ended with status 7" in done.stderr


def test_tensors_of_torch_go_the_way_of_gpus(tmp_path, pretended):
    pytest.importorskip("torch")
    report, done = run(tmp_path, INSTALLED.parent, INSTALLED.parent, "--device", "torch on cpu", "--compute", "cpu")
    assert done.returncode == 0 and report["computes"]["cpu"]["same"] == 40
    assert report["builds"][0]["arrays"] == "torch"


def test_a_folder_without_the_package_is_refused(tmp_path):
    _, done = run(tmp_path, tmp_path, INSTALLED.parent)
    assert done.returncode == 2 and "--base" in done.stderr


def test_a_name_stands_for_the_backends_of_both_passes():
    builds = [
        {"backends": ["cpu", "sm80_backward", "sm80_forward", "simt", "mma"], "forward_only": ["sm80_forward", "mma"]},
        {"backends": ["cpu", "sm80_backward", "sm80_forward", "simt", "mma", "new"], "forward_only": ["sm80_forward"]},
    ]
    passes = {name: passes_of(name, builds, None) for name in ("auto", "simt", "sm80", "mma")}
    assert passes == {
        "auto": ("auto", "auto"),
        "simt": ("simt", "simt"),
        "sm80": ("sm80_forward", "sm80_backward"),
        "mma": ("mma", None),
    }
    refused = []
    passes_of("new", builds, refused.append)
    assert refused == ["--compute: 'new', allowed auto, cpu, sm80_backward, sm80_forward, simt, mma"]


def test_every_pair_of_values_occurs():
    known = {"softcap", "bias", "mask", "alibi_slopes", "sinks", "dropout_p"}
    groups, num_covering = cases.groups(500, 7, "cpu", ["f32", "f16", "bf16"], known)
    found = [case for group in groups for case in group]
    assert len(found) == 500 >= num_covering and sorted(case["number"] for case in found) == list(range(500))
    options = cases.KERNEL_OPTIONS | cases.call_options("cpu")
    seen = {(a, str(case[a]), b, str(case[b])) for case in found for a in options for b in options}
    wanted = {
        (a, str(x), b, str(y))
        for a in options
        for b in options
        for x in options[a]
        for y in options[b]
        if (a != b or x == y) and not cases.excludes({a: x, b: y})
    }
    assert wanted <= seen
    assert not any(cases.excludes({a: case[a], b: case[b]}) for case in found for a in options for b in options)


def result(dtype, x):
    return Result(dtype, x.shape, x.tobytes())


def test_bits_are_compared_and_not_values():
    nan, other_nan = np.array([0x7FC00000, 0x7FC00001], np.uint32).view(np.float32)
    x = np.array([[1.0, 0.0, nan], [2.0, np.inf, 3.0]], np.float32)
    assert difference(result("float32", x), result("float32", x.copy())) is None
    for place, value in (((0, 1), -0.0), ((0, 2), other_nan)):
        y = x.copy()
        y[place] = value
        found = difference(result("float32", x), result("float32", y))
        assert found["elements"] == 1 and found["of"] == 6 and found["first"] == list(place)
    y = x.copy()
    y[1] = [2.5, 1.0, 3.25]
    found = difference(result("float32", x), result("float32", y))
    assert found["elements"] == 3 and found["largest_difference"] == np.inf and found["largest_value"] == 3.0
    found = difference(result("float32", x), result("float32", x.T.copy()))
    assert found["kind"] == "float32 (2, 3) became float32 (3, 2)"


def test_differences_of_bfloat16_are_of_its_values():
    import ml_dtypes

    x = np.array([1.0, 2.0, -3.0], ml_dtypes.bfloat16)
    y = np.array([1.0, 2.5, -3.0], ml_dtypes.bfloat16)
    found = difference(result("bfloat16", x), result("bfloat16", y))
    assert (found["elements"], found["largest_difference"], found["largest_value"]) == (1, 0.5, 3.0)


class Sides:
    """Simulates two builds. Their dq changes in each run, and dk differs between the builds."""

    def __init__(self):
        self.runs = 0

    def ask_both(self, method, *_):
        if method == "fetch":
            return [{"dtype": "float32", "shape": [1], "bytes": text} for text in ("AACAPw==", "AAAAQA==")]
        self.runs += 1
        dq = [f"{self.runs}", f"{self.runs + 1}"]
        return [{"digests": {"o": "same", "dq": x, "dk": f"of {i}"}, "refused": {}} for i, x in enumerate(dq)]


def test_what_varies_in_one_build_is_not_compared():
    from same_bits.compare import compare

    outcome = compare(Sides(), ("run",), may_vary=True)
    assert outcome.varying == ["dq"] and [x["result"] for x in outcome.differences] == ["dk"]
    assert outcome.differences[0]["largest_difference"] == 1.0
    strict = compare(Sides(), ("run",), may_vary=False)
    assert [x["result"] for x in strict.differences] == ["dq", "dk"] and strict.varying == []


def test_a_refusal_of_backward_leaves_forward_to_be_compared():
    outcome = Outcome({"backward": "a"}, {"backward": "a"})
    assert outcome.kind == "backward refused" and outcome.lines == [("a", "a")]
    outcome = Outcome({}, {"backward": "a"})
    assert outcome.kind == "differs" and outcome.differences == [{"refused": "backward", "base": None, "new": "a"}]
