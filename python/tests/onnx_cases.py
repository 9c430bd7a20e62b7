"""The node tests for Attention from ONNX's test suite, made in this process."""

from __future__ import annotations

import functools
import warnings
from typing import Any, NamedTuple

import numpy as np

# The numbers are for onnx 1.23, which has 93 tests. Its expected bf16 results are rounded to bf16 after every
# operation, and the tests' rtol of 1e-3 is less than one bf16 rounding, 3.9e-3. attend rounds once and is closer to
# float64.
COUNT = 93
ROUNDED_OFTENER = {
    "test_attention_3d_causal_bf16",
    "test_attention_4d_attn_mask_causal_bf16",
    "test_attention_4d_causal_bf16",
    "test_attention_4d_causal_padded_kv_bf16",
    "test_attention_4d_padded_kv_bf16",
}


class Case(NamedTuple):
    name: str
    model: Any
    inputs: dict[str, np.ndarray]  # by the operator's input names
    outputs: dict[str, np.ndarray]
    attributes: dict[str, Any]
    rtol: float
    atol: float


@functools.cache
def cases() -> dict[str, Case]:
    """Returns all tests by name, except those in which the operator is expanded into others."""
    import onnx
    from onnx.backend.test.case import node

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the suite computes with infinities
        collected = node.collect_testcases("Attention")
    found = {}
    for case in collected:
        nodes = case.model.graph.node
        if len(nodes) != 1 or nodes[0].op_type != "Attention":
            continue
        inputs, outputs = case.data_sets[0]
        found[case.name] = Case(
            case.name,
            case.model,
            dict(zip([name for name in nodes[0].input if name], inputs)),
            dict(zip([name for name in nodes[0].output if name], outputs)),
            {x.name: onnx.helper.get_attribute_value(x) for x in nodes[0].attribute},
            case.rtol,
            case.atol,
        )
    return found


def passes(case: Case, results: dict[str, np.ndarray]) -> bool:
    """Returns whether all outputs have the expected dtype and shape, and values within the test's bounds."""
    assert results.keys() == case.outputs.keys()
    for name, expected in case.outputs.items():
        found = results[name]
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape), (case.name, name)
        pair = (x.astype(np.float64) for x in (found, expected))
        if not np.allclose(*pair, rtol=case.rtol, atol=case.atol, equal_nan=True):
            return False
    return True


def exact(case: Case, y: np.ndarray) -> np.ndarray:
    """Returns Y in float64, computed by onnx's reference of the operator from the same inputs."""
    from onnx.reference.ops.op_attention import _compute_attention

    wide = {name: x.astype(np.float64) if x.dtype.kind in "fV" else x for name, x in case.inputs.items()}
    return _compute_attention(**wide, **case.attributes)[0]
