"""Processes whose output goes to files."""

import os
import subprocess

# All tests together compile more than the cache holds by default: what was compiled ahead would be gone before its use.
KEPT = {"ATTEND_CACHE_LIMIT": "unlimited"}
LIMIT_S = float(os.environ.get("GPU_TEST_LIMIT_S", "600"))  # of one process: a kernel may hang


def say(text):
    print(text, flush=True)


def run(command, environment, log, limit_s=LIMIT_S):
    """Exit status of a command whose output goes to the file `log`; 124 if it took longer than limit_s."""
    with open(log, "w") as out:
        try:
            return subprocess.run(
                command,
                env={**KEPT, **os.environ, **environment},
                stdout=out,
                stderr=subprocess.STDOUT,
                timeout=limit_s,
                check=False,
            ).returncode
        except subprocess.TimeoutExpired:
            return 124
