"""The C interface through ctypes, as programs in other languages call it: ctypes_test.py libattend_c.so"""

from __future__ import annotations

import ctypes
import json
import math
import random
import sys

OK, INVALID_ARGUMENT, UNSUPPORTED = 0, 1, 2
F32 = 0


class Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("shape", ctypes.c_int64 * 4),
        ("stride", ctypes.c_int64 * 4),
        ("dtype", ctypes.c_int32),
        ("device_type", ctypes.c_int32),
        ("device_index", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
    ]


class Error(ctypes.Structure):
    _fields_ = [("code", ctypes.c_int32), ("message", ctypes.c_char * 1020)]


class Params(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("scale", ctypes.c_double),
        ("has_scale", ctypes.c_int32),
        ("causal", ctypes.c_int32),
        ("window_left", ctypes.c_int64),
        ("window_right", ctypes.c_int64),
        ("softcap", ctypes.c_double),
        ("alibi_slopes", ctypes.POINTER(Tensor)),
        ("bias", ctypes.POINTER(Tensor)),
        ("mask", ctypes.POINTER(Tensor)),
        ("sinks", ctypes.POINTER(Tensor)),
        ("dropout_p", ctypes.c_double),
        ("seed", ctypes.c_uint64),
        ("offset", ctypes.c_uint64),
        ("philox_state", ctypes.c_void_p),
        ("varlen", ctypes.c_void_p),
        ("workspace", ctypes.c_void_p),
        ("workspace_bytes", ctypes.c_size_t),
        ("compute", ctypes.c_char_p),
        ("deterministic", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
    ]


class NewerParams(Params):
    """Params with a field that a later version of the header might add."""

    _fields_ = [("later", ctypes.c_int64)]


class ForwardCall(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("q", ctypes.POINTER(Tensor)),
        ("k", ctypes.POINTER(Tensor)),
        ("v", ctypes.POINTER(Tensor)),
        ("o", ctypes.POINTER(Tensor)),
        ("lse", ctypes.POINTER(Tensor)),
        ("params", ctypes.POINTER(Params)),
        ("stream", ctypes.c_void_p),
    ]


def tensor(lib: ctypes.CDLL, rows: int, columns: int, values: list[float]) -> tuple[Tensor, ctypes.Array]:
    memory = (ctypes.c_float * (rows * columns))(*values)
    view = Tensor()
    lib.attend_tensor_init(ctypes.byref(view), memory, F32, (ctypes.c_int64 * 4)(1, 1, rows, columns))
    return view, memory


def attention_by_loop(q: ctypes.Array, k: ctypes.Array, v: ctypes.Array, rows: int, columns: int) -> list[float]:
    """Computes causal attention in double."""
    o = []
    for i in range(rows):
        scores = [sum(q[i * columns + d] * k[j * columns + d] for d in range(columns)) for j in range(i + 1)]
        weights = [math.exp((s - max(scores)) / math.sqrt(columns)) for s in scores]
        for d in range(columns):
            o.append(sum(w * v[j * columns + d] for j, w in enumerate(weights)) / sum(weights))
    return o


def explanation(lib: ctypes.CDLL, call: ForwardCall, error: Error) -> list[dict]:
    plan, needed = ctypes.c_void_p(), ctypes.c_size_t()
    assert lib.attend_plan_forward(ctypes.byref(call), ctypes.byref(plan), ctypes.byref(error)) == OK, error.message
    assert lib.attend_plan_explain(plan, None, ctypes.c_size_t(0), ctypes.byref(needed), None) == OK
    text = ctypes.create_string_buffer(needed.value)
    assert lib.attend_plan_explain(plan, text, needed, None, None) == OK
    lib.attend_plan_free(plan)
    return json.loads(text.value.decode())


def main(path: str) -> None:
    lib = ctypes.CDLL(path)
    lib.attend_version.restype = ctypes.c_char_p
    rows, columns = 7, 12
    (q, q_data), (k, k_data), (v, v_data) = (
        tensor(lib, rows, columns, [random.gauss(0, 1) for _ in range(rows * columns)]) for _ in range(3)
    )
    o, o_data = tensor(lib, rows, columns, [math.nan] * rows * columns)
    params, call, error = NewerParams(), ForwardCall(), Error()
    lib.attend_params_init(ctypes.byref(params), ctypes.c_size_t(ctypes.sizeof(NewerParams)))
    assert params.struct_size == ctypes.sizeof(NewerParams) and params.window_left == -1
    params.causal = 1
    lib.attend_forward_call_init(ctypes.byref(call), ctypes.c_size_t(ctypes.sizeof(call)))
    call.q, call.k, call.v, call.o = (ctypes.pointer(t) for t in (q, k, v, o))
    call.params = ctypes.cast(ctypes.pointer(params), ctypes.POINTER(Params))

    assert lib.attend_forward(ctypes.byref(call), ctypes.byref(error)) == OK, error.message
    wanted = attention_by_loop(q_data, k_data, v_data, rows, columns)
    assert all(abs(found - x) <= 1e-5 * (1 + abs(x)) for found, x in zip(o_data, wanted))

    candidates = explanation(lib, call, error)
    assert [c["compute"] for c in candidates if c["chosen"]] == ["cpu"], candidates
    assert set(candidates[0]) == {
        *("compute", "chosen", "lack", "why", "variant", "steps", "estimated_us", "workspace_bytes")
    }

    params.later = 1
    assert lib.attend_forward(ctypes.byref(call), ctypes.byref(error)) == UNSUPPORTED
    assert error.message.startswith(b"params.struct_size: 160 with byte 152 not 0"), error.message
    params.later = 0
    params.dropout_p = 2
    assert lib.attend_forward(ctypes.byref(call), ctypes.byref(error)) == INVALID_ARGUMENT
    assert error.message == b"dropout_p: 2, allowed 0 <= dropout_p < 1", error.message
    print(f"ctypes: attend {lib.attend_version().decode()}: ok")


if __name__ == "__main__":
    main(sys.argv[1])
