"""The command `decode` measures attention of a few query rows of each sequence over a cache of keys and values, for
attend and its peers.

For contiguous caches, a peer is torch's scaled_dot_product_attention with the fastest of its backends. On a GPU with
16-bit dtypes there are more peers, if they are installed: flash_attn_with_kvcache of FlashAttention-3 and of flash-attn
2, and FlashInfer's BatchDecodeWithPagedKVCacheWrapper. Before timing, the results of all sides are compared, and
attend's result is compared with the definition. On a GPU, calls are captured in CUDA graphs. They read one cache
(warm), or in turn enough copies of it to fill 400 MB (cold). GB/s are computed from the bytes of the keys and values
that a call must read, counted once.
"""

from __future__ import annotations

import argparse
import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Any, Optional

from attend._measure import arguments, errors, files, machine
from attend._measure.decode_shapes import NARROW, Setting, Shape
from attend._measure.inputs import keep_float32_products
from attend._measure.measurement import each_until_interrupted
from attend._measure.memory import lacking
from attend._measure.problems import DTYPE_BYTES
from attend._measure.progress import Bar
from attend._measure.timing import MIN_SAMPLES, Limits
from attend.bench import decode_pictures, decode_rows, peers

KIND = decode_pictures.KIND
DEFAULT_BATCH = {"cpu": [1, 4], "cuda": [1, 8, 64]}
DEFAULT_SEQLEN = {"cpu": [512, 2048, 8192], "cuda": [1024, 4096, 16384]}
SUFFIXES = (".png", ".svg")
SIZES = "--batch, --seqlen, --heads, --head-dim, --rows, --page-size"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="auto: a GPU if there is one")
    for name, what, default in (
        ("--batch", "sequences", DEFAULT_BATCH),
        ("--seqlen", "keys per sequence", DEFAULT_SEQLEN),
    ):
        gpu, cpu = (",".join(map(str, default[device])) for device in ("cuda", "cpu"))
        text = f"{what} ({gpu}; on a CPU {cpu})"
        parser.add_argument(name, type=arguments.positive_list, metavar="N,N", help=text)
    parser.add_argument(
        "--heads", type=arguments.heads, default=(32, 8), metavar="Q:K", help="query heads and key heads (32:8)"
    )
    parser.add_argument("--head-dim", type=arguments.head_dim, default=128, metavar="N", help="128")
    parser.add_argument(
        "--rows", type=arguments.positive, default=1, metavar="N", help="query rows per sequence, at its end (1)"
    )
    parser.add_argument(
        "--page-size", type=arguments.page_sizes, default=[0], metavar="N,N", help="keys per page; 0: contiguous (0)"
    )
    parser.add_argument("--dtype", choices=tuple(DTYPE_BYTES), help="dtype of the queries (bf16)")
    parser.add_argument(
        "--cache", choices=(*DTYPE_BYTES, *NARROW),
        help="dtype of keys and values (that of the queries); with 8 bits, attend_wide has the dtype of the queries",
    )  # fmt: skip
    parser.add_argument(
        "--samples", type=arguments.positive, default=15, help="timed samples of each row, at least 3 (15)"
    )
    parser.add_argument("--no-peers", action="store_true", help="measure attend only")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="result file, saved after each problem")
    parser.add_argument(
        "--plot", type=pathlib.Path, metavar="FILE",
        help="picture (.png or .svg) of GB/s over the length; FILE_grid shows attend over batch and length",
    )  # fmt: skip


def run(options: argparse.Namespace) -> int:
    """Prints tables and writes the files of --json and --plot. Returns 1 if a result was wrong."""
    device = peers.device_of(options.device)
    dtype, cache = _dtypes(options)
    settings = [Setting(dtype, cache, size, device=device) for size in dict.fromkeys(options.page_size)]
    shapes = _shapes(options, settings)
    _prepare_files(options)
    errors.require("torch", "tqdm", purpose="attend.bench decode")
    if options.plot:
        errors.require("matplotlib", "seaborn", purpose="--plot")
    keep_float32_products()
    notes = [] if options.no_peers else decode_rows.notes(settings, options.rows)
    problems = [(shape, setting) for setting in settings for shape in shapes]
    samples = max(options.samples, MIN_SAMPLES)
    rows: list[decode_rows.Row] = []
    about = {"kind": KIND, "machine": machine.describe(), "device": device, "dtype": dtype, "cache": cache or dtype}
    about |= {"H": options.heads[0], "Hkv": options.heads[1], "D": options.head_dim, "rows_of_q": options.rows}
    about |= {"notes": notes}
    bar = Bar(len(problems))

    def measure(problem: tuple[Shape, Setting]) -> None:
        found = decode_rows.measure(*problem, Limits(samples), with_peers=not options.no_peers)
        rows.extend(found)
        for row in found:
            bar.say(row.line)
        bar.step(problem[0].name)
        if options.json:
            files.write_json(options.json, _data(about, rows))  # saved after each problem

    status = each_until_interrupted(problems, measure, notes)
    bar.close()
    data = _data(about, rows)
    print(decode_rows.text(data))
    _write(options, data)
    return status or (errors.FAILED if decode_rows.failures(rows) else 0)


def _data(about: dict[str, Any], rows: Sequence[decode_rows.Row]) -> dict[str, Any]:
    return about | {"rows": decode_rows.as_dicts(rows)}


def _dtypes(options: argparse.Namespace) -> tuple[str, Optional[str]]:
    """Returns (dtype of q, dtype of an 8-bit cache or None)."""
    dtype = options.dtype or (options.cache if options.cache in DTYPE_BYTES else "bf16")
    if options.cache in DTYPE_BYTES and options.cache != dtype:
        allowed = ", ".join((dtype, *NARROW))
        raise errors.UsageError(f"--cache: {options.cache}, allowed with --dtype {dtype}: {allowed}")
    return dtype, options.cache if options.cache in NARROW else None


def _shapes(options: argparse.Namespace, settings: Sequence[Setting]) -> list[Shape]:
    """Returns a problem for every combination of a batch size and a length. Raises a UsageError if a problem does not
    fit in memory.
    """
    device, (heads, heads_k) = settings[0].device, options.heads
    batches, lengths = (options.batch or DEFAULT_BATCH[device], options.seqlen or DEFAULT_SEQLEN[device])
    if options.rows > min(lengths):
        raise errors.UsageError(f"--rows: {options.rows}, allowed 1 to {min(lengths)}: the least --seqlen")
    found = []
    for batch in dict.fromkeys(batches):
        for length in dict.fromkeys(lengths):
            one = Shape((length,), heads, heads_k, options.head_dim, options.rows)
            for setting in settings:
                lack = lacking(batch * setting.held_bytes(one), device)
                if lack:
                    pages = f" in pages of {setting.page_size}" if setting.page_size else ""
                    raise errors.UsageError(f"{SIZES}: {batch}x{length}{pages} needs {lack}")
            found.append(dataclasses.replace(one, lengths=(length,) * batch))
    return found


def _prepare_files(options: argparse.Namespace) -> None:
    """Raises a UsageError if a result file cannot be written. Called before anything is measured."""
    if options.json:
        files.prepare_file("--json", options.json)
    if options.plot:
        if options.plot.suffix not in SUFFIXES:
            raise errors.UsageError(f"--plot: {options.plot}, allowed a file that ends in {' or '.join(SUFFIXES)}")
        files.prepare_file("--plot", options.plot)


def _write(options: argparse.Namespace, data: dict[str, Any]) -> None:
    """Writes the JSON file and the pictures. The pictures show the rows that were timed."""
    if options.json:
        files.write_json(options.json, data)
        print(f"wrote {options.json}")
    if options.plot and any(row["us"] for row in data["rows"]):
        sources = [options.json] if options.json else []
        for path in decode_pictures.save(data, options.plot, sources):
            print(f"wrote {path}")
