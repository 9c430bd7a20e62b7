"""Types of command-line arguments: argparse turns what they raise into one line and exit status 2."""

from __future__ import annotations

import argparse

MOST_SEED = 2**63 - 1  # what the generators of NumPy and torch both take


def positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text}, allowed 1 and more")
    return value


def seed(text: str) -> int:
    value = int(text)
    if not 0 <= value <= MOST_SEED:
        raise argparse.ArgumentTypeError(f"{text}, allowed 0 to {MOST_SEED}")
    return value


def positive_number(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text}, allowed finite numbers above 0")
    return value


def positive_list(text: str) -> list[int]:
    return [positive(part) for part in text.split(",")]


def names(parts: list[str]) -> list[str]:
    """The names of an option that may be repeated, may hold a comma list, or both."""
    return [name for part in parts for name in part.split(",")]
