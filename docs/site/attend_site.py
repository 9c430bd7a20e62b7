"""Sphinx's extension of the site: names of languages of code, and docstrings as reStructuredText."""

from __future__ import annotations

import re
from typing import Any

from pygments.lexers.c_cpp import CppLexer
from pygments.lexers.special import TextLexer

# A line of "Raises:" that names no class alone: "attend.Error naming the argument, ..."
_SECTION = re.compile(r"^(\s*)Raises:$")
_NAMED = re.compile(r"^\s+[\w.]+: ")


def with_prose_of_errors(app: Any, what: str, name: str, found: Any, options: Any, lines: list[str]) -> None:
    """Napoleon takes "Raises:" for a list of classes. A section in sentences becomes a paragraph under a bold word."""
    i = 0
    while i < len(lines):
        section = _SECTION.match(lines[i])
        indent = section[1] if section else ""
        end = i + 1
        while section and end < len(lines) and (not lines[end].strip() or lines[end].startswith(indent + "    ")):
            end += 1
        entries = [line for line in lines[i + 1 : end] if re.match(rf"{indent}    \S", line)]
        if section and not all(_NAMED.match(entry) for entry in entries):
            lines[i:end] = [f"{indent}**Raises**", "", *lines[i + 1 : end]]
        i += 1


def setup(app: Any) -> dict[str, Any]:
    app.add_lexer("mask", CppLexer)
    app.add_lexer("score", CppLexer)
    app.add_lexer("mermaid", TextLexer)
    app.connect("autodoc-process-docstring", with_prose_of_errors, priority=400)  # before Napoleon
    return {"parallel_read_safe": True, "parallel_write_safe": True}
