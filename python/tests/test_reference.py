"""Tests that every public name has a description, and that every page of docs/ is in the table of contents."""

import importlib
import inspect
import pathlib
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SITE = ROOT / "docs" / "site"
MODULES = (
    "attend", "attend.torch", "attend.jax", "attend.onnx", "attend.ring", "attend.transformers", "attend.flash_attn",
    "attend.flash_attn_3", "attend.vllm_flash_attn", "attend.ring_flash_attn",
)  # fmt: skip


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_of_python_has_a_docstring(module):
    for needed in {"attend.torch": ["torch"], "attend.jax": ["jax"]}.get(module, []):
        pytest.importorskip(needed)
    found = importlib.import_module(module)
    assert inspect.getdoc(found) and len(found.__all__) >= 3
    without = [name for name in found.__all__ if name[0] != "_" and not (getattr(found, name).__doc__ or "").strip()]
    assert not without
    for name in found.__all__:
        kind = getattr(found, name)
        if isinstance(kind, type):
            members = [member for member in vars(kind) if member[0] != "_"]
            assert not [member for member in members if not (getattr(kind, member).__doc__ or "").strip()], name


def test_the_site_has_a_page_of_every_module():
    text = (SITE / "reference.py").read_text()
    index = (ROOT / "docs" / "README.md").read_text()
    for module in MODULES:
        assert f'"{module}": ' in text and f"`reference/{module.replace('.', '_')}`" in index


def undocumented(folder, headers):
    """Returns Doxygen's warnings, by running docs/site/doxygen.py in a separate process."""
    code = "import doxygen, pathlib, sys; print(*doxygen.run(*map(pathlib.Path, sys.argv[1:])), sep='\\n')"
    line = [sys.executable, "-c", code, folder, headers]
    done = subprocess.run(line, cwd=SITE, capture_output=True, text=True, check=True)
    return done.stdout.split("\n")[:-1]


@pytest.mark.skipif(shutil.which("doxygen") is None, reason="doxygen is not installed")
def test_every_public_symbol_of_the_headers_has_a_comment(tmp_path):
    assert not [line for line in undocumented(tmp_path / "all", ROOT / "include" / "attend") if line]


@pytest.mark.skipif(shutil.which("doxygen") is None, reason="doxygen is not installed")
def test_a_symbol_without_a_comment_is_found(tmp_path):
    headers = tmp_path / "include" / "attend"
    shutil.copytree(ROOT / "include" / "attend", headers)
    header = headers / "error.hpp"
    text = header.read_text()
    header.write_text(text.replace("namespace attend {\n", "namespace attend {\n\nint with_nothing_said();\n", 1))
    assert header.read_text() != text
    lines = undocumented(tmp_path / "some", headers)
    assert lines and all("with_nothing_said" in line and "is not documented" in line for line in lines)


def test_every_page_is_in_the_table_of_contents():
    index = (ROOT / "docs" / "README.md").read_text()
    pages = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")} - {"README.md"}
    assert len(pages) > 25
    assert not [page for page in sorted(pages) if index.count(f"]({page})") != 1]


def test_the_readme_says_how_the_site_is_made():
    assert "`make docs`" in (ROOT / "README.md").read_text()
