#!/usr/bin/env python3
"""Times the CUDA kernels of two builds in turns, to measure the effect of a change to kernels/.

    pip install --no-deps --target /tmp/before BEFORE.whl
    pip install --no-deps --target /tmp/after AFTER.whl
    bench/two_gpu_builds.py /tmp/before /tmp/after --json FILE

Each build runs in a separate process. The two processes replay their CUDA graphs in turns on the same GPU, so that
clock and temperature are the same for both builds. Every round allocates new tensors, because the address of a tensor
can change the time by some percent. The script prints the medians of each case, and the geometric means of the ratio
before / after. A ratio above 1 means that the second build is faster.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys

# Each case is (name, (batch, heads, seqlen, head_dim), dtype, options, backend of the backward pass).
CASES = [
    ("bf16", (32, 16, 512, 128), "bfloat16", {}, None),
    ("bf16", (8, 32, 2048, 64), "bfloat16", {}, None),
    ("bf16", (2, 16, 8192, 128), "bfloat16", {}, None),
    ("bf16", (2, 8, 8192, 256), "bfloat16", {}, None),
    ("bf16 causal", (32, 32, 512, 64), "bfloat16", {"causal": True}, None),
    ("bf16 causal", (4, 16, 2048, 64), "bfloat16", {"causal": True}, None),
    ("bf16 causal", (2, 16, 8192, 128), "bfloat16", {"causal": True}, None),
    ("bf16 causal", (1, 8, 16384, 256), "bfloat16", {"causal": True}, None),
    ("bf16 window", (2, 16, 8192, 128), "bfloat16", {"window": (1024, 0)}, None),
    ("bf16 documents", (2, 16, 8192, 128), "bfloat16", {"block_mask": "k <= q && q // 1024 == k // 1024"}, None),
    ("bf16 softcap causal", (2, 16, 4096, 128), "bfloat16", {"causal": True, "softcap": 30.0}, None),
    ("bf16 softcap causal", (2, 16, 8192, 128), "bfloat16", {"causal": True, "softcap": 50.0}, None),
    ("bf16 softcap causal", (32, 16, 512, 128), "bfloat16", {"causal": True, "softcap": 50.0}, None),
    ("bf16 softcap causal", (4, 32, 4096, 64), "bfloat16", {"causal": True, "softcap": 50.0}, None),
    ("bf16 softcap", (2, 16, 4096, 128), "bfloat16", {"softcap": 50.0}, None),
    ("bf16 softcap", (4, 32, 4096, 64), "bfloat16", {"softcap": 50.0}, None),
    ("bf16 softcap window", (2, 16, 8192, 128), "bfloat16", {"window": (1024, 0), "softcap": 50.0}, None),
    ("bf16 dropout causal", (4, 16, 4096, 64), "bfloat16", {"causal": True, "dropout_p": 0.1, "seed": 1}, None),
    ("bf16 dropout", (2, 16, 4096, 128), "bfloat16", {"dropout_p": 0.1, "seed": 1}, None),
    ("bf16 dropout", (2, 8, 4096, 192), "bfloat16", {"dropout_p": 0.1, "seed": 1}, None),
    ("bf16 dropout causal", (2, 8, 4096, 256), "bfloat16", {"causal": True, "dropout_p": 0.1, "seed": 1}, None),
    (
        "bf16 dropout bias",
        (2, 8, 4096, 128),
        "bfloat16",
        {"dropout_p": 0.1, "seed": 1, "bias": (2, 8, 4096, 4096)},
        None,
    ),
    ("bf16 alibi causal", (2, 16, 4096, 128), "bfloat16", {"causal": True, "alibi": True}, None),
    ("bf16 bias", (2, 16, 4096, 128), "bfloat16", {"bias": (2, 16, 4096, 4096)}, None),
    ("bf16 bias", (4, 16, 2048, 64), "bfloat16", {"bias": (4, 16, 2048, 2048)}, None),
    ("bf16 bias causal", (8, 16, 1024, 128), "bfloat16", {"bias": (8, 16, 1024, 1024), "causal": True}, None),
    ("bf16 bias, sm80", (4, 16, 2048, 64), "bfloat16", {"bias": (4, 16, 2048, 2048)}, "sm80_backward"),
    ("bf16 alibi, sm80", (4, 16, 2048, 128), "bfloat16", {"alibi": True}, "sm80_backward"),
    ("bf16, sm80", (4, 16, 2048, 128), "bfloat16", {}, "sm80_backward"),
    ("f32", (8, 16, 2048, 64), "float32", {}, None),
    ("f32 causal", (8, 16, 2048, 64), "float32", {"causal": True}, None),
    ("f32", (4, 8, 2048, 128), "float32", {}, None),
    ("f32 bias", (2, 8, 2048, 64), "float32", {"bias": (1, 8, 2048, 2048)}, None),
    ("f32 bias", (1, 8, 2048, 128), "float32", {"bias": (1, 8, 2048, 2048)}, None),
    ("f32 alibi", (2, 8, 2048, 64), "float32", {"alibi": True, "causal": True}, None),
    ("f32 softcap", (2, 8, 2048, 64), "float32", {"softcap": 30.0}, None),
    ("f32 softcap", (1, 8, 2048, 128), "float32", {"softcap": 30.0}, None),
]
# The grid of the FlashAttention papers: 16384 tokens, and heads * head_dim = 2048.
PAPER = [
    (f"paper{' causal' if causal else ''}", (16384 // seqlen, 2048 // head_dim, seqlen, head_dim), "bfloat16",
     {"causal": True} if causal else {}, None)
    for head_dim in (64, 128, 256) for causal in (False, True) for seqlen in (512, 1024, 2048, 4096, 8192, 16384)
]  # fmt: skip
CASES += PAPER


class Worker:
    """Code of a worker process, which measures one build. The process makes the CUDA graphs of a case and replays them
    on request."""

    def __init__(self):
        import attend
        import torch

        self.torch, self.attend = torch, attend
        self.graphs, self.kept = {}, None

    def prepare(self, number):
        torch, attend = self.torch, self.attend
        self.graphs, self.kept = {}, None
        torch.cuda.empty_cache()
        torch.manual_seed(number)
        _, (batch, heads, seqlen, head_dim), dtype, options, compute = CASES[number]
        dtype = getattr(torch, dtype)

        def random(*shape):
            return torch.randn(*shape, device="cuda", dtype=dtype)

        q, k, v, dout = (random(batch, heads, seqlen, head_dim) for _ in range(4))
        kwargs = dict(options)
        if "bias" in kwargs:
            kwargs["bias"] = random(*kwargs["bias"])
        if "block_mask" in kwargs:
            kwargs["block_mask"] = attend.make_block_mask(kwargs["block_mask"], seqlen, seqlen)
        if kwargs.pop("alibi", False):
            kwargs["alibi_slopes"] = torch.rand(heads, device="cuda")
        o, lse = attend.forward(q, k, v, **kwargs)
        last = {"compute": compute} if compute else {}
        self.kept = (q, k, v, dout, o, lse, kwargs)
        calls = {"backward": lambda: attend.backward(dout, q, k, v, o, lse, **kwargs, **last)}
        if not compute:
            calls["forward"] = lambda: attend.forward(q, k, v, **kwargs)
        for name, call in calls.items():
            for _ in range(3):
                call()
            torch.cuda.synchronize()
            self.graphs[name] = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graphs[name]):
                call()
        return sorted(calls)

    def replay(self, name, count):
        torch = self.torch
        times = []
        for _ in range(count):
            begin, end = torch.cuda.Event(True), torch.cuda.Event(True)
            self.graphs[name].replay()  # this first replay keeps the GPU busy until the host has queued the timed ones
            begin.record()
            self.graphs[name].replay()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end))
        return times

    def serve(self):
        for line in sys.stdin:
            method, *arguments = json.loads(line)
            print(json.dumps(getattr(self, method)(*arguments)), flush=True)


class Side:
    """The parent process's connection to a worker process."""

    def __init__(self, folder):
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": folder},
        )

    def ask(self, *message):
        self.process.stdin.write(json.dumps(message) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise SystemExit(f"a worker ended with status {self.process.wait()}")
        return json.loads(answer)


def measure(sides, number, rounds, replays):
    """Returns the milliseconds of every replay, for each pass and side."""
    times = {}
    for _ in range(rounds):
        passes, *_ = [side.ask("prepare", number) for side in sides]
        for name in passes:
            of_pass = times.setdefault(name, ([], []))
            for turn in range(4):
                for index in (0, 1) if turn % 2 == 0 else (1, 0):
                    of_pass[index].extend(sides[index].ask("replay", name, replays))
    return times


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("before", nargs="?", help="folder with the package of one build")
    parser.add_argument("after", nargs="?", help="folder with the package of the other build")
    parser.add_argument("--only", default="", help="only cases whose name contains this text; paper: only the grid of FlashAttention's papers")
    parser.add_argument("--shape", help="only cases of this batch,heads,seqlen,head_dim")
    parser.add_argument("--rounds", type=int, default=3, help="rounds, each with new tensors; 3 if not given")
    parser.add_argument("--replays", type=int, default=6, help="replays per turn, 6 if not given; a round has 4 turns")
    parser.add_argument("--again", type=float, metavar="RATIO",
                        help="measure cases with a pass below RATIO again, with 4 times the rounds")  # fmt: skip
    parser.add_argument("--json", help="file for the result")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def rows_of(sides, number, rounds, replays):
    """Measures a case. Prints and returns one row for each pass."""
    name, shape, *_ = CASES[number]
    rows = []
    for of_pass, times in sorted(measure(sides, number, rounds, replays).items()):
        before, after = (statistics.median(t) for t in times)
        rows.append({"case": name, "shape": shape, "pass": of_pass, "before_ms": before, "after_ms": after})
        print(f"{name:18} {shape!s:20} {of_pass:8} {before:8.4f} {after:8.4f} ms  {before / after:.4f}", flush=True)
    return rows


def main():
    options = parse()
    if options.worker:
        Worker().serve()
        return
    numbers = [number for number, (name, shape, *_) in enumerate(CASES)
               if options.only in name and ("paper" in name) == ("paper" in options.only)
               and options.shape in (None, ",".join(map(str, shape)))]  # fmt: skip
    if not numbers:
        raise SystemExit(f"--only {options.only!r}, --shape {options.shape}: no such case")
    sides = [Side(options.before), Side(options.after)]
    rows_by_case = {number: rows_of(sides, number, options.rounds, options.replays) for number in numbers}
    ratio = lambda row: row["before_ms"] / row["after_ms"]
    rows = [row for of_case in rows_by_case.values() for row in of_case]
    means = {}
    for of_pass in ("forward", "backward"):
        ratios = [ratio(row) for row in rows if row["pass"] == of_pass]
        if ratios:
            means[of_pass] = math.exp(sum(map(math.log, ratios)) / len(ratios))
            print(f"{of_pass}: geometric mean of before / after {means[of_pass]:.4f}, {len(ratios)} points", flush=True)
    slow = [n for n, of_case in rows_by_case.items() if options.again and min(map(ratio, of_case)) < options.again]
    if slow:
        print(f"again, {4 * options.rounds} rounds:")
    again = [row for number in slow for row in rows_of(sides, number, 4 * options.rounds, options.replays)]
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"geometric_means": means, "rows": rows, "again": again}, file, indent=1)


if __name__ == "__main__":
    main()
