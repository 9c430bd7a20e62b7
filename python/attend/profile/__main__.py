"""Measures one attention call with Nsight Compute and explains in words what bounds its kernel."""

from __future__ import annotations

import argparse
import json
import pathlib
import re
import sys
import tempfile
from typing import Any, Optional

import attend
from attend import _core
from attend._measure import files, machine
from attend._measure.errors import UsageError
from attend.profile import collect, output, timeline
from attend.profile.measures import Measures, measure
from attend.profile.report import ReportError, parse

OWN_KERNELS = "^attend_"


def main(arguments: Optional[list[str]] = None) -> int:
    options = _options(arguments)
    try:
        if options.json:
            files.prepare_file("--json", options.json)
        if options.systems:
            print(_record_call(options))
            return 0
        data = _explain_report(options) if options.report else _explain_call(options)
        if options.json:
            when = {} if options.report else {"date": machine.today(), "sources": _core.source_digests()}
            files.write_text(options.json, json.dumps(data | when, indent=1) + "\n")
    except (UsageError, ReportError, collect.CollectError, OSError) as error:
        print(f"attend.profile: {error}", file=sys.stderr)
        return 2
    print(output.as_text(data))
    return 0


def _options(arguments: Optional[list[str]]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        allow_abbrev=False,
        prog="python -m attend.profile",
        description=__doc__,
        epilog="Requires ncu or nsys, a GPU and torch, except with --report. Exit status: 0 success, 2 wrong usage or "
        "a missing requirement.",
    )
    parser.add_argument(
        "--compute",
        default="auto",
        metavar="NAME",
        help="a kernel of the ladder or a backend (python -m attend info lists them)",
    )
    parser.add_argument("--mode", choices=("forward", "backward"), default="forward")
    parser.add_argument("--batch_size", type=_size, default=8, metavar="B")
    parser.add_argument("--num_heads", type=_size, default=16, metavar="H")
    parser.add_argument("--seq_len", type=_size, default=2048, metavar="S")
    parser.add_argument("--head_dim", type=_size, default=64, metavar="D")
    parser.add_argument("--dtype", choices=("f32", "f16", "bf16"), default="f32")
    parser.add_argument("--causal", action="store_true")
    parser.add_argument("--kernel-regex", metavar="REGEX", help="kernels to explain (default: kernels of attend)")
    parser.add_argument(
        "--report",
        type=pathlib.Path,
        metavar="FILE.csv",
        help="explain this output of `ncu --csv --page raw`, without a measurement and without a GPU",
    )
    parser.add_argument(
        "--systems",
        action="store_true",
        help="record a timeline with Nsight Systems (nsys) instead: profile.nsys-rep in --output-dir (default: here)",
    )
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="also write all measurements to this file")
    parser.add_argument(
        "--output-dir",
        type=pathlib.Path,
        metavar="DIR",
        help="keep profile.ncu-rep (for ncu-ui), profile.csv and ncu.log in this folder",
    )
    parser.add_argument(
        "--timeout", type=float, default=600.0, metavar="S", help="time limit of the profiler in seconds (default 600)"
    )
    options = parser.parse_args(arguments)
    for name in ("report", "json", "kernel_regex"):
        if options.systems and getattr(options, name) is not None:
            parser.error(f"--{name.replace('_', '-')}: given with --systems, allowed without it only")
    return options


def _size(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r}, allowed 1 or more")
    return int(text)


def _explain_report(options: argparse.Namespace) -> dict[str, Any]:
    try:
        text = options.report.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a text file"
        raise UsageError(f"--report: {options.report}: {reason}") from None
    try:
        launches = [measure(launch) for launch in parse(text)]
    except ReportError as error:
        raise UsageError(f"--report: {options.report}: {error}") from None
    chosen = choose(launches, options.kernel_regex)
    return output.as_json(longest(chosen), chosen, None, "", options.kernel_regex)


def _problem(options: argparse.Namespace) -> output.Problem:
    return output.Problem(*(getattr(options, name) for name in output.Problem._fields))


def _record_call(options: argparse.Namespace) -> str:
    timeline.find_nsys()
    if not attend.gpus():
        raise UsageError("no NVIDIA GPU is visible, which --systems requires")
    folder = options.output_dir or pathlib.Path()
    files.prepare_folder("--output-dir", folder)
    return f"wrote {timeline.record(_problem(options), folder, options.timeout)}: open it with nsys-ui"


def _explain_call(options: argparse.Namespace) -> dict[str, Any]:
    problem = _problem(options)
    tool = collect.version(collect.find_ncu())
    if not attend.gpus():
        raise UsageError("no NVIDIA GPU is visible: use --report FILE.csv to explain a report from another machine")
    with tempfile.TemporaryDirectory(prefix="attend_profile_") as scratch:
        folder = options.output_dir or pathlib.Path(scratch)
        files.prepare_folder("--output-dir", folder)
        text = collect.collect(problem, folder, options.kernel_regex or OWN_KERNELS, options.timeout)
    chosen = choose([measure(launch) for launch in parse(text)], options.kernel_regex)
    data = output.as_json(longest(chosen), chosen, problem, tool, options.kernel_regex)
    data["gpu"] = data["gpu"] or attend.gpus()[0]["name"]
    return data


def choose(launches: list[Measures], kernel_regex: Optional[str]) -> list[Measures]:
    """Returns the launches whose name matches `kernel_regex`. Without a pattern, returns attend's own launches, or all
    launches if attend has none.
    """
    try:
        pattern = re.compile(kernel_regex or OWN_KERNELS)
    except re.error as error:
        raise UsageError(f"--kernel-regex: {kernel_regex!r}, allowed a regular expression: {error}") from None
    matching = [m for m in launches if pattern.search(m.kernel)]
    if not matching and kernel_regex:
        names = ", ".join(sorted({m.kernel for m in launches}))
        raise UsageError(f"--kernel-regex: {kernel_regex!r} matches none of {names}")
    return matching or launches


def longest(launches: list[Measures]) -> Measures:
    return max(launches, key=lambda m: m.get("duration") or 0.0)


if __name__ == "__main__":
    sys.exit(main())
