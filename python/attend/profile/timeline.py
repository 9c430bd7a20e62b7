"""Runs Nsight Systems on one attention call. The timeline shows the library's calls as named ranges (NVTX)."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

from attend.profile.call import FAILURE
from attend.profile.collect import CollectError, find_tool, run
from attend.profile.output import Problem

REPORT = "profile.nsys-rep"


def find_nsys() -> str:
    """Returns the path of nsys.

    Raises:
        CollectError if it is not installed.
    """
    return find_tool("nsys", "Nsight Systems, which is not part of the CUDA toolkit")


def timeline_command(nsys: str, problem: Problem, report: pathlib.Path) -> list[str]:
    """Returns the command that records the CUDA and NVTX events of the second run of the call in the file `report`."""
    return [
        nsys, "profile", "--trace=cuda,nvtx", "--sample=none", "--cpuctxsw=none", "--capture-range=cudaProfilerApi",
        "--capture-range-end=stop", "--force-overwrite=true", f"--output={report}",
        sys.executable, "-m", "attend.profile.call", json.dumps(problem._asdict()),
    ]  # fmt: skip


def record(problem: Problem, folder: pathlib.Path, timeout_s: float) -> pathlib.Path:
    """Writes the timeline to `folder` and nsys' output to nsys.log. Returns the timeline's path.

    Raises:
        CollectError with the error message of nsys or of the call.
    """
    nsys = find_nsys()
    report = folder / REPORT
    report.unlink(missing_ok=True)  # removes the file of an earlier run, so that it is not mistaken for a new file
    try:
        done = run(timeline_command(nsys, problem, report), timeout_s)
    except subprocess.TimeoutExpired:
        raise CollectError(
            f"nsys did not finish within {timeout_s:.0f} s: choose a smaller problem or a larger --timeout"
        ) from None
    (folder / "nsys.log").write_text(done.stdout)
    lines = done.stdout.splitlines()
    said = next((line.removeprefix(FAILURE) for line in lines if line.startswith(FAILURE)), None)
    if said is None and (done.returncode != 0 or not report.exists()):
        said = "nsys failed or wrote no report. Its last line: " + (lines[-1] if lines else "nothing")
    if said is not None:
        raise CollectError(said)
    return report
