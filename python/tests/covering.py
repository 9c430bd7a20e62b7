"""A random covering array: every pair of values of two options occurs together in at least one case."""

from __future__ import annotations

import itertools
import random
from typing import Any


def cases(options: dict[str, list[Any]], seed: int) -> list[dict[str, Any]]:
    """Greedy: each case starts from a pair that is still missing and takes the values that cover most others."""
    pick = random.Random(seed)
    names = sorted(options)
    values = [(name, i) for name in names for i in range(len(options[name]))]
    missing = {(x, y) for x, y in itertools.combinations(values, 2) if x[0] != y[0]}
    rows = []
    while missing:
        row = dict(pick.choice(sorted(missing)))
        for name in pick.sample(names, len(names)):
            if name not in row:
                indices = pick.sample(range(len(options[name])), len(options[name]))
                row[name] = max(indices, key=lambda i: len(missing & _pairs(row, name, i)))
        missing -= set(itertools.combinations(sorted(row.items()), 2))
        rows.append({name: options[name][i] for name, i in row.items()})
    return rows


def _pairs(row: dict[str, int], name: str, index: int) -> set[tuple[tuple[str, int], ...]]:
    return {tuple(sorted([(name, index), other])) for other in row.items()}
