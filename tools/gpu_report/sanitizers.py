"""Runs the tools of compute-sanitizer on a selection of the tests: a few small cases for every kernel."""

import concurrent.futures
import pathlib
import re
import shutil
import sys
import time

from gpu_report.process import run, say

ROOT = pathlib.Path(__file__).resolve().parents[2]
SLICE = "Slice*"
TOOLS = ["memcheck", "racecheck", "synccheck", "initcheck"]
# synccheck fails for a kernel with more shared-memory barriers than its table has entries. With a table that is five
# times as large, synccheck runs out of memory.
OPTIONS = {"synccheck": ["--num-cuda-barriers", "20000"]}


def racecheck_kernels(folder):
    """Returns an environment that selects a copy of the kernels, in which every lane of a warp arrives at a barrier.

    In the original kernels one lane arrives for all. racecheck does not recognise that __syncwarp orders the other
    lanes' accesses before this arrival, and would report every such barrier.
    """
    copy = folder / "racecheck-kernels"
    shutil.copytree(ROOT / "kernels", copy)
    barrier, one, every = copy / "isa" / "mbarrier.cuh", "kLanesThatArrive = 1;", "kLanesThatArrive = 32;"
    text = barrier.read_text()
    if one not in text:
        sys.exit(f"gpu-test: {barrier}: no '{one}' to replace")
    barrier.write_text(text.replace(one, every))
    return {"ATTEND_KERNEL_DIR": str(copy)}


def sanitize(tests, tool, folder, gpu):
    """Runs one tool and returns its entry in the report."""
    log = folder / f"{tool}.log"
    environment = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": gpu, "ATTEND_LINE_INFO": "1"}
    if tool == "racecheck":
        environment |= racecheck_kernels(folder)
    command = [
        "compute-sanitizer",
        "--tool",
        tool,
        *OPTIONS.get(tool, []),
        "--print-limit",
        "20",
        tests,
        f"--gtest_filter={SLICE}",
    ]
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
    return {
        "tool": tool,
        "tests": int(ran.group(1)) if ran else 0,
        "errors": errors,
        "summary": summary[-1] if summary else "no summary",
        "passed": passed,
    }


def sanitizers_part(tests, folder, gpu):
    """Runs all tools concurrently. Returns their entries in the report, or no entries if compute-sanitizer is not
    installed.
    """
    if not shutil.which("compute-sanitizer"):
        say("gpu-test: no compute-sanitizer in PATH, so its part is skipped")
        return []
    with concurrent.futures.ThreadPoolExecutor(len(TOOLS)) as pool:
        found = list(pool.map(lambda tool: sanitize(tests, tool, folder, gpu), TOOLS))
    for s in found:
        say(f"{s['tool']}: {s['tests']} tests, {s['summary']}")
    return found
