#!/usr/bin/env python3
"""Runs the GPU tests, the sanitizers and the Python package's tests, and writes one report.

    tools/gpu_test.py build/release/attend_gpu_tests build/release/attend .venv/bin/python results/h200/tests.json
    tools/gpu_test.py --only PART,... ...     the same arguments; `tests` starts a new report, `sanitizers` and `python`
                                              are added to an existing report of the same kernels
    tools/gpu_test.py --more --seconds N ...  continues with the missing tests of a report of the same kernels, and
                                              starts none after N seconds: for a GPU that is available for minutes
    tools/gpu_test.py --again FILTER ...      runs the failed tests of a report of the same kernels again, and those of
                                              a GoogleTest filter: their results replace the earlier ones, and the
                                              report lists these tests
    tools/gpu_test.py --first FILTER ...      runs the tests of a filter before all others, such as those of a change,
                                              if there may be no time for all. Tests that pass do not run again

Kernels that many tests share are compiled first, on all cores. The tests are divided into pieces. Each piece is a
process, and several processes share the GPU, because the tests spend most of their time in the float64 reference on the
host. The report is written after each piece. Then compute-sanitizer checks a selection of the tests: a few small cases
for every kernel. At the same time pytest runs python/tests with the given interpreter, which must have attend, torch
and pytest. With several GPUs, tests, sanitizers and pytest run concurrently. Without a GPU, everything is printed as
skipped and no report is written. The implementation is in tools/gpu_report/.

The report contains: device, driver, kernel_digest (as in `attend info --json`; the report is current while they agree),
names_digest (of the tests), first (the results of --first), tests (run, failed, skipped, names of the failed, missing
pieces, repeated tests), sanitizers (tool, errors, summary), python (the same as tests, the seed, messages of the
failed, reasons of the skipped, the version of torch), and cases: each comparison with its error and budget.
"""

import argparse
import concurrent.futures
import json
import pathlib
import subprocess
import sys
import tempfile
import time

from gpu_report.again import run_again, run_first
from gpu_report.pieces import digest_of_names, empty_report
from gpu_report.process import say
from gpu_report.python_tests import python_part
from gpu_report.report import earlier_report, write
from gpu_report.sanitizers import sanitizers_part
from gpu_report.tests import Tests

PARTS = ("tests", "sanitizers", "python")


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="PART,...", help=", ".join(PARTS))
    parser.add_argument("--more", action="store_true", help="run only the tests that are missing in the report")
    parser.add_argument("--again", metavar="FILTER", help="run only tests that failed and tests that match the filter")
    parser.add_argument("--first", metavar="FILTER", help="run these tests before all others")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no test after this time")
    parser.add_argument("tests", help="attend_gpu_tests")
    parser.add_argument("attend", help="the program")
    parser.add_argument("python", help="Python interpreter with attend, torch and pytest")
    parser.add_argument("report", type=pathlib.Path, help="JSON")
    words = parser.parse_args()
    in_full = PARTS if words.only is None else tuple(words.only.split(","))
    words.parts = ("tests",) if words.more or words.again is not None else in_full
    unknown = set(words.parts) - set(PARTS)
    if unknown:
        parser.error(f"--only: {', '.join(sorted(unknown))}, allowed {', '.join(PARTS)}")
    return words


def run_parts(words, report, folder, num_gpus, begun):
    """Runs the requested parts (tests, sanitizers, python), and writes the report after each part."""
    parts = words.parts
    if words.first is not None:
        run_first(report, words.tests, words.first, folder, num_gpus)
        write(report, words.report)
    tests = Tests(report, words.tests, folder, num_gpus, begun + words.seconds,
                  lambda whole: write(whole, words.report))  # fmt: skip
    if "tests" in parts and num_gpus == 1:
        tests.ahead()
        tests.pieces()
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        in_python = pool.submit(python_part, words.python, folder) if "python" in parts else None
        gpu = str(num_gpus - 1)
        in_sanitizers = pool.submit(sanitizers_part, words.tests, folder, gpu) if "sanitizers" in parts else None
        if "tests" in parts and num_gpus > 1:
            tests.ahead()
            tests.pieces()
        if in_sanitizers:
            report["sanitizers"] = in_sanitizers.result()
        if in_python:
            report["python"] = in_python.result()
    write(report, words.report)
    if "tests" in parts:
        tests.by_themselves()
    write(report, words.report)


def main():
    words, begun = parse(), time.monotonic()
    asked = subprocess.run([words.attend, "info", "--json"], check=True, capture_output=True, text=True)
    info = json.loads(asked.stdout)
    num_gpus = sum(device["type"] == "cuda" for device in info["devices"])
    if num_gpus == 0:
        say("gpu-test: SKIPPED, no GPU is visible here")
        return 0
    is_again = words.again is not None
    digest = info["kernel_digest"]
    begins = "tests" in words.parts and not words.more and not is_again
    if begins:
        report = empty_report(num_gpus, digest, words.tests)
    else:
        report = earlier_report(words.report, digest, digest_of_names(words.tests))
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        if is_again:
            run_again(report, words.tests, words.again, folder, num_gpus)
            write(report, words.report)
        else:
            run_parts(words, report, folder, num_gpus, begun)
    say(f"{words.report}: {'passed' if report['passed'] else 'failed, or incomplete'}")
    if is_again:
        return report["tests"]["failed"] > 0
    whole = words.only is None and not words.more
    of_tests = report["tests"]["failed"] or report.get("first", {}).get("failed")
    failed = of_tests or not all(s["passed"] for s in report["sanitizers"])
    return 0 if report["passed"] or (not whole and not failed) else 1


if __name__ == "__main__":
    sys.exit(main())
