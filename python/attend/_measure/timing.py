"""Clocks, and timing in turns.

A sample is as many calls in a row as fill a time (SAMPLE_MS); on a GPU it is timed by CUDA events and the calls rotate
over the copies of the inputs. Samples of the implementations alternate, and so does the order, so that a slow second of
the machine hits all of them. Reported are the median and the quartiles of the samples.

On a CPU every sample of short calls follows a pause, in which the idle threads of another library's pool go to sleep,
and one untimed call, which wakes its own.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from collections.abc import Callable

from attend._measure.implementations import Prepared

SAMPLE_MS, MAX_CALLS = 1.0, 100
MIN_SAMPLES = 3
PAUSE_S, SHORT_MS = 0.003, 50.0
BUSY_CYCLES = 1_000_000  # of a GPU: more than half a millisecond, longer than launching a call takes


@dataclasses.dataclass(frozen=True)
class Timing:
    """Milliseconds a call: median, least and quartiles of `samples` samples."""

    ms: float
    ms_min: float
    ms_p25: float
    ms_p75: float
    samples: int


@dataclasses.dataclass(frozen=True)
class Limits:
    """`samples` of `sample_ms` are taken, fewer (never under MIN_SAMPLES) once an implementation has used `seconds`."""

    samples: int = 15
    seconds: float = 0.5
    sample_ms: float = SAMPLE_MS


Clock = Callable[[Prepared, int, int], float]


def clock(device: str) -> Clock:
    """The clock of a device: (prepared, number of calls, first set of inputs) to milliseconds a call."""
    return _cuda_events if device == "cuda" else _wall


def _cuda_events(prepared: Prepared, calls: int, first: int) -> float:
    import torch

    start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    with prepared.context():
        start.record()
        for i in range(calls):
            prepared.call(first + i)
        stop.record()
    stop.synchronize()
    return float(start.elapsed_time(stop)) / calls


def _wall(prepared: Prepared, calls: int, first: int) -> float:
    with prepared.context():
        begin = time.perf_counter()
        for i in range(calls):
            prepared.call(first + i)
        return (time.perf_counter() - begin) * 1e3 / calls


def rough_ms(prepared: Prepared, device: str, sets: int) -> float:
    """A first estimate of a warm call, from as few calls as tell; every set of inputs is touched."""
    once = clock(device)
    first = once(prepared, 1, 0)
    if first > SHORT_MS:
        return min(first, once(prepared, 1, 1))
    once(prepared, sets, 0)
    return min(once(prepared, 2, 2 * i) for i in range(3))


def in_turns(prepared: dict[str, Prepared], rough: dict[str, float], device: str, limits: Limits) -> dict[str, Timing]:
    """Times implementations of one device. `rough`: their `rough_ms`."""
    once = clock(device)
    calls = {name: max(1, min(MAX_CALLS, math.ceil(limits.sample_ms / max(ms, 1e-6)))) for name, ms in rough.items()}
    taken: dict[str, list[float]] = {name: [] for name in prepared}
    spent = dict.fromkeys(prepared, 0.0)
    for turn in range(max(limits.samples, MIN_SAMPLES)):
        names = list(prepared)
        for name in names if turn % 2 == 0 else reversed(names):
            if spent[name] > limits.seconds and len(taken[name]) >= MIN_SAMPLES:
                continue
            begin = time.perf_counter()
            if device == "cpu" and rough[name] < SHORT_MS:
                time.sleep(PAUSE_S)
                once(prepared[name], 1, 0)
            taken[name].append(once(prepared[name], calls[name], turn * calls[name]))
            spent[name] += time.perf_counter() - begin
    return {name: summary(samples) for name, samples in taken.items()}


def summary(samples: list[float]) -> Timing:
    """Of milliseconds; two of them at least."""
    low, middle, high = statistics.quantiles(samples, n=4, method="inclusive")
    return Timing(middle, min(samples), low, high, len(samples))
