"""Docstrings of attend as Napoleon wants them."""

from __future__ import annotations

import re

_SECTION = re.compile(r"^(\s*)Raises:$")
_NAMED = re.compile(r"^\s+[\w.]+: ")


def prose_of_errors(lines: list[str]) -> list[str]:
    """Napoleon takes "Raises:" for a list of classes. A section in sentences becomes a paragraph under a bold word."""
    lines = list(lines)
    for i in range(len(lines)):
        section = _SECTION.match(lines[i])
        if section is None:
            continue
        indent = section[1]
        end = i + 1
        while end < len(lines) and (not lines[end].strip() or lines[end].startswith(indent + "    ")):
            end += 1
        entries = [line for line in lines[i + 1 : end] if re.match(rf"{indent}    \S", line)]
        if not all(_NAMED.match(entry) for entry in entries):
            body = [line.removeprefix("    ") for line in lines[i + 1 : end]]
            lines[i:end] = [f"{indent}**Raises**", "", *body]
    return lines
