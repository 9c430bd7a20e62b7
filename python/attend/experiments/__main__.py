"""Checks every implementation of attention on this machine against float64, and times it against PyTorch on the CPU.

    python -m attend.experiments --experiment --seqlen-experiment --mode both --save-results

docs/experiments.md explains the columns.
"""

from __future__ import annotations

import argparse
import functools
import pathlib
from collections.abc import Sequence
from typing import Any, Optional

from attend._measure import apart, catalogue, errors, files
from attend._measure.arguments import Parser, head_dim, names, positive, positive_number, seed
from attend._measure.measurement import Settings, failures
from attend._measure.problems import MODES
from attend._measure.timing import Limits
from attend.experiments import report, runner

DESCRIPTION = "Checks and times every implementation of attention on this machine."
HALF_NOTE = (
    "largest absolute error that passes (default 1e-3). Half precision allows an additional 2 roundings of the largest "
    "magnitude in the same 64 rows, or 4 for gradients. A rounding is 2^-8 in bf16 and 2^-11 in f16"
)


def parser() -> Parser:
    result = Parser(prog="python -m attend.experiments", description=DESCRIPTION)
    what = result.add_argument_group("what to run")
    what.add_argument("--experiment", action="store_true", help="the ten configurations of the seed grid")
    what.add_argument("--seqlen-experiment", action="store_true", help="B 4, H 8, D 64, seqlen 128 to 4096")
    what.add_argument(
        "--gpt3-experiment", action="store_true", help="B 4, H 96, D 128, seqlen 512 to 16384, bf16 on a GPU only"
    )
    for name, default in runner.SINGLE.items():
        kind = head_dim if name == "head_dim" else positive
        what.add_argument(f"--{name}", type=kind, help=f"without an experiment ({default})")
    what.add_argument("--mode", choices=(*MODES, "both"), default="forward")
    what.add_argument(
        "--kernel", action="append", metavar="NAME", help="implementations to run (all); repeatable or comma-separated"
    )
    check = result.add_argument_group("the check")
    check.add_argument("--tolerance", type=positive_number, default=1e-3, help=HALF_NOTE)
    check.add_argument(
        "--no-stop-on-failure", action="store_true", help="continue after a failed check, and exit with 1 at the end"
    )
    check.add_argument("--no-gpu-reference", action="store_true", help="compute the float64 reference on the CPU")
    limits = result.add_argument_group("limits; the report lists everything that they leave out")
    limits.add_argument("--max-seqlen", type=positive, metavar="N", help="skip longer sequences")
    limits.add_argument(
        "--max-seconds", type=positive_number, default=10.0, metavar="T",
        help="time limit for one implementation, configuration and pass (10), estimated from earlier configurations",
    )  # fmt: skip
    limits.add_argument("--samples", type=positive, default=15, help="timed samples of each row, at least 3 (15)")
    limits.add_argument("--seed", type=seed, default=0, help="seed of the random inputs (0)")
    out = result.add_argument_group("results")
    out.add_argument(
        "--save-results", action="store_true", help="save JSON, CSV, text and plots in a new folder in --output-dir"
    )
    out.add_argument("--output-dir", type=pathlib.Path, default=pathlib.Path("experiment_results"))
    out.add_argument("--plot-format", choices=("png", "svg"), default="png")
    out.add_argument("--no-plots", action="store_true", help="save without plots")
    out.add_argument("--plot-all", action="store_true", help="draw all lines in line plots, instead of at most eight")
    out.add_argument(
        "--plot-from", type=pathlib.Path, metavar="JSON", help="draw plots from this saved file without measuring"
    )
    return result


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Returns the exit status: 0 if all checks passed, 1 if a check failed, 2 if the usage was wrong or a requirement
    is missing, and 130 after Ctrl-C or SIGTERM.

    Results that were measured before an error are kept.
    """
    options = parser().parse_args(arguments)
    return errors.run(lambda: draw(options) if options.plot_from else measure(options))


def draw(options: argparse.Namespace) -> int:
    data = files.read_json(options.plot_from, [runner.KIND])
    files.prepare_folder("--output-dir", options.output_dir)
    with files.understanding(options.plot_from):
        return _plot(data, options.output_dir, options, options.plot_from)


def measure(options: argparse.Namespace) -> int:
    errors.require("numpy", "tqdm", purpose="attend.experiments")
    draws = options.save_results and not options.no_plots
    if draws:
        errors.require("matplotlib", "seaborn", purpose="drawing (not needed with --no-plots)")
    chosen, notes = catalogue.choose(names(options.kernel) if options.kernel else None)
    modes = MODES if options.mode == "both" else (options.mode,)
    chosen, forward_only = catalogue.that_have(modes, chosen)
    wanted, too_long = runner.problems(options)
    if options.save_results:
        files.prepare_folder("--output-dir", options.output_dir)
    if not options.save_results:
        data = runner.run(wanted, modes, chosen, _settings(options), notes + forward_only + too_long)
        print(report.text(data), end="")
        return _status(data)
    folder = files.new_run(options.output_dir, options.mode)
    # Results are saved after each problem, so that an interruption loses none of them.
    save = functools.partial(report.save, folder=folder)
    data = runner.run(wanted, modes, chosen, _settings(options), notes + forward_only + too_long, save)
    written = save(data)
    print(report.text(data), end="")
    print(f"wrote {', '.join(map(str, written))}")
    if draws:
        _plot(data, folder, options, folder / report.JSON)
    return _status(data)


def _status(data: dict[str, Any]) -> int:
    if data["stopped"] == report.INTERRUPTED:
        return errors.INTERRUPTED
    return errors.FAILED if failures(report.rows_of(data)) else 0


def _settings(options: argparse.Namespace) -> Settings:
    return Settings(
        tolerance=options.tolerance,
        stop_on_failure=not options.no_stop_on_failure,
        gpu_reference=not options.no_gpu_reference,
        max_seconds=options.max_seconds,
        limits=Limits(options.samples),
        checked_scores=runner.CHECKED_SCORES,
        seed=options.seed,
    )


def _plot(data: dict[str, Any], folder: pathlib.Path, options: argparse.Namespace, source: pathlib.Path) -> int:
    from attend.experiments import plots

    rows = report.rows_of(data)
    paths = plots.draw(rows, data["machine"], folder, options.plot_format, options.plot_all, [source])
    print(f"wrote {', '.join(map(str, paths))}")
    return 0


if __name__ == "__main__":
    apart.end(main())
