"""Tests of the custom calls for CUDA, without a GPU and without a CUDA build of XLA. xla_frames.py builds the call
frames that XLA would build.

The library of tests/cuda/fake_gpu.cpp simulates a GPU in software. `make test` builds it first. ATTEND_TEST_FAKE_GPU
selects another file.
"""

import json
import os
import pathlib
import subprocess
import sys

import pytest
from conftest import SEED

pytest.importorskip("numpy")
pytest.importorskip("jax", reason=f"the tests of {__name__} need JAX: `make py-test ATTEND_TEST_JAX=1` installs it")

HERE = pathlib.Path(__file__).resolve().parent
LIBRARY = os.environ.get("ATTEND_TEST_FAKE_GPU", str(HERE.parents[1] / "build/release/tests/cuda/libfake_gpu.so"))


def test_a_gpu_in_software_computes_the_custom_calls():
    if not pathlib.Path(LIBRARY).exists():
        pytest.skip(f"{LIBRARY} is not built")
    own = {"ATTEND_LIBCUDA_PATH": LIBRARY, "ATTEND_NVRTC_PATH": LIBRARY, "ATTEND_CACHE_LIMIT": "0"}
    line = [sys.executable, str(HERE / "xla_frames.py"), str(SEED), "simt"]
    done = subprocess.run(line, env=os.environ | own, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    for name in ("forward", "backward"):
        # The metadata states version 0.1 of XLA's interface, and that CUDA graphs may contain the call.
        assert seen[name]["metadata"] == [0, 1, 1]
        assert seen[name]["errors"] == [] and not seen[name]["initialize_writes"] and seen[name]["streams"] == 1
    assert seen["backward"]["words"] > 0 and seen["pool"] == 0  # the scratch memory came from XLA
    assert max(seen["differences"]) < 1e-5, seen  # false if one is NaN
    ((message, code),) = seen["refused"]
    assert message.startswith("o: shape (2, 4, 9, 8), allowed ") and "\n" not in message and code == 3
