"""Makes custom calls of attend as XLA does, with call frames that are built here, on a GPU that is simulated in
software.

    python xla_frames.py SEED BACKEND

ATTEND_LIBCUDA_PATH and ATTEND_NVRTC_PATH must select the simulated GPU. The program prints its results as JSON.
"""

from __future__ import annotations

import ctypes
import json
import sys
from typing import Any

import numpy as np
from attend import _core

INITIALIZE, EXECUTE = 2, 3
STREAM = 0
TYPES = {"float32": 11, "uint32": 8, "int32": 4, "int64": 5, "float64": 12}
P, SIZE, INT, INT64 = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int64


def struct(name: str, **fields: Any) -> Any:
    """Returns a ctypes struct with the fields with which all of XLA's structs begin, followed by `fields`."""
    return type(name, (ctypes.Structure,), {"_fields_": [("struct_size", SIZE), ("extension", P), *fields.items()]})


Version = struct("Version", major=INT, minor=INT)
Metadata = type("Metadata", (ctypes.Structure,), {"_fields_": [("size", SIZE), ("version", Version), ("traits", INT)]})
Buffer = struct("Buffer", dtype=INT, data=P, rank=INT64, dims=P)
Entries = struct("Entries", size=INT64, types=P, entries=P)
Attributes = struct("Attributes", size=INT64, types=P, names=P, entries=P)
ErrorArgs = struct("ErrorArgs", message=ctypes.c_char_p, code=INT)
StreamArgs = struct("StreamArgs", context=P, stream=P)
CREATE, GET = ctypes.CFUNCTYPE(P, ctypes.POINTER(ErrorArgs)), ctypes.CFUNCTYPE(P, ctypes.POINTER(StreamArgs))
Api = struct("Api", version=Version, internal=P, create=CREATE, get_message=P, destroy=P, register=P, get_stream=GET)
Frame = struct("Frame", api=P, context=P, stage=INT, operands=Entries, results=Entries, attributes=Attributes)


class Span(ctypes.Structure):
    _fields_ = [("data", ctypes.c_char_p), ("size", SIZE)]


class Scalar(ctypes.Structure):
    _fields_ = [("dtype", INT), ("value", P)]


class Caller:
    """Calls a handler. Keeps all objects to which the call frame points alive until the call is done."""

    def __init__(self, capsule: Any) -> None:
        get = ctypes.pythonapi.PyCapsule_GetPointer
        get.restype, get.argtypes = P, (ctypes.py_object, ctypes.c_char_p)
        self._handler = ctypes.CFUNCTYPE(P, P)(get(capsule, None))
        self.errors: list[tuple[str, int]] = []
        self.streams = 0
        self._kept: list[Any] = []

    def metadata(self) -> tuple[int, int, int]:
        """Returns the version and the traits of the handler."""
        found = Metadata(size=ctypes.sizeof(Metadata))
        extension = (P * 4)(ctypes.sizeof(P) * 3, 1, None, ctypes.addressof(found))
        frame = Frame(extension=ctypes.addressof(extension))
        assert self._handler(ctypes.addressof(frame)) is None
        return found.version.major, found.version.minor, found.traits

    def run(self, stage: int, operands: dict[str, Any], results: dict[str, Any], **attributes: Any) -> None:
        attributes |= {"operands": " ".join(operands), "results": " ".join(results)}
        api = Api(
            struct_size=ctypes.sizeof(Api), create=self._keep(CREATE(self._create)),
            get_stream=self._keep(GET(self._get_stream)),
        )  # fmt: skip
        frame = Frame(
            api=ctypes.addressof(api), stage=stage, operands=self._buffers(operands), results=self._buffers(results),
            attributes=self._attributes(dict(sorted(attributes.items()))),
        )  # fmt: skip
        failed = self._handler(ctypes.addressof(frame))
        assert (failed is not None) == bool(self.errors)
        self._kept.clear()

    def _create(self, args: Any) -> int:
        self.errors.append((args.contents.message.decode(), args.contents.code))
        return 1

    def _get_stream(self, args: Any) -> None:
        self.streams += 1
        args.contents.stream = STREAM

    def _keep(self, x: Any) -> Any:
        self._kept.append(x)
        return x

    def _array(self, kind: Any, values: list[Any]) -> int:
        return ctypes.addressof(self._keep((kind * max(len(values), 1))(*values)))

    def _buffers(self, arrays: dict[str, Any]) -> Any:
        entries = []
        for x in arrays.values():
            dims = self._array(INT64, list(x.shape))
            buffer = self._keep(Buffer(dtype=TYPES[str(x.dtype)], data=x.ctypes.data, rank=x.ndim, dims=dims))
            entries.append(ctypes.addressof(buffer))
        return Entries(size=len(entries), types=self._array(INT, [1] * len(entries)), entries=self._array(P, entries))

    def _attributes(self, values: dict[str, Any]) -> Any:
        names, types, entries = [], [], []
        for name, x in values.items():
            names.append(ctypes.addressof(self._keep(Span(name.encode(), len(name)))))
            if isinstance(x, str):
                types.append(4)
                entry = self._keep(Span(x.encode(), len(x)))
            else:
                types.append(3)
                value = self._keep(np.array(x))
                entry = self._keep(Scalar(TYPES[str(value.dtype)], value.ctypes.data))
            entries.append(ctypes.addressof(entry))
        found = [self._array(kind, x) for kind, x in ((INT, types), (P, names), (P, entries))]
        return Attributes(size=len(names), types=found[0], names=found[1], entries=found[2])


def main() -> None:
    """Runs forward and backward with scratch memory, in both stages, and one call that the handler refuses."""
    from attend._settings import Settings
    from attend.jax import _call
    from attend.jax._call import Call

    _call.jax.default_backend = lambda: "gpu"
    rng = np.random.default_rng(int(sys.argv[1]))
    q, dout = (rng.standard_normal((2, 9, 4, 16)).astype(np.float32) for _ in range(2))
    k, v = (rng.standard_normal((2, 13, 2, 16)).astype(np.float32) for _ in range(2))
    settings = Settings(layout="bshd", causal=True, scale=0.3, compute=sys.argv[2])
    call, attributes = Call((), settings), _call._attributes(settings)
    o, lse = np.full_like(q, np.nan), np.full((2, 4, 9), np.nan, np.float32)
    gradients = {"d" + name: np.full_like(x, np.nan) for name, x in (("q", q), ("k", k), ("v", v))}
    operands = {"q": q, "k": k, "v": v}
    passes = (
        ("forward", operands, {"o": o, "lse": lse}),
        ("backward", operands | {"o": o, "lse": lse, "dout": dout}, gradients),
    )
    seen: dict[str, Any] = {}
    for name, of_pass, results in passes:
        words = _call._workspace_words(name, call, of_pass, results)
        block = np.zeros(words + 64, np.uint32)
        odd = (-block.ctypes.data // 4 + 4) % 64  # start of an array whose address is 16 bytes beyond a multiple of 256
        given = results | ({"workspace": block[odd : odd + words]} if words else {})
        caller = Caller(_core.xla_handlers()[name]["CUDA"]["execute"])
        caller.run(INITIALIZE, of_pass, given, **attributes)
        untouched = all(np.isnan(x).all() for x in results.values()) and caller.streams == 0
        caller.run(EXECUTE, of_pass, given, **attributes)
        seen[name] = {"words": words, "initialize_writes": not untouched, "streams": caller.streams,
                      "errors": caller.errors, "metadata": caller.metadata()}  # fmt: skip
    wrong = Caller(_core.xla_handlers()["forward"]["CUDA"]["execute"])
    wrong.run(EXECUTE, operands, {"o": np.zeros((2, 9, 4, 8), np.float32)}, **attributes)
    seen["refused"] = wrong.errors
    seen["pool"] = _core.memory(0, False)["peak"]
    import attend

    want, want_lse = attend.forward(q, k, v, layout="bshd", causal=True, scale=0.3)
    truth = attend.backward(dout, q, k, v, want, want_lse, layout="bshd", causal=True, scale=0.3)
    pairs = zip((o, lse, *gradients.values()), (want, want_lse, *truth))
    seen["differences"] = [float(np.abs(x - y).max()) for x, y in pairs]
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
