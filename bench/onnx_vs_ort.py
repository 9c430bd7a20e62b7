#!/usr/bin/env python3
"""Compares attend in ONNX Runtime with ONNX Runtime's built-in operator Attention, on a CPU.

    .venv/bin/python bench/onnx_vs_ort.py [--seconds S] [--dtype f32,f16] [--case NAME] [--output FILE]

Prints a table and writes a JSON file with the time of forward in milliseconds (median and quartiles), and the ratio of
each side's time to attend's time.

The comparison is fair for these reasons:
  * One process has two sessions of the same one-node model. In one session, attend's library is registered. Both
  sessions
    read the same arrays, which are new random numbers for each case, and write to preallocated outputs.
  * Both sides have the same number of threads: ONNX Runtime's pool in one session, attend's pool in the other.
  * The sides take turns, and each round starts with the other side.
  * By default, idle threads of either side spin for some milliseconds on the cores that the other side needs. Therefore
    each repeat follows a pause, in which the threads go to sleep, and an untimed call of the same side.
  * Other processes can delay a call. A repeat is left out if threads of this process waited for a core during more than
    a tenth of its time. The JSON file contains the number of these repeats.
  * Before anything is timed, the outputs of the two sides are compared. The script fails if they differ by more than
    2e-3 of the largest magnitude in float32, or 3e-2 in float16.
ONNX Runtime has no bfloat16 Attention on CPUs.
"""

import argparse
import json
import os
import pathlib
import statistics
import sys
import time

try:
    import numpy as np
    import onnxruntime
    from onnx import helper
except ImportError as error:
    print(f"{error.name} is not installed, which this script needs: pip install onnx onnxruntime", file=sys.stderr)
    sys.exit(2)

import attend
import attend.onnx

DTYPES = {"f32": np.float32, "f16": np.float16}
BUDGET = {"f32": 2e-3, "f16": 3e-2}
MIN_REPEATS, MAX_REPEATS = 5, 101
PAUSE = 0.05  # seconds of the pause before each repeat
MOST_WAITING = 0.1  # allowed share of waiting in the time of a repeat
INPUTS = ("q", "k", "v", "mask", "past_key", "past_value", "nonpad")


def case(q, k, past=0, mask=None, three=False, nonpad=False, opset=24, **attributes):
    """Describes one problem. `q` is (batch, heads, seqlen, head_dim), and `k` is (heads, seqlen)."""
    return {"q": q, "k": k, "past": past, "mask": mask, "three": three, "nonpad": nonpad, "opset": opset,
            "attributes": attributes}  # fmt: skip


CASES = {
    "full 512": case((1, 8, 512, 64), (8, 512)),
    "causal 512": case((1, 8, 512, 64), (8, 512), is_causal=1),
    "full 1024": case((1, 8, 1024, 64), (8, 1024)),
    "causal 1024": case((1, 8, 1024, 64), (8, 1024), is_causal=1),
    "full 2048": case((1, 8, 2048, 64), (8, 2048)),
    "causal 2048": case((1, 8, 2048, 64), (8, 2048), is_causal=1),
    "batch 4": case((4, 8, 512, 64), (8, 512)),
    "head_dim 128": case((1, 8, 1024, 128), (8, 1024), is_causal=1),
    "grouped heads": case((1, 32, 512, 128), (8, 512), is_causal=1),
    "cross": case((1, 8, 256, 64), (8, 2048)),
    "three dimensions": case((1, 8, 1024, 64), (8, 1024), three=True, is_causal=1),
    "boolean mask": case((1, 8, 1024, 64), (8, 1024), mask="bool"),
    "float mask": case((1, 8, 1024, 64), (8, 1024), mask="float"),
    "softcap": case((1, 8, 1024, 64), (8, 1024), softcap=20.0, is_causal=1),
    "continued prefill": case((1, 8, 256, 64), (8, 256), past=1792, is_causal=1),
    "decode with past": case((1, 32, 1, 128), (8, 1), past=2047, is_causal=1),
    "decode, outer cache": case((4, 32, 1, 128), (8, 2048), nonpad=True, is_causal=1),
    "window 256": case((1, 8, 2048, 64), (8, 2048), opset=25, is_causal=1, left_window_size=256),
}


def arrays_of(wanted, dtype):
    rng = np.random.default_rng()
    (batch, heads, seqlen_q, head_dim), (heads_k, seqlen_k) = wanted["q"], wanted["k"]
    past = wanted["past"]
    shapes = {"q": (heads, seqlen_q), "k": (heads_k, seqlen_k), "v": (heads_k, seqlen_k)}
    if past:
        shapes |= {"past_key": (heads_k, past), "past_value": (heads_k, past)}
    arrays = {name: rng.standard_normal((batch, *n, head_dim), np.float32) for name, n in shapes.items()}
    if wanted["mask"] == "float":
        arrays["mask"] = rng.standard_normal((seqlen_q, past + seqlen_k), np.float32)
    arrays = {name: x.astype(DTYPES[dtype]) for name, x in arrays.items()}
    if wanted["mask"] == "bool":
        arrays["mask"] = rng.random((seqlen_q, past + seqlen_k)) < 0.5
    if wanted["nonpad"]:
        arrays["nonpad"] = rng.integers(seqlen_k // 2, seqlen_k, batch, endpoint=True)
    if wanted["three"]:
        for name in "qkv":
            x = arrays[name].transpose(0, 2, 1, 3)
            arrays[name] = np.ascontiguousarray(x).reshape(*x.shape[:2], -1)
    return arrays


def model_of(wanted, arrays):
    infos = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape) for n, x in arrays.items()
    ]
    outputs = ["y", "present_key", "present_value"] if wanted["past"] else ["y"]
    element = helper.np_dtype_to_tensor_dtype(arrays["q"].dtype)
    attributes = dict(wanted["attributes"])
    if wanted["three"]:
        attributes |= {"q_num_heads": wanted["q"][1], "kv_num_heads": wanted["k"][0]}
    last = max(INPUTS.index(name) for name in arrays) + 1
    node = helper.make_node("Attention", [n if n in arrays else "" for n in INPUTS[:last]], outputs, **attributes)
    graph = helper.make_graph([node], "one", infos, [helper.make_tensor_value_info(n, element, None) for n in outputs])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", wanted["opset"])], ir_version=11)


def side_of(model, arrays, shapes, threads, with_attend):
    """Returns the output arrays of a side, and a function that computes them."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1 if with_attend else threads
    if with_attend:
        options.register_custom_ops_library(attend.onnx.library_path())
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    for name, x in arrays.items():
        binding.bind_cpu_input(name, x)
    outputs = [np.full(shape, np.nan, arrays["q"].dtype) for shape in shapes]
    for info, x in zip(session.get_outputs(), outputs):
        binding.bind_output(info.name, "cpu", 0, x.dtype, x.shape, x.ctypes.data)
    return outputs, lambda: session.run_with_iobinding(binding)


def output_shapes(wanted, arrays):
    shapes = [arrays["q"].shape]
    if wanted["past"]:
        shapes += [(wanted["q"][0], wanted["k"][0], wanted["past"] + wanted["k"][1], wanted["q"][3])] * 2
    return shapes


def milliseconds(run):
    start = time.perf_counter()
    run()
    return (time.perf_counter() - start) * 1e3


def waited():
    """Returns the milliseconds that the threads of this process have waited for a core so far, as counted by Linux."""
    total = 0
    for task in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{task}/schedstat") as file:
            total += int(file.read().split()[1])
    return total / 1e6


def interleaved(sides, seconds):
    """Returns {side: milliseconds of each repeat}, and the number of repeats that were left out."""
    names, times, left_out = list(sides), {name: [] for name in sides}, dict.fromkeys(sides, 0)
    end = time.perf_counter() + seconds * len(names)
    while min(map(len, times.values())) < MIN_REPEATS or (
        time.perf_counter() < end and len(times[names[0]]) < MAX_REPEATS
    ):
        names.reverse()
        for name in names:
            time.sleep(PAUSE)
            sides[name]()
            before = waited()
            found = milliseconds(sides[name])
            if waited() - before <= MOST_WAITING * found:
                times[name].append(found)
            else:
                left_out[name] += 1
    return times, left_out


def measure(name, dtype, seconds):
    wanted = CASES[name]
    arrays = arrays_of(wanted, dtype)
    model, shapes, threads = model_of(wanted, arrays), output_shapes(wanted, arrays), attend.cpu_threads()
    outputs, sides = {}, {}
    for side in ("attend", "ort"):
        outputs[side], sides[side] = side_of(model, arrays, shapes, threads, side == "attend")
        sides[side]()
    for found, other in zip(outputs["attend"], outputs["ort"]):
        difference = float(np.max(abs(np.float32(found) - np.float32(other))) / np.max(abs(np.float32(other))))
        if not difference <= BUDGET[dtype]:
            raise SystemExit(f"{name} {dtype}: attend differs from ONNX Runtime by {difference:.1e}")
    row = {"case": name, "dtype": dtype, **wanted, "ms": {}, "ratio": {}}
    times, left_out = interleaved(sides, seconds)
    for side, values in times.items():
        low, middle, high = statistics.quantiles(values, n=4)
        repeats = {"repeats": len(values), "left_out": left_out[side]}
        row["ms"][side] = {"median": middle, "quartiles": [low, high], **repeats}
        row["ratio"][side] = middle / row["ms"]["attend"]["median"]
    return row


def page(report):
    """Returns the text about the results for docs/onnx.md."""
    machine, cells = report["machine"], {}
    for row in report["rows"]:
        ours, theirs = (row["ms"][side]["median"] for side in ("attend", "ort"))
        cells.setdefault(row["case"], []).append(f" {ours:.2f} | {theirs:.2f} | {theirs / ours:.2f} |")
    ratios = [row["ratio"]["ort"] for row in report["rows"]]
    faster, low, high = sum(ratio > 1 for ratio in ratios), min(ratios), max(ratios)
    lines = [
        f"Forward on {machine['threads']} CPU threads, compared with the operator of ONNX Runtime {machine['onnxruntime']}.",
        f"attend is faster at {faster} of {len(ratios)} points ({low:.2f} to {high:.1f} times as fast). It is slower with: "
        + ", ".join(sorted({row["case"] for row in report["rows"] if row["ratio"]["ort"] <= 1}))
        + ".",
        "The table shows medians in milliseconds. `bench/onnx_vs_ort.py` describes the method and writes",
        "[the results](../results/cpu/onnx_vs_ort.json).",
        "",
        "| | f32: attend | ONNX Runtime | times | f16: attend | ONNX Runtime | times |",
        "|---|---|---|---|---|---|---|",
        *(f"| {name} |{''.join(found)}" for name, found in cells.items()),
    ]
    return "\n".join(lines) + "\n"


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1.0, help="time for each side of each case, in seconds")
    parser.add_argument("--dtype", default="f32,f16", help="comma-separated, from f32, f16")
    parser.add_argument("--case", action="append", help=f"one of {', '.join(CASES)}; may be given several times")
    parser.add_argument("--output", type=pathlib.Path, help="JSON file for the results")
    options = parser.parse_args(arguments)
    dtypes = options.dtype.split(",")
    if unknown := [x for x in dtypes if x not in DTYPES]:
        parser.error(f"--dtype: {unknown[0]!r}, allowed {', '.join(DTYPES)}")
    if unknown := [x for x in options.case or () if x not in CASES]:
        parser.error(f"--case: {unknown[0]!r}, allowed {', '.join(CASES)}")
    rows = []
    for dtype in dtypes:
        for name in options.case or CASES:
            row = measure(name, dtype, options.seconds)
            rows.append(row)
            ours, theirs = (row["ms"][side]["median"] for side in ("attend", "ort"))
            ratio = row["ratio"]["ort"]
            print(
                f"{name:20} {dtype:4} attend {ours:8.3f} ms  ONNX Runtime {theirs:8.3f} ms  {ratio:5.2f}x", flush=True
            )
    machine = {
        "onnxruntime": onnxruntime.__version__, "attend": attend.__version__, "threads": attend.cpu_threads(),
        "simd": attend.cpu_simd_target(), "date": time.strftime("%Y-%m-%d"),
    }  # fmt: skip
    if options.output:
        options.output.write_text(json.dumps({"machine": machine, "rows": rows}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
