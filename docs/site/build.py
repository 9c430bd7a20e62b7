"""`make docs`: makes the pages, and of them the site in build/docs/html. A warning is an error.

    python docs/site/build.py build/docs
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import reference
from stage import DOCS, Stage


def main(output: Path) -> int:
    source = output / "source"
    shutil.rmtree(source, ignore_errors=True)
    stage = Stage(source)
    stage.make()
    reference.write(stage)
    complaints = reference.run_doxygen(output / "doxygen")
    print("\n".join(complaints), file=sys.stderr)
    command = [
        sys.executable, "-m", "sphinx", "-q", "-n", "-W", "--keep-going", "-j", "auto", "-c", str(DOCS),
        "-d", str(output / "doctrees"), str(source), str(output / "html"),
    ]  # fmt: skip
    status = subprocess.run(command, env=os.environ | {"ATTEND_DOXYGEN_XML": str(output / "doxygen/xml")}).returncode
    return status or bool(complaints)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve()))
