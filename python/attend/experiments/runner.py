"""Runs the experiments: chooses problems and implementations, and computes the speed-up over PyTorch on the CPU."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

from attend._measure import catalogue, machine
from attend._measure.catalogue import BASELINE
from attend._measure.errors import UsageError
from attend._measure.implementations import Implementation
from attend._measure.inputs import refuse_too_large
from attend._measure.measurement import CheckFailedError, Measurement, Row, Settings, as_dicts
from attend._measure.problems import Problem, grid
from attend._measure.progress import Bar
from attend.experiments import report

KIND = "experiments"
HALF = "gpt3"  # the tensor-core experiment, whose problems are too large for other implementations
# If a problem has more scores than this, only its first heads are checked.
CHECKED_SCORES = 2**29
# Default sizes if no experiment is requested.
SINGLE = {"batch_size": 2, "num_heads": 8, "seq_len": 512, "head_dim": 64}


def problems(options: argparse.Namespace) -> tuple[list[tuple[str, Problem]], list[str]]:
    """Returns a list of (experiment, problem) for all requested experiments, or for a single problem, and notes about
    problems that are too long.
    """
    found = [("seed", p) for p in grid("seed")] if options.experiment else []
    found += [("seqlen", p) for p in grid("seqlen")] if options.seqlen_experiment else []
    found += [(HALF, p) for p in grid("gpt3")] if options.gpt3_experiment else []
    given = {name: getattr(options, name) for name in SINGLE if getattr(options, name) is not None}
    if found and given:
        name, value = next(iter(given.items()))
        raise UsageError(
            f"--{name}: {value} with an experiment, whose sizes are fixed; allowed without an experiment only"
        )
    if not found:
        single = Problem(*(given.get(name, default) for name, default in SINGLE.items()))
        refuse_too_large("--batch_size, --num_heads, --seq_len, --head_dim", [single])
        found = [("single", single)]
    limit = options.max_seqlen
    long = [problem for _, problem in found if limit is not None and problem.seqlen > limit]
    if len(long) == len(found):
        raise UsageError(f"--max-seqlen: {limit}, allowed {min(p.seqlen for p in long)} or more here")
    notes = [f"left out, beyond --max-seqlen {limit}: {', '.join(map(str, long))}"] if long else []
    return [pair for pair in found if pair[1] not in long], notes


def run(
    wanted: Sequence[tuple[str, Problem]],
    modes: Sequence[str],
    implementations: Sequence[Implementation],
    settings: Settings,
    notes: Sequence[str],
    save: Callable[[dict[str, Any]], Any] = lambda data: None,
) -> dict[str, Any]:
    """Returns a dict of the results: kind, machine, tolerance, notes, stopped (the failed check that ended the run) and
    rows.

    After each problem except the last, `save` is called with the results so far. Ctrl-C ends the run and is recorded in
    `stopped`.
    """

    def data() -> dict[str, Any]:
        return {
            "kind": KIND,
            "machine": machine.describe(),
            "tolerance": settings.tolerance,
            "notes": list(notes),
            "stopped": stopped,
            "rows": as_dicts(measurement.rows),
        }

    able = {experiment: list(implementations) for experiment, _ in wanted}
    if HALF in able:
        able[HALF] = catalogue.in_half(implementations, "--gpt3-experiment")
    bar = Bar(sum(catalogue.count(able[experiment], modes) for experiment, _ in wanted))
    measurement = Measurement(settings, bar)
    stopped = ""
    try:
        for number, (experiment, problem) in enumerate(wanted, start=1):
            add_speedups(measurement.measure(problem, modes, able[experiment], experiment))
            if number < len(wanted):
                save(data())
    except CheckFailedError as failed:
        stopped = str(failed)
    except KeyboardInterrupt:
        stopped = report.INTERRUPTED
    finally:
        bar.close()
    return data()


def add_speedups(rows: Sequence[Row]) -> None:
    """Sets row.speedup of each row to the time of PyTorch on the CPU divided by the row's time, for the same problem
    and pass.
    """
    baseline = {row.mode: row.ms for row in rows if row.implementation == BASELINE}
    for row in rows:
        theirs = baseline.get(row.mode)
        if theirs is not None and row.ms is not None:
            row.speedup = theirs / row.ms
