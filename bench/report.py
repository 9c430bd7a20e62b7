"""What the measuring scripts share: where things are, what the machine is, JSON and Markdown output."""

import datetime
import json
import os
import pathlib
import platform
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAMS = pathlib.Path(os.environ.get("ATTEND_BENCH_PROGRAMS", ROOT / "build" / "release" / "bench"))
RESULTS = ROOT / "results" / "cpu"
DOCS = ROOT / "docs"


def cpu_model() -> str:
    """Name of the CPU with its family, model and stepping: virtual machines often hide the marketing name."""
    fields = {}
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        key, _, value = line.partition(":")
        fields.setdefault(key.strip(), value.strip())
    numbers = [fields.get(key, "?") for key in ("cpu family", "model", "stepping")]
    return f"{fields.get('model name', platform.machine())} (family {numbers[0]}, model {numbers[1]}, stepping {numbers[2]})"


def commit() -> str:
    """The commit that was measured, with '+' if the tree had changes."""
    def git(*words):
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return git("rev-parse", "--short=12", "HEAD") + ("+" if git("status", "--porcelain", "src", "include") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def fma_peak(threads: int) -> dict:
    """{"simd_target", "f32_fma_peak_gflops": {threads: GFLOP/s}} as measured now by bench/fma_peak.cpp."""
    counts = sorted({1, threads})
    done = subprocess.run([PROGRAMS / "fma_peak", *map(str, counts)], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def machine(threads: int) -> dict:
    peak = fma_peak(threads)
    return {
        "cpu": cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "threads": threads,
        "f32_fma_peak_gflops": peak["f32_fma_peak_gflops"],
        "system": platform.freedesktop_os_release()["PRETTY_NAME"],
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"),
        "attend_commit": commit(),
    }


def write_json(path: pathlib.Path, value) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=1) + "\n")
    print(f"wrote {path.relative_to(ROOT)}")


def replace_section(path: pathlib.Path, name: str, text: str) -> None:
    """Puts `text` between the lines <!-- begin NAME --> and <!-- end NAME --> of a Markdown file that has them."""
    old = path.read_text()
    begin, end = f"<!-- begin {name} -->\n", f"<!-- end {name} -->"
    pattern = re.escape(begin) + ".*?" + re.escape(end)
    if not re.search(pattern, old, flags=re.S):
        raise SystemExit(f"{path}: no section '{begin.strip()}' ... '{end}'")
    path.write_text(re.sub(pattern, lambda _: begin + text.rstrip("\n") + "\n" + end, old, flags=re.S))
    print(f"wrote {path.relative_to(ROOT)}")
