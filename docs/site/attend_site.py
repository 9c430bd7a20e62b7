"""The Sphinx extension of the website. It registers the languages of code blocks and converts docstrings for
Napoleon.
"""

from __future__ import annotations

from typing import Any

from docstrings import with_prose
from pygments.lexers.c_cpp import CppLexer


def _changed(app: Any, what: str, name: str, found: Any, options: Any, lines: list[str]) -> None:
    lines[:] = with_prose(lines)


def setup(app: Any) -> dict[str, Any]:
    app.add_lexer("mask", CppLexer)
    app.add_lexer("score", CppLexer)
    app.connect("autodoc-process-docstring", _changed, priority=400)  # the low number makes it run before Napoleon
    return {"parallel_read_safe": False, "parallel_write_safe": True}
