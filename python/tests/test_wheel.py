"""Tests the wheel as a user installs it: its tag, and its use in an empty environment without a compiler or a CUDA
toolkit.

`make test` and `make py-test` build the wheel once (tools/wheel.py) and also install it for all other tests.
"""

import json
import os
import pathlib
import platform
import re
import subprocess
import sys
import sysconfig
import zipfile

import attend
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SITE_PACKAGES = pathlib.Path(sysconfig.get_path("purelib"))
OLDEST_LINUX = (2, 34)  # the oldest supported glibc: RHEL 9, Ubuntu 22.04, Debian 12
DEBIAN_12 = (2, 36)  # glibc of Debian 12; a build on a newer glibc requires newer symbols
WHEELS = sorted((ROOT / "build/wheel").glob("libattend-*.whl"))
FAKE_DRIVER = ROOT / "build/release/tests/cuda/libfake_libcuda.so"

pytestmark = pytest.mark.skipif(not WHEELS, reason="build/wheel has no wheel: `make py-test` builds and tests one")

MAPPED = """
with open("/proc/self/maps") as file:
    print(json.dumps(sorted({line.split(maxsplit=5)[5].strip() for line in file if ".so" in line})))
"""
HIDING = ["/usr/bin/unshare", "-rm", "/bin/sh", "-c"]  # runs a shell in a separate mount namespace


def run(line, code, **environment):
    """Returns the lines that `code` printed and the libraries that the process had loaded. The process finds no
    compiler in its PATH.
    """
    words = [*map(str, line), "-I", "-c", f"import json\n{code}\n{MAPPED}"]
    environment = {"PATH": "/nowhere"} | environment
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    *lines, mapped = done.stdout.splitlines()
    return lines, json.loads(mapped)


def hiding(folder, python):
    """Returns the command line of a Python to which `folder` appears empty. Skips the test if the system does not allow
    this.
    """
    if not folder.exists():
        return [python]
    if subprocess.run([*HIDING, "true"], capture_output=True, check=False).returncode:
        pytest.skip(f"{folder} cannot be hidden: unshare -rm is not allowed here")
    return [*HIDING, f'/bin/mount -t tmpfs none {folder.resolve()} && exec "$@"', "sh", python]


def libraries(mapped, name):
    return [path for path in mapped if re.match(rf"lib{name}\b.*\.so", pathlib.Path(path).name)]


@pytest.fixture(scope="module")
def wheel():
    """Returns the path of the wheel that is installed, which must have been built from this checkout."""
    (path,) = WHEELS
    (core,) = pathlib.Path(attend.__file__).parent.glob("_core*.so")
    with zipfile.ZipFile(path) as archive:
        assert archive.read(f"attend/{core.name}") == core.read_bytes(), f"{path} is not what is installed"
    return path


@pytest.fixture(scope="module")
def empty(wheel, tmp_path_factory):
    """Makes an environment that contains only the wheel and not even pip. Returns its python and its folder of
    packages.
    """
    folder = tmp_path_factory.mktemp("empty")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(folder / "bin/python")]
    subprocess.run([*pip, "install", "--quiet", "--no-deps", "--no-index", str(wheel)], check=True)
    (packages,) = folder.glob("lib/python3*/site-packages")
    assert {path.name.partition("-")[0] for path in packages.iterdir()} == {"attend", "libattend"}
    return folder / "bin/python", packages


def lend(packages, *names):
    """Links packages of the tests' environment into `packages`, because they cannot be downloaded."""
    for name in names:
        if (SITE_PACKAGES / name).exists() and not (packages / name).exists():
            (packages / name).symlink_to(SITE_PACKAGES / name)


def test_its_tag_is_that_of_the_oldest_linux(wheel):
    pytest.importorskip("auditwheel")
    line = [sys.executable, "-m", "auditwheel", "show", "--json", str(wheel)]
    report = json.loads(subprocess.run(line, capture_output=True, text=True, check=True).stdout)
    found = re.fullmatch(rf"manylinux_(\d+)_(\d+)_{platform.machine()}", report["overall_tag"])
    assert found, report["overall_tag"]
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = [name for name in archive.namelist() if name.endswith(".dist-info/WHEEL")]
        tags = re.findall(r"^Tag: .*-(\S+)$", archive.read(metadata).decode(), re.MULTILINE)
    assert report["overall_tag"] in tags and report["overall_tag"] in wheel.name
    here = tuple(map(int, platform.libc_ver()[1].split(".")))
    if here > DEBIAN_12:
        pytest.skip(f"glibc {here} is newer than Debian 12's: the wheel is {tags}")
    assert (int(found[1]), int(found[2])) <= OLDEST_LINUX, report["versioned_symbols"]


def test_it_is_one_for_all_pythons_from_3_12_on(wheel):
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    assert wheel.name.split("-")[2:4] == (["cp312", "abi3"] if sys.version_info >= (3, 12) else [python, python])


def test_its_libraries_keep_their_names(wheel):
    """The wheel's libgomp must keep its name. With another name it would be a second OpenMP runtime in addition to
    torch's.
    """
    with zipfile.ZipFile(wheel) as archive:
        found = {name for name in archive.namelist() if re.search(r"\.so(\.\d+)*$", name)}
    (core,) = [name for name in found if name.startswith("attend/_core.")]
    assert {core, "attend/libgomp.so.1"} <= found <= {core, "attend/libgomp.so.1", "attend/libhwy.so.1"}


def test_it_is_small(wheel):
    print(f"{wheel.stat().st_size / 1e6:.2f} MB")
    assert wheel.stat().st_size < 3e6


def test_numpy_alone_is_enough(empty):
    python, packages = empty
    lend(packages, "numpy", "numpy.libs")
    code = f"""
import runpy, shutil, sys
sys.argv[1:] = []
assert not any(shutil.which(name) for name in ("c++", "g++", "gcc", "cc", "clang++", "nvcc"))
try:
    runpy.run_path({str(ROOT / "examples/numpy_only.py")!r}, run_name="__main__")
except SystemExit as end:
    assert not end.code
assert "torch" not in sys.modules"""
    lines, mapped = run([python], code)
    print(*lines, sep="\n")
    assert [str(packages / "attend/libgomp.so.1")] == libraries(mapped, "gomp")
    assert not any(pathlib.Path(path).name.startswith(("libcuda", "libnvrtc")) for path in mapped)


ATTENTION = """
q, k, v = (torch.randn(2, 4, 300, 64, generator=torch.Generator().manual_seed(n)) for n in range(3))
truth = torch.nn.functional.scaled_dot_product_attention(q.double(), k.double(), v.double())
for o in (attend.attention(q, k, v), torch.nn.functional.scaled_dot_product_attention(q, k, v)):
    error = (o - truth).abs().max().item()
    assert error < 1e-5, error
"""


@pytest.mark.parametrize("first", ["torch", "attend"])
def test_torch_first_or_last_there_is_one_openmp_runtime(wheel, torch, first):
    """Attend and torch both use the libgomp.so.1 that was loaded first."""
    own = pathlib.Path(torch.__file__).parent / "lib/libgomp.so.1"
    if not own.exists():
        pytest.skip(f"torch {torch.__version__} has no plain libgomp.so.1: it brings a runtime of its own")
    last = "attend" if first == "torch" else "torch"
    _, mapped = run([sys.executable], f"import {first}\nimport {last}\n{ATTENTION}", HOME=os.environ.get("HOME", "/"))
    owner = own if first == "torch" else pathlib.Path(attend.__file__).parent / "libgomp.so.1"
    assert [pathlib.Path(path).resolve() for path in libraries(mapped, "gomp")] == [owner.resolve()]
    assert not libraries(mapped, "iomp5") and not libraries(mapped, "omp")


def test_nvrtc_comes_from_the_packages_of_an_extra(empty, tmp_path):
    """A fake library replaces the NVIDIA driver. The compiler and its headers are real."""
    if not FAKE_DRIVER.exists():
        pytest.skip(f"{FAKE_DRIVER} is not built: `make test` builds it")
    places = [*ROOT.glob(".venv-nvrtc/lib/python3*/site-packages"), SITE_PACKAGES]
    nvidia = [place / "nvidia/cu13" for place in places if [*place.glob("nvidia/cu13/lib/libnvrtc.so.13")]]
    if not nvidia:
        pytest.skip("no environment here has the package nvidia-cuda-nvrtc")
    python, packages = empty
    (packages / "nvidia").mkdir()
    (packages / "nvidia/cu13").symlink_to(nvidia[0])
    # warp_wmma needs headers of the toolkit.
    compute = "warp_wmma" if (nvidia[0] / "include/crt/mma.h").exists() else "simt"
    code = f"import attend\nattend.prepare(1, 1, 64, 64, dtype='f16', device='cuda', compute={compute!r})"
    own = {"ATTEND_LIBCUDA_PATH": str(FAKE_DRIVER), "ATTEND_CACHE_DIR": str(tmp_path)}
    _, mapped = run(hiding(pathlib.Path("/usr/local/cuda"), python), code, **own)
    # NVRTC and its library of builtins.
    found = {pathlib.Path(library).resolve() for library in libraries(mapped, "nvrtc")}
    assert found and all(library.is_relative_to(nvidia[0].resolve()) for library in found)
    assert [path.name.partition("_forward")[0] for path in tmp_path.rglob("*.bin")] == [compute]
