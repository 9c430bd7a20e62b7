"""Tests of attend's operators in ONNX Runtime, which run unmodified models after one line in the session's options."""

import ctypes
import importlib
import json
import pathlib
import subprocess
import sys
import threading

import numpy as np
import pytest

WHY = "the tests of ONNX Runtime need it: `make py-test ATTEND_TEST_ONNX=1`"
onnx = pytest.importorskip("onnx", reason=WHY)
onnxruntime = pytest.importorskip("onnxruntime", reason=WHY)
ml_dtypes = pytest.importorskip("ml_dtypes")

import attend.onnx
import onnx_cases
from onnx import TensorProto, helper

INVALID = onnxruntime.capi.onnxruntime_pybind11_state.InvalidArgument
# The library that CMake builds for programs without Python, if it exists.
BUILT = pathlib.Path(__file__).resolve().parents[2] / "build/release/src/ort/libattend_ort.so"
ELEMENTS = {"f32": TensorProto.FLOAT, "f16": TensorProto.FLOAT16, "f64": TensorProto.DOUBLE}
DTYPES = {"f32": np.float32, "f16": np.float16, "f64": np.float64}
EPS = {"f32": 2**-23, "f16": 2**-10, "f64": 2**-52}
BFLOAT16 = TensorProto.BFLOAT16
ALL_INPUTS = ("q", "k", "v", "mask", "past_key", "past_value", "nonpad")
ALL_OUTPUTS = ("y", "present_key", "present_value", "qk")


@pytest.fixture(
    params=["package", pytest.param("own", marks=pytest.mark.skipif(not BUILT.exists(), reason=str(BUILT)))]
)
def library(request):
    return attend.onnx.library_path() if request.param == "package" else str(BUILT)


def session_of(model, library):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # errors are raised as exceptions, so they need not be logged
    if library is not None:
        options.register_custom_ops_library(library)
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def model_of(arrays, outputs=("y",), opset=24, **attributes):
    """Returns a model with one Attention node. All dimensions of its inputs except the last are symbolic."""
    names = [name if name in arrays else "" for name in ALL_INPUTS]
    infos = []
    for name, x in arrays.items():
        element = helper.np_dtype_to_tensor_dtype(x.dtype)
        infos.append(helper.make_tensor_value_info(name, element, [f"{name}{d}" for d in x.shape[:-1]] + [x.shape[-1]]))
    element = helper.np_dtype_to_tensor_dtype(arrays["q"].dtype)
    results = [helper.make_tensor_value_info(name, element, None) for name in outputs]
    names_out = [name if name in outputs else "" for name in ALL_OUTPUTS]
    while not names[-1]:
        names.pop()
    while not names_out[-1]:
        names_out.pop()
    node = helper.make_node("Attention", names, names_out, **attributes)
    graph = helper.make_graph([node], "one", infos, results)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=11)


def arrays(dtype=np.float32, seqlen_q=5, seqlen_k=7, heads=(4, 2), head_dims=(8, 8)):
    rng = np.random.default_rng()
    shapes = (
        (heads[0], seqlen_q, head_dims[0]),
        (heads[1], seqlen_k, head_dims[0]),
        (heads[1], seqlen_k, head_dims[1]),
    )
    return {name: rng.standard_normal((2, *shape)).astype(dtype) for name, shape in zip("qkv", shapes)}


def exact(x, **attributes):
    """Returns the output Y in float64, computed by onnx's reference implementation of the operator."""
    from onnx.reference.ops.op_attention import _compute_attention

    wide = [x[name].astype(np.float64) for name in "qkv"]
    return _compute_attention(*wide, **attributes)[0]


def run_with_bfloat16(session, inputs):
    """Runs a session with bfloat16 inputs. The inputs are passed as raw memory, because NumPy has no bfloat16 type."""
    values = {}
    for name, x in inputs.items():
        if x.dtype == ml_dtypes.bfloat16:
            values[name] = onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(x.view(np.uint16), BFLOAT16)
        else:
            values[name] = onnxruntime.OrtValue.ortvalue_from_numpy(x)
    results = []
    for value in session.run_with_ort_values(None, values):
        if value.data_type() != "tensor(bfloat16)":
            results.append(value.numpy())
            continue
        memory = (ctypes.c_uint16 * int(np.prod(value.shape()))).from_address(value.data_ptr())
        results.append(np.array(memory, np.uint16).view(ml_dtypes.bfloat16).reshape(value.shape()))
    return results


def test_every_node_test_passes_but_those_that_are_listed(library):
    cases = onnx_cases.cases()
    failed = set()
    for case in cases.values():
        results = run_with_bfloat16(session_of(case.model, library), case.inputs)
        if not onnx_cases.passes(case, dict(zip(case.outputs, results))):
            failed.add(case.name)
            truth = onnx_cases.exact(case, results[0])
            own, expected = (abs(y.astype(np.float64) - truth).max() for y in (results[0], case.outputs["Y"]))
            assert own <= expected, case.name
    assert (len(cases), failed) == (onnx_cases.COUNT, onnx_cases.ROUNDED_OFTENER)


@pytest.mark.parametrize("opset", [23, 24])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_model_runs_as_before_on_attend(dtype, opset, library):
    x = arrays(DTYPES[dtype], seqlen_q=33, seqlen_k=65, head_dims=(16, 24))
    model = model_of(x, opset=opset, is_causal=1)
    (y,) = session_of(model, library).run(None, x)
    (of_runtime,) = session_of(model, None).run(None, x)
    truth = exact(x, is_causal=1)
    assert y.dtype == of_runtime.dtype and y.shape == of_runtime.shape
    assert abs(y - truth).max() <= 4 * EPS[dtype] * abs(truth).max()
    # The budget is wider here, because the number of roundings in ONNX Runtime is unknown.
    np.testing.assert_allclose(y, of_runtime, atol=16 * EPS[dtype] * abs(truth).max())


def test_it_is_attend_that_runs():
    """An invalid call has attend's error message only if the library is registered."""
    x = arrays() | {"nonpad": np.array([3, 8])}
    model = model_of(x)
    line = "Status Message: nonpad_kv_seqlen: 8, allowed 0 to 7"
    with pytest.raises(INVALID, match=f"INVALID_ARGUMENT.*{line}$"):
        session_of(model, attend.onnx.library_path()).run(None, x)
    try:
        session_of(model, None).run(None, x)  # without the library, ONNX Runtime 1.24 runs the model
    except (INVALID, onnxruntime.capi.onnxruntime_pybind11_state.Fail) as error:
        assert line not in str(error)


def test_an_old_runtime_is_refused(library):
    """A table of API functions simulates an old ONNX Runtime."""
    told = []
    create_status = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p)(
        lambda code, line: told.append((code, line.decode())) or 1
    )
    table = (ctypes.c_void_p * 300)(ctypes.cast(create_status, ctypes.c_void_p).value)

    def base_of(version):
        get_table = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_uint32)(lambda _: ctypes.addressof(table))
        line = ctypes.create_string_buffer(version)
        text = ctypes.CFUNCTYPE(ctypes.c_void_p)(lambda: ctypes.addressof(line))
        base = (ctypes.c_void_p * 2)(*(ctypes.cast(f, ctypes.c_void_p).value for f in (get_table, text)))
        return base, (get_table, text)

    register = ctypes.CDLL(library).RegisterCustomOps
    register.restype = ctypes.c_void_p
    for version in (b"1.23.2", b"0.30.0", b"nothing"):
        base, kept = base_of(version)
        assert register(None, base) == 1 and kept
    wanted = "ONNX Runtime: version {}, allowed 1.24 or later"
    assert told == [(9, wanted.format(x)) for x in ("1.23.2", "0.30.0", "nothing")]


def test_the_shape_of_y_is_known_before_the_run(library):
    x = arrays(head_dims=(8, 24))
    assert session_of(model_of(x), library).get_outputs()[0].shape == ["q2", "q4", "q5", 24]


def test_three_dimensions(library):
    x = {name: np.ascontiguousarray(a.transpose(0, 2, 1, 3)).reshape(2, a.shape[2], -1) for name, a in arrays().items()}
    session = session_of(model_of(x, q_num_heads=4, kv_num_heads=2, is_causal=1), library)
    assert session.get_outputs()[0].shape == ["q2", "q5", 32]
    (y,) = session.run(None, x)
    truth = exact(x, q_num_heads=4, kv_num_heads=2, is_causal=1)
    np.testing.assert_allclose(y, truth, rtol=1e-5, atol=1e-6)


def bound(session, x, shapes, fill):
    """Returns output arrays, which initially contain `fill`, and a function that runs the session and writes them."""
    binding = session.io_binding()
    for name, a in x.items():
        binding.bind_cpu_input(name, a)
    memory = {name: np.full(shape, fill, np.float32) for name, shape in shapes.items()}
    for name, a in memory.items():
        binding.bind_output(name, "cpu", 0, np.float32, a.shape, a.ctypes.data)
    return memory, lambda: session.run_with_iobinding(binding)


SHAPES = {"y": (2, 4, 5, 8), "present_key": (2, 2, 10, 8), "present_value": (2, 2, 10, 8), "qk": (2, 4, 5, 10)}


def with_past(**more):
    x = arrays()
    past = {name: np.random.default_rng().standard_normal((2, 2, 3, 8), np.float32) for name in ALL_INPUTS[4:6]}
    return x | past | more


@pytest.mark.parametrize("outputs", [ALL_OUTPUTS, ALL_OUTPUTS[:1]])
def test_every_output_is_written_whole(outputs, library):
    """Every element of every output is written, also in rows that see no key, and if past keys are not concatenated
    into an output.
    """
    hidden = np.arange(5)[:, None] != 2
    x = with_past(mask=np.broadcast_to(hidden, (5, 10)).copy())
    session = session_of(model_of(x, outputs, qk_matmul_output_mode=3, is_causal=1), library)
    memory, run = bound(session, x, {name: SHAPES[name] for name in outputs}, np.nan)
    run()
    named = {"attn_mask": x["mask"], "past_key": x["past_key"], "past_value": x["past_value"]}
    wanted = attend.onnx.attention(x["q"], x["k"], x["v"], **named, qk_matmul_output_mode=3, is_causal=1, with_qk=True)
    for name, truth in zip(ALL_OUTPUTS, wanted):
        if name in outputs:
            np.testing.assert_allclose(memory[name], truth, rtol=1e-5, atol=1e-6, err_msg=name)
    assert (memory["y"][:, :, 2] == 0).all()


@pytest.mark.parametrize(
    "changes, attributes, message",
    [
        (
            {"mask": np.ones((3, 7), bool)},
            {},
            "attn_mask: shape (3, 7), allowed shapes that broadcast to (2, 4, 5, 10); the",
        ),
        (
            {"mask": np.ones((5, 11), bool)},
            {},
            "attn_mask: shape (5, 11), allowed shapes that broadcast to (2, 4, 5, 10); the",
        ),
        ({"mask": np.ones((5, 10), np.int64)}, {}, "attn_mask: dtype i64, allowed bool, f32, f16, bf16, f64"),
        ({"mask": np.ones((5, 10), np.int8)}, {}, "attn_mask: ONNX's element type 3, allowed bool, f32"),
        ({"nonpad": np.array([3, 7])}, {}, "nonpad_kv_seqlen: given with past_key, allowed without it only"),
        ({"k": np.ones((2, 2, 7, 9), np.float32)}, {}, "K: head_dim 9, allowed 8 as Q"),
        ({"past_key": np.ones((2, 2, 4, 8), np.float32)}, {}, "past_value: seqlen 3, allowed 4 as past_key"),
        ({}, {"q_num_heads": 3}, "q_num_heads: 3, allowed 4, the heads of Q"),
        ({}, {"softmax_precision": 7}, "softmax_precision: 7, allowed 1, 10, 11, 16"),
        ({}, {"softcap": -1.0}, "softcap: -1"),
        ({}, {"scale": float("inf")}, "scale: inf"),
    ],
)
def test_a_refusal_is_one_line_and_nothing_is_written(changes, attributes, message, library):
    x = with_past(**changes)
    session = session_of(model_of(x, ALL_OUTPUTS, **attributes), library)
    memory, run = bound(session, x, SHAPES, 7.0)
    with pytest.raises(Exception) as caught:
        run()
    line = str(caught.value)
    assert f"Status Message: {message}" in line and "\n" not in line.strip()
    assert all((a == 7).all() for a in memory.values())


def test_a_head_dim_that_attend_lacks_is_refused_before_the_past_is_joined(library):
    x = arrays(head_dims=(520, 520)) | {n: np.zeros((2, 2, 3, 520), np.float32) for n in ALL_INPUTS[4:6]}
    session = session_of(model_of(x, ALL_OUTPUTS[:3]), library)
    shapes = {"y": (2, 4, 5, 520), "present_key": (2, 2, 10, 520), "present_value": (2, 2, 10, 520)}
    memory, run = bound(session, x, shapes, 7.0)
    with pytest.raises(Exception, match="head_dim 520, allowed 1 to 512"):
        run()
    assert all((a == 7).all() for a in memory.values())


@pytest.mark.parametrize("empty", ["batch", "rows", "keys"])
def test_empty_tensors(empty, library):
    x = arrays(seqlen_q=0 if empty == "rows" else 5, seqlen_k=0 if empty == "keys" else 7)
    if empty == "batch":
        x = {name: a[:0] for name, a in x.items()}
    (y,) = session_of(model_of(x), library).run(None, x)
    assert y.shape == x["q"].shape and (y == 0).all()


@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize("seqlen_q", [1, 5, 9])
def test_windows_behind_a_past(seqlen_q, dtype, library):
    """Calls with few rows use the kernels for decoding, and calls with many rows use other kernels."""
    for new, past in ((seqlen_q, 0), (seqlen_q, 300), (3, 40)):
        x = arrays(DTYPES[dtype], seqlen_q, new)
        pasts = {
            n: np.random.default_rng().standard_normal((2, 2, past, 8)).astype(DTYPES[dtype]) for n in ALL_INPUTS[4:6]
        }
        for left, causal in ((-1, 1), (2, 1), (5, 0), (-1, 0)):
            options = {"is_causal": causal, "left_window_size": left, "right_window_size": 1, "softcap": 4.0}
            session = session_of(model_of(x | pasts, ALL_OUTPUTS[:3], 25, **options), library)
            y, present_key, _ = session.run(None, x | pasts)
            wide = {name: a.astype(np.float64) for name, a in pasts.items()}
            truth = exact(x, **wide, **options)
            np.testing.assert_allclose(
                y, truth, atol=8 * EPS[dtype] * max(1, abs(truth).max()), err_msg=str((past, options))
            )
            assert (present_key == np.concatenate((pasts["past_key"], x["k"]), axis=2)).all()


def test_a_session_runs_from_several_threads(library):
    x = arrays(seqlen_q=65, seqlen_k=65)
    session = session_of(model_of(x, is_causal=1), library)
    (wanted,) = session.run(None, x)
    found = [None] * 4

    def work(n):
        found[n] = [session.run(None, x)[0] for _ in range(8)]

    threads = [threading.Thread(target=work, args=(n,)) for n in range(len(found))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all((y == wanted).all() for results in found for y in results)


INTERRUPTED = """
import os, signal, sys, threading, time
sys.path.insert(0, sys.argv[1])
import attend.onnx, numpy as np, test_onnxruntime as tests
x = tests.arrays(np.float64, 1500, 1500, head_dims=(64, 64))
session = tests.session_of(tests.model_of(x), attend.onnx.library_path())
threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
begin = time.perf_counter()
try:
    while time.perf_counter() < begin + 20:
        session.run(None, x)
except KeyboardInterrupt:
    print("interrupted")
"""


def test_ctrl_c_is_no_error_of_the_model():
    command = [sys.executable, "-c", INTERRUPTED, str(pathlib.Path(__file__).parent)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert done.stdout == "interrupted\n", done.stderr


def test_the_page_has_the_figures_of_the_results(monkeypatch):
    root = pathlib.Path(__file__).resolve().parents[2]
    monkeypatch.syspath_prepend(str(root / "bench"))
    report = json.loads((root / "results/cpu/onnx_vs_ort.json").read_text())
    page = (root / "docs/onnx.md").read_text()
    assert page.endswith("\n## Speed\n\n" + importlib.import_module("onnx_vs_ort").page(report))


def test_the_script_measures(monkeypatch, tmp_path):
    root = pathlib.Path(__file__).resolve().parents[2]
    monkeypatch.syspath_prepend(str(root / "bench"))
    script, file = importlib.import_module("onnx_vs_ort"), tmp_path / "report.json"
    # Disables the limit, because other tests run at the same time.
    monkeypatch.setattr(script, "MOST_WAITING", float("inf"))
    assert script.main(["--seconds", "0", "--case", "decode with past", "--dtype", "f32", "--output", str(file)]) == 0
    (row,) = json.loads(file.read_text())["rows"]
    assert row["ms"].keys() == {"attend", "ort"} and all(x["repeats"] >= 5 for x in row["ms"].values())
    monkeypatch.setattr(script, "BUDGET", {"f32": 0.0})  # makes the comparison of the outputs fail
    with pytest.raises(SystemExit, match="differs from ONNX Runtime"):
        script.main(["--seconds", "0", "--case", "decode with past", "--dtype", "f32"])
