"""Results of all sides compared, then their times, taken in turns. Needs torch.

On a GPU calls are captured into CUDA graphs, as servers do: a graph holds as many as fill a millisecond, and is timed
by CUDA events while the GPU is still busy with what went before it. The time of a call is that of the graph by their
number; the host's time plays no part. Graphs of all sides alternate, and so does their order.
  * Warm: every call of a graph reads the same cache.
  * Cold: as many copies of it as fill 400 MB, in turn, so that none of it is in the L2 cache. A cache that is larger by
    itself is timed once, as both.

On a CPU calls are timed as all others of the package (timing.py), over one cache: warm as far as it fits.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import torch

from attend._measure import timing
from attend._measure.decode_problem import Cache, Problem, Side
from attend._measure.decode_shapes import COLD, WARM
from attend._measure.differences import first_line, relative_difference
from attend._measure.implementations import Prepared
from attend._measure.timing import Limits, Timing

COPIES_BYTES = 400e6
MAX_CALLS = 128
FIRST_CALLS = 4  # of a graph that only tells how many calls fill the time of a sample

Key = tuple[str, str]  # side, WARM or COLD


class Graph:
    """Calls of a side in a CUDA graph, over the caches in turn."""

    def __init__(self, side: Side, caches: list[Cache], calls: int) -> None:
        self.calls = calls
        self._held = caches
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            for n in range(calls):
                side(caches[n % len(caches)])

    def us(self) -> float:
        """Microseconds a call."""
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(timing.BUSY_CYCLES)  # while the graph is being launched
        start.record()
        self._graph.replay()
        stop.record()
        stop.synchronize()
        return float(start.elapsed_time(stop)) * 1e3 / self.calls


@dataclasses.dataclass(frozen=True)
class Sampling:
    """How graphs are made and how often they are timed."""

    rounds: int = 15
    sample_ms: float = timing.SAMPLE_MS
    copies_bytes: float = COPIES_BYTES
    graph: Callable[[Side, list[Cache], int], Any] = Graph


def compare(one: Problem) -> tuple[dict[str, float], dict[str, str]]:
    """({side: difference from attend's o}, {side: what it says against the problem}); such sides are dropped."""
    results: dict[str, Any] = {}
    found: dict[str, float] = {}
    errors: dict[str, str] = {}
    for name in list(one.sides):
        try:
            results[name] = one.sides[name](one.cache_of(name))
            if one.setting.device == "cuda":
                torch.cuda.synchronize()
        except Exception as error:  # noqa: BLE001 (whatever a side raises is its answer)
            errors[name] = first_line(error)
            del one.sides[name]
            continue
        if name != "attend" and "attend" in results:
            found[name] = relative_difference(results.pop(name), results["attend"])
    return found, errors


def rough_us(one: Problem, name: str, sampling: Sampling) -> float:
    """A first estimate of a warm call."""
    if one.setting.device == "cuda":
        few = sampling.graph(one.sides[name], [one.cache_of(name)], FIRST_CALLS)
        return min(float(few.us()) for _ in range(3))
    return 1e3 * timing.rough_ms(_prepared(one, name), "cpu", 1)


def keep_the_fastest(one: Problem, sampling: Sampling, errors: dict[str, str]) -> None:
    """Leaves one side of each library that has several ways; what cannot be captured goes into `errors`."""
    ways: dict[str, list[str]] = {}
    for name in one.sides:
        ways.setdefault(name.partition(" ")[0], []).append(name)
    for names in ways.values():
        if len(names) == 1:
            continue
        us: dict[str, float] = {}
        for name in names:
            try:
                us[name] = rough_us(one, name, sampling)
            except Exception as error:  # noqa: BLE001 (as above)
                errors[name] = first_line(error)
        for name in names:
            if not us or name != min(us, key=us.__getitem__):
                del one.sides[name]


def graphs(one: Problem, sampling: Sampling, errors: dict[str, str]) -> dict[Key, Any]:
    """{(side, warm or cold): Graph}. What cannot be captured goes into `errors`."""
    found: dict[Key, Any] = {}
    for name, side in one.sides.items():
        cache = one.cache_of(name)
        copies = math.ceil(sampling.copies_bytes / (cache.nbytes or 1))
        try:
            rough = rough_us(one, name, sampling)
            calls = max(1, min(MAX_CALLS, math.ceil(sampling.sample_ms * 1e3 / rough)))
            found[name, WARM] = sampling.graph(side, [cache], calls)
            if copies > 1:
                caches = [cache, *(cache.copy() for _ in range(copies - 1))]
                found[name, COLD] = sampling.graph(side, caches, max(calls, copies))
        except Exception as error:  # noqa: BLE001 (as above)
            errors[name] = first_line(error)
            found = {key: graph for key, graph in found.items() if key[0] != name}
    return found


def in_turns(captured: dict[Key, Any], rounds: int) -> dict[Key, list[float]]:
    """Microseconds a call of each graph, in each round."""
    taken: dict[Key, list[float]] = {key: [] for key in captured}
    for turn in range(rounds + 1):  # the first warms up
        for key in list(captured) if turn % 2 == 0 else reversed(captured):
            us = captured[key].us()
            if turn > 0:
                taken[key].append(us)
    return taken


def timings(one: Problem, limits: Limits, sampling: Sampling, errors: dict[str, str]) -> dict[Key, Timing]:
    """Of every side, by CUDA graphs on a GPU and by the package's clock on a CPU."""
    if one.setting.device == "cuda":
        taken = in_turns(graphs(one, sampling, errors), sampling.rounds)
        return {key: timing.summary([us / 1e3 for us in samples]) for key, samples in taken.items()}
    prepared = {name: _prepared(one, name) for name in one.sides}
    rough = {name: timing.rough_ms(x, "cpu", 1) for name, x in prepared.items()}
    return {(name, WARM): x for name, x in timing.in_turns(prepared, rough, "cpu", limits).items()}


def _prepared(one: Problem, name: str) -> Prepared:
    side, cache = one.sides[name], one.cache_of(name)
    return Prepared(lambda i: side(cache), torch.no_grad)
