#!/usr/bin/env python3
"""Times attend.decode calls of a server that combine several tasks, and the same tasks in separate calls, on this
machine's GPU.

    python3 bench/serving_calls.py --json results/h100/serving_calls.json

  mixed    One packed call decodes many sequences and computes the prefill of one sequence. It is compared with a call
           for each of the two tasks, and with FlashAttention-3's flash_attn_with_kvcache on the same packed rows, if
           flash_attn_interface is importable.
  append   One call appends a new, rotated key to each sequence and decodes. It is compared with a call that only
           decodes.
  host     The time of a call in the calling thread, for calls whose GPU work takes less time than this thread.

GPU times are medians of warm CUDA graphs that take turns (python/attend/_measure/decode_turns.py), in microseconds. The
results of both sides are compared first. Needs attend's package and torch. The exit status is 1 if results differ.
"""

import argparse
import pathlib
import statistics
import time

import attend
import peer_cases
import torch
from attend._measure import files
from attend._measure.decode_turns import Graph, in_turns
from attend._measure.differences import LARGEST_DIFFERENCE, relative_difference

HEADS, HEADS_K, HEAD_DIM = 32, 8, 128
# Each problem is (number of decoding sequences, their length, rows of the prefill, length of the prefilled sequence).
MIXED = ((63, 4096, 2048, 4096), (128, 1024, 4096, 4096), (16, 8192, 1024, 16384), (32, 2048, 512, 2048))
APPEND = ((1, 1024), (1, 16384), (16, 8192), (64, 4096))
HOST_CALLS, HOST_ROUNDS = 300, 7


def normal(*sizes):
    return torch.randn(sizes, device="cuda", dtype=torch.bfloat16)


def int32(values):
    return torch.tensor(values, dtype=torch.int32, device="cuda")


def pages(lengths, page_size):
    """Returns (page table, number of pages). The pages are in random order."""
    counts = [-(-length // page_size) for length in lengths]
    order = torch.randperm(sum(counts), device="cuda", dtype=torch.int32)
    table = torch.zeros((len(lengths), max(counts)), dtype=torch.int32, device="cuda")
    for row, ids in zip(table, order.split(counts)):
        row[: len(ids)] = ids
    return table, sum(counts)


def difference(theirs, ours):
    """Returns the relative difference of two results. Exits if it is larger than rounding explains, or NaN."""
    found = relative_difference(theirs, ours)
    if not found <= LARGEST_DIFFERENCE:
        raise SystemExit(f"results differ by {found:.3g} of their norm, at most {LARGEST_DIFFERENCE} is rounding")
    return found


def times(sides, rounds, sample_ms=1.0):
    """Returns {name: microseconds} for `sides`, which are functions without arguments."""
    graphs = {}
    for name, side in sides.items():
        side()
        rough = min(Graph(lambda _, run=side: run(), [None], 4).us() for _ in range(3))
        graphs[name] = Graph(lambda _, run=side: run(), [None], max(1, min(128, int(sample_ms * 1e3 / rough))))
    return {name: statistics.median(us) for name, us in in_turns(graphs, rounds).items()}


def mixed(sequences, length, rows, long_length, page_size, rounds):
    lengths = [length] * sequences + [long_length]
    table, count = pages(lengths, page_size)
    k, v = normal(2, count, page_size, HEADS_K, HEAD_DIM)
    q = normal(sequences + rows, HEADS, HEAD_DIM)
    offsets, seqlens = int32([*range(sequences + 1), sequences + rows]), int32(lengths)

    def call(first, last):
        own = offsets[first : last + 1] - offsets[first]
        packed = q[offsets[first] : offsets[last]]
        longest = int((own[1:] - own[:-1]).max())
        arrays = seqlens[first:last].clone(), table[first:last].clone()
        return lambda: attend.decode(packed, k, v, layout="bshd", seqlens_k=arrays[0], page_table=arrays[1],
                                     cu_seqlens_q=own, max_seqlen_q=longest)  # fmt: skip

    sides = {"decode": call(0, sequences), "prefill": call(sequences, sequences + 1), "mixed": call(0, sequences + 1)}
    module = peer_cases.flash_attention_3()
    found = {}
    if hasattr(module, "flash_attn_with_kvcache"):

        def fa3():
            o = module.flash_attn_with_kvcache(
                q, k, v, cache_seqlens=seqlens, page_table=table, cu_seqlens_q=offsets, max_seqlen_q=rows, causal=True
            )
            return o[0] if isinstance(o, tuple) else o

        sides["fa3_mixed"] = fa3
        found["fa3_difference"] = difference(fa3(), sides["mixed"]())
    apart = torch.cat([sides["decode"](), sides["prefill"]()])
    found["apart_difference"] = difference(apart, sides["mixed"]())
    us = times(sides, rounds)
    pairs = rows * long_length - rows * (rows - 1) // 2
    return {"case": f"{sequences}x{length}+{rows}of{long_length}", "page_size": page_size, "us": us,
            "share": us["mixed"] / (us["decode"] + us["prefill"]),
            "prefill_tflops": 4e-6 * pairs * HEADS * HEAD_DIM / us["prefill"], **found}  # fmt: skip


def append(sequences, length, rounds):
    k_cache, v_cache = normal(2, sequences, length + 1, HEADS_K, HEAD_DIM)
    q, o = normal(2, sequences, 1, HEADS, HEAD_DIM)
    k, v = normal(2, sequences, 1, HEADS_K, HEAD_DIM)
    before, after = int32([length] * sequences), int32([length + 1] * sequences)
    cos, sin = torch.randn((2, length + 1, HEAD_DIM // 2), device="cuda")
    rotary = attend.Rotary(cos, sin)
    common = {"layout": "bshd", "out": o}
    sides = {
        "decode": lambda: attend.decode(q, k_cache, v_cache, seqlens_k=after, **common),
        "append_and_decode": lambda: attend.decode(q, k_cache, v_cache, seqlens_k=before, k=k, v=v, rotary=rotary,
                                                   **common),
    }  # fmt: skip
    rotated = attend.append(k, v, k_cache, v_cache, layout="bshd", seqlens_k=before, rotary=rotary, q=q)
    two_calls = attend.decode(rotated, k_cache, v_cache, layout="bshd", seqlens_k=after)
    difference(two_calls, sides["append_and_decode"]())
    us = times(sides, rounds)
    return {"case": f"{sequences}x{length}", "us": us, "append_us": us["append_and_decode"] - us["decode"]}


def host(what):
    """Returns the host time of a call in microseconds: the minimum of some rounds, because disturbances can only add
    time.
    """
    taken = []
    for _ in range(HOST_ROUNDS):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(HOST_CALLS):
            what()
        taken.append((time.perf_counter() - start) * 1e6 / HOST_CALLS)
        torch.cuda.synchronize()
    return min(taken)


def host_times():
    q, o = normal(2, 1, 1, HEADS, HEAD_DIM)
    k, v = normal(2, 1, 64, HEADS_K, HEAD_DIM)
    lengths, table = int32([40]), int32([[0, 1, 2, 3]])
    paged = [x.view(4, 16, HEADS_K, HEAD_DIM) for x in (k, v)]
    return {
        "decode": host(lambda: attend.decode(q, k, v, layout="bshd", seqlens_k=lengths, out=o)),
        "decode_paged": host(lambda: attend.decode(q, *paged, layout="bshd", seqlens_k=lengths, page_table=table,
                                                   out=o)),
        "torch_add": host(lambda: torch.add(q, q, out=o)),
    }  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--page-size", type=int, default=64)
    options = parser.parse_args()
    torch.manual_seed(1)
    torch.set_grad_enabled(False)
    rows = {"gpu": torch.cuda.get_device_name(), "mixed": [], "append": []}
    for case in MIXED:
        one = mixed(*case, options.page_size, options.rounds)
        rows["mixed"].append(one)
        us = "  ".join(f"{name} {us:.1f}" for name, us in one["us"].items())
        print(f"{one['case']:>24}  share {one['share']:.2f}  {one['prefill_tflops']:.0f} TFLOP/s  {us}")
    for case in APPEND:
        one = append(*case, options.rounds)
        rows["append"].append(one)
        print(f"{one['case']:>24}  append {one['append_us']:.2f} us more than {one['us']['decode']:.1f}")
    rows["host_us"] = host_times()
    print("host us:", "  ".join(f"{name} {us:.1f}" for name, us in rows["host_us"].items()))
    if options.json:
        files.write_json(options.json, rows)


if __name__ == "__main__":
    main()
