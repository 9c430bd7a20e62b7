"""Runs the experiments: which problems, in which order, and the speed-up over PyTorch on the CPU."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from attend._measure import catalogue, machine
from attend._measure.catalogue import BASELINE
from attend._measure.errors import UsageError
from attend._measure.implementations import Implementation
from attend._measure.inputs import refuse_too_large
from attend._measure.measurement import CheckFailedError, Measurement, Row, Settings, as_dicts
from attend._measure.problems import Problem, grid
from attend._measure.progress import Bar

KIND = "experiments"


def problems(options: argparse.Namespace) -> tuple[list[tuple[str, Problem]], list[str]]:
    """(experiment, problem) for all that was asked for, one problem where no experiment was; and what is too long."""
    found = [("seed", p) for p in grid("seed")] if options.experiment else []
    found += [("seqlen", p) for p in grid("seqlen")] if options.seqlen_experiment else []
    if not found:
        single = Problem(options.batch_size, options.num_heads, options.seq_len, options.head_dim)
        refuse_too_large("--batch_size, --num_heads, --seq_len, --head_dim", [single])
        found = [("single", single)]
    limit = options.max_seqlen
    long = [problem for _, problem in found if limit is not None and problem.seqlen > limit]
    if len(long) == len(found):
        raise UsageError(f"--max-seqlen: {limit}, allowed {min(p.seqlen for p in long)} and more here")
    notes = [f"left out, beyond --max-seqlen {limit}: {', '.join(map(str, long))}"] if long else []
    return [pair for pair in found if pair[1] not in long], notes


def run(
    wanted: Sequence[tuple[str, Problem]],
    modes: Sequence[str],
    implementations: Sequence[Implementation],
    settings: Settings,
    notes: Sequence[str],
) -> dict[str, Any]:
    """Everything that was measured: kind, machine, tolerance, notes, stopped (the check that ended it), rows."""
    bar = Bar(catalogue.count(implementations, modes) * len(wanted))
    measurement = Measurement(settings, bar)
    stopped = ""
    try:
        for experiment, problem in wanted:
            add_speedups(measurement.measure(problem, modes, implementations, experiment))
    except CheckFailedError as failed:
        stopped = str(failed)
    finally:
        bar.close()
    return {
        "kind": KIND,
        "machine": machine.describe(),
        "tolerance": settings.tolerance,
        "notes": list(notes),
        "stopped": stopped,
        "rows": as_dicts(measurement.rows),
    }


def add_speedups(rows: Sequence[Row]) -> None:
    """row.speedup: the time of PyTorch on the CPU over that of the row, of the same problem and pass."""
    baseline = {row.mode: row.ms for row in rows if row.implementation == BASELINE}
    for row in rows:
        theirs = baseline.get(row.mode)
        if theirs is not None and row.ms is not None:
            row.speedup = theirs / row.ms
