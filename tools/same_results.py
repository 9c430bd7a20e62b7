#!/usr/bin/env python3
"""Runs random cases in two builds of attend and compares every bit of their results.

    pip install --no-deps --target /tmp/base BASE.whl
    pip install --no-deps --target /tmp/new NEW.whl
    tools/same_results.py --base /tmp/base --new /tmp/new                    CPU: cpu, reference and cpu_naive
    tools/same_results.py --base /tmp/base --new /tmp/new --device cuda      GPU: simt, sm80, sm90 and auto

Each build runs in a separate process, and both processes run at the same time. A case is a random combination of dtype,
head_dim, lengths, groups of heads, masks, score modifications, strides, layout and magnitudes
(tools/same_bits/cases.py). The first 400 to 500 cases cover every pair of values of two options. The exact number is
printed. Options that one of the builds does not have are omitted. Every backend of --compute runs each case, forward
and backward. The compared results are o, lse, dq, dk, dv, dbias and dsinks. Except with CuPy, the memory of results is
filled with NaN before each run. An element that a build does not write is therefore found, even if the memory contained
the same result before.

The tool prints each differing case when it is found: the results, the number of differing elements, and the largest
difference. At the end it prints four numbers for each backend: the cases that are the same, that both builds refuse,
that both builds refuse only in backward ("backward refused"), and that differ. A case that only one build refuses
counts as differing. If the refusals have different messages, both are printed once. Without `deterministic`, gradients
on a GPU may vary between runs. If such a gradient differs, both builds compute it several more times. If it varies
within one build, it counts as varying and is not compared. `--seed S --only N` repeats case N of an earlier run.

The exit status is 0 if all requested cases have run, some cases of each backend were not refused, and none differs. It
is 2 for invalid command-line options, and otherwise 1. An error that is neither a result nor a refusal, such as a
kernel that does not compile, ends the program. The error message names the case, and the tool prints its findings so
far.

The tool requires NumPy, ml_dtypes and tqdm. On a GPU it also requires torch, or CuPy, which has no bf16. On a machine
with a GPU, Python 3.12 and 16 cores:

    python3.12 -m pip wheel --no-deps -w dist .    in a checkout of each build, on a machine with a compiler
    for b in base new; do python3 -m pip install -q --no-deps --no-index --target /tmp/$b dist/$b/*.whl; done
    python3 tools/same_results.py --base /tmp/base --new /tmp/new --device cuda --seconds 200 --json FILE

Most of the time is spent compiling kernels: 500 cases need about 550 kernels of each build, and each takes a second.
Therefore several pairs of processes run at the same time (--jobs, by default one pair for every two cores), and the
cases are divided into groups that share their kernels. After --seconds the tool starts no new group, and running groups
end within half a minute. The tool then reports the missing cases, and the exit status is 1. A second run on the machine
finds the kernels on disk.
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
DEVICES = (*COMPUTES, "torch on cpu")  # the tests use the last one, which runs the GPU's code path on a CPU


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", type=pathlib.Path, help="folder with the package of the earlier build")
    parser.add_argument("--new", type=pathlib.Path, help="folder with the package of the other build")
    parser.add_argument("--device", choices=DEVICES, default="cpu", help="device, cpu if not given")
    parser.add_argument(
        "--compute", nargs="+", metavar="NAME", help="backends; sm80 stands for sm80_forward and sm80_backward"
    )
    parser.add_argument("--cases", type=int, default=500, metavar="N", help="number of cases, 500 if not given")
    parser.add_argument(
        "--seed", type=int, metavar="N", help="seed of options and inputs; drawn and printed if not given"
    )
    parser.add_argument("--only", type=int, metavar="N", help="run only this case")
    parser.add_argument("--jobs", type=int, metavar="N", help="number of process pairs")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no group of cases after this time")
    parser.add_argument("--json", metavar="FILE", help="file for the result")
    parser.add_argument("--worker", choices=DEVICES, help=argparse.SUPPRESS)
    words = parser.parse_args()
    if words.worker:
        return words
    if words.base is None or words.new is None:
        parser.error("--base and --new: both are required")
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
