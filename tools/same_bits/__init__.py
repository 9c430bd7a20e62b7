"""The implementation of tools/same_results.py. It generates problems with modules of python/tests."""

import pathlib
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "python" / "tests"))
