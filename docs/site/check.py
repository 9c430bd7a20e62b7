"""Checks the website for faults that Sphinx does not find: every link and anchor must have a target, and no page may
load files from the network.
"""

from __future__ import annotations

import re
import urllib.parse
from html.parser import HTMLParser
from pathlib import Path

# HTML tags and attributes whose targets a browser loads when it shows the page.
_LOADS = {("script", "src"), ("img", "src"), ("iframe", "src"), ("source", "src"), ("object", "data"), ("link", "href")}
_ELSEWHERE = re.compile(r"(?:https?:)?//")


class _Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if value is None:
                continue
            if name == "id" or (tag == "a" and name == "name"):
                self.anchors.add(value)
            if (tag, name) in _LOADS:
                self.loads.append(value)
            elif tag == "a" and name == "href":
                self.links.append(value)


def complaints(site: Path) -> list[str]:
    """Returns one line for each defect of the pages below `site`."""
    pages = {path: _Page(path.read_text()) for path in sorted(site.rglob("*.html"))}
    found = []
    for path, page in pages.items():
        name = path.relative_to(site)
        found += [f"{name}: loads {target}" for target in page.loads if _ELSEWHERE.match(target)]
        for target in page.links + page.loads:
            split = urllib.parse.urlsplit(target)
            if split.scheme or split.netloc or target == "#":
                continue
            to = (path.parent / urllib.parse.unquote(split.path)).resolve() if split.path else path
            if not to.exists():
                found.append(f"{name}: a link to {target}, which does not exist")
            elif split.fragment and to in pages and urllib.parse.unquote(split.fragment) not in pages[to].anchors:
                found.append(f"{name}: a link to {target}, whose anchor does not exist")
    for sheet in site.rglob("*.css"):
        loads = re.findall(r"url\(\s*[\"']?([^\"')]+)|@import\s+[\"']([^\"']+)", sheet.read_text())
        found += [f"{sheet.name}: loads {a or b}" for a, b in loads if _ELSEWHERE.match(a or b)]
    return sorted(set(found))
