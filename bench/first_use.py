#!/usr/bin/env python3
"""Times the first use of a score function on this machine's GPU. Measures a call that compiles kernels, a call that
finds them in the disk cache, and a call with other values.

    python3 bench/first_use.py --output results/h200/first_use.json

Each line of results is measured in a separate process with an empty cache folder. It contains the time of forward and
backward of one problem with a score or mask, until the GPU is done, and the number of compiled kernels. `again` is the
time of the same call in a new process, which finds the kernels on disk. `other` is the time of a call with other
lengths and captured values, in the same process as `again`. The start of CUDA and torch is not measured, because a call
without a score runs first.
"""

import argparse
import itertools
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

CASES = {
    "alibi": ({"score": "score - slope[h] * abs(q - k)"}, ("slope",)),
    "softcap": ({"score": "50 * tanh(score / 50)"}, ()),
    "table": ({"score": "score + table[h][clamp(q - k, -128, 127) + 128]"}, ("table",)),
    "sine": ({"score": "score * (1 + 0.5 * sin(0.1 * float(q - k)))"}, ()),
    "documents": ({"mask": "k <= q && doc[q] == doc[k]"}, ("doc",)),
}
HEADS, HEAD_DIM, SEQLEN, OTHER_SEQLEN = 16, 128, 4096, 3000


def captured(torch, name, seqlen, seed):
    generator = torch.Generator().manual_seed(seed)
    if name == "doc":
        return torch.randint(0, 2, (seqlen,), generator=generator).cumsum(0).int() // 100
    shape = {"slope": (HEADS,), "table": (HEADS, 256)}[name]
    return torch.rand(shape, generator=generator).cuda().requires_grad_(name == "table")


def call(attend, torch, case, seqlen, seed):
    """Returns the milliseconds of forward and backward, until the GPU is done."""
    functions, names = CASES.get(case, ({}, ()))
    qkv = [
        torch.randn(1, HEADS, seqlen, HEAD_DIM, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        for _ in range(3)
    ]
    captures = {name: captured(torch, name, seqlen, seed) for name in names}
    torch.cuda.synchronize()
    begin = time.perf_counter()
    if "mask" in functions:
        mask = attend.make_block_mask(functions["mask"], seqlen, seqlen, captures=captures)
        o = attend.attention(*qkv, block_mask=mask)
    elif functions:
        o = attend.attention(*qkv, **functions, captures=captures)
    else:
        o = attend.attention(*qkv)
    o.sum().backward()
    torch.cuda.synchronize()
    return 1000 * (time.perf_counter() - begin)


def child(case):
    """Measures one line of results in this process, and prints it as JSON."""
    import attend
    import torch

    def compiled():
        return len(list(pathlib.Path(os.environ["ATTEND_CACHE_DIR"]).rglob("*.bin")))

    call(attend, torch, "", SEQLEN, 0)
    call(attend, torch, "", OTHER_SEQLEN, 0)
    at = [compiled()]
    ms = []
    for seqlen, seed in ((SEQLEN, 1), (SEQLEN, 1), (OTHER_SEQLEN, 2)):
        ms.append(call(attend, torch, case, seqlen, seed))
        at.append(compiled())
    kernels = [after - before for before, after in itertools.pairwise(at)]
    print(
        json.dumps({"ms": dict(zip(("first", "second", "other"), ms)), "compiled": sum(kernels), "other": kernels[2]})
    )


def run(case, cache):
    command = [sys.executable, __file__, "--child", case]
    found = subprocess.run(command, env={**os.environ, "ATTEND_CACHE_DIR": cache}, check=True, stdout=subprocess.PIPE)
    return json.loads(found.stdout.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--output", type=pathlib.Path, help="JSON")
    parser.add_argument("--child", choices=CASES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.child)
        return
    rows = []
    for case in CASES:
        with tempfile.TemporaryDirectory() as cache:
            first, again = run(case, cache), run(case, cache)
        rows.append({"case": case, "first_ms": first["ms"]["first"], "compiled": first["compiled"],
                     "cached_ms": again["ms"]["first"], "compiled_again": again["compiled"],
                     "warm_ms": again["ms"]["second"], "other_ms": again["ms"]["other"],
                     "compiled_other": first["other"] + again["other"]})  # fmt: skip
        print(" ".join(f"{name}={x:.1f}" if isinstance(x, float) else f"{name}={x}" for name, x in rows[-1].items()))
    if options.output:
        options.output.write_text(json.dumps({"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
