"""Compares the results of all sides, then times the sides in alternation. Needs torch.

On a GPU, calls are captured into CUDA graphs, as in servers. A graph contains enough calls to fill a millisecond. CUDA
events time it, and it starts while the GPU is still busy with earlier work, so the host's time does not count. The time
of a call is the graph's time divided by the number of calls. The graphs of all sides alternate, and the order is
reversed in every other round.

In the state "warm", every call of a graph reads the same cache. In the state "cold", the calls alternate between enough
copies of the cache to fill 400 MB, so the L2 cache holds none of them. If a single cache has that size, it is timed
once, and the time is used for both states.

On a CPU, timing.py times the calls, over one cache, which is warm if it fits into the CPU's caches.
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
FIRST_CALLS = 4  # calls in the first graph, from whose time the number of calls of a sample is computed

Key = tuple[str, str]  # (side, WARM or COLD)


class Graph:
    """A CUDA graph with calls of one side. The calls use the copies of the cache in turn."""

    def __init__(self, side: Side, caches: list[Cache], calls: int) -> None:
        self.calls = calls
        self._held = caches
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            for n in range(calls):
                side(caches[n % len(caches)])

    def us(self) -> float:
        """Returns the microseconds of a call."""
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(timing.BUSY_CYCLES)  # keeps the GPU busy while the graph is launched
        start.record()
        self._graph.replay()
        stop.record()
        stop.synchronize()
        return float(start.elapsed_time(stop)) * 1e3 / self.calls


@dataclasses.dataclass(frozen=True)
class Sampling:
    """Parameters of graphs and of their timing."""

    rounds: int = 15
    sample_ms: float = timing.SAMPLE_MS
    copies_bytes: float = COPIES_BYTES
    graph: Callable[[Side, list[Cache], int], Any] = Graph


def compare(one: Problem) -> tuple[dict[str, float], dict[str, str]]:
    """Returns ({side: difference from attend's o}, {side: error}). Removes the sides that raise an error from the
    problem.
    """
    results: dict[str, Any] = {}
    found: dict[str, float] = {}
    errors: dict[str, str] = {}
    for name in list(one.sides):
        try:
            results[name] = one.sides[name](one.cache_of(name))
            if one.setting.device == "cuda":
                torch.cuda.synchronize()
        except Exception as error:  # noqa: BLE001 (an exception of a side is its result)
            errors[name] = first_line(error)
            del one.sides[name]
            continue
        if name != "attend" and "attend" in results:
            found[name] = relative_difference(results.pop(name), results["attend"])
    return found, errors


def rough_us(one: Problem, name: str, sampling: Sampling) -> float:
    """Returns an estimate of the time of a warm call in microseconds."""
    if one.setting.device == "cuda":
        few = sampling.graph(one.sides[name], [one.cache_of(name)], FIRST_CALLS)
        return min(float(few.us()) for _ in range(3))
    return 1e3 * timing.rough_ms(_prepared(one, name), "cpu", 1)


def keep_the_fastest(one: Problem, sampling: Sampling, errors: dict[str, str]) -> None:
    """Keeps the fastest variant of each library. Sides that cannot be captured are reported in `errors`."""
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
    """Returns {(side, warm or cold): Graph}. Sides that cannot be captured are reported in `errors`."""
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
    """Returns the microseconds per call of each graph in each round."""
    taken: dict[Key, list[float]] = {key: [] for key in captured}
    for turn in range(rounds + 1):  # the first round is a warm-up and is not recorded
        for key in list(captured) if turn % 2 == 0 else reversed(captured):
            us = captured[key].us()
            if turn > 0:
                taken[key].append(us)
    return taken


def timings(one: Problem, limits: Limits, sampling: Sampling, errors: dict[str, str]) -> dict[Key, Timing]:
    """Returns the times of every side, by CUDA graphs on a GPU and by the package's clock on a CPU."""
    if one.setting.device == "cuda":
        taken = in_turns(graphs(one, sampling, errors), sampling.rounds)
        return {key: timing.summary([us / 1e3 for us in samples]) for key, samples in taken.items()}
    prepared = {name: _prepared(one, name) for name in one.sides}
    rough = {name: timing.rough_ms(x, "cpu", 1) for name, x in prepared.items()}
    return {(name, WARM): x for name, x in timing.in_turns(prepared, rough, "cpu", limits).items()}


def _prepared(one: Problem, name: str) -> Prepared:
    side, cache = one.sides[name], one.cache_of(name)
    return Prepared(lambda i: side(cache), torch.no_grad)
