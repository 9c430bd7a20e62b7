"""Parts of tools/same_results.py. They make problems as python/tests does, with its modules."""

import pathlib
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "python" / "tests"))
