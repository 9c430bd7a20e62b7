"""Starts and calls the processes of the two builds."""

import contextlib
import json
import os
import pathlib
import subprocess
import sys

TOOL = pathlib.Path(__file__).resolve().parents[1] / "same_results.py"


class Side:
    """A process with the package of one build."""

    def __init__(self, folder, device):
        self._folder = folder
        # Waiting threads must not spin, because two processes share the cores.
        environment = {"OMP_WAIT_POLICY": "passive", **os.environ, "PYTHONPATH": str(folder)}
        command = [sys.executable, str(TOOL), "--worker", device]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def tell(self, *message):
        with contextlib.suppress(BrokenPipeError):  # if the process has ended, `answer` reports it
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()

    def answer(self):
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"the process of {self._folder} ended with status {self._process.wait()}")
        return json.loads(line)

    def close(self):
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()


class Sides:
    """Two processes that work at the same time."""

    def __init__(self, base, new, device):
        self.both = (Side(base, device), Side(new, device))

    def ask_both(self, *message):
        for side in self.both:
            side.tell(*message)
        return [side.answer() for side in self.both]

    def close(self):
        for side in self.both:
            side.close()
