"""Makes the node tests for Attention of ONNX's test suite in this process."""

from __future__ import annotations

import functools
import warnings
from typing import Any, NamedTuple

import numpy as np

# onnx 1.23 has 93 tests. The suite's expected bf16 results are rounded to bf16 after every operation. attend rounds
# once, so its results are closer to float64, but may differ from the expected ones by more than the tests' rtol of
# 1e-3. One bf16 rounding is 3.9e-3.
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
    inputs: dict[str, np.ndarray]  # the arrays by the names of the operator's inputs
    outputs: dict[str, np.ndarray]
    attributes: dict[str, Any]
    rtol: float
    atol: float


@functools.cache
def cases() -> dict[str, Case]:
    """Returns {name: test}, without tests in which the operator is expanded into other operators."""
    import onnx
    from onnx.backend.test.case import node

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the suite computes with infinities, for which NumPy warns
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
    """Returns whether all outputs have the expected dtype and shape, and values within the tolerances of the test."""
    assert results.keys() == case.outputs.keys()
    for name, expected in case.outputs.items():
        found = results[name]
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape), (case.name, name)
        pair = (x.astype(np.float64) for x in (found, expected))
        if not np.allclose(*pair, rtol=case.rtol, atol=case.atol, equal_nan=True):
            return False
    return True


def exact(case: Case, y: np.ndarray) -> np.ndarray:
    """Returns the output Y in float64, computed from the same inputs by onnx's reference implementation."""
    from onnx.reference.ops.op_attention import _compute_attention

    wide = {name: x.astype(np.float64) if x.dtype.kind in "fV" else x for name, x in case.inputs.items()}
    return _compute_attention(**wide, **case.attributes)[0]
