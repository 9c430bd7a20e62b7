"""Fixtures that all tests share. They provide a new random seed, which the report shows, and torch if it is installed.
They fill outputs with NaN before a call.
"""

import contextlib
import importlib
import os
import secrets
import sys

import pytest

SEED = int(os.environ.setdefault("ATTEND_TEST_SEED", str(secrets.randbelow(2**31))))  # subprocesses inherit the seed
# With this flag JAX has four devices on the CPU, for the tests of sharding. JAX reads the variable when it is imported.
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=4"


def pytest_report_header() -> str:
    return f"random inputs: ATTEND_TEST_SEED={SEED} repeats this run"


@pytest.fixture
def rng():
    np = pytest.importorskip("numpy")
    return np.random.default_rng(SEED)


@pytest.fixture
def poisoned_numpy(monkeypatch):
    """Fills new NumPy arrays with NaN, so that elements which the library does not write are found."""
    np = pytest.importorskip("numpy")
    plain_empty = np.empty

    def empty(shape, dtype=float, *args, **kwargs):
        array = plain_empty(shape, dtype, *args, **kwargs)
        if array.dtype.kind == "f" or array.dtype.name == "bfloat16":
            array.fill(np.nan)
        return array

    monkeypatch.setattr(np, "empty", empty)


@pytest.fixture
def torch():
    """Returns torch, configured to fill uninitialised memory with NaN."""
    torch = pytest.importorskip("torch")
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    yield torch
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def no_torch(monkeypatch):
    """Simulates a machine without torch, on which everything runs on NumPy arrays."""
    with contextlib.suppress(ImportError):
        importlib.import_module("seaborn")  # imports scipy first, which does not expect torch to be None
    monkeypatch.setitem(sys.modules, "torch", None)


@pytest.fixture(params=["cpu", "cuda"])
def device(request, torch):
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("no GPU here")
    return request.param


@pytest.fixture(params=["cpu", "cuda"])
def ring_device(request, torch):
    """Returns the device of the ranks' tensors: "cpu", or "cuda" with a GPU for each rank."""
    if request.param == "cuda" and torch.cuda.device_count() < 2:
        pytest.skip(f"{torch.cuda.device_count()} GPUs here, NCCL wants one for each of 2 ranks")
    return request.param


@pytest.fixture
def ranks(ring_device, torch):
    """Returns the function ranks(size), which returns the processes of a ring (see ring_ranks.Ranks)."""

    def of(size):
        if ring_device == "cuda" and torch.cuda.device_count() < size:
            pytest.skip(f"{torch.cuda.device_count()} GPUs here, NCCL wants one for each of {size} ranks")
        import ring_ranks

        return ring_ranks.ranks_of(size, ring_device)

    return of


@pytest.fixture
def new_ranks(ring_device, ranks):
    """Returns the same function, but with processes that no other test has used, so that all of them have the same
    process groups.
    """
    import ring_ranks

    made = []

    def of(size):
        if ring_device == "cuda":
            ranks(size)  # skips the test if there are too few GPUs
        made.append(ring_ranks.Ranks(size, ring_device))
        return made[-1]

    yield of
    for each in made:
        each.close()


@pytest.fixture(scope="session", autouse=True)
def _no_ranks_left():
    yield
    if "ring_ranks" in sys.modules:
        sys.modules["ring_ranks"].close_all()
