"""Runs processes whose output is written to files."""

import os
import subprocess

# The tests compile more kernels than the on-disk cache can contain by default. With the default limit, kernels would be
# removed before a test uses them.
KEPT = {"ATTEND_CACHE_LIMIT": "unlimited"}
LIMIT_S = float(os.environ.get("GPU_TEST_LIMIT_S", "600"))  # time limit of one process, because a kernel may hang


def say(text):
    print(text, flush=True)


def run(command, environment, log, limit_s=LIMIT_S):
    """Runs a command with its output in the file `log`. Returns its exit status, or 124 if it exceeded limit_s."""
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
