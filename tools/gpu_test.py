#!/usr/bin/env python3
"""Runs the GPU tests, the sanitizers and the Python package's tests, and writes one report.

    tools/gpu_test.py build/release/attend_gpu_tests build/release/attend .venv/bin/python results/h200/tests.json
    tools/gpu_test.py --only PART,... ...     the same arguments; tests begins a report anew, sanitizers and python go
                                              into one that is there, of the same kernels

Kernels that many tests share are compiled first, on all cores. The tests run as several processes that share the GPU:
most of their time is the float64 reference on the host. Then compute-sanitizer looks at the tests of the slice, one
small case of each kind for every kernel, while pytest runs python/tests with the given interpreter, which has attend,
torch and pytest. Where there is no GPU, everything is reported as skipped and no report is written.

The report: device, driver, kernel_digest (as `attend info --json` prints it: the report is current while they agree),
tests (run, passed, failed, skipped, names of the failed), sanitizers (tool, errors, summary), python (the same as
tests, the reasons of what was skipped, the version of torch), and cases: each comparison with its error and budget.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree

ROOT = pathlib.Path(__file__).resolve().parent.parent
SLICE = "Slice*"
ALONE = "Alone.*"
AHEAD = "Ahead*"
LAST = "Last*"  # may hang
LAST_LIMIT_S = 60
WANT_TWO_GPUS = "*NcclRing*"
LIMIT_S = float(os.environ.get("GPU_TEST_LIMIT_S", 600))  # of one process: a kernel may hang
PARTS = ("tests", "sanitizers", "python")
TOOLS = ["memcheck", "racecheck", "synccheck", "initcheck"]


def say(text):
    print(text, flush=True)


def run(command, environment, log, limit_s=LIMIT_S):
    """Exit status of a command whose output goes to the file `log`; 124 where it took longer than limit_s."""
    with open(log, "w") as out:
        try:
            return subprocess.run(command, env={**os.environ, **environment}, stdout=out, stderr=subprocess.STDOUT,
                                  timeout=limit_s).returncode
        except subprocess.TimeoutExpired:
            return 124


def run_part(tests, index, shards, chosen, folder, limit_s=LIMIT_S):
    environment = {
        "GTEST_TOTAL_SHARDS": str(shards),
        "GTEST_SHARD_INDEX": str(index % shards),
        "OMP_NUM_THREADS": "1",
        "ATTEND_GPU_REPORT": str(folder / f"report-{index}.json"),
    }
    command = [tests, f"--gtest_output=json:{folder / f'gtest-{index}.json'}", f"--gtest_filter={chosen}"]
    status = run(command, environment, folder / f"tests-{index}.log", limit_s)
    return index, status


def gtest_results(path):
    """(name, result, failures) of every test that ran."""
    for suite in json.loads(path.read_text())["testsuites"]:
        for test in suite["testsuite"]:
            name = f"{suite['name']}.{test['name']}"
            yield name, test.get("result", ""), [f["failure"] for f in test.get("failures", [])]


def run_tests(tests, folder, num_gpus):
    left_out = "" if num_gpus > 1 else f":{WANT_TWO_GPUS}"
    shards = max(1, min(30, (os.cpu_count() or 2) - 2))
    results, cases, head = [], [], {}

    def take(index, status):
        nonlocal head
        gtest = folder / f"gtest-{index}.json"
        if not gtest.exists():  # the process died
            results.append((f"process {index}", f"ended with status {status}", []))
            say((folder / f"tests-{index}.log").read_text()[-1500:])
            return
        results.extend(gtest_results(gtest))
        head = json.loads((folder / f"report-{index}.json").read_text())
        cases.extend(head.pop("cases"))

    take(*run_part(tests, shards + 1, 1, AHEAD, folder))  # the parts find their kernels on disk
    with concurrent.futures.ThreadPoolExecutor(shards) as pool:
        chosen = f"-{ALONE}:{AHEAD}:{LAST}{left_out}"
        jobs = [pool.submit(run_part, tests, index, shards, chosen, folder) for index in range(shards)]
        for done, job in enumerate(concurrent.futures.as_completed(jobs), 1):
            take(*job.result())
            say(f"tests: {done} of {shards} parts done")
    take(*run_part(tests, shards, 1, ALONE, folder))
    if num_gpus > 1:
        take(*run_part(tests, shards + 2, 1, LAST, folder, LAST_LIMIT_S))
    else:
        say(f"{WANT_TWO_GPUS}: left out, they want two GPUs")
    for line in (folder / f"tests-{shards}.log").read_text().splitlines():
        if "of host time" in line:
            say(line)
    return head, results, cases


def sanitize(tests, tool, folder):
    log = folder / f"{tool}.log"
    command = ["compute-sanitizer", "--tool", tool, "--print-limit", "20", tests, f"--gtest_filter={SLICE}"]
    start = time.monotonic()
    status = run(command, {"OMP_NUM_THREADS": "1"}, log)
    say(f"{tool}: {time.monotonic() - start:.0f} s")
    text = log.read_text()
    summary = re.findall(r"========= (?:ERROR|RACECHECK) SUMMARY: (.*)", text)
    errors = int(re.search(r"\d+", summary[-1]).group()) if summary else -1
    ran = re.search(r"\[  PASSED  \] (\d+) tests?", text)
    passed = errors == 0 and status == 0 and ran is not None
    if not passed:
        say(text[-6000:])
    return {"tool": tool, "tests": int(ran.group(1)) if ran else 0, "errors": errors,
            "summary": summary[-1] if summary else "no summary", "passed": passed}


def python_tests(python, folder):
    """What pytest says of python/tests; in several processes where it can."""
    start = time.monotonic()
    junit, log = folder / "pytest.xml", folder / "pytest.log"
    probe = "import attend, torch, importlib.util as u; print(torch.__version__, u.find_spec('xdist') is not None)"
    asked = subprocess.run([python, "-c", probe], capture_output=True, text=True, cwd=folder)
    if asked.returncode != 0:
        return {"passed": False, "why": asked.stderr.strip().splitlines()[-1], "run": 0, "failed": 0, "skipped": 0}
    torch, has_xdist = asked.stdout.split()
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={junit}", ROOT / "python" / "tests"]
    if has_xdist == "True":
        command += ["-n", str(max(6, (os.cpu_count() or 2) * 3 // 8))]
    # A few threads each: the processes share the machine with one another and with the sanitizers.
    status = run(command, {"OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "passive"}, log)
    say(f"python tests: {time.monotonic() - start:.0f} s")
    cases = list(xml.etree.ElementTree.parse(junit).iter("testcase")) if junit.exists() else []
    named = lambda kind: [(f"{c.get('classname')}.{c.get('name')}", c.find(kind)) for c in cases if c.find(kind) is not None]
    failed, skipped = named("failure") + named("error"), named("skipped")
    for name, why in failed[:20]:
        say(f"FAILED {name}: {why.get('message', '')[:300]}")
    if status != 0:
        say(log.read_text()[-1500:])
    return {"passed": status == 0 and len(cases) > 0, "torch": torch, "run": len(cases), "failed": len(failed),
            "skipped": len(skipped), "failures": [name for name, _ in failed],
            "skips": sorted({why.get("message", "") for _, why in skipped})}


def rounded(value):
    """The same with three digits of every float: enough to compare an error with its budget."""
    if isinstance(value, float):
        return float(f"{value:.3g}")
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    return [rounded(item) for item in value] if isinstance(value, list) else value


def verdict(report):
    """Has all that the report tells of passed, and nothing been left out?"""
    counts, sanitizers = report["tests"], report["sanitizers"]
    return (counts["failed"] == counts["skipped"] == 0 and len(sanitizers) == len(TOOLS)
            and all(s["passed"] for s in sanitizers) and report["python"]["passed"])


def write(report, target):
    """The report with its verdict."""
    report["passed"] = verdict(report)
    cases = sorted(report["cases"], key=lambda case: (case["case"], case["compute"]))
    entries = ",\n".join("    " + json.dumps(rounded(case), separators=(",", ":")) for case in cases)
    head = {key: value for key, value in report.items() if key != "cases"}
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(head, indent=2)[:-2] + ',\n  "cases": [\n' + entries + "\n  ]\n}\n")


def tests_part(tests, folder, num_gpus):
    """A report of the tests alone."""
    head, results, cases = run_tests(tests, folder, num_gpus)
    failed = [(name, why) for name, result, why in results if why or result not in ("COMPLETED", "SKIPPED")]
    skipped = [name for name, result, _ in results if result == "SKIPPED"]
    for name, why in failed:
        say(f"FAILED {name}\n{chr(10).join(why)[:1500]}")
    say(f"{len(results)} tests, {len(failed)} failed, {len(skipped)} skipped; {len(cases)} comparisons")
    counts = {"run": len(results), "failed": len(failed), "skipped": len(skipped), "failures": [n for n, _ in failed],
              "left_out": [] if num_gpus > 1 else [f"{WANT_TWO_GPUS}: one GPU"]}
    return {**head, "passed": False, "tests": counts, "sanitizers": [],
            "python": {"passed": False, "run": 0, "failed": 0, "skipped": 0}, "cases": cases}  # fmt: skip


def sanitizers_part(tests, folder):
    if not shutil.which("compute-sanitizer"):
        say("gpu-test: no compute-sanitizer in PATH, its part is left out")
        return []
    with concurrent.futures.ThreadPoolExecutor(len(TOOLS)) as pool:
        found = list(pool.map(lambda tool: sanitize(tests, tool, folder), TOOLS))
    for s in found:
        say(f"{s['tool']}: {s['tests']} tests, {s['summary']}")
    return found


def python_part(python, folder):
    found = python_tests(python, folder)
    say("python: " + ", ".join(f"{key} {value}" for key, value in found.items() if key != "failures"))
    return found


def earlier_report(target, digest):
    """The report that parts are added to."""
    if not target.exists():
        sys.exit(f"gpu-test: {target} is not there: --only tests makes it")
    report = json.loads(target.read_text())
    if report["kernel_digest"] != digest:
        sys.exit(f"gpu-test: {target} is of other kernels, {report['kernel_digest']}; these are {digest}")
    return report


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="PART,...", help=", ".join(PARTS))
    parser.add_argument("tests", help="attend_gpu_tests")
    parser.add_argument("attend", help="the program")
    parser.add_argument("python", help="an interpreter with attend, torch and pytest")
    parser.add_argument("report", type=pathlib.Path, help="JSON")
    words = parser.parse_args()
    words.parts = PARTS if words.only is None else tuple(words.only.split(","))
    unknown = set(words.parts) - set(PARTS)
    if unknown:
        parser.error(f"--only: {', '.join(sorted(unknown))}, allowed {', '.join(PARTS)}")
    return words


def main():
    words = parse()
    asked = subprocess.run([words.attend, "info", "--json"], check=True, capture_output=True, text=True)
    info = json.loads(asked.stdout)
    num_gpus = sum(device["type"] == "cuda" for device in info["devices"])
    if num_gpus == 0:
        say("gpu-test: SKIPPED, no GPU is visible here")
        return 0
    parts = words.parts
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        begins = "tests" in parts
        report = tests_part(words.tests, folder, num_gpus) if begins else earlier_report(words.report, info["kernel_digest"])
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            in_python = pool.submit(python_part, words.python, folder) if "python" in parts else None
            if "sanitizers" in parts:
                report["sanitizers"] = sanitizers_part(words.tests, folder)
            if in_python:
                report["python"] = in_python.result()
    write(report, words.report)
    say(f"{words.report}: {'passed' if report['passed'] else 'not passed, or not whole'}")
    whole = words.only is None
    failed = report["tests"]["failed"] or not all(s["passed"] for s in report["sanitizers"])
    return 0 if report["passed"] or (not whole and not failed) else 1


if __name__ == "__main__":
    sys.exit(main())
