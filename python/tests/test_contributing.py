"""Tests that the files, make targets and links on the pages for contributors exist, and that the version is defined in
one place.
"""

import pathlib
import re

import attend
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = (
    "CONTRIBUTING.md",
    "SECURITY.md",
    "docs/releasing.md",
    ".github/pull_request_template.md",
    ".github/workflows/ci.yml",
)
FOLDERS = ("apps", "bench", "docs", "examples", "include", "kernels", "python", "src", "tests", "tools", ".github")
pytestmark = pytest.mark.skipif(not (ROOT / "Makefile").exists(), reason="the tests are not in the repository")


@pytest.fixture(params=PAGES)
def page(request):
    return ROOT / request.param


def test_the_files_of_a_page_exist(page):
    names = re.findall(rf"(?<![\w./])(?:{'|'.join(FOLDERS)})/[\w./-]+", page.read_text())
    for name in {name.rstrip(".") for name in names if "NAME" not in name}:
        assert (ROOT / name).exists(), name


def test_the_links_of_a_page_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)]+)\)", page.read_text()):
        file, _, heading = target.partition("#")
        if file.startswith("http"):
            continue
        linked = page.parent / file if file else page
        assert linked.exists(), target
        headings = re.findall(r"^#+ (.*)$", linked.read_text(), re.MULTILINE)
        anchors = {re.sub(r"[^\w -]", "", h).lower().replace(" ", "-") for h in headings}
        assert not heading or heading in anchors, target


def test_make_knows_the_targets_of_a_page(page):
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    commands = re.findall(
        r"^(?:      - run:)? *(?:\w+=\S+ )*make ([^#\n]*)|`make ([^`]*)`", page.read_text(), re.MULTILINE
    )
    words = {word for command in commands for word in "".join(command).split(" CTEST=")[0].split() if "=" not in word}
    words -= {"${{", "matrix.sanitizer", "}}"}
    assert words <= targets, words - targets


def test_the_citation_has_the_version():
    assert f"\nversion: {attend.__version__}\n" in (ROOT / "CITATION.cff").read_text()


def test_the_changelog_has_the_version():
    sections = re.findall(r"^## \[(.*?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert sections[0] == "Unreleased" and attend.__version__ in sections
