#!/usr/bin/env python3
"""Do two builds of attend compute the same bits? Runs random cases in both and compares every bit of their results.

    pip install --no-deps --target /tmp/base BASE.whl
    pip install --no-deps --target /tmp/new NEW.whl
    tools/same_results.py --base /tmp/base --new /tmp/new                    CPU: cpu, reference and cpu_naive
    tools/same_results.py --base /tmp/base --new /tmp/new --device cuda      GPU: simt, sm80, sm90 and auto

Each build runs in a process of its own, both at the same time. A case is a random combination of dtype, head_dim,
lengths, groups of heads, masks, modifications of scores, strides, layout and magnitudes (tools/same_bits/cases.py). The
first 400 to 500 cases have every pair of values of two options; how many exactly is printed. Options that one of the
builds lacks are left out. Each case is run by every backend of --compute, forward and backward. Compared are o, lse,
dq, dk, dv, dbias and dsinks. The memory of results is NaN before they are computed (not with CuPy), so that what a
build leaves unwritten does not look like an earlier result.

Prints the differing cases as they are found: which results, how many elements, the largest difference. Then for each
backend how many cases are the same, how many both builds refuse (of backward alone: "backward refused"), and how many
differ. A case that only one build refuses differs. If they refuse in other words, both lines are printed, once.
Without `deterministic` a GPU's gradients may vary from run to run. If such a result differs, both builds compute it
some more times; if it varies in one of them, it counts as varying and is not compared. `--seed S --only N` runs case N
of an earlier run again.

Exit status: 0 if all cases that were asked for have run, some of each backend were not refused, and none differs.
Else 1. 2: words on the command line that are not allowed. What is neither a result nor a refusal, say a kernel that
does not compile, ends the program: it names the case and says what it has found until then.

What it takes: NumPy, ml_dtypes and tqdm; on a GPU also torch, or CuPy (then without bf16). On a machine with a GPU,
Python 3.12 and 16 cores:

    python3.12 -m pip wheel --no-deps -w dist .    in a checkout of each build, on a machine with a compiler
    for b in base new; do python3 -m pip install -q --no-deps --no-index --target /tmp/$b dist/$b/*.whl; done
    python3 tools/same_results.py --base /tmp/base --new /tmp/new --device cuda --seconds 200 --json FILE

Most of that time goes into compiling kernels: 500 cases want some 550 of each build, a second each. So several pairs
of processes work (--jobs, one for every two cores if not given), and the cases come in groups that share their kernels.
After --seconds no group begins, those that have begun end within half a minute; what did not run is said, and the exit
status is 1. A second run on the machine finds the kernels on disk.
"""

import argparse
import json
import os
import pathlib
import secrets
import sys
import time

from same_bits import cases

COMPUTES = {"cpu": ["cpu", "reference", "cpu_naive"], "cuda": ["simt", "sm80", "sm90", "auto"]}
DEVICES = (*COMPUTES, "torch on cpu")  # the last: GPUs' way of inputs, for the tests


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", type=pathlib.Path, help="folder with the package of the earlier build")
    parser.add_argument("--new", type=pathlib.Path, help="that of the other")
    parser.add_argument("--device", choices=DEVICES, default="cpu", help="cpu if not given")
    parser.add_argument(
        "--compute", nargs="+", metavar="NAME", help="backends; sm80 stands for sm80_forward and sm80_backward"
    )
    parser.add_argument("--cases", type=int, default=500, metavar="N", help="500 if not given")
    parser.add_argument("--seed", type=int, metavar="N", help="of options and inputs; drawn and printed if not given")
    parser.add_argument("--only", type=int, metavar="N", help="this case alone")
    parser.add_argument("--jobs", type=int, metavar="N", help="pairs of processes")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no group of cases after this time")
    parser.add_argument("--json", metavar="FILE", help="file for the result")
    parser.add_argument("--worker", choices=DEVICES, help=argparse.SUPPRESS)
    words = parser.parse_args()
    if words.worker:
        return words
    if words.base is None or words.new is None:
        parser.error("--base and --new: both have to be given")
    for name, folder in (("base", words.base), ("new", words.new)):
        if not (folder / "attend" / "__init__.py").is_file():
            parser.error(f"--{name}: {folder}, allowed a folder with the package attend")
    words.seed = secrets.randbelow(2**31) if words.seed is None else words.seed
    on_gpu = words.device == "cuda"
    words.compute = words.compute or COMPUTES["cuda" if on_gpu else "cpu"]
    words.jobs = words.jobs or (max(1, (os.cpu_count() or 2) // 2) if on_gpu else 1)
    words.deadline = time.monotonic() + words.seconds
    words.error = parser.error
    return words


def main():
    words = parse()
    if words.worker:
        from same_bits.worker import Worker

        Worker(words.worker).serve()
        return 0
    from same_bits.run import Run, describe, passes_of
    from same_bits.sides import Sides

    sides = Sides(words.base, words.new, words.device)
    builds = describe(words, sides)
    passes = {name: passes_of(name, builds, words.error) for name in words.compute}
    known = set(builds[0]["options"]) & set(builds[1]["options"])
    groups, num_covering = cases.groups(words.cases, words.seed, words.device, builds[0]["dtypes"], known)
    if words.only is not None:
        groups = [[case] for group in groups for case in group if case["number"] == words.only]
        if not groups:
            words.error(f"--only: {words.only}, allowed 0 to {words.cases - 1}")
    print(
        f"seed {words.seed}, {sum(map(len, groups))} cases (the first {num_covering} have every pair), "
        f"{builds[0]['arrays']} arrays, kernel digests {builds[0]['kernel_digest']} and {builds[1]['kernel_digest']}",
        flush=True,
    )
    run = Run(words, passes)
    why = None
    try:
        run.all_of(groups, sides)
    except SystemExit as error:
        why = error
    for line in run.summary():
        print(line)
    if words.json:
        settings = {"seed": words.seed, "cases": words.cases, "device": words.device, "builds": builds}
        with open(words.json, "w", encoding="utf-8") as file:
            json.dump(settings | run.report(), file, indent=1)
    if why is not None:
        raise why
    return 0 if run.passed() else 1


if __name__ == "__main__":
    sys.exit(main())
