"""Divides the GPU tests into pieces. A piece is the set of tests that one process runs.

GoogleTest filters separate four groups of tests: tests that compile kernels which other tests also use, tests during
which no other test may run, tests that may hang, and tests of a ring, which need several GPUs.
"""

import functools
import hashlib
import json
import subprocess

from gpu_report.process import LIMIT_S, run, say

ALONE = "Alone.*"
AHEAD = "Ahead*"
LAST = "Last*"  # tests that may hang
LAST_LIMIT_S = 60
PIECES = 96  # number of processes of ordinary tests
AHEADS = 5  # number of concurrent processes that compile kernels, because a single one leaves most cores idle
# Tests that need two GPUs.
RING = "NcclRing*:GpuRingOfSeveral*:GpuRingError*:RingProcesses*:*EveryWayOfMessages*:SeveralGpus*"
MORE_GPUS = {3: "*ThreeGpus*", 4: "*FourGpus*"}  # tests of the ring that need this number of GPUs
RINGS = 8  # number of concurrent processes of ring tests, whose ranks wait more than they compute


def run_part(tests, piece, shard, shards, chosen, folder, gpus, limit_s=LIMIT_S):
    """Runs the tests of a piece in a process and returns the exit status. The names of its files contain the piece."""
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
    """Yields (name, result, failures) of every test that ran."""
    for suite in json.loads(path.read_text())["testsuites"]:
        for test in suite["testsuite"]:
            if test.get("result") == "SUPPRESSED":  # tests that only run in a process which another test starts
                continue
            name = f"{suite['name']}.{test['name']}"
            yield name, test.get("result", ""), [f["failure"] for f in test.get("failures", [])]


def beyond(num_gpus):
    """Returns a filter of the tests that need more than `num_gpus` GPUs."""
    return [RING] if num_gpus < 2 else [name for wanted, name in MORE_GPUS.items() if wanted > num_gpus]


@functools.cache
def names_of(tests, chosen):
    """Returns the tests of a filter, in the order in which GoogleTest assigns them to shards."""
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


def digest_of_names(tests):
    """Returns a digest of all test names in order, because the names determine which tests belong to each piece."""
    return hashlib.sha256("\n".join(names_of(tests, "*")).encode()).hexdigest()[:16]


def empty_report(num_gpus, digest, tests):
    """Returns a report without results."""
    pieces = [*(f"ahead{index}" for index in range(AHEADS)), *(str(index) for index in range(PIECES)), "alone"]
    pieces += [*(f"ring{index}" for index in range(RINGS)), "last"] if num_gpus > 1 else []
    there = "one GPU" if num_gpus == 1 else f"{num_gpus} GPUs"
    counts = {
        "run": 0,
        "failed": 0,
        "skipped": 0,
        "failures": [],
        "missing": pieces,
        "left_out": [f"{name}: {there}" for name in beyond(num_gpus)],
    }
    return {"kernel_digest": digest, "names_digest": digest_of_names(tests), "passed": False, "tests": counts,
            "sanitizers": [],
            "python": {"passed": False, "run": 0, "failed": 0, "skipped": 0}, "cases": []}  # fmt: skip


def run_piece(tests, piece, folder, num_gpus, passed):
    """Runs the tests of a piece. Returns the piece and the exit status, which is None if no test of the piece is left.

    The tests in `passed` are omitted. The process sees only one GPU, because managed memory is slow in a process that
    sees several. Processes of ring tests and of tests that may hang see all GPUs.
    """
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
    if piece.isdigit() and passed:
        mine = [name for name in names_of(tests, chosen)[shard::shards] if name not in passed]
        if not mine:
            return piece, None
        shard, shards, chosen = 0, 1, ":".join(mine)
    return piece, run_part(tests, piece, shard, shards, chosen, folder, gpus, limit_s)


def take(report, piece, status, folder):
    """Adds the results of a piece to the report. The process of the piece has written them to `folder`."""
    counts, gtest = report["tests"], folder / f"gtest-{piece}.json"
    counts["missing"] = [other for other in counts["missing"] if other != piece]
    if status is None:
        return
    if not gtest.exists():  # the process crashed
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
    if cases.exists():  # absent if the process ran no tests
        found = json.loads(cases.read_text())
        report["cases"].extend(found.pop("cases"))
        report.update(found)
