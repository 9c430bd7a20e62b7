"""Every Python block in README.md and docs/ runs, and every C++ and C block compiles.

An HTML comment before a block has one of two forms:

    <!-- with: arrays -->          it begins with the names of document_setups.arrays
    <!-- not run: needs a GPU -->  it is only compiled, and why

A block without a comment continues the block before it on the page.
"""

import pathlib
import re
import shutil
import subprocess
import textwrap
from typing import NamedTuple

import document_setups
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
BLOCK = re.compile(r"(?:^<!-- (with|not run): ([^\n]+) -->\n+)?^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# CI installs these packages. On other machines they may be missing.
OPTIONAL = ("torch", "jax", "onnx", "onnxruntime", "transformers", "mpi4py")


class Block(NamedTuple):
    page: str
    line: int
    code: str
    setup: str
    reason: str  # the reason why the block is not run


def blocks(languages):
    """Yields the blocks of all pages that are in one of these languages."""
    for path in PAGES:
        text = path.read_text()
        for match in BLOCK.finditer(text):
            kind, words, language, code = match.groups()
            line = text.count("\n", 0, match.start(4))
            if language in languages:
                setup, reason = (words if kind == name else "" for name in ("with", "not run"))
                yield Block(str(path.relative_to(ROOT)), line, code, setup or "", reason or "")


def groups():
    """Returns lists of blocks. The blocks of a list share their variables."""
    found = []
    for block in blocks(("python", "py")):
        if block.setup or not found or found[-1][0].page != block.page:
            found.append([])
        found[-1].append(block)
    return found


def compiled(block):
    """Compiles a block with the line numbers that it has on the page."""
    return compile("\n" * block.line + block.code, block.page, "exec")


GROUPS = groups()


@pytest.mark.parametrize("group", GROUPS, ids=[f"{group[0].page}:{group[0].line}" for group in GROUPS])
def test_python_runs(group, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    codes = [compiled(block) for block in group]
    try:
        with document_setups.begin(group[0].setup) as (names, run):
            for block, code in zip(group, codes):
                if not block.reason:
                    run(block.code) if run else exec(code, names)  # noqa: S102 - runs the code of the documentation
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in OPTIONAL:
            pytest.skip(f"{package} is not installed")
        raise


def test_blocks_were_found_and_few_are_left_out():
    found = [block for group in GROUPS for block in group]
    assert len(found) >= 25 and {"README.md", "docs/guide/torch.md"} <= {block.page for block in found}
    left_out = [block for block in found if block.reason]
    assert len(left_out) <= 4 and all(re.search(r"GPU|processes", block.reason) for block in left_out)
    used = {block.setup for block in found if block.setup}
    assert used == set(document_setups.SETUPS), "a setup that no page names, or a name without a setup"


def compiles(source, language, standard, folder):
    path = folder / f"block.{language}"
    path.write_text(source)
    compiler = shutil.which("c++" if language == "cpp" else "cc")
    if compiler is None:
        pytest.skip("no compiler is installed")
    line = [compiler, f"-std={standard}", "-fsyntax-only", "-Wall", "-Wno-unused", f"-I{ROOT / 'include'}", str(path)]
    return subprocess.run(line, capture_output=True, text=True, check=False)


def programs():
    """Yields C++ sources with the blocks of each page. A complete program stays unchanged. All other blocks of a page
    become one function with nested scopes.
    """
    for page in sorted({block.page for block in blocks(("cpp",))}):
        parts = [block for block in blocks(("cpp",)) if block.page == page]
        yield from ((page, part.code) for part in parts if "int main" in part.code)
        parts = [part for part in parts if "int main" not in part.code]
        includes = {line for part in parts for line in part.code.splitlines() if line.startswith("#include")}
        body = "".join(
            f'{{\n#line {part.line + 1} "{part.page}"\n' + re.sub(r"^#include.*$", "", part.code, flags=re.MULTILINE)
            for part in parts
        )
        if parts:
            yield page, document_setups.CPP_NAMES.format("\n".join(sorted(includes)), body + "}" * len(parts))


PROGRAMS = list(programs())


@pytest.mark.parametrize("page, source", PROGRAMS, ids=[page for page, _ in PROGRAMS])
def test_cpp_compiles(page, source, tmp_path):
    done = compiles(source, "cpp", "c++20", tmp_path)
    assert done.returncode == 0, done.stderr


def test_what_compiles_is_told_from_what_does_not(tmp_path):
    assert {page for page, _ in PROGRAMS} >= {"README.md", "docs/guide/cpp.md", "docs/ring.md"}
    source = document_setups.CPP_NAMES.format("", "attend::forward({.no_such_field = q});")
    done = compiles(source, "cpp", "c++20", tmp_path)
    assert done.returncode != 0 and "no_such_field" in done.stderr


@pytest.mark.parametrize("block", list(blocks(("c",))), ids=lambda block: block.page)
def test_c_compiles(block, tmp_path):
    done = compiles(block.code, "c", "c99", tmp_path)
    assert done.returncode == 0, done.stderr


def test_a_block_that_fails_is_told_with_its_line():
    block = Block("page.md", 6, textwrap.dedent("x = 1\nassert x == 2\n"), "", "")
    with pytest.raises(AssertionError) as failure:
        exec(compiled(block), {})  # noqa: S102 - as above
    assert failure.traceback[-1].lineno + 1 == 8
