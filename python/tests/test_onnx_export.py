"""Tests of torch.onnx.export of programs that call attend. ONNX Runtime runs the models with attend and with its own
operator.
"""

import re

import numpy as np
import pytest

WHY = "the tests of the export need it: `make py-test ATTEND_TEST_TORCH=1 ATTEND_TEST_ONNX=1`"
torch = pytest.importorskip("torch", reason=WHY)
onnxruntime = pytest.importorskip("onnxruntime", reason=WHY)
pytest.importorskip("onnxscript", reason=WHY)

import attend
import attend.onnx


class Program(torch.nn.Module):
    def __init__(self, options):
        super().__init__()
        self.options = options

    def forward(self, q, k, v, extra=None):
        given = {name: extra for name in ("mask", "bias") if self.options.get(name)}
        return attend.attention(q, k, v, **{**self.options, **given})


def tensors(layout="bhsd", seqlen_q=6, seqlen_k=9):
    shapes = [(2, heads, n, 8) for heads, n in ((4, seqlen_q), (2, seqlen_k), (2, seqlen_k))]
    return [torch.randn(shape if layout == "bhsd" else [shape[i] for i in (0, 2, 1, 3)]) for shape in shapes]


def exported(options, inputs, opset):
    table, program = attend.onnx.translation_table(opset), Program(options).eval()
    options = {"dynamo": True, "verbose": False, "opset_version": opset, "custom_translation_table": table}
    return torch.onnx.export(program, tuple(inputs), **options).model_proto


def run(model, inputs, with_attend):
    options = onnxruntime.SessionOptions()
    if with_attend:
        options.register_custom_ops_library(attend.onnx.library_path())
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, {x.name: t.numpy() for x, t in zip(session.get_inputs(), inputs)})


@pytest.mark.parametrize(
    "options, layout",
    [
        ({}, "bshd"),
        ({"causal": True}, "bhsd"),
        ({"softcap": 3.0, "scale": 0.2}, "bhsd"),
        ({"mask": True, "causal": True}, "bhsd"),
        ({"bias": True}, "bshd"),
        ({"window": (3, 1)}, "bhsd"),
    ],
    ids=str,
)
def test_an_exported_program_gives_what_the_program_gives(options, layout):
    inputs = tensors(layout)
    if "mask" in options:
        inputs.append(torch.rand(6, 9) < 0.7)
    if "bias" in options:
        inputs.append(torch.randn(4, 6, 9))
    options = options | {"layout": layout}
    model = exported(options, inputs, 25 if "window" in options else 24)
    assert [node.op_type for node in model.graph.node].count("Attention") == 1
    wanted = Program(options)(*inputs).numpy()
    (y,) = run(model, inputs, with_attend=True)
    np.testing.assert_allclose(y, wanted, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(run(model, inputs, with_attend=False)[0], wanted, rtol=1e-4, atol=1e-5)


class Sdpa(torch.nn.Module):
    def forward(self, q):
        return torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)


def test_what_torch_itself_exports_runs_on_attend():
    inputs = [torch.randn(2, 4, 6, 8)]
    model = torch.onnx.export(Sdpa().eval(), tuple(inputs), dynamo=True, verbose=False, opset_version=24).model_proto
    assert [node.op_type for node in model.graph.node] == ["Attention"]
    (y,) = run(model, inputs, with_attend=True)
    np.testing.assert_allclose(y, Sdpa()(*inputs).numpy(), rtol=1e-5, atol=1e-6)


def test_lse_too():
    """The exported model also computes lse, including rows that see no key."""
    options, inputs = {"causal": True, "return_lse": True}, tensors(seqlen_q=9, seqlen_k=6)
    o, lse = run(exported(options, inputs, 24), inputs, with_attend=True)
    wanted_o, wanted_lse = (x.numpy() for x in Program(options)(*inputs))
    assert np.isneginf(wanted_lse[:, :, :3]).all() and np.isfinite(wanted_lse[:, :, 3:]).all()
    np.testing.assert_allclose(o, wanted_o, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(lse, wanted_lse, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"window": (3, 1)}, r"window: \(3, 1\), allowed \(-1, -1\) in opset 24, any in opset 25"),
        ({"alibi_slopes": torch.ones(4)}, "alibi_slopes: given, allowed None in ONNX"),
        ({"dropout_p": 0.5, "seed": 1}, "dropout_p: 0.5, allowed 0 in ONNX"),
    ],
)
def test_what_onnx_lacks_is_refused_while_the_program_is_exported(options, message):
    with pytest.raises(Exception) as caught:
        exported(options, tensors(), 24)
    lines, error = [], caught.value
    while error is not None:
        lines.append(str(error))
        error = error.__cause__
    assert any(re.search(message, line) for line in lines), lines


def test_an_old_opset_is_refused():
    with pytest.raises(attend.ArgumentError, match="opset_version: 23, allowed 24 or later"):
        attend.onnx.translation_table(23)
