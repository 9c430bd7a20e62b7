"""Parts of tools/same_results.py. They generate problems with the modules of python/tests."""

import pathlib
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "python" / "tests"))
