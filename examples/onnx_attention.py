#!/usr/bin/env python3
"""Runs a standard ONNX model with attend in ONNX Runtime: a prefill, then decoding steps with a cache.

    python examples/onnx_attention.py [--seed 0]

The model is one Attention node of opset 24 with past keys and values. It runs in two sessions. In one session attend's
operators are registered. The results of both are compared with the float64 formula. The exit status is 0 if all checks
passed, 1 if a check failed, and 2 if the usage was wrong or a package is missing.
"""

import argparse
import sys
from typing import Any

try:
    import numpy as np
    import onnx
    import onnxruntime
except ImportError as error:
    print(f"{error.name} is not installed, which this example needs: pip install onnx onnxruntime", file=sys.stderr)
    sys.exit(2)

import attend.onnx

HEADS, HEADS_K, HEAD_DIM = 8, 2, 64
PROMPT, STEPS = 100, 5  # tokens of the prompt, and decoding steps of one token
BUDGET = 1e-5  # allowed error relative to the largest magnitude, for float32
CACHE = ("past_key", "past_value")


def model():
    """Makes the ONNX model: causal attention of new tokens to earlier tokens. It maps q, k, v and the past keys and
    values to y and the new past.
    """
    names = ["q", "k", "v", "", *CACHE]
    shapes = {"q": ["batch", HEADS, "new", HEAD_DIM]}
    shapes |= {name: ["batch", HEADS_K, "new", HEAD_DIM] for name in ("k", "v")}
    shapes |= {name: ["batch", HEADS_K, "past", HEAD_DIM] for name in CACHE}
    element, tensor = onnx.TensorProto.FLOAT, onnx.helper.make_tensor_value_info
    outputs = ["y", "present_key", "present_value"]
    node = onnx.helper.make_node("Attention", names, outputs, is_causal=1)
    graph = onnx.helper.make_graph(
        [node],
        "attention",
        [tensor(name, element, shape) for name, shape in shapes.items()],
        [tensor(name, element, ["batch", None, None, HEAD_DIM]) for name in outputs],
    )
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 24)], ir_version=11)


def session(with_attend):
    options = onnxruntime.SessionOptions()
    if with_attend:
        options.register_custom_ops_library(attend.onnx.library_path())
    return onnxruntime.InferenceSession(model().SerializeToString(), options, providers=["CPUExecutionProvider"])


def formula(q, k, v):
    """Computes causal attention of the last rows of a sequence in float64."""
    q, k, v = (x.astype(np.float64) for x in (q, *(np.repeat(x, HEADS // HEADS_K, axis=1) for x in (k, v))))
    s = q @ k.transpose(0, 1, 3, 2) / np.sqrt(HEAD_DIM)
    rows, keys = s.shape[2:]
    s = np.where(np.tri(rows, keys, keys - rows, dtype=bool), s, -np.inf)
    p = np.exp(s - s.max(axis=3, keepdims=True))
    return p / p.sum(axis=3, keepdims=True) @ v


def largest_difference(run, rng):
    """Returns the largest difference from the formula, for a prompt and steps of one token."""
    past: dict[str, Any] = {name: np.zeros((1, HEADS_K, 0, HEAD_DIM), np.float32) for name in CACHE}
    differences = []
    for new in (PROMPT, *[1] * STEPS):
        q, k, v = (rng.standard_normal((1, h, new, HEAD_DIM), np.float32) for h in (HEADS, HEADS_K, HEADS_K))
        y, *present = run(None, {"q": q, "k": k, "v": v, **past})
        past = dict(zip(CACHE, present))
        wanted = formula(q, *present)
        differences.append(abs(y - wanted).max() / abs(wanted).max())
    return float(np.max(differences))  # is NaN if any difference is NaN


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    failed = False
    for name, with_attend in (("attend", True), ("ONNX Runtime's own", False)):
        difference = largest_difference(session(with_attend).run, np.random.default_rng(options.seed))
        is_right = difference <= BUDGET
        failed |= not is_right
        print(f"{name:20} differs by {difference:.1e} from float64{'' if is_right else ': WRONG'}")
    print("onnx example: FAILED" if failed else "onnx example: ok")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
