"""Makes a random covering array: a list of cases in which every pair of values of two options occurs at least once."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any


def cases(
    options: dict[str, list[Any]], seed: int, excludes: Callable[[dict[str, Any]], bool] = lambda pair: False
) -> list[dict[str, Any]]:
    """Builds the cases one after another. Each case starts with a missing pair, and gets the values that cover most
    other missing pairs.

    No case contains a pair {name: value, name: value} for which `excludes` is true. Each option must have a value that
    is compatible with all values of all other options.
    """
    pick = random.Random(seed)
    names = sorted(options)
    values = [(name, i) for name in names for i in range(len(options[name]))]
    pairs = {(x, y) for x, y in itertools.combinations(values, 2) if x[0] != y[0]}
    excluded = {pair for pair in pairs if excludes({name: options[name][i] for name, i in pair})}
    missing = pairs - excluded
    rows = []
    while missing:
        row = dict(pick.choice(sorted(missing)))
        for name in pick.sample(names, len(names)):
            if name not in row:
                indices = pick.sample(range(len(options[name])), len(options[name]))
                fitting = [i for i in indices if not excluded & _pairs(row, name, i)]
                row[name] = max(fitting, key=lambda i: len(missing & _pairs(row, name, i)))
        missing -= set(itertools.combinations(sorted(row.items()), 2))
        rows.append({name: options[name][i] for name, i in row.items()})
    return rows


def _pairs(row: dict[str, int], name: str, index: int) -> set[tuple[tuple[str, int], ...]]:
    return {tuple(sorted([(name, index), other])) for other in row.items()}
