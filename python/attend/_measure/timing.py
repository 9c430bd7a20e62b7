"""Times calls with the clock of a device, and times several implementations in alternation.

A sample is a number of consecutive calls that fills a fixed time (SAMPLE_MS). On a GPU, CUDA events time it, and the
calls cycle through the copies of the inputs. The samples of the implementations alternate, and the order is reversed in
every other round, so that a slow moment of the machine affects all of them. The median and the quartiles of the samples
are reported.

On a CPU, a pause and one untimed call precede every sample of short calls. During the pause, idle threads of another
library's pool go to sleep. The untimed call wakes the threads of the measured implementation.
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
# Duration of a GPU kernel that waits, in cycles: half a millisecond, longer than the launch of a call.
BUSY_CYCLES = 1_000_000


@dataclasses.dataclass(frozen=True)
class Timing:
    """The median, minimum and quartiles of the milliseconds per call, over `samples` samples."""

    ms: float
    ms_min: float
    ms_p25: float
    ms_p75: float
    samples: int


@dataclasses.dataclass(frozen=True)
class Limits:
    """Limits of the number of samples. An implementation gets `samples` samples of `sample_ms` milliseconds. After
    `seconds` it gets no more, but it always gets MIN_SAMPLES.
    """

    samples: int = 15
    seconds: float = 0.5
    sample_ms: float = SAMPLE_MS


Clock = Callable[[Prepared, int, int], float]


def clock(device: str) -> Clock:
    """Returns the clock of a device: a function of a prepared call, the number of calls and the index of the first set
    of inputs. The clock returns milliseconds per call.
    """
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
    """Returns an estimate of the milliseconds of a warm call, from few calls. Every set of inputs is used once."""
    once = clock(device)
    first = once(prepared, 1, 0)
    if first > SHORT_MS:
        return min(first, once(prepared, 1, 1))
    once(prepared, sets, 0)
    return min(once(prepared, 2, 2 * i) for i in range(3))


def in_turns(prepared: dict[str, Prepared], rough: dict[str, float], device: str, limits: Limits) -> dict[str, Timing]:
    """Times the implementations of one device in alternation. `rough` contains the result of `rough_ms` for each."""
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
    """Summarises samples, which are in milliseconds. At least two samples are required."""
    low, middle, high = statistics.quantiles(samples, n=4, method="inclusive")
    return Timing(middle, min(samples), low, high, len(samples))
