"""Generates the page of the command line from the --help output of the programs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

# The programs of the Python package. None of them needs torch to print its --help.
MODULES = ("attend", "attend.profile", "attend.bench", "attend.experiments")


def help_of(*line: str | Path) -> str:
    environment = os.environ | {"COLUMNS": "100", "TERM": "dumb"}
    done = subprocess.run([*map(str, line), "--help"], capture_output=True, text=True, env=environment, check=True)
    return done.stdout.strip()


def page(build: Path) -> str:
    program = build / "attend"
    overview = help_of(program)
    commands = re.findall(r"^  ([a-z]+) {2,}", overview.split("Subcommands:")[-1].split("COMMANDS")[-1], re.MULTILINE)
    if len(commands) < 5:
        raise SystemExit(f"{program} --help names no commands:\n{overview}")
    parts = ["# Command line\n\nThe `--help` output of each command.", f"## attend\n\n```text\n{overview}\n```"]
    parts += [f"## attend {name}\n\n```text\n{help_of(program, name)}\n```" for name in commands]
    for module in MODULES:
        text = help_of(sys.executable, "-m", module)
        parts.append(f"## python -m {module}\n\n```text\n{text}\n```")
    return "\n\n".join(parts) + "\n"
