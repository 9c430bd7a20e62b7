"""The parser of command lines and the types of their arguments. argparse reports errors in one line with exit status
2.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any, Optional

MOST_HEAD_DIM = 512
MOST_SEED = 2**63 - 1  # the largest seed that both NumPy's and torch's generators accept


class Parser(argparse.ArgumentParser):
    """A parser that accepts options by their full names only. The words of a name may be joined by - or by _."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **{"allow_abbrev": False, **options})

    def parse_known_args(self, args: Optional[Sequence[str]] = None, namespace: Any = None) -> Any:  # type: ignore[override]
        known = {name.replace("_", "-"): name for name in self._option_string_actions}
        words = []
        for word in sys.argv[1:] if args is None else args:
            name, equals, value = word.partition("=")
            words.append(known.get(name.replace("_", "-"), name) + equals + value if word.startswith("--") else word)
        return super().parse_known_args(words, namespace)


def _number(text: str, kind: type, what: str) -> Any:
    try:
        return kind(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}, allowed {what}") from error


def positive(text: str) -> int:
    value = int(_number(text, int, "whole numbers from 1"))
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text}, allowed 1 or more")
    return value


def head_dim(text: str) -> int:
    value = positive(text)
    if value > MOST_HEAD_DIM:
        raise argparse.ArgumentTypeError(f"{text}, allowed 1 to {MOST_HEAD_DIM}")
    return value


def head_dims(text: str) -> list[int]:
    return [head_dim(part) for part in text.split(",")]


def seed(text: str) -> int:
    value = int(_number(text, int, f"whole numbers from 0 to {MOST_SEED}"))
    if not 0 <= value <= MOST_SEED:
        raise argparse.ArgumentTypeError(f"{text}, allowed 0 to {MOST_SEED}")
    return value


def positive_number(text: str) -> float:
    value = float(_number(text, float, "finite numbers above 0"))
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text}, allowed finite numbers above 0")
    return value


def positive_list(text: str) -> list[int]:
    return [positive(part) for part in text.split(",")]


def page_sizes(text: str) -> list[int]:
    """Parses a comma-separated list of cache page sizes in keys. 0 means a contiguous cache."""
    found = [int(_number(part, int, "whole numbers from 0")) for part in text.split(",")]
    for value in found:
        if value < 0:
            raise argparse.ArgumentTypeError(f"{value}, allowed 0 (contiguous) or more")
    return found


def heads(text: str) -> tuple[int, int]:
    """Parses the numbers of query heads and key heads: "32:8", or "32" for 32 query heads and 32 key heads."""
    query, colon, key = text.partition(":")
    found = positive(query), positive(key if colon else query)
    if found[0] % found[1]:
        raise argparse.ArgumentTypeError(f"{text}, allowed a number of query heads that is a multiple of the key heads")
    return found


def names(parts: list[str]) -> list[str]:
    """Returns the names that were given to an option. The option may be repeated, and each value may be a
    comma-separated list.
    """
    return [name for part in parts for name in part.split(",")]
