"""Generates the page with the options that each backend supports.

A cell shows the result of `attend info --explain`. A fake driver simulates the GPUs.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

SIZES = "2,8,512,64"
# Maps each option to the arguments of `attend info --explain` for it.
OPTIONS = {
    "float32": ["--dtype", "f32"],
    "float16": ["--dtype", "f16"],
    "bfloat16": ["--dtype", "bf16"],
    "float64": ["--dtype", "f64"],
    "head_dim 96": ["2,8,512,96"],
    "head_dim 256": ["2,8,512,256"],
    "head_dim 512": ["2,8,512,512"],
    "head_dim 128, head_dim_v 64": ["2,8,512,128", "--head_dim_v", "64"],
    "head_dim 100, head_dim_v 40": ["2,8,512,100", "--head_dim_v", "40"],
    "causal": ["--causal"],
    "window": ["--window_left", "128", "--window_right", "0"],
    "more keys than rows": ["--seq_len_k", "1024"],
    "grouped heads": ["--num_heads_kv", "2"],
    "softcap": ["--softcap", "30"],
    "ALiBi": ["--alibi"],
    "bias, and its gradient": ["--bias"],
    "boolean mask": ["--mask"],
    "sinks, and their gradient": ["--sinks"],
    "dropout": ["--dropout_p", "0.1"],
}
CPU = {"cpu": "cpu", "reference": "reference", "cpu_naive": "cpu_naive"}
# Columns of the GPU table: (compute capability, forward kernels, backward kernels).
GPU = {
    "Hopper's": (90, "sm90_forward", "sm90_backward"),
    "Ampere's": (80, "sm80_forward", "sm80_backward"),
    "`simt`": (70, "simt", "simt"),
    "`fa2`": (80, "fa2", "fa2"),
}
HEAD = """\
# What each backend does

*yes*: the backend supports the option in forward and backward. *forward*, *backward*: it supports the option in this
pass only. The problem is (2, 8, 512, 64) with one option. Its dtype is bfloat16, or float32 on CPUs and for `fa2`.

A backend can refuse a combination of two options that it supports one by one.
`attend info --explain 2,8,512,64 --causal` and `attend.explain(2, 8, 512, 64, causal=True)` report the support for any
problem, and the reason if a backend does not support it. Their answers make up this page.

`compute="auto"` picks the fastest backend that supports the entire call. It refuses an option only if every backend
refuses it.
[What each GPU gets](../operations.md#what-each-gpu-gets) lists the backends that it picks.
"""
TAIL = """\
## Beyond this table

- Custom scores and masks: supported on CPUs and by `simt`, and with limits by the kernels for Ampere and Hopper
  ([custom_scores.md](../custom_scores.md)).
- Caches: see [serving.md](../serving.md).
- Several ranks: see [ring.md](../ring.md#what-is-refused).
"""


class Program:
    """Runs `attend info --explain` for this CPU, or for a GPU of a given compute capability."""

    def __init__(self, build: Path) -> None:
        self.path = build / "attend"
        self._fakes = [next(build.rglob(f"libfake_lib{name}.so")) for name in ("cuda", "nvrtc")]

    def explain(self, options: list[str], capability: int = 0) -> dict[str, dict[str, str]]:
        """Returns {"forward": {backend: reason why it is unsupported, or ""}, "backward": ...}."""
        sizes = options[0] if re.match(r"\d", options[0]) else SIZES
        rest = [word for word in options if word != sizes]
        device = "cuda" if capability else "cpu"
        line = [self.path, "info", "--json", "--explain", sizes, "--device", device, *rest]
        environment = os.environ | {
            "ATTEND_LIBCUDA_PATH": str(self._fakes[0]), "ATTEND_FAKE_CAPABILITY": str(capability),
            "ATTEND_NVRTC_PATH": str(self._fakes[1]), "ATTEND_FAKE_NVRTC_ARCH": str(capability),
        }  # fmt: skip
        done = subprocess.run(line, capture_output=True, text=True, env=environment, check=False)
        found: dict[str, list[dict[str, Any]]] = json.loads(done.stdout) if done.returncode == 0 else {}
        lacks = {mode: {row["compute"]: row.get("lack", "") for row in rows} for mode, rows in found.items()}
        return lacks or {"forward": {}, "backward": {}}  # empty dicts if every backend refuses the problem


def cell(lacks: dict[str, dict[str, str]], forward: str, backward: str) -> str:
    can = [not lacks["forward"].get(forward, "absent"), not lacks["backward"].get(backward, "absent")]
    return {(True, True): "yes", (True, False): "forward", (False, True): "backward", (False, False): "–"}[tuple(can)]


def table(columns: list[str], rows: dict[str, list[str]]) -> str:
    lines = [["", *columns], ["---"] * (len(columns) + 1), *([name, *cells] for name, cells in rows.items())]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def in_dtype(options: list[str], dtype: str) -> list[str]:
    return options if "--dtype" in options else [*options, "--dtype", dtype]


def page(build: Path) -> str:
    program = Program(build)
    cpu, gpu = {}, {}
    for name, options in OPTIONS.items():
        lacks = program.explain(in_dtype(options, "f32"))
        cpu[name] = [cell(lacks, backend, backend) for backend in CPU]
        gpu[name] = [
            cell(
                program.explain(in_dtype(options, "f32" if forward == "fa2" else "bf16"), capability), forward, backward
            )
            for capability, forward, backward in GPU.values()
        ]
    nowhere = [name for name in OPTIONS if not re.search("yes|ward", " ".join(cpu[name] + gpu[name]))]
    if nowhere:  # the flag no longer exists, or the problem is invalid
        raise SystemExit(f"no backend supports {', '.join(nowhere)}")
    kernels = ", ".join(f"{title} {capability / 10}" for title, (capability, _, _) in GPU.items())
    return (
        f"{HEAD}\n## On CPUs\n\n{table([f'`{name}`' for name in CPU], cpu)}\n## On GPUs\n\n"
        f"Each column shows a family of kernels on a GPU of this compute capability: {kernels}. Later GPUs also run "
        f"the last three.\n\n"
        f"{table(list(GPU), gpu)}\n{ladder(program)}\n{TAIL}"
    )


def ladder(program: Program) -> str:
    """Returns the table of the ladder's kernels by dtype and mask. These kernels support only problems without
    options.
    """
    columns = {
        "float32": ["--dtype", "f32"], "float16": ["--dtype", "f16"], "bfloat16": ["--dtype", "bf16"],
        "causal": ["--causal"], "grouped heads": ["--num_heads_kv", "2"], "head_dim 128": ["2,8,512,128"],
        "head_dim 96": ["2,8,512,96"],
    }  # fmt: skip
    shown = subprocess.run([program.path, "info", "--json"], capture_output=True, text=True, check=True).stdout
    rungs = {row["name"]: row["description"] for row in json.loads(shown)["backends"]}
    names = [name for name in sorted(rungs, key=rungs.__getitem__) if rungs[name].startswith("rung")]
    rows: dict[str, list[str]] = {f"`{name}`": [] for name in names if name not in CPU}
    for options in columns.values():
        # The cell shows the better result of the two dtypes, because a rung may support only one of them.
        found = [program.explain(in_dtype(options, dtype), 90) for dtype in ("f32", "bf16")]
        for name, row in rows.items():
            cells = [cell(lacks, name.strip("`"), name.strip("`")) for lacks in found]
            row.append(min(cells, key=["yes", "forward", "backward", "–"].index))
    return f"## The ladder's kernels\n\nOn Hopper, which runs all of them.\n\n{table(list(columns), rows)}"
