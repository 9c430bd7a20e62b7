"""Tests that docs/operations.md lists exactly the environment variables that the code reads, and that its figures match
the results.
"""

import json
import pathlib
import re
import statistics

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "operations.md").read_text()
CODE = {".cpp", ".hpp", ".h", ".py", ".sh"}


def sources(*folders):
    for folder in folders:
        path = ROOT / folder
        files = [path] if path.is_file() else [file for file in path.rglob("*") if file.suffix in CODE]
        yield from (file.read_text() for file in files)


def variables_of_the_code():
    """Returns the names of environment variables in the code: names in quotation marks, as C++ and Python read them,
    and names that a shell or make expands.
    """
    names = set()
    for text in sources("src", "apps", "include", "python/attend", "python/src", "bench", "tools", "Makefile"):
        names |= set(re.findall(r'"(ATTEND_[A-Z0-9_]+)"', text))
        names |= set(re.findall(r"\$[{(](ATTEND_[A-Z0-9_]+)", text))
        names |= set(re.findall(r'environment(?:_choice|_list|_bytes)?\(\s*"([A-Z0-9_]+)"', text))
        names |= set(re.findall(r'environ(?:\.get\(|\[)"([A-Z0-9_]+)"', text))
    return names


def test_every_variable_is_on_the_page():
    names = variables_of_the_code()
    assert {"ATTEND_SIMD", "ATTEND_NVRTC_PATH", "ATTEND_CACHE_LIMIT", "OMP_NUM_THREADS", "HOME"} <= names
    assert not sorted(name for name in names if f"`{name}`" not in PAGE and f"`{name}=" not in PAGE)


def test_every_variable_on_the_page_is_read_somewhere():
    every = variables_of_the_code()
    for text in sources("tests", "python/tests"):
        every |= set(re.findall(r"ATTEND_TEST_[A-Z_]+", text))
    named = set(re.findall(r"`(ATTEND_[A-Z0-9_]+)", PAGE))
    assert named and named <= every


def test_the_table_of_first_calls_is_that_of_the_results():
    kernels = json.loads((ROOT / "results" / "h200" / "compile.json").read_text())
    table = PAGE.split("<!-- begin first_calls -->")[1].split("<!-- end first_calls -->")[0]
    rows = re.findall(r"^\| `(\w+)` \| (\d+) \| ([\d.]+) \| ([\d.]+) \| (\d+) \|$", table, re.MULTILINE)
    assert len(rows) == 5
    for name, count, median, longest, size in rows:
        of_it = [kernel for kernel in kernels if kernel["compute"] == name and kernel["arch"] == "sm_90a"]
        seconds = [kernel["seconds"] for kernel in of_it]
        assert len(of_it) == int(count)
        assert f"{statistics.median(seconds):.2f} {max(seconds):.2f}" == f"{median} {longest}"
        assert f"{statistics.median(kernel['code_bytes'] for kernel in of_it) / 1000:.0f}" == size
    assert not any(kernel["compute"].startswith(("sm80", "sm90")) for kernel in kernels), "then the page may show them"
    mean = statistics.mean(kernel["code_bytes"] for kernel in kernels)
    assert mean * 1000 == pytest.approx(150e6, rel=0.05) and 2**30 / mean == pytest.approx(7000, rel=0.05)


def test_the_readme_leads_here_and_links_lead_somewhere():
    assert "](docs/operations.md)" in (ROOT / "README.md").read_text()
    for target in re.findall(r"\]\(([^)#:]+?)(?:#[^)]*)?\)", PAGE):
        assert (ROOT / "docs" / target).exists(), target
