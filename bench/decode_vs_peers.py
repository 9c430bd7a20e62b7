#!/usr/bin/env python3
"""Times attend.decode beside cuDNN and FlashAttention-3 on this machine's GPU, in one process and in turns.

    python3 bench/decode_vs_peers.py                                   # thirteen shapes, bf16, contiguous caches
    python3 bench/decode_vs_peers.py --page-size 0,16,64,1 --cases table
    python3 bench/decode_vs_peers.py --cases ragged,rows,groups,dims,mla
    python3 bench/decode_vs_peers.py --cases '16x8192*' --cache f8e4m3

Peers: PyTorch's scaled_dot_product_attention with cuDNN forced, where a sequence has one row, all are of one length and
the cache has no pages; FlashAttention-3's flash_attn_with_kvcache where flash_attn_interface is importable. Needs
attend's package, torch and NumPy, not the repository's build.

What makes it a fair comparison:
  * All sides read the same memory, and their results are compared before anything is timed.
  * Calls are captured into a CUDA graph, as servers do: a graph holds as many as fill a millisecond, and is timed by
    CUDA events while the GPU is still busy with what went before it. The time of a call is that of the graph by their
    number. The host's time plays no part.
  * Warm: every call of a graph reads the same cache. Cold: as many copies of it as fill 400 MB, in turn, so that none
    of it is in the L2 cache. One that is larger by itself is timed once, as both.
  * Graphs of all sides alternate, and so does their order. Reported are medians.

GB/s: of the keys and values that a call has to read, once. With --cache, attend_wide is attend with a cache in the
dtype of q. Lines are saved as they come: results/h200/decode_*.json.
Exit status: 1 where a peer's results are not attend's, or attend refuses.
"""

import argparse
import gc
import math
import pathlib
import statistics
import sys

import torch

import decode_peer_cases
import h200_vs_peers
import peer_tables
from attend._measure import files

KIND = "decode_vs_peers"
COPIES_BYTES = 400e6
MAX_CALLS = 128
WARM, COLD = "warm", "cold"


class Graph:
    """Calls of a side in a CUDA graph, over the caches in turn."""

    def __init__(self, side, caches, calls):
        self.calls = calls
        self._held = caches
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            for n in range(calls):
                side(caches[n % len(caches)])

    def us(self):
        """Microseconds a call."""
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(h200_vs_peers.BUSY_CYCLES)  # while the graph is being launched
        start.record()
        self._graph.replay()
        stop.record()
        stop.synchronize()
        return start.elapsed_time(stop) * 1e3 / self.calls


def compare(one):
    """({side: difference from attend's o}, {side: what it says against the problem}); such sides are dropped."""
    results, found, errors = {}, {}, {}
    for name in list(one.sides):
        try:
            results[name] = one.sides[name](one.cache_of(name))
            if one.setting.device == "cuda":
                torch.cuda.synchronize()
        except Exception as error:  # whatever a side raises is its answer
            errors[name] = h200_vs_peers.first_line(error)
            del one.sides[name]
            continue
        if name != "attend" and "attend" in results:
            found[name] = h200_vs_peers.relative_difference(results.pop(name), results["attend"])
    return found, errors


def graphs(one, sample_ms, errors):
    """{(side, warm or cold): Graph}. What cannot be captured goes into `errors`."""
    found = {}
    for name, side in one.sides.items():
        cache = one.cache_of(name)
        held = (cache.k.nbytes + (0 if cache.v is None else cache.v.nbytes)) or 1
        copies = math.ceil(COPIES_BYTES / held)
        try:
            few = Graph(side, [cache], 4)
            rough = min(few.us() for _ in range(3))
            calls = max(1, min(MAX_CALLS, math.ceil(sample_ms * 1e3 / rough)))
            found[name, WARM] = Graph(side, [cache], calls)
            if copies > 1:
                caches = [cache, *(cache.copy() for _ in range(copies - 1))]
                found[name, COLD] = Graph(side, caches, max(calls, copies))
        except Exception as error:
            errors[name] = h200_vs_peers.first_line(error)
            found = {key: graph for key, graph in found.items() if key[0] != name}
    return found


def measure(one, options):
    """One line of the file. Without times of a side, `errors` says why."""
    difference, errors = compare(one)
    captured = graphs(one, options.sample_ms, errors)
    taken = {key: [] for key in captured}
    for turn in range(options.rounds + 1):  # the first warms up
        for key in list(captured) if turn % 2 == 0 else reversed(captured):
            us = captured[key].us()
            if turn > 0:
                taken[key].append(us)
    found = {name: {state: statistics.median(us) for (side, state), us in taken.items() if side == name}
             for name in one.sides if (name, WARM) in taken}
    return {**row_of(one), "difference": difference, "errors": errors} | speeds(one, found)


def row_of(one):
    """What a line begins with."""
    s = one.shape
    return {"case": s.name, "B": len(s.lengths), "S": max(s.lengths), "keys": sum(s.lengths), "H": s.heads,
            "Hkv": s.heads_k, "D": s.head_dim, "Dv": s.head_dim_v or s.head_dim, "rows": s.rows,
            "dtype": one.setting.dtype, "cache": one.setting.cache or one.setting.dtype,
            "page_size": one.setting.page_size, "bytes": one.bytes_moved}


def speeds(one, us):
    """us, and GB/s, of {side: {state: us}}; a cache that is larger than all copies is cold as it is warm."""
    us = {name: {WARM: of[WARM], COLD: of.get(COLD, of[WARM])} for name, of in us.items()}
    wide = one.shape.elements() * torch.finfo(one.q.dtype).bits // 8
    moved = {name: wide if name == "attend_wide" else one.bytes_moved for name in us}
    gbps = {name: {state: moved[name] / x / 1e3 for state, x in of.items()} for name, of in us.items()}
    tflops = {name: {state: one.shape.flops() / x / 1e6 for state, x in of.items()} for name, of in us.items()}
    return {"us": us, "gbps": gbps, "tflops": tflops}


def best_peer(row, state):
    """(name, us) of the fastest peer, or None."""
    found = [(of[state], name) for name, of in row["us"].items() if not name.startswith("attend")]
    return min(found)[::-1] if found else None


def ratio(row, state):
    """The best peer's time over attend's; None where one of them is missing."""
    best = best_peer(row, state)
    return best[1] / row["us"]["attend"][state] if best and "attend" in row["us"] else None


def line(row):
    """One line of the table: for warm and cold caches attend's us and GB/s, the best peer's us, and the ratio."""
    cells = [f"{row['case']:28} page {row['page_size']:<3}"]
    for state in (WARM, COLD):
        own, best = row["us"].get("attend"), best_peer(row, state)
        cells.append(f"{own[state]:9.2f} us {row['gbps']['attend'][state]:6.0f} GB/s" if own else f"{'-':>24}")
        cells.append(f"{best[0]:6}{best[1]:9.2f}" if best else f"{'-':>15}")
        cells.append(f"{ratio(row, state):6.3f}x" if best and own else f"{'':>7}")
    more = [f"{row['tflops']['attend'][WARM]:.0f} TFLOP/s warm"] if row["Dv"] != row["D"] and row["us"] else []
    more += [f"attend_wide {row['us']['attend_wide'][state]:.2f} us {state}" for state in (WARM, COLD)
             if "attend_wide" in row["us"]]
    return "  ".join([*cells, *more, *(f"{name}: {text}" for name, text in row["errors"].items())])


def heading():
    part = f"{'attend':>24}  {'best peer, us':15}  {'ratio':>7}"
    return f"{'':37}  {part}  {part}\n{'':37}  {'warm caches':^50}  {'cold caches':^50}"


def wrong(row):
    """The sides whose results are not attend's (NaN never is), and attend where it has none."""
    # Elements of 8 bits are what they are: attend_wide shows how far they are off.
    limit = 0.1 if "attend_wide" in row["us"] else h200_vs_peers.LARGEST_DIFFERENCE
    differing = [name for name, x in row["difference"].items() if not x <= limit]
    return differing + ["attend"] * ("attend" not in row["us"])


def file_name(setting, page_sizes):
    parts = ["decode", setting.dtype, setting.cache, *(f"page{size}" for size in page_sizes if size),
             "heads_first" if setting.heads_first else None]  # fmt: skip
    return "_".join(filter(None, parts)) + ".json"


def page_sizes(text):
    sizes = text.split(",")
    if not all(size.isdecimal() for size in sizes):
        raise argparse.ArgumentTypeError(f"{text!r}, allowed a comma list of numbers, 0 for contiguous caches")
    return [int(size) for size in sizes]


def shapes(text):
    try:
        return decode_peer_cases.chosen(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def arguments(words=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0], allow_abbrev=False)
    parser.add_argument("--cases", type=shapes, default="table", metavar="NAME,NAME",
                        help=f"sets ({', '.join(decode_peer_cases.sets())}) and names, which may have wildcards")
    parser.add_argument("--dtype", choices=["bf16", "f16"], default="bf16")
    parser.add_argument("--cache", choices=list(decode_peer_cases.CACHE_DTYPES), help="8 bits; no peer has them")
    parser.add_argument("--page-size", type=page_sizes, default="0", metavar="N,N",
                        help="0: contiguous. Several: every case with each")
    parser.add_argument("--heads-first", action="store_true", help="memory of a cache: heads before keys")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--sample-ms", type=float, default=1.0, help="what the calls of a graph fill")
    parser.add_argument("--output", type=pathlib.Path, help="results/h200/decode_*.json")
    return parser.parse_args(words)


def main():
    options = arguments()
    if not torch.cuda.is_available():
        print("torch sees no GPU; this compares on one only", file=sys.stderr)
        return 2
    settings = [decode_peer_cases.Setting(options.dtype, options.cache, size, options.heads_first)
                for size in options.page_size]
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
        print(f"not attend's results, or none: {text}", file=sys.stderr)
    return 1 if differing else 0


if __name__ == "__main__":
    with torch.no_grad():
        sys.exit(main())
