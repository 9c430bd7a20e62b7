"""The command `memory` measures the peak memory of attend and its peers over the sequence length.

Each implementation runs in a separate process, after a warm-up call, so it cannot reuse memory of another
implementation. attend._measure.memory describes which memory is counted, and how a call is kept from reusing memory of
an earlier length. In mode backward, a row measures forward and backward together, as in training.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import subprocess
import sys
from typing import Any

from attend._measure import arguments, catalogue, errors, files, machine
from attend._measure.implementations import Implementation, refusal
from attend._measure.inputs import Source
from attend._measure.memory import MIB, Meter
from attend._measure.problems import DTYPE_BYTES, MODES, Problem
from attend.bench import peers

KIND = "memory"
WARM_SEQLEN = 64


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--seqlens", type=arguments.positive_list, default=[512, 1024, 2048, 4096, 8192], metavar="N,N,..."
    )
    for name, default in (("batch_size", 1), ("num_heads", 8), ("head_dim", 64)):
        kind = arguments.head_dim if name == "head_dim" else arguments.positive
        parser.add_argument(f"--{name}", type=kind, default=default)
    parser.add_argument("--dtype", choices=tuple(DTYPE_BYTES), default="f32")
    parser.add_argument("--mode", choices=(*MODES, "both"), default="both")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="auto: a GPU if there is one")
    parser.add_argument("--compute", action="append", metavar="NAME", help="backends of attend, comma-separated (auto)")
    parser.add_argument("--causal", action="store_true")
    parser.add_argument("--no-peers", action="store_true", help="measure attend only")
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("bench_memory.json"))
    # The option selects the implementation of a child process, which prints its rows.
    parser.add_argument("--only", help=argparse.SUPPRESS)


def run(options: argparse.Namespace) -> int:
    """Runs the command and writes the JSON file. Returns 1 if a process failed."""
    errors.require("numpy", "tqdm", purpose="attend.bench memory")
    device = peers.device_of(options.device)
    modes = MODES if options.mode == "both" else (options.mode,)
    mine = peers.ours(arguments.names(options.compute or ["auto"]), device, options.dtype)
    others, notes = ([], []) if options.no_peers else peers.theirs(device, options.dtype)
    chosen, forward_only = catalogue.that_have(modes, [*mine, *others])
    if options.only:
        (one,) = (x for x in chosen if x.name == options.only)
        for row in measure(one, options, modes):
            print(json.dumps(row))
        return 0
    files.prepare_file("--output", options.output)
    rows: list[dict[str, Any]] = []
    failed = []
    status = 0
    try:
        for x in errors.require("tqdm", purpose="attend.bench")[0].tqdm(chosen, disable=None, leave=False):
            done = subprocess.run(_child(x, options, device), check=False, capture_output=True, text=True)
            rows += [json.loads(line) for line in done.stdout.splitlines()]
            if done.returncode != 0:
                failed.append(f"{x.name}: status {done.returncode}: {(done.stderr.strip().splitlines() or [''])[-1]}")
    except KeyboardInterrupt:
        notes.append("interrupted: the results so far are here")
        status = errors.INTERRUPTED
    data = {"kind": KIND, "machine": machine.describe(), "device": device, "notes": notes + forward_only, "rows": rows}
    print(text(data))
    for line in failed:
        print(f"FAILED {line}", file=sys.stderr)
    files.write_json(options.output, data)
    print(f"wrote {options.output}")
    return status or (errors.FAILED if failed else 0)


def _child(x: Implementation, options: argparse.Namespace, device: str) -> list[str]:
    words = [sys.executable, "-m", "attend.bench", "memory", "--only", x.name, "--device", device]
    words += ["--seqlens", ",".join(map(str, options.seqlens)), "--dtype", options.dtype, "--mode", options.mode]
    for name in ("batch_size", "num_heads", "head_dim"):
        words += [f"--{name}", str(getattr(options, name))]
    for part in options.compute or []:
        words += ["--compute", part]
    return [*words, "--causal"] if options.causal else words


def measure(x: Implementation, options: argparse.Namespace, modes: tuple[str, ...]) -> list[dict[str, Any]]:
    """Returns a row for each length and mode. In a row, inputs_mib is the memory of q, k, v and dout, and peak_mib is
    the peak beyond the inputs. A row without a peak has a remark.
    """
    meter = Meter(x.device)
    own = [mode for mode in modes if mode == "forward" or x.has_backward]

    def row(seqlen: int, mode: str) -> dict[str, Any]:
        problem = Problem(options.batch_size, options.num_heads, seqlen, options.head_dim, options.causal)
        peak, remark = None, ""
        try:
            tensors = Source(problem, 0).inputs(x.dtype, x.device).sets[0]
            _, peak = meter.peak(lambda: x.step(tensors, options.causal, mode))
        except Exception as error:
            remark = refusal(error)
            if not remark:
                raise
        return _row(x, mode, problem, peak, remark)

    for mode in own:
        row(WARM_SEQLEN, mode)
    return [row(seqlen, mode) for seqlen in sorted(set(options.seqlens)) for mode in own]


def _row(x: Implementation, mode: str, problem: Problem, peak: Any, remark: str) -> dict[str, Any]:
    b, h, s, d = problem.shape
    return {
        "implementation": x.name,
        "library": x.library,
        "device": x.device,
        "dtype": x.dtype,
        "mode": mode,
        "B": b,
        "H": h,
        "S": s,
        "D": d,
        "causal": problem.causal,
        "inputs_mib": 4 * b * h * s * d * DTYPE_BYTES[x.dtype] / MIB,
        "peak_mib": peak,
        "remark": remark,
    }


def text(data: dict[str, Any]) -> str:
    lines = [machine.title(data["machine"]), *data["notes"]]
    rows = data["rows"]
    lengths = sorted({r["S"] for r in rows})
    for mode in dict.fromkeys(r["mode"] for r in rows):
        found = {(r["implementation"], r["S"]): r for r in rows if r["mode"] == mode}
        lines += ["", f"{mode}: peak memory beyond the inputs, MiB"]
        cells = []
        for name in dict.fromkeys(name for name, _ in found):
            values = [found[name, s]["peak_mib"] if (name, s) in found else None for s in lengths]
            cells.append([name, *("-" if value is None else files.number(value) for value in values)])
        lines += files.aligned(["implementation", *(f"S = {s}" for s in lengths)], cells)
    lines += [f"left out: {r['implementation']} {r['mode']} S = {r['S']}: {r['remark']}" for r in rows if r["remark"]]
    return "\n".join(lines)
