"""Generates the pages of the website from the repository's Markdown.

docs/X.md becomes X.md, and README.md becomes overview.md. Links between pages stay unchanged. A link to another file of
the repository becomes a link to a page that shows the file. The table of contents is made from docs/README.md.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
# Maps a page to its name on the site, if the name differs or the page is not in docs/.
OTHERS = {
    "docs/README.md": "index.md",
    "README.md": "overview.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "examples/README.md": "examples.md",
}
LANGUAGES = {
    ".cuh": "cuda", ".cpp": "cpp", ".hpp": "cpp", ".h": "c", ".py": "python", ".json": "json", ".md": "markdown",
    ".txt": "text",
}  # fmt: skip
# Matches a code block, a code span, or a link outside of both.
_TOKEN = re.compile(
    r"^(?P<fence>`{3,})[^\n]*\n.*?^(?P=fence)`*[ ]*$|(?P<ticks>`+)[^`].*?(?P=ticks)(?!`)|\]\((?P<target>[^)\s]+)\)",
    re.MULTILINE | re.DOTALL,
)
_ENTRY = re.compile(r"^- (?:\[(?P<title>[^\]]+)\]\((?P<file>[^)]+)\.md\)|`(?P<made>[\w/]+)`)", re.MULTILINE)
# Matches text that only readers of the repository see.
_ELSEWHERE = re.compile(r"^<!-- not on the site -->\n.*?^<!-- on the site -->\n\n?", re.MULTILINE | re.DOTALL)
_MERMAID = re.compile(r"^```mermaid\nflowchart TD\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def pages() -> dict[str, str]:
    """Returns {path of a Markdown page in the repository: name on the site} for all pages."""
    found = {str(path.relative_to(ROOT)): str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")}
    return found | OTHERS


class Stage:
    """Writes the pages into a folder, and a page for each repository file that they link to."""

    def __init__(self, target: Path) -> None:
        self.target = target
        self.names = pages()
        self.shown: set[str] = set()

    def write(self, name: str, text: str) -> None:
        path = self.target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def make(self) -> None:
        for source, name in sorted(self.names.items()):
            text = _ELSEWHERE.sub("", (ROOT / source).read_text())
            if name == "index.md":
                text = with_contents(text)
            self.write(name, graphs(self.linked(text, source, name)))
        for picture in DOCS.rglob("*.svg"):
            shutil.copy(picture, self.target / picture.relative_to(DOCS))
        for path in sorted(self.shown):
            self.show(path)

    def linked(self, text: str, source: str, name: str) -> str:
        """Returns the text of a page, in which each link leads to the place of its target on the site."""

        def turned(match: re.Match[str]) -> str:
            target = match["target"]
            if target is None or re.match(r"[a-z]+:|[#/]", target):
                return match[0]
            path, hash_sign, anchor = target.partition("#")
            place = os.path.normpath(PurePosixPath(source).parent / path)
            if not (ROOT / place).exists():
                raise SystemExit(f"{source}: a link to {target}, which does not exist")
            to = self.names.get(place) or self.place_of(place)
            relative = os.path.relpath(to, PurePosixPath(name).parent)
            return f"]({relative}{hash_sign}{anchor})"

        return _TOKEN.sub(turned, text)

    def place_of(self, place: str) -> str:
        """Returns the place on the site of a repository file or folder that is not a page."""
        if place.startswith("docs/") and place.endswith(".svg"):
            return place.removeprefix("docs/")
        self.shown.add(place)
        return f"source/{place}/index.md" if (ROOT / place).is_dir() else f"source/{place}.md"

    def show(self, place: str) -> None:
        """Writes a page that shows a file, or a page that lists a folder and pages for its files."""
        path = ROOT / place
        if path.is_dir():
            files = sorted(file.name for file in path.iterdir() if file.is_file())
            items = "".join(f"- [{file}]({file}.md)\n" for file in files)
            self.write(f"source/{place}/index.md", f"{HEAD}# {place}/\n\n{items}")
            for file in files:
                self.show(f"{place}/{file}")
            return
        text = path.read_text()
        if path.suffix == ".md":
            name = f"source/{place}.md"
            self.write(name, HEAD + _TOKEN.sub(lambda match: "]" if match["target"] else match[0], text))
            return
        fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
        language = "cmake" if path.name == "CMakeLists.txt" else LANGUAGES.get(path.suffix, "text")
        self.write(f"source/{place}.md", f"{HEAD}# {place}\n\n{fence}{language}\n{text}\n{fence}\n")


# Front matter of pages that show source files. Readers reach them by links only, and they are not in the search index.
HEAD = "---\norphan: true\nnosearch: true\n---\n\n"


def with_contents(text: str) -> str:
    """Returns the text of the index with a toctree after each list. A list entry in backticks is a page that exists
    only on the site.
    """
    parts = re.split(r"^## ", text, flags=re.MULTILINE)
    for i, part in enumerate(parts[1:], 1):
        caption = part.partition("\n")[0]
        names = []
        for entry in _ENTRY.finditer(part):
            source = entry["file"] and os.path.normpath(f"docs/{entry['file']}.md")
            page = f"{entry['title']} <{pages()[source].removesuffix('.md')}>" if source else entry["made"]
            names.append(page)
        made = _ENTRY.sub(lambda entry: f"- [](/{entry['made']}.md)" if entry["made"] else entry[0], part)
        tree = "\n".join(names)
        parts[i] = f"{made.rstrip()}\n\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{tree}\n```\n\n"
    return "## ".join(parts)


def graphs(text: str) -> str:
    """Converts Mermaid flowcharts to Graphviz. Of Mermaid's syntax, the pages use only arrows and node names."""

    def drawn(match: re.Match[str]) -> str:
        lines = []
        for line in match[1].splitlines():
            ends = [re.fullmatch(r"(\w+)(?:\[(\".*\")\])?", end.strip()) for end in line.split("-->")]
            lines += [f"{end[1]} [label={end[2]}]" for end in ends if end[2]]
            lines.append(" -> ".join(end[1] for end in ends))
        style = 'node [shape=box, style="rounded,filled", fillcolor="#eef3fb", fontname="sans-serif"]'
        return "```{graphviz}\ndigraph {\nbgcolor=white\n" + "\n".join([style, *lines]) + "\n}\n```"

    return _MERMAID.sub(drawn, text)
