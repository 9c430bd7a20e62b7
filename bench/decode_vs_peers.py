#!/usr/bin/env python3
"""Times attend.decode, cuDNN and FlashAttention-3 on this machine's GPU, in one process and in turns.

    python3 bench/decode_vs_peers.py                                   # thirteen shapes, bf16, contiguous caches
    python3 bench/decode_vs_peers.py --page-size 0,16,64,1 --cases table
    python3 bench/decode_vs_peers.py --cases ragged,rows,groups,dims,mla
    python3 bench/decode_vs_peers.py --cases '16x8192*' --cache f8e4m3

There are two peers. One is PyTorch's scaled_dot_product_attention with cuDNN forced. It is measured if each sequence
has one row, all lengths are equal and the cache has no pages. The other is FlashAttention-3's flash_attn_with_kvcache,
if flash_attn_interface is importable. The script needs attend's package, torch and NumPy, but no build of the
repository.

All sides read the same memory, and their results are compared before anything is timed. The script reports medians.
python/attend/_measure/decode_turns.py explains how calls are captured, what warm and cold caches are, and how graphs
alternate. `python -m attend.bench decode` measures a grid of batch sizes and lengths, with more peers and pictures.

GB/s are computed from the bytes of the keys and values that a call has to read, counted once. With --cache, the side
attend_wide is attend with a cache in the dtype of q. Each line is saved at once in results/h200/decode_*.json. The exit
status is 1 if the results of a peer differ from attend's, or if attend refuses a problem.
"""

import argparse
import gc
import pathlib
import statistics
import sys

import decode_peer_cases
import h200_vs_peers
import peer_tables
import torch
from attend._measure import files
from attend._measure.arguments import page_sizes
from attend._measure.decode_shapes import COLD, WARM
from attend._measure.decode_turns import COPIES_BYTES, Graph, Sampling, compare, graphs, in_turns
from attend._measure.differences import LARGEST_DIFFERENCE

KIND = "decode_vs_peers"


def measure(one, options):
    """Returns one line of the result file. If a side has no times, `errors` contains the reason."""
    difference, errors = compare(one)
    sampling = Sampling(options.rounds, options.sample_ms, COPIES_BYTES, Graph)
    taken = in_turns(graphs(one, sampling, errors), sampling.rounds)
    found = {
        name: {state: statistics.median(us) for (side, state), us in taken.items() if side == name}
        for name in one.sides
        if (name, WARM) in taken
    }
    return {**row_of(one), "difference": difference, "errors": errors} | speeds(one, found)


def row_of(one):
    """Returns the fields of a line that describe the problem."""
    s = one.shape
    return {
        "case": s.name,
        "B": len(s.lengths),
        "S": max(s.lengths),
        "keys": sum(s.lengths),
        "H": s.heads,
        "Hkv": s.heads_k,
        "D": s.head_dim,
        "Dv": s.head_dim_v or s.head_dim,
        "rows": s.rows,
        "dtype": one.setting.dtype,
        "cache": one.setting.cache or one.setting.dtype,
        "page_size": one.setting.page_size,
        "bytes": one.bytes_moved,
    }


def speeds(one, us):
    """Returns microseconds and GB/s from {side: {state: microseconds}}. A cache that is too large to be copied has the
    same cold and warm time.
    """
    us = {name: {WARM: of[WARM], COLD: of.get(COLD, of[WARM])} for name, of in us.items()}
    gbps = {name: {state: one.bytes_of(name) / x / 1e3 for state, x in of.items()} for name, of in us.items()}
    tflops = {name: {state: one.shape.flops() / x / 1e6 for state, x in of.items()} for name, of in us.items()}
    return {"us": us, "gbps": gbps, "tflops": tflops}


def best_peer(row, state):
    """Returns (name, microseconds) of the fastest peer, or None."""
    found = [(of[state], name) for name, of in row["us"].items() if not name.startswith("attend")]
    return min(found)[::-1] if found else None


def ratio(row, state):
    """Returns the best peer's time divided by attend's, or None if one of them is missing."""
    best = best_peer(row, state)
    return best[1] / row["us"]["attend"][state] if best and "attend" in row["us"] else None


def line(row):
    """Returns one line of the table. For warm and for cold caches it has attend's microseconds and GB/s, the best
    peer's microseconds, and their ratio.
    """
    cells = [f"{row['case']:28} page {row['page_size']:<3}"]
    for state in (WARM, COLD):
        own, best = row["us"].get("attend"), best_peer(row, state)
        cells.append(f"{own[state]:9.2f} us {row['gbps']['attend'][state]:6.0f} GB/s" if own else f"{'-':>24}")
        cells.append(f"{best[0]:6}{best[1]:9.2f}" if best else f"{'-':>15}")
        cells.append(f"{ratio(row, state):6.3f}x" if best and own else f"{'':>7}")
    more = [f"{row['tflops']['attend'][WARM]:.0f} TFLOP/s warm"] if row["Dv"] != row["D"] and row["us"] else []
    more += [
        f"attend_wide {row['us']['attend_wide'][state]:.2f} us {state}"
        for state in (WARM, COLD)
        if "attend_wide" in row["us"]
    ]
    return "  ".join([*cells, *more, *(f"{name}: {text}" for name, text in row["errors"].items())])


def heading():
    part = f"{'attend':>24}  {'best peer, us':15}  {'ratio':>7}"
    return f"{'':37}  {part}  {part}\n{'':37}  {'warm caches':^50}  {'cold caches':^50}"


def wrong(row):
    """Returns the sides whose results differ from attend's or have NaN, and attend if it has no result."""
    # The difference between attend and attend_wide includes the rounding errors of the 8-bit cache. The limit is
    # therefore higher.
    limit = 0.1 if "attend_wide" in row["us"] else LARGEST_DIFFERENCE
    differing = [name for name, x in row["difference"].items() if not x <= limit]
    return differing + ["attend"] * ("attend" not in row["us"])


def file_name(setting, page_sizes):
    parts = ["decode", setting.dtype, setting.cache, *(f"page{size}" for size in page_sizes if size),
             "heads_first" if setting.heads_first else None]  # fmt: skip
    return "_".join(filter(None, parts)) + ".json"


def shapes(text):
    try:
        return decode_peer_cases.chosen(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def arguments(words=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0], allow_abbrev=False)
    parser.add_argument(
        "--cases",
        type=shapes,
        default="table",
        metavar="NAME,NAME",
        help=f"sets ({', '.join(decode_peer_cases.sets())}) and names, which may have wildcards",
    )
    parser.add_argument("--dtype", choices=["bf16", "f16"], default="bf16")
    parser.add_argument("--cache", choices=list(decode_peer_cases.CACHE_DTYPES),
                        help="8-bit dtype of the cache; no peer supports one")
    parser.add_argument("--page-size", type=page_sizes, default="0", metavar="N,N",
                        help="page sizes; 0 means contiguous; every case runs with each of them")
    parser.add_argument("--heads-first", action="store_true", help="store the heads of a cache before its keys")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--sample-ms", type=float, default=1.0, help="time that the calls of a graph take in total")
    parser.add_argument("--output", type=pathlib.Path, help="results/h200/decode_*.json")
    return parser.parse_args(words)


def main():
    options = arguments()
    if not torch.cuda.is_available():
        print("torch finds no GPU, which this script requires", file=sys.stderr)
        return 2
    settings = [
        decode_peer_cases.Setting(options.dtype, options.cache, size, options.heads_first) for size in options.page_size
    ]
    path = options.output or h200_vs_peers.RESULTS / file_name(settings[0], options.page_size)
    head = {**h200_vs_peers.about("cuda"), "kind": KIND}
    print(peer_tables.title(head) + "\n" + heading(), flush=True)
    rows = []
    for shape in options.cases:
        for setting in settings:
            rows.append(measure(decode_peer_cases.problem(shape, setting), options))
            files.write_json(path, {**head, "rows": rows})
            print(line(rows[-1]), flush=True)
            gc.collect()
            torch.cuda.empty_cache()
    print(f"\nwrote {path}")
    differing = [f"{row['case']} page {row['page_size']}: {', '.join(wrong(row))}" for row in rows if wrong(row)]
    for text in differing:
        print(f"other results than attend's, or none: {text}", file=sys.stderr)
    return 1 if differing else 0


if __name__ == "__main__":
    with torch.no_grad():
        sys.exit(main())
