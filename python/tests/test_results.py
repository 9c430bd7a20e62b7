"""Tests of the tables and pictures of measurements: none may claim to be newer than its result file or than the
measured code.
"""

import importlib
import json
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PRESENT = {"kernels/common": "aa", "kernels/sm90": "bb", "src/cpu": "cc"}


@pytest.fixture
def script(monkeypatch):
    """Returns a module of bench/ by its name, newly loaded."""
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    for path in (ROOT / "bench").glob("*.py"):
        monkeypatch.delitem(sys.modules, path.stem, raising=False)
    return importlib.import_module


def test_every_table_and_picture_is_what_its_results_and_the_present_code_say(script):
    stale = script("documents").stale()
    assert not stale, "\n".join(stale)


def test_no_section_is_forgotten(script):
    made = {(section.page.name, section.name) for section in script("documents").sections()}
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        for line in page.read_text().splitlines():
            if line.startswith("<!-- begin ") and page.name != "hugging_face.md":  # its table is not a measurement
                assert (page.name, line.split()[2]) in made


@pytest.mark.parametrize(
    ("sources", "parts", "sentence"),
    [
        (PRESENT, ("src/cpu",), "Measured on 2026-01-02 by the present code of `src/cpu`."),
        (
            PRESENT | {"kernels/sm90": "old"},
            ("kernels/common", "kernels/sm90"),
            "Measured on 2026-01-02, before the last change of `kernels/sm90`.",
        ),
        (PRESENT | {"kernels/sm90": "old"}, ("src/cpu",), "Measured on 2026-01-02 by the present code of `src/cpu`."),
        (PRESENT | {"kernels/gone": "x"}, ("kernels/gone",), "2026-01-02, before the last change of `kernels/gone`."),
        ({"src/cpu": "cc"}, ("src/cpu", "kernels/sm90"), "2026-01-02; the version of `kernels/sm90` was not recorded."),
        (
            {"src/cpu": "old"},
            ("src/cpu", "kernels/common", "kernels/sm90"),
            "before the last change of `src/cpu`; the version of `kernels/common`, `kernels/sm90` was not recorded.",
        ),
        (None, ("src/cpu",), "Measured on 2026-01-02; the commit was not recorded."),
    ],
)
def test_the_age_of_a_figure(script, sources, parts, sentence):
    report = script("report")
    for data in ({"sources": sources, "date": "2026-01-02"}, {"machine": {"sources": sources, "date": "2026-01-02"}}):
        assert report.age(data, parts, PRESENT).endswith(sentence)


def test_a_file_that_is_a_list_of_rows_has_no_recorded_age(script):
    sentence = "Measured on an unrecorded date; the commit was not recorded."
    assert script("report").age([{"ms": 1}], ("src/cpu",), PRESENT) == sentence


@pytest.fixture
def section(script, monkeypatch, tmp_path):
    """Returns a page with a section made from a result file of the current code."""
    report = script("report")
    report.style()  # loads the style of the checkout
    monkeypatch.setattr(report, "ROOT", tmp_path)
    monkeypatch.setattr(report, "present_sources", lambda: PRESENT)
    page, file = tmp_path / "page.md", tmp_path / "results" / "a.json"
    file.parent.mkdir()
    file.write_text(json.dumps({"sources": PRESENT, "date": "2026-01-02", "ms": 1}))
    page.write_text("<!-- begin a -->\n<!-- end a -->\n")
    made = report.Section(
        page, "a", (file,), ("src/cpu",), lambda: f"{json.loads(file.read_text())['ms']} ms", "measure"
    )
    made.write()
    return made


def test_a_page_is_stale_when_its_results_or_the_code_have_changed(script, section, monkeypatch):
    report, (file,) = script("report"), section.files
    assert section.difference() == []
    assert "1 ms" in section.page.read_text() and "present code" in section.page.read_text()
    file.write_text(json.dumps({"sources": PRESENT, "date": "2026-01-02", "ms": 2}))
    (line,) = section.difference()
    assert line == "page.md: section a does not match its results and the present code: python3 bench/documents.py"
    section.write()
    assert section.difference() == []
    monkeypatch.setattr(sys.modules[type(section).__module__], "present_sources", lambda: PRESENT | {"src/cpu": "new"})
    assert len(section.difference()) == 1
    section.write()
    assert "before the last change of `src/cpu`" in section.page.read_text() and section.difference() == []
    monkeypatch.setattr(
        sys.modules[type(section).__module__], "present_sources", lambda: PRESENT | {"src/cpu": "newer"}
    )
    assert section.difference() == []  # the second call finds no difference
    file.unlink()
    assert section.text() == "Not measured with recent code: `results/a.json` does not exist. `measure` measures it."
    assert report.section_of("no section", "a") is None


def test_a_picture_is_stale_when_its_results_have_changed(script, section, tmp_path, monkeypatch):
    documents, (file,) = script("documents"), section.files
    source = documents.report.style().source_line(file)
    picture = tmp_path / "a.svg"
    picture.write_text(f"<svg><dc:description>{json.dumps([source])}</dc:description></svg>")
    assert documents.picture_lines(picture, [section]) == []
    assert "not shown in a generated section" in documents.picture_lines(picture, [])[0]
    file.write_text("{}")
    assert "drawn from another version of results/a.json" in documents.picture_lines(picture, [section])[0]
    file.unlink()
    assert "which does not exist" in documents.picture_lines(picture, [section])[0]
    picture.write_text("<svg/>")
    assert "does not name its data" in documents.picture_lines(picture, [section])[0]


def test_a_comment_changes_no_digest(script, monkeypatch, tmp_path):
    report = script("report")

    def digests(text):
        for part in ("kernels/a", "src/cpu", "src/cuda/launch"):
            (tmp_path / part).mkdir(parents=True, exist_ok=True)
            (tmp_path / part / "x.cpp").write_text("int y;")
        (tmp_path / "cmake").mkdir(exist_ok=True)
        (tmp_path / "cmake" / "source_digests.cmake").write_text((ROOT / "cmake" / "source_digests.cmake").read_text())
        (tmp_path / "kernels" / "a" / "x.cuh").write_text(text)
        monkeypatch.setattr(report, "ROOT", tmp_path)
        report.present_sources.cache_clear()
        return report.present_sources()

    plain = digests('int x = 1;\nauto s = "http://a";\n')
    assert plain == digests('// why\nint  x =\n 1; /* ** */ // what\n\nauto s = "http://a";')
    changed = digests('int x = 2;\nauto s = "http://a";\n')
    assert changed["kernels/a"] != plain["kernels/a"] and changed["src/cpu"] == plain["src/cpu"]
    assert digests('int x = 1;\nauto s = "http://b";\n')["kernels/a"] != plain["kernels/a"]


def test_the_library_knows_the_code_that_it_was_built_from(script):
    attend = pytest.importorskip("attend")
    present = script("report").present_sources()
    assert attend._core.source_digests() == present and {"kernels/sm90", "src/cpu", "src/cuda/launch"} <= set(present)
