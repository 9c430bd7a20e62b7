"""Runs the Python package's tests."""

import os
import pathlib
import re
import secrets
import subprocess
import time
import xml.etree.ElementTree

from gpu_report.process import run, say

TESTS = pathlib.Path(__file__).resolve().parents[2] / "python" / "tests"


def end_of(why):
    """Returns the end of a failure's text, in which file names are relative to the repository or to the installed
    packages.
    """
    text = (why.text or why.get("message", ""))[-4000:]
    return re.sub(r"[^\s\"']*/site-packages/", "", text).replace(f"{TESTS.parents[1]}/", "")


def python_tests(python, folder):
    """Runs pytest on one GPU and returns the results. If pytest-xdist is installed, the tests run in several
    processes.
    """
    start, seed = time.monotonic(), secrets.randbelow(2**31)
    junit, log = folder / "pytest.xml", folder / "pytest.log"
    probe = "import attend, torch, importlib.util as u; print(torch.__version__, u.find_spec('xdist') is not None)"
    asked = subprocess.run([python, "-c", probe], capture_output=True, text=True, check=False, cwd=folder)
    if asked.returncode != 0:
        return {"passed": False, "why": asked.stderr.strip().splitlines()[-1], "run": 0, "failed": 0, "skipped": 0}
    torch, has_xdist = asked.stdout.split()
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={junit}", TESTS]
    if has_xdist == "True":
        command += ["-n", str(max(6, (os.cpu_count() or 2) * 3 // 8))]
    # Each process gets a few threads, because it shares the machine with other processes of pytest and with the
    # sanitizers.
    environment = {
        "OMP_NUM_THREADS": "2",
        "OMP_WAIT_POLICY": "passive",
        "CUDA_VISIBLE_DEVICES": "0",
        "ATTEND_TEST_SEED": str(seed),
    }
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
    return {
        "passed": status == 0 and len(cases) > 0,
        "torch": torch,
        "run": len(cases),
        "failed": len(failed),
        "skipped": len(skipped),
        "seed": seed,
        "failures": [name for name, _ in failed],
        "why_they_failed": {name: end_of(why) for name, why in failed},
        "skips": sorted({why.get("message", "") for _, why in skipped}),
    }


def python_part(python, folder):
    found = python_tests(python, folder)
    say(
        "python: "
        + ", ".join(f"{key} {value}" for key, value in found.items() if key not in ("failures", "why_they_failed"))
    )
    return found
