"""Tests that python -m attend.profile prints the expected sentences for reports with known figures. The reports have
ncu's format and invented figures.

profile_reports/fma.csv has two kernels, base units, and all values. latency.csv has messages before the header, units
with prefixes, and every type of problem. In tensor.csv many values are "n/a".
"""

import json
import pathlib

import attend
import pytest
from attend.profile import ladder, metrics, stalls
from attend.profile.diagnosis import THRESHOLDS, diagnose
from attend.profile.measures import measure
from attend.profile.report import ReportError, parse, scale_of
from profile_command import run

REPORTS = pathlib.Path(__file__).parent / "profile_reports"
FMA, LATENCY, TENSOR = "fma.csv", "latency.csv", "tensor.csv"
DRAM = "dram__throughput.avg.pct_of_peak_sustained_elapsed"
CONFLICTS = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum"


def launch(name, **changes):
    """Returns the last launch of a report with some values replaced. The value None means that it was not measured."""
    last = parse((REPORTS / name).read_text())[-1]
    for metric, value in changes.items():
        last.values.pop(metric, None)
        if value is not None:
            last.values[metric] = value
    return last


def said(name, **changes):
    return " ".join(diagnose(measure(launch(name, **changes))).sentences)


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
    assert "spilled" not in text  # register spills were not measured, so the text must not mention them


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
    # This remedy is only for kernels that are bound by latency.
    assert stalls.STALLS["barrier"].remedy not in said(TENSOR)


@pytest.mark.parametrize("reason", stalls.STALLS)
def test_every_reason_has_its_words(reason):
    assert stalls.STALLS[reason].meaning in said(LATENCY, **{metrics.stall_name(reason): 1000.0})


def test_a_reason_of_another_gpu_is_told_as_unknown():
    assert "`new_thing`, which this command does not describe" in said(
        LATENCY, **{metrics.stall_name("new_thing"): 99.0}
    )


TROUBLES = {
    "are bank conflicts": (CONFLICTS, 0.11 * 8e9, 0.09 * 8e9),
    "neighbouring threads": ("l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_ld.ratio", 17.0, 16.0),
    "has work in": ("sm__cycles_active.avg", 0.84 * 39.4e6, 0.86 * 39.4e6),
    "well below the possible": ("sm__warps_active.avg.pct_of_peak_sustained_active", 0.74 * 18.75, 0.76 * 18.75),
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
    assert "at most 2 blocks at a time because of registers and shared memory" in said(FMA)
    assert "at most 1 block at a time because of shared memory" in said(FMA, launch__occupancy_limit_shared_mem=1.0)


def test_a_report_with_nothing_in_it_says_so():
    empty = parse('"ID","Kernel Name"\n"",""\n"0","attend_fa2_forward"\n')[0]
    verdict = diagnose(measure(empty))
    assert verdict.bound == "unknown" and "is unknown" in verdict.sentences[0]


LAST = 19  # the number of the ladder's last rung


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
    assert "attend_fa2_backward grid (4096, 1, 1)" in done.stdout  # the slower kernel
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


def test_parse_refuses_nothing():
    with pytest.raises(ReportError):
        parse("")
