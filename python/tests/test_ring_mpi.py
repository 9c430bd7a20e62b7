"""Tests of attend.ring on MPI communicators, by running ring_mpi_program.py in several processes."""

import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys

import pytest
from conftest import SEED

pytest.importorskip("numpy")

PROGRAM = pathlib.Path(__file__).with_name("ring_mpi_program.py")
# These variables allow more ranks than cores, and runs as root. They replace Open MPI's options --oversubscribe and
# --allow-run-as-root, which other MPIs do not have.
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
}


@pytest.mark.skipif(
    importlib.util.find_spec("mpi4py") is None or shutil.which("mpirun") is None,
    reason="mpi4py or mpirun is not installed",
)
@pytest.mark.parametrize("size", [2, 4])
def test_arrays_on_an_mpi_communicator(size):
    command = ["mpirun", "-n", str(size), sys.executable, str(PROGRAM), str(SEED)]
    done = subprocess.run(
        command, env=os.environ | ENVIRONMENT, capture_output=True, text=True, timeout=120, check=False
    )
    print(done.stdout)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("error") == 15
