#!/usr/bin/env python3
"""Runs the GPU tests, the sanitizers and the Python package's tests, and writes one report.

    tools/gpu_test.py build/release/attend_gpu_tests build/release/attend .venv/bin/python results/h200/tests.json
    tools/gpu_test.py --only PART,... ...     the same arguments; tests begins a report anew, sanitizers and python go
                                              into one that is there, of the same kernels
    tools/gpu_test.py --more --seconds N ...  goes on with the tests that a report of the same kernels misses, and
                                              begins none after N seconds: where a GPU is to be had for minutes
    tools/gpu_test.py --again FILTER ...      runs what a report of the same kernels says has failed once more, and the
                                              tests of a filter of GoogleTest: what they give takes the place of what
                                              they gave, and the report names them

Kernels that many tests share are compiled first, on all cores. The tests run in pieces, several processes that share
the GPU: most of their time is the float64 reference on the host. The report is written after each piece. Then
compute-sanitizer looks at the tests of the slice, one small case of each kind for every kernel, while pytest runs
python/tests with the given interpreter, which has attend, torch and pytest; where there are several GPUs, all of that
at once. Where there is no GPU, everything is reported as skipped and no report is written.

The report: device, driver, kernel_digest (as `attend info --json` prints it: the report is current while they agree),
tests (run, failed, skipped, names of the failed, pieces that are missing, what ran again), sanitizers (tool, errors,
summary), python (the same as tests, the reasons of what was skipped, the version of torch), and cases: each comparison
with its error and budget.
"""

import argparse
import concurrent.futures
import fnmatch
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
PIECES = 96  # of the tests: processes, one after another
AHEADS = 5  # of the compilation: processes at once, each with all cores; one alone leaves most of them idle
RING = "NcclRing*:GpuRingOfSeveral*:GpuRingError*:RingProcesses*:*EveryWayOfMessages*:SeveralGpus*"  # wants two GPUs
MORE_GPUS = {3: "*ThreeGpus*", 4: "*FourGpus*"}  # of the ring's tests, those that want so many
SOME = 24  # pieces of tests that run again
RINGS = 8  # of those: processes at once; a rank of the ring waits more than it computes
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


def run_part(tests, piece, shard, shards, chosen, folder, gpus, limit_s=LIMIT_S):
    """A process of the tests, whose files have the name of the piece: its exit status."""
    environment = {
        "CUDA_VISIBLE_DEVICES": gpus,
        "GTEST_TOTAL_SHARDS": str(shards),
        "GTEST_SHARD_INDEX": str(shard),
        "OMP_NUM_THREADS": "1",
        "ATTEND_GPU_REPORT": str(folder / f"report-{piece}.json"),
    }
    command = [tests, f"--gtest_output=json:{folder / f'gtest-{piece}.json'}", f"--gtest_filter={chosen}"]
    return run(command, environment, folder / f"tests-{piece}.log", limit_s)


def gtest_results(path):
    """(name, result, failures) of every test that ran."""
    for suite in json.loads(path.read_text())["testsuites"]:
        for test in suite["testsuite"]:
            if test.get("result") == "SUPPRESSED":  # for processes that another test starts
                continue
            name = f"{suite['name']}.{test['name']}"
            yield name, test.get("result", ""), [f["failure"] for f in test.get("failures", [])]


def beyond(num_gpus):
    """The tests that want more GPUs than there are."""
    return [RING] if num_gpus < 2 else [name for wanted, name in MORE_GPUS.items() if wanted > num_gpus]


def empty_report(num_gpus, digest):
    """A report that nothing has been added to yet."""
    pieces = [*(f"ahead{index}" for index in range(AHEADS)), *(str(index) for index in range(PIECES)), "alone"]
    pieces += [*(f"ring{index}" for index in range(RINGS)), "last"] if num_gpus > 1 else []
    there = "one GPU" if num_gpus == 1 else f"{num_gpus} GPUs"
    counts = {"run": 0, "failed": 0, "skipped": 0, "failures": [], "missing": pieces,
              "left_out": [f"{name}: {there}" for name in beyond(num_gpus)]}
    return {"kernel_digest": digest, "passed": False, "tests": counts, "sanitizers": [],
            "python": {"passed": False, "run": 0, "failed": 0, "skipped": 0}, "cases": []}  # fmt: skip


def run_piece(tests, piece, folder, num_gpus):
    """One process: its piece and its exit status. It sees one GPU (memory that host and GPU share is slow where a
    process sees several), those of the ring all."""
    every, one = ",".join(map(str, range(num_gpus))), "0"
    shard, shards, limit_s = 0, 1, LIMIT_S
    if piece.isdigit():
        shard, shards, gpus, chosen = int(piece), PIECES, str(int(piece) % num_gpus), f"-{ALONE}:{AHEAD}:{LAST}:{RING}"
    elif piece.startswith("ahead"):
        shard, shards, gpus, chosen = int(piece.removeprefix("ahead")), AHEADS, one, AHEAD
    elif piece.startswith("ring"):
        shard, shards, gpus, chosen = int(piece.removeprefix("ring")), RINGS, every, RING
        chosen += "-" + ":".join(beyond(num_gpus)) if beyond(num_gpus) else ""
    elif piece == "alone":
        gpus, chosen = one, ALONE
    else:
        gpus, chosen, limit_s = every, LAST, LAST_LIMIT_S
    return piece, run_part(tests, piece, shard, shards, chosen, folder, gpus, limit_s)


def take(report, piece, status, folder):
    """What a piece gave, into the report."""
    counts, gtest = report["tests"], folder / f"gtest-{piece}.json"
    counts["missing"] = [other for other in counts["missing"] if other != piece]
    if not gtest.exists():  # the process died
        counts["failed"] += 1
        counts["failures"].append(f"piece {piece} ended with status {status}")
        say((folder / f"tests-{piece}.log").read_text()[-1500:])
        return
    for name, result, why in gtest_results(gtest):
        counts["run"] += 1
        counts["skipped"] += result == "SKIPPED"
        if why or result not in ("COMPLETED", "SKIPPED"):
            counts["failed"] += 1
            counts["failures"].append(name)
            say(f"FAILED {name}\n{chr(10).join(why)[:1500]}")
    cases = folder / f"report-{piece}.json"
    if cases.exists():  # not of a process that got no tests
        found = json.loads(cases.read_text())
        report["cases"].extend(found.pop("cases"))
        report.update(found)


class Tests:
    """The pieces that a report misses, as many as can be begun before the deadline; saves after each."""

    def __init__(self, report, tests, folder, num_gpus, deadline, save):
        self.report, self.tests, self.folder, self.num_gpus = report, tests, folder, num_gpus
        self.deadline, self.save = deadline, save
        self.missing = list(report["tests"]["missing"])

    def begin(self, piece):
        if time.monotonic() < self.deadline and piece in self.missing:
            return run_piece(self.tests, piece, self.folder, self.num_gpus)
        return None

    def done(self, result):
        if result is not None:
            piece, status = result
            take(self.report, piece, status, self.folder)
            self.save(self.report)

    def ahead(self):
        """The others find their kernels on disk, whether the report has these pieces or not."""
        if time.monotonic() < self.deadline:
            start = time.monotonic()
            pieces = [f"ahead{index}" for index in range(AHEADS)]
            with concurrent.futures.ThreadPoolExecutor(AHEADS) as pool:
                results = pool.map(lambda piece: run_piece(self.tests, piece, self.folder, self.num_gpus), pieces)
                for piece, result in zip(pieces, results):
                    self.done(result if piece in self.missing else None)
            say(f"compiled ahead: {time.monotonic() - start:.0f} s")

    def pieces(self):
        """Those that share the machine."""
        workers = max(1, min(48, (os.cpu_count() or 2) - 2))
        with concurrent.futures.ThreadPoolExecutor(workers) as pool:
            jobs = [pool.submit(self.begin, piece) for piece in self.missing if piece.isdigit()]
            for job in concurrent.futures.as_completed(jobs):
                self.done(job.result())
                left = sum(piece.isdigit() for piece in self.report["tests"]["missing"])
                say(f"tests: {PIECES - left} of {PIECES} pieces done")

    def by_themselves(self):
        """Those that measure, those of all GPUs (whose kernels are on disk by now), and what may hang."""
        self.done(self.begin("alone"))
        with concurrent.futures.ThreadPoolExecutor(RINGS) as pool:
            for result in pool.map(self.begin, [piece for piece in self.missing if piece.startswith("ring")]):
                self.done(result)
        self.done(self.begin("last"))
        log = self.folder / "tests-alone.log"
        for line in log.read_text().splitlines() if log.exists() else ():
            if "of host time" in line:
                say(line)
        counts = self.report["tests"]
        say(f"{counts['run']} tests, {counts['failed']} failed, {counts['skipped']} skipped, "
            f"{len(counts['missing'])} pieces missing; {len(self.report['cases'])} comparisons")  # fmt: skip


def names_of(tests, chosen):
    """The tests of a filter."""
    listed = subprocess.run([tests, "--gtest_list_tests", f"--gtest_filter={chosen}"], check=True, capture_output=True,
                            text=True).stdout  # fmt: skip
    names, suite = [], ""
    for line in listed.splitlines():
        word = line.split()[0] if line.split() else ""
        if line.startswith("  "):
            names.append(suite + word)
        elif word.endswith("."):
            suite = word
    return names


def run_again(report, tests, chosen, folder, num_gpus):
    """The failed tests of a whole report, and those of a filter: what they give takes the place of what they gave."""
    counts = report["tests"]
    if counts["missing"]:
        sys.exit("gpu-test: --again: the report misses tests, allowed a whole one: --more goes on with it")
    named = [name for name in counts["failures"] if " " not in name]  # else a process, not a test
    wanted = ":".join([*filter(None, [chosen]), *named])
    names = names_of(tests, wanted + ("-" + ":".join(beyond(num_gpus)) if beyond(num_gpus) else ""))
    of_ring = [n for n in names if any(fnmatch.fnmatchcase(n, p) for p in RING.split(":"))]
    others = [n for n in names if n not in set(of_ring)]
    every = ",".join(map(str, range(num_gpus)))
    jobs = [(f"again{i}", i, SOME, ":".join(others), str(i % num_gpus)) for i in range(SOME) if i < len(others)]
    jobs += [(f"again-ring{i}", i, RINGS, ":".join(of_ring), every) for i in range(RINGS) if i < len(of_ring)]
    with concurrent.futures.ThreadPoolExecutor(len(jobs) or 1) as pool:
        list(pool.map(lambda job: run_part(tests, *job[:4], folder, job[4]), jobs))
    results, cases = {}, []
    for piece, *_ in jobs:
        gtest, found = folder / f"gtest-{piece}.json", folder / f"report-{piece}.json"
        results |= {name: (result, why) for name, result, why in gtest_results(gtest)} if gtest.exists() else {}
        cases += json.loads(found.read_text())["cases"] if found.exists() else []
    bad = {name: why for name, (result, why) in results.items() if why or result != "COMPLETED"}
    for name, why in bad.items():
        say(f"FAILED {name}\n{chr(10).join(why)[:1500]}")
    counts["failures"] = [n for n in counts["failures"] if n not in results] + list(bad)  # what did not run stays
    silent = [name for name in names if name not in results and name not in counts["failures"]]
    counts["failures"] += [f"{name} did not end" for name in silent]
    counts["failed"] = len(counts["failures"])
    counts["again"] = sorted({*counts.get("again", []), *results})
    new = {(case["compute"], case["case"]) for case in cases}
    kept = [c for c in report["cases"] if c["passed"] and (c["compute"], c["case"]) not in new]
    report["cases"] = kept + cases
    say(f"again: {len(results)} of {len(names)} tests, {len(bad)} failed; {counts['failed']} failures in all")


def racecheck_kernels(folder):
    """A copy of the kernels in which all lanes of a warp arrive at a barrier where else one does for all: racecheck
    does not follow what __syncwarp orders before that one's arrival, and would report every such hand-over."""
    copy = folder / "racecheck-kernels"
    shutil.copytree(ROOT / "kernels", copy)
    barrier, one, every = copy / "common" / "mbarrier.cuh", "kLanesThatArrive = 1;", "kLanesThatArrive = 32;"
    text = barrier.read_text()
    if one not in text:
        sys.exit(f"gpu-test: {barrier}: no '{one}' to replace")
    barrier.write_text(text.replace(one, every))
    return {"ATTEND_KERNEL_DIR": str(copy)}


def sanitize(tests, tool, folder, gpu):
    log = folder / f"{tool}.log"
    environment = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": gpu}
    if tool == "racecheck":
        environment |= racecheck_kernels(folder)
    command = ["compute-sanitizer", "--tool", tool, "--print-limit", "20", tests, f"--gtest_filter={SLICE}"]
    start = time.monotonic()
    status = run(command, environment, log)
    say(f"{tool}: {time.monotonic() - start:.0f} s")
    text = log.read_text()
    summary = re.findall(r"========= (?:ERROR|RACECHECK) SUMMARY: (.*)", text)
    errors = int(re.search(r"\d+", summary[-1]).group()) if summary else -1
    ran = re.search(r"\[  PASSED  \] (\d+) tests?", text)
    passed = errors == 0 and status == 0 and ran is not None
    if not passed:
        found = [line for line in text.splitlines() if line.startswith(("=========", "[ RUN"))]
        say("\n".join(found)[:20000])
    return {"tool": tool, "tests": int(ran.group(1)) if ran else 0, "errors": errors,
            "summary": summary[-1] if summary else "no summary", "passed": passed}


def python_tests(python, folder):
    """What pytest says of python/tests, which see one GPU; in several processes where it can."""
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
    environment = {"OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "passive", "CUDA_VISIBLE_DEVICES": "0"}
    status = run(command, environment, log)
    say(f"python tests: {time.monotonic() - start:.0f} s")
    cases = list(xml.etree.ElementTree.parse(junit).iter("testcase")) if junit.exists() else []
    name_of = lambda case: f"{case.get('classname')}.{case.get('name')}"
    named = lambda kind: [(name_of(case), case.find(kind)) for case in cases if case.find(kind) is not None]
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
    return (counts["failed"] == counts["skipped"] == 0 and not counts.get("missing") and len(sanitizers) == len(TOOLS)
            and all(s["passed"] for s in sanitizers) and report["python"]["passed"])


def write(report, target):
    """The report with its verdict."""
    report["passed"] = verdict(report)
    cases = sorted(report["cases"], key=lambda case: (case["case"], case["compute"]))
    entries = ",\n".join("    " + json.dumps(rounded(case), separators=(",", ":")) for case in cases)
    head = {key: value for key, value in report.items() if key != "cases"}
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(head, indent=2)[:-2] + ',\n  "cases": [\n' + entries + "\n  ]\n}\n")


def sanitizers_part(tests, folder, gpu):
    if not shutil.which("compute-sanitizer"):
        say("gpu-test: no compute-sanitizer in PATH, its part is left out")
        return []
    with concurrent.futures.ThreadPoolExecutor(len(TOOLS)) as pool:
        found = list(pool.map(lambda tool: sanitize(tests, tool, folder, gpu), TOOLS))
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
    if report.get("kernel_digest") != digest:
        sys.exit(f"gpu-test: {target} is of other kernels, {report.get('kernel_digest')}; these are {digest}")
    return report


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="PART,...", help=", ".join(PARTS))
    parser.add_argument("--more", action="store_true", help="only tests, those that the report misses")
    parser.add_argument("--again", metavar="FILTER", help="only tests that failed, and those of the filter")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no more tests after this time")
    parser.add_argument("tests", help="attend_gpu_tests")
    parser.add_argument("attend", help="the program")
    parser.add_argument("python", help="an interpreter with attend, torch and pytest")
    parser.add_argument("report", type=pathlib.Path, help="JSON")
    words = parser.parse_args()
    in_full = PARTS if words.only is None else tuple(words.only.split(","))
    words.parts = ("tests",) if words.more or words.again is not None else in_full
    unknown = set(words.parts) - set(PARTS)
    if unknown:
        parser.error(f"--only: {', '.join(sorted(unknown))}, allowed {', '.join(PARTS)}")
    return words


def main():
    words, begun = parse(), time.monotonic()
    asked = subprocess.run([words.attend, "info", "--json"], check=True, capture_output=True, text=True)
    info = json.loads(asked.stdout)
    num_gpus = sum(device["type"] == "cuda" for device in info["devices"])
    if num_gpus == 0:
        say("gpu-test: SKIPPED, no GPU is visible here")
        return 0
    parts = words.parts
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        begins = "tests" in parts and not words.more and words.again is None
        digest = info["kernel_digest"]
        report = empty_report(num_gpus, digest) if begins else earlier_report(words.report, digest)
        if words.again is not None:
            run_again(report, words.tests, words.again, folder, num_gpus)
            write(report, words.report)
            say(f"{words.report}: {'passed' if report['passed'] else 'not passed, or not whole'}")
            return report["tests"]["failed"] > 0
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
    say(f"{words.report}: {'passed' if report['passed'] else 'not passed, or not whole'}")
    whole = words.only is None and not words.more
    failed = report["tests"]["failed"] or not all(s["passed"] for s in report["sanitizers"])
    return 0 if report["passed"] or (not whole and not failed) else 1


if __name__ == "__main__":
    sys.exit(main())
