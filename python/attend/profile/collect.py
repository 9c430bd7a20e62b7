"""Runs Nsight Compute on one attention call and returns its report as CSV."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import sys

from attend.profile import metrics, stalls
from attend.profile.call import FAILURE
from attend.profile.output import Problem

PERMISSION = (
    "ERR_NVGPUCTRPERM: the driver restricts the performance counters to administrators; run as root (a container needs "
    "--cap-add=SYS_ADMIN), or load the driver with NVreg_RestrictProfilingToAdminUsers=0"
)


class CollectError(Exception):
    """Raised if nothing could be measured. The message is one line."""


def find_tool(name: str, what: str) -> str:
    """Returns the path of one of NVIDIA's profilers. `what` describes how to install it.

    Raises:
        CollectError if it is not installed.
    """
    for place in (name, f"/usr/local/cuda/bin/{name}"):
        found = shutil.which(place)
        if found:
            return found
    raise CollectError(f"{name} ({what}) is not installed or not in PATH")


def find_ncu() -> str:
    """Returns the path of ncu.

    Raises:
        CollectError if it is not installed.
    """
    return find_tool("ncu", "Nsight Compute, part of the CUDA toolkit")


def version(ncu: str) -> str:
    """Returns the version, such as 2025.3.1.0, or "" if ncu does not report it."""
    words = run([ncu, "--version"]).stdout.split()
    return next((words[i + 1] for i, word in enumerate(words[:-1]) if word == "Version"), "")


def profile_command(ncu: str, problem: Problem, report: pathlib.Path, kernel_regex: str) -> list[str]:
    """Returns the command that profiles the kernels matching `kernel_regex` into `report`.

    The profiler does not lock clocks or flush caches, so the measured call behaves like a call in a loop.
    """
    names = ",".join(metrics.all_names(stalls.reasons()))
    return [
        ncu, "--profile-from-start", "off", "--clock-control", "none", "--cache-control", "none",
        "--kernel-name", f"regex:{kernel_regex}", "--metrics", names, "--force-overwrite", "--export", str(report),
        sys.executable, "-m", "attend.profile.call", json.dumps(problem._asdict()),
    ]  # fmt: skip


def collect(problem: Problem, folder: pathlib.Path, kernel_regex: str, timeout_s: float) -> str:
    """Measures the call and returns the report's page "raw" as CSV.

    Leaves profile.ncu-rep, profile.csv and ncu.log in `folder`.

    Raises:
        CollectError with the error message of ncu or of the call.
    """
    ncu = find_ncu()
    report, table = folder / "profile.ncu-rep", folder / "profile.csv"
    for old in (report, table):  # removes the files of an earlier run, so that they are not mistaken for new files
        old.unlink(missing_ok=True)
    try:
        done = run(profile_command(ncu, problem, report, kernel_regex), timeout_s)
    except subprocess.TimeoutExpired:
        raise CollectError(
            f"ncu did not finish within {timeout_s:.0f} s: choose a smaller problem or a larger --timeout"
        ) from None
    (folder / "ncu.log").write_text(done.stdout)
    if done.returncode != 0 or not report.exists():
        raise CollectError(failure(done.stdout))
    page = run([ncu, "--import", str(report), "--csv", "--page", "raw", "--print-units", "base"])
    if page.returncode != 0:
        raise CollectError(failure(page.stdout))
    table.write_text(page.stdout)
    return page.stdout


def failure(log: str) -> str:
    """Returns one line with the reason why there is no complete report."""
    if "ERR_NVGPUCTRPERM" in log:
        return PERMISSION
    lines = log.splitlines()
    for start in (FAILURE, "==ERROR== "):
        said = next((line for line in lines if line.startswith(start)), None)
        if said:
            return said.removeprefix(start)
    if "No kernels were profiled" in log:
        return "no kernel of the call was profiled: does --kernel-regex match its name?"
    return "ncu failed or wrote no report. Its last line: " + (lines[-1] if lines else "nothing")


def run(command: list[str], timeout_s: float | None = None) -> subprocess.CompletedProcess[str]:
    """Runs a command. The result's stdout contains stdout and stderr. Kernels that are compiled during the run contain
    line information.
    """
    environment = {"ATTEND_LINE_INFO": "1", **os.environ}
    return subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=timeout_s,
        env=environment,
    )  # fmt: skip
