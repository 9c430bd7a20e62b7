"""Runs python -m attend.profile as a process, for its tests."""

import os
import subprocess
import sys


def run(*words, path=None):
    environment = os.environ | ({"PATH": str(path)} if path else {})
    command_line = [sys.executable, "-m", "attend.profile", *map(str, words)]
    return subprocess.run(command_line, capture_output=True, text=True, check=False, env=environment, timeout=60)
