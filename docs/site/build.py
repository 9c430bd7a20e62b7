"""Builds the website in OUTPUT/html for `make docs`. A warning is an error.

python docs/site/build.py OUTPUT BUILD     for example build/docs build/release; BUILD contains the built program
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import check
import commands
import doxygen
import matrix
import reference
from stage import DOCS, Stage


def run_sphinx(output: Path) -> int:
    command = [
        sys.executable, "-m", "sphinx", "-q", "-n", "-W", "--keep-going", "-c", str(DOCS),
        "-d", str(output / "doctrees"), str(output / "source"), str(output / "html"),
    ]  # fmt: skip
    environment = os.environ | {"ATTEND_DOXYGEN_XML": str(output / "doxygen" / "xml")}
    return subprocess.run(command, env=environment, check=False).returncode


def main(output: Path, build: Path) -> int:
    # Removes old output, because files of a removed page would hide broken links to it.
    for folder in ("source", "doctrees", "html"):
        shutil.rmtree(output / folder, ignore_errors=True)
    stage = Stage(output / "source")
    stage.make()
    reference.write(stage)
    stage.write("reference/command_line.md", commands.page(build))
    stage.write("reference/support.md", matrix.page(build))
    complaints = doxygen.run(output / "doxygen")
    status = run_sphinx(output)
    complaints += check.complaints(output / "html")
    complaints += reference.missing(output / "html" / "objects.inv")
    print("\n".join(complaints), file=sys.stderr)
    if not status and not complaints:
        print(output / "html" / "index.html")
    return status or bool(complaints)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()))
