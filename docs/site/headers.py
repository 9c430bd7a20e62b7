"""Doxygen's input filter for public headers. `python headers.py HEADER` prints the header with converted comments.

The header's opening `//` block becomes the description of a group with all declarations of the header. Indented lines
in a `///` block are a formula or an example, and their line breaks are kept. "Source:" begins a paragraph, even after
@throws. The filter removes trivial declarations and the library's internals. It preserves most line numbers, so that
warnings name the right line.
"""

from __future__ import annotations

import re
import sys
import textwrap
from pathlib import Path

_DOC = re.compile(r"^(\s*)///(?!<) ?(.*)$")
# Matches declarations of copies, moves and comparisons that behave as the language defines.
_ORDINARY = re.compile(
    r"= default;|^ *~|^ *(\w+)\((?:const )?\1&&?\)(?: noexcept)?;|operator=\((?:const )?\w+&&?\)|^ *friend "
)
_CLOSING = "}  // namespace attend"
_INTERNAL = re.compile(r"^\s*/// (?:Of|For) the library's own")


def group_of(header: str) -> str:
    """Returns the name of the Doxygen group with the declarations of a header, such as "attention_hpp"."""
    return Path(header).name.replace(".", "_")


def body_of(line: str) -> str | None:
    match = _DOC.match(line)
    return match[2] if match else None


def without_internals(lines: list[str]) -> list[str]:
    """Replaces declarations that the reference omits, and the comments above them, by empty lines.

    The declarations of internals end at the next empty line.
    """
    kept: list[str] = []
    hidden = False
    for line in lines:
        hidden = bool(line.strip()) and (hidden or bool(_INTERNAL.match(line)))
        ordinary = bool(_ORDINARY.search(line))
        for i in range(len(kept) - 1, -1, -1):
            if not ordinary or body_of(kept[i]) is None:
                break
            kept[i] = ""
        kept.append("" if hidden or ordinary else line)
    return kept


def grouped(lines: list[str], group: str) -> list[str]:
    """Puts the opening comment and the declarations in namespace attend into a Doxygen group. In a C header, the group
    contains all declarations.
    """
    opening = next((i for i, line in enumerate(lines) if not line.startswith("//")), len(lines))
    begin, end = [f"/// @addtogroup {group}", "/// @{"], ["/// @}"]
    head = ["/// @file", f"/// @defgroup {group} {group}", *("/" + line for line in lines[:opening])]
    rest = lines[opening:]
    if "namespace attend {" not in rest:
        return head + begin + rest + end
    for line in rest:
        head += [line, *begin] if line == "namespace attend {" else [*end, line] if line == _CLOSING else [line]
    return head


def filtered(text: str, group: str) -> str:
    lines = grouped(without_internals(text.splitlines()), group)
    result: list[str] = []
    while lines:
        count = example_length(lines) if result and body_of(result[-1]) == "" else 0
        if count:
            result += example(lines[:count])
            del lines[:count]
            continue
        line = lines.pop(0)
        if begins_paragraph(body_of(line) or "", result[-1] if result else ""):
            result.append(line.partition("///")[0] + "///")
        result.append(line)
    return "\n".join(result) + "\n"


def begins_paragraph(body: str, before: str) -> bool:
    """Returns whether `body` must begin a paragraph.

    Breathe splits a paragraph that contains text and tags at each link. Tags therefore get a separate paragraph.
    """
    tag = re.match(r"@(throws|param|return)", body)
    return body.startswith("Source:") or bool(tag and body_of(before) and not re.match("@", body_of(before) or ""))


def example_length(lines: list[str]) -> int:
    """Returns the number of leading lines that form an example: indented lines and empty lines between them."""
    count = 0
    for i, line in enumerate(lines):
        body = body_of(line)
        if body is None or (body and not body.startswith("  ")):
            break
        if body:
            count = i + 1
    return count


def example(lines: list[str]) -> list[str]:
    """Returns the lines as a verbatim block, because Doxygen's Markdown starts a code block at four spaces."""
    prefix = lines[0].partition("///")[0] + "///"
    text = textwrap.dedent("\n".join(body_of(line) or "" for line in lines))
    return [
        f"{prefix} @code{{.unparsed}}",
        *(f"{prefix} {line}".rstrip() for line in text.split("\n")),
        f"{prefix} @endcode",
    ]


if __name__ == "__main__":
    sys.stdout.write(filtered(Path(sys.argv[1]).read_text(), group_of(sys.argv[1])))
