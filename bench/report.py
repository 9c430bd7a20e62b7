"""Code that the measuring scripts share: paths, properties of the machine, and JSON and Markdown output."""

import collections.abc
import dataclasses
import datetime
import functools
import importlib.util
import json
import os
import pathlib
import platform
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAMS = pathlib.Path(os.environ.get("ATTEND_BENCH_PROGRAMS", ROOT / "build" / "release" / "bench"))
RESULTS = ROOT / "results" / "cpu"
DOCS = ROOT / "docs"


def cpu_model() -> str:
    """Returns a text with the CPU's name, family, model and stepping. Virtual machines often hide the product name."""
    fields = {}
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        key, _, value = line.partition(":")
        fields.setdefault(key.strip(), value.strip())
    numbers = [fields.get(key, "?") for key in ("cpu family", "model", "stepping")]
    return f"{fields.get('model name', platform.machine())} (family {numbers[0]}, model {numbers[1]}, stepping {numbers[2]})"


def commit() -> str:
    """Returns the measured commit, followed by '+' if the working tree has changes."""

    def git(*words):
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return git("rev-parse", "--short=12", "HEAD") + ("+" if git("status", "--porcelain", "src", "include") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def fma_peak(threads: int) -> dict:
    """Runs bench/fma_peak.cpp. Returns {"simd_target", "f32_fma_peak_gflops": {threads: GFLOP/s}}."""
    counts = sorted({1, threads})
    done = subprocess.run([PROGRAMS / "fma_peak", *map(str, counts)], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def today() -> str:
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d")


def machine(threads: int) -> dict:
    peak = fma_peak(threads)
    return {
        "cpu": cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "threads": threads,
        "f32_fma_peak_gflops": peak["f32_fma_peak_gflops"],
        "system": platform.freedesktop_os_release()["PRETTY_NAME"],
        "date": today(),
        "attend_commit": commit(),
        "sources": present_sources(),
    }


def write_json(path: pathlib.Path, value) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=1) + "\n")
    print(f"wrote {path.relative_to(ROOT)}")


@functools.lru_cache
def style():
    """Imports python/attend/_measure/style.py, even if the package is not installed."""
    path = ROOT / "python" / "attend" / "_measure" / "style.py"
    spec = importlib.util.spec_from_file_location("attend_style", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # the module's named tuples look up their module in sys.modules
    spec.loader.exec_module(module)
    return module


@functools.lru_cache
def present_sources() -> dict:
    """Returns the digests of each part of this checkout's code, computed by cmake/source_digests.cmake."""
    command = ["cmake", f"-DROOT={ROOT}", "-P", str(ROOT / "cmake" / "source_digests.cmake")]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def provenance() -> dict:
    """Returns the date, and digests of the source code from which the installed package was built."""
    from attend import _core

    return {"date": today(), "sources": _core.source_digests()}


def save_picture(figure, name: str, files) -> None:
    """Writes docs/NAME. Its metadata names the files that it was drawn from."""
    figure.savefig(DOCS / name, metadata=style().metadata(".svg", files))
    print(f"wrote docs/{name}")


def recorded_in(data, name):
    """Returns a field of a result file or of its "machine", or None if neither has it."""
    return (data.get(name) or data.get("machine", {}).get(name)) if isinstance(data, dict) else None


def date_of(data) -> str:
    return recorded_in(data, "date") or "an unrecorded date"


def age(data, parts, present=None) -> str:
    """Returns one sentence with the date of the results, and the code parts that have changed since then."""
    present = present_sources() if present is None else present
    recorded = recorded_in(data, "sources")
    if recorded is None:
        return f"Measured on {date_of(data)}; the commit was not recorded."
    # If the file has no digest of a part, it is unknown whether this part has changed since the measurement.
    unknown = [f"`{part}`" for part in parts if part not in recorded]
    changed = [f"`{part}`" for part in parts if part in recorded and recorded[part] != present.get(part)]
    reasons = ([f", before the last change of {', '.join(changed)}"] if changed else []) + (
        [f"; the version of {', '.join(unknown)} was not recorded"] if unknown else []
    )
    if reasons:
        return f"Measured on {date_of(data)}{''.join(reasons)}."
    return f"Measured on {date_of(data)} by the present code of {', '.join(f'`{part}`' for part in parts)}."


@dataclasses.dataclass(frozen=True)
class Section:
    """The text between <!-- begin NAME --> and <!-- end NAME --> of a page, and its sources."""

    page: pathlib.Path
    name: str
    files: tuple  # names of files in results/; if one is missing, the section says so
    parts: tuple  # names of the code parts that the figures depend on
    body: collections.abc.Callable  # function without arguments that returns Markdown
    command: str  # the command with which the figures are measured

    def text(self) -> str:
        """Returns the text of the section: a hidden line with the files and their digests, the figures, and the
        sentence of age().
        """
        missing = [file for file in self.files if not file.exists()]
        if missing:
            names = ", ".join(f"`{file.relative_to(ROOT)}`" for file in missing)
            return f"Not measured with recent code: {names} does not exist. `{self.command}` measures it."
        named = ", ".join(f"{x['file']} {x['sha256']}" for x in map(style().source_line, self.files))
        ages = dict.fromkeys(age(json.loads(file.read_text()), self.parts) for file in self.files)
        return f"<!-- from {named} -->\n{self.body().strip()}\n\n*{' '.join(ages)}*"

    def difference(self, text=None) -> list:
        """Returns a list with one line if the page contains another text than `text`, otherwise an empty list."""
        text = self.text() if text is None else text
        if section_of(self.page.read_text(), self.name) == text:
            return []
        page = self.page.relative_to(ROOT)
        return [
            f"{page}: section {self.name} does not match its results and the present code: python3 bench/documents.py"
        ]

    def write(self) -> None:
        replace_section(self.page, self.name, self.text())


def section_of(page: str, name: str):
    """Returns the text of a section, or None if the page has no section of that name."""
    found = re.search(
        rf"<!-- begin {re.escape(name)} -->\n(.*?)\n<!-- end {re.escape(name)} -->", page, flags=re.DOTALL
    )
    return found[1] if found else None


def replace_section(path: pathlib.Path, name: str, text: str) -> None:
    """Writes `text` between the lines <!-- begin NAME --> and <!-- end NAME --> of a Markdown file that has them."""
    old = path.read_text()
    begin, end = f"<!-- begin {name} -->\n", f"<!-- end {name} -->"
    pattern = re.escape(begin) + ".*?" + re.escape(end)
    if not re.search(pattern, old, flags=re.DOTALL):
        raise SystemExit(f"{path}: no section '{begin.strip()}' ... '{end}'")
    new = re.sub(pattern, lambda _: begin + text.rstrip("\n") + "\n" + end, old, flags=re.DOTALL)
    if new != old:
        path.write_text(new)
        print(f"wrote {path.relative_to(ROOT)}, section {name}")
