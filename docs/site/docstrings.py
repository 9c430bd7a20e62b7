"""Converts attend's docstrings to a form that Sphinx's extension Napoleon can parse."""

from __future__ import annotations

import re

_SECTION = re.compile(r"^(\s*)(Returns|Raises):$")
_NAMED = re.compile(r"^[\w.]+: ")
_RESULT = re.compile(r"^(\w+(?:, \w+)*): ")


def with_prose(lines: list[str]) -> list[str]:
    """Returns the docstring with indented blocks converted to literal blocks, and with some sections converted to
    paragraphs, because Napoleon would parse them as lists of types.

    A "Raises:" section is not converted if each of its entries begins with a class. A "Returns:" section with several
    named results becomes a list.
    """
    lines = _with_literal_blocks(lines)
    i = -1
    while (i := i + 1) < len(lines):
        section = _SECTION.match(lines[i])
        if section is None:
            continue
        indent = section[1]
        end = i + 1
        while end < len(lines) and (not lines[end].strip() or lines[end].startswith(indent + "    ")):
            end += 1
        body = [line.removeprefix(indent + "    ") for line in lines[i + 1 : end]]
        begins = [line for line in body if line[:1].strip()]
        if section[2] == "Raises" and all(_NAMED.match(line) for line in begins):
            continue
        if section[2] == "Returns":
            body = _results(body)
        lines[i:end] = [f"{indent}**{section[2]}**", "", *(f"{indent}{line}".rstrip() for line in body), ""]
    return lines


def _with_literal_blocks(lines: list[str]) -> list[str]:
    """Returns the lines with "::" before each indented block that follows an empty line and a line of text."""
    result: list[str] = []
    text = ""  # the last line that is not empty
    for before, line in zip(["", *lines], lines):
        if line.startswith("    ") and not before.strip() and text and not text.startswith(" ") and text[-2:] != "::":
            result += ["::", ""]
        result.append(line)
        text = line if line.strip() else text
    return result


def _results(body: list[str]) -> list[str]:
    """Returns a Markdown list if more than one line begins with a name, otherwise `body` unchanged."""
    if sum(bool(_RESULT.match(line)) for line in body) < 2:
        return body
    items: list[str] = []
    in_sentences = False
    for line in body:
        named = bool(_RESULT.match(line))
        begins = named or (bool(line[:1].strip()) and not in_sentences)
        in_sentences = bool(line[:1].strip()) and not named
        items.append(("- " if begins else "  ") + _RESULT.sub(r"**\1**: ", line.strip()))
    return items
