"""The command `compare` measures latency and throughput of attend and its peers on a grid of problems, in alternation
in one process.
"""

from __future__ import annotations

import argparse
import pathlib
from collections.abc import Sequence
from typing import Any, Optional

from attend._measure import arguments, catalogue, errors, files, machine, tables
from attend._measure.inputs import refuse_too_large
from attend._measure.measurement import (
    Measurement,
    Row,
    Settings,
    as_dicts,
    each_until_interrupted,
    failures,
    left_out_lines,
)
from attend._measure.problems import DTYPE_BYTES, MODES, Problem, grid
from attend._measure.progress import Bar
from attend._measure.timing import Limits
from attend.bench import peers

KIND = "compare"
# If a problem has more scores than this, only its first heads are checked, because the float64 reference would dominate
# the run time.
CHECKED_SCORES = 2**24
BATCH_SIZE, NUM_HEADS, SEQ_LENGTHS, HEAD_DIMS = 2, 8, (512, 1024, 2048, 4096), (64,)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--grid", choices=("seed", "paper", "gpt3"), help="sizes to measure (seed, if no sizes are given)"
    )
    for name, default in (("--batch-size", BATCH_SIZE), ("--num-heads", NUM_HEADS)):
        parser.add_argument(name, type=arguments.positive, metavar="N", help=f"instead of a grid ({default})")
    for name, kind, defaults in (
        ("--seq-lengths", arguments.positive_list, SEQ_LENGTHS),
        ("--head-dims", arguments.head_dims, HEAD_DIMS),
    ):
        text = ",".join(map(str, defaults))
        parser.add_argument(name, type=kind, metavar="N,N", help=f"instead of a grid ({text})")
    parser.add_argument("--causal", action="store_true")
    add_common(parser)
    parser.add_argument("--max-seqlen", type=arguments.positive, metavar="N", help="skip longer sequences")
    parser.add_argument("--no-peers", action="store_true", help="measure attend only")
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("bench_compare.json"))


def add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dtype", choices=tuple(DTYPE_BYTES), default="f32")
    parser.add_argument("--mode", choices=(*MODES, "both"), default="forward")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="auto: a GPU if there is one")
    parser.add_argument("--compute", action="append", metavar="NAME", help="backends of attend, comma-separated (auto)")
    parser.add_argument(
        "--samples", type=arguments.positive, default=15, help="timed samples of each row, at least 3 (15)"
    )
    parser.add_argument(
        "--max-seconds", type=arguments.positive_number, default=10.0, metavar="T",
        help="time limit for one implementation, problem and pass (10); slower rows are left out and reported",
    )  # fmt: skip


def run(options: argparse.Namespace) -> int:
    """Runs the command and writes the JSON file. Returns 1 if a result was wrong."""
    errors.require("numpy", "tqdm", purpose="attend.bench compare")
    device = peers.device_of(options.device)
    modes = MODES if options.mode == "both" else (options.mode,)
    others, notes = ([], []) if options.no_peers else peers.theirs(device, options.dtype)
    mine = peers.ours(arguments.names(options.compute or ["auto"]), device, options.dtype)
    chosen, forward_only = catalogue.that_have(modes, [*mine, *others])
    name, problems = _problems(options)
    limit = options.max_seqlen
    wanted = [p for p in problems if limit is None or p.seqlen <= limit]
    if not wanted:
        raise errors.UsageError(f"--max-seqlen: {limit}, allowed {min(p.seqlen for p in problems)} or more here")
    if len(wanted) < len(problems):
        notes.append(f"left out, beyond --max-seqlen {limit}: {', '.join(str(p) for p in problems if p not in wanted)}")
    files.prepare_file("--output", options.output)
    bar = Bar(catalogue.count(chosen, modes) * len(wanted))
    measurement = Measurement(settings(options), bar)
    about = {"kind": KIND, "machine": machine.describe(), "grid": name, "device": device, "dtype": options.dtype}
    notes += forward_only
    about |= {"causal": options.causal, "notes": notes}

    def measure(problem: Problem) -> None:
        measurement.measure(problem, modes, chosen, name)
        files.write_json(options.output, about | {"rows": as_dicts(measurement.rows)})  # saved after each problem

    status = each_until_interrupted(wanted, measure, notes)
    bar.close()
    data = about | {"rows": as_dicts(measurement.rows)}
    files.write_json(options.output, data)
    print(text(data))
    print(f"wrote {options.output}")
    return status or (errors.FAILED if failures(measurement.rows) else 0)


def _problems(options: argparse.Namespace) -> tuple[str, list[Problem]]:
    """Returns the name of the grid and its problems. If sizes are given, the problems combine every head_dim with every
    length.
    """
    sizes = {name: getattr(options, name) for name in ("batch_size", "num_heads", "seq_lengths", "head_dims")}
    given = [name for name, value in sizes.items() if value is not None]
    if not given:
        name = options.grid or "seed"
        return name, grid(name, options.causal)
    if options.grid:
        option = given[0].replace("_", "-")
        raise errors.UsageError(f"--{option}: given with --grid {options.grid}, allowed without it only")
    b, h = sizes["batch_size"] or BATCH_SIZE, sizes["num_heads"] or NUM_HEADS
    lengths, dims = sizes["seq_lengths"] or SEQ_LENGTHS, sizes["head_dims"] or HEAD_DIMS
    found = [Problem(b, h, s, d, options.causal) for d in dict.fromkeys(dims) for s in dict.fromkeys(lengths)]
    refuse_too_large("--batch-size, --num-heads, --seq-lengths, --head-dims", found)
    return "given", found


def settings(options: argparse.Namespace) -> Settings:
    return Settings(
        stop_on_failure=False,
        max_seconds=options.max_seconds,
        limits=Limits(options.samples),
        checked_scores=CHECKED_SCORES,
    )


def rows_of(data: dict[str, Any]) -> list[Row]:
    return [Row(**row) for row in data["rows"]]


def text(data: dict[str, Any]) -> str:
    """Returns the text output. For each mode it contains a table of latencies, a table of throughputs, and the
    geometric mean of the best peer's time divided by attend's best time.
    """
    rows = rows_of(data)
    lines = [machine.title(data["machine"]), *data["notes"]]
    for mode in dict.fromkeys(r.mode for r in rows):
        some = [r for r in rows if r.mode == mode]
        for field, unit in (("ms", "ms, median"), ("tflops", "TFLOP/s")):
            lines += ["", f"{mode}{' causal' if data['causal'] else ''}: {unit}"]
            lines += files.aligned(*tables.over_problems(some, field))
        ratio = best_ratio(some)
        if ratio is not None:
            lines.append(f"attend's best over its peers' best, geometric mean: {ratio:.2f} times as fast")
    lines += ["", tables.NOISE_NOTE] if any(map(tables.is_noisy, rows)) else []
    for title, found in (("left out:", left_out_lines(rows)), ("FAILED:", failures(rows))):
        lines += ["", title, *(f"  {line}" for line in found)] if found else []
    return "\n".join(lines)


def best_ratio(rows: Sequence[Row]) -> Optional[float]:
    """Returns the geometric mean, over the problems, of the best peer's time divided by attend's best time."""
    ratios = []
    for problem in dict.fromkeys(tables.label(r) for r in rows):
        times = [(r.library == "attend", r.ms) for r in rows if tables.label(r) == problem and r.ms is not None]
        mine, others = ([ms for is_ours, ms in times if is_ours == wanted] for wanted in (True, False))
        if mine and others:
            ratios.append(min(others) / min(mine))
    return tables.geometric_mean(ratios)
