"""The command `roofline` measures the ceilings of the machine, and compares the kernels' results with them.

There are two ceilings, each the best of several runs. The memory ceiling is the rate of a copy, in bytes read and
written. On a CPU, the arithmetic ceiling is the rate of multiply-adds on registers alone, in float32 and, if the
processor has a unit for it, in bfloat16. It is measured before the kernels and again after them. On a GPU, it is the
rate of a product of large square matrices in float32 and bfloat16 by cuBLAS. This is a speed that software reaches, not
a hardware limit. The arithmetic intensity is the number of operations divided by the bytes of inputs and outputs, each
counted once. Some implementations move more bytes. For example, the unfused path stores S and P. Such implementations
appear at the same intensity, but further below the roof.
"""

from __future__ import annotations

import argparse
import contextlib
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import attend
from attend import _core
from attend._measure import arguments, catalogue, errors, files, machine, timing
from attend._measure.implementations import Prepared, refusal
from attend._measure.inputs import keep_float32_products, refuse_too_large, torch_dtype
from attend._measure.measurement import (
    Measurement,
    Row,
    Settings,
    as_dicts,
    each_until_interrupted,
    failures,
    left_out_lines,
)
from attend._measure.memory import lacking
from attend._measure.problems import MODES, Problem
from attend._measure.progress import Bar
from attend._measure.timing import Limits
from attend.bench import peers

KIND = "roofline"
COPY_BYTES = {"cpu": 2**28, "cuda": 2**30}
PRODUCT_SIZE = 8192
DEFAULT_SHAPE = {"cpu": (2, 8, 64), "cuda": (8, 16, 64)}  # batch, heads, head_dim
DEFAULT_SEQLENS = {"cpu": [128, 512, 1024], "cuda": [128, 512, 2048]}
REPEATS = 7
ABOVE = {  # the meaning of a share above the ceiling, for each kind of ceiling
    "multiply-adds": "above the ceiling, which was measured too low because the machine was busy",
    "matrix product": "faster than a large matrix product, which is not a limit of the GPU",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="auto: a GPU if there is one")
    for name in ("batch_size", "num_heads", "head_dim"):
        kind = arguments.head_dim if name == "head_dim" else arguments.positive
        parser.add_argument(f"--{name}", type=kind, help="default: 8 16 64; on a CPU 2 8 64")
    parser.add_argument(
        "--seqlens",
        type=arguments.positive_list,
        metavar="N,N,...",
        help="default: 128,512,2048; on a CPU 128,512,1024. The arithmetic intensity grows with the length",
    )
    parser.add_argument("--mode", choices=(*MODES, "both"), default="forward")
    parser.add_argument(
        "--kernel", action="append", metavar="NAME", help="as in attend.experiments (all kernels of the device)"
    )
    parser.add_argument("--samples", type=arguments.positive, default=15)
    parser.add_argument("--max-seconds", type=arguments.positive_number, default=10.0, metavar="T")
    parser.add_argument(
        "--product-size",
        type=arguments.positive,
        metavar="N",
        help="size of the matrix product for a GPU's ceilings (8192)",
    )
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("bench_roofline.json"))


def run(options: argparse.Namespace) -> int:
    """Runs the command and writes the JSON file. Returns 1 if a result was wrong."""
    errors.require("numpy", "tqdm", purpose="attend.bench roofline")
    device = peers.device_of(options.device)
    modes = MODES if options.mode == "both" else (options.mode,)
    names = arguments.names(options.kernel) if options.kernel else None
    chosen, notes = catalogue.choose(names)
    elsewhere = [x.name for x in chosen if x.device != device]
    here = [x for x in chosen if x.device == device]
    if not here:
        able = ", ".join(x.name for x in catalogue.choose(None)[0] if x.device == device)
        raise errors.UsageError(f"--kernel: {', '.join(elsewhere)}, allowed on --device {device}: {able}")
    if names and elsewhere:
        notes.append(f"left out, not of --device {device}: {', '.join(elsewhere)}")
    chosen, forward_only = catalogue.that_have(modes, here)
    sizes = (options.batch_size, options.num_heads, options.head_dim)
    b, h, d = (given or default for given, default in zip(sizes, DEFAULT_SHAPE[device]))
    problems = [Problem(b, h, s, d) for s in options.seqlens or DEFAULT_SEQLENS[device]]
    refuse_too_large("--seqlens, --batch_size, --num_heads, --head_dim", problems)
    if options.product_size and device == "cpu":
        raise errors.UsageError(
            f"--product-size: {options.product_size}, allowed on a GPU only, because a CPU's ceiling needs no product"
        )
    files.prepare_file("--output", options.output)
    ceilings = _ceilings_that_fit(device, options.product_size or PRODUCT_SIZE)
    bar = Bar(catalogue.count(chosen, modes) * len(problems))
    limits = Limits(options.samples)
    measurement = Measurement(Settings(stop_on_failure=False, max_seconds=options.max_seconds, limits=limits), bar)
    notes += forward_only
    about = {"kind": KIND, "machine": machine.describe(), "device": device, "ceilings": ceilings, "notes": notes}

    def measure(problem: Problem) -> None:
        measurement.measure(problem, modes, chosen, KIND)
        files.write_json(options.output, about | {"rows": _rows(measurement.rows)})  # saved after each problem

    status = each_until_interrupted(problems, measure, notes)
    bar.close()
    if device == "cpu" and status == 0:
        again = cpu_peak_tflops()
        peaks = {dtype: max(x, again.get(dtype, x)) for dtype, x in ceilings["peak_tflops"].items()}
        about["ceilings"] = ceilings | {"peak_tflops": peaks}
    data = about | {"rows": _rows(measurement.rows)}
    files.write_json(options.output, data)
    print(text(data))
    for title, found in (("left out:", left_out_lines(measurement.rows)), ("FAILED:", failures(measurement.rows))):
        for line in found:
            print(f"{title} {line}")
    print(f"wrote {options.output}")
    return status or (errors.FAILED if failures(measurement.rows) else 0)


def _rows(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Returns the rows with their operations per byte of inputs and outputs."""
    found = as_dicts(rows)
    for row, entry in zip(rows, found):
        problem = Problem(row.B, row.H, row.S, row.D, row.causal)
        entry["intensity"] = problem.flops(row.mode) / problem.bytes_moved(row.mode, row.dtype)
    return found


def _ceilings_that_fit(device: str, size: int) -> dict[str, Any]:
    try:
        return measure_ceilings(device, size)
    except (MemoryError, RuntimeError) as error:
        reason = refusal(error)
        if not reason:
            raise
        raise errors.UsageError(f"--product-size: {size}: {reason}, allowed sizes that fit into memory") from error


def measure_ceilings(device: str, size: int) -> dict[str, Any]:
    """Returns a dict with copy_gbps, peak_tflops by dtype, the type of the peak and, on a GPU, product_size.

    Raises:
        UsageError if three float32 matrices of size x size numbers exceed the GPU's memory.
    """
    if device == "cpu":
        speed = 2 * COPY_BYTES[device] / _best_ms(_copy(device), device) / 1e6
        return {"copy_gbps": speed, "peak_of": "multiply-adds", "peak_tflops": cpu_peak_tflops()}
    lack = lacking(3 * 4 * size**2, device)
    if lack:
        raise errors.UsageError(f"--product-size: {size} needs {lack}")
    keep_float32_products()
    speed = 2 * COPY_BYTES[device] / _best_ms(_copy(device), device) / 1e6
    peaks = {dtype: 2.0 * size**3 / _best_ms(_product(size, dtype), device) / 1e9 for dtype in ("f32", "bf16")}
    return {"copy_gbps": speed, "peak_of": "matrix product", "peak_tflops": peaks, "product_size": size}


def cpu_peak_tflops() -> dict[str, float]:
    """Returns the arithmetic peak of attend's CPU threads in TFLOP/s, by dtype."""
    return {dtype: gflops / 1e3 for dtype, gflops in _core.cpu_peak_gflops(attend.cpu_threads()).items()}


Call = Callable[[], Any]


def _copy(device: str) -> Call:
    """Returns a function that copies memory, with torch if it is installed, otherwise with NumPy on one CPU thread."""
    torch = errors.torch_or_none()
    if torch is not None:
        source = torch.ones(COPY_BYTES[device] // 4, device=device)
        target = torch.empty_like(source)
        return lambda: target.copy_(source)
    import numpy as np

    ones = np.ones(COPY_BYTES[device] // 4, np.float32)
    copied = np.empty_like(ones)
    return lambda: np.copyto(copied, ones)


def _product(size: int, dtype: str) -> Call:
    import torch

    a, b = (torch.randn(size, size, device="cuda").to(torch_dtype(dtype)) for _ in range(2))
    return lambda: torch.matmul(a, b)


def _best_ms(call: Call, device: str) -> float:
    once = timing.clock(device)
    prepared = Prepared(lambda i: call(), contextlib.nullcontext)
    once(prepared, 2, 0)
    return min(once(prepared, 1, 0) for _ in range(REPEATS))


def text(data: dict[str, Any]) -> str:
    ceilings = data["ceilings"]
    peaks = ", ".join(f"{dtype} {files.number(x)}" for dtype, x in ceilings["peak_tflops"].items())
    lines = [machine.title(data["machine"]), *data["notes"]]
    lines.append(f"copy {files.number(ceilings['copy_gbps'])} GB/s; {ceilings['peak_of']}, TFLOP/s: {peaks}")
    header = ["implementation", "dtype", "pass", "S", "flop/byte", "TFLOP/s", "of the peak"]
    cells = []
    for row in (r for r in data["rows"] if r["ms"] is not None):
        roof = ceilings["peak_tflops"].get(row["dtype"])
        share = f"{100 * row['tflops'] / roof:.1f} %{'!' * (row['tflops'] > roof)}" if roof else ""
        figures = [files.number(row["intensity"]), files.number(row["tflops"]), share]
        cells.append([row["implementation"], row["dtype"], row["mode"], str(row["S"]), *figures])
    above = any(cell[-1].endswith("!") for cell in cells)
    note = ["", f"!: {ABOVE[ceilings['peak_of']]}"] if above else []
    return "\n".join([*lines, "", *files.aligned(header, cells), *note])
