"""Calls attend::forward and attend::backward on torch tensors, through torch_shim.cpp."""

import ctypes

import report

DTYPES = {"f32": 0, "f16": 1, "bf16": 2}


class Call(ctypes.Structure):
    """Has the fields of the struct `Call` in torch_shim.cpp."""

    _fields_ = (
        [(name, ctypes.c_void_p) for name in ("q", "k", "v", "o", "lse", "dout", "dq", "dk", "dv")]
        + [(name, ctypes.c_int64) for name in ("batch", "num_heads", "seqlen_q", "seqlen_k", "head_dim")]
        + [("stream", ctypes.c_void_p), ("compute", ctypes.c_char_p)]
        + [(name, ctypes.c_int32) for name in ("dtype", "causal", "device")]
    )


class Attend:
    """Calls the library. torch's allocator allocates the outputs. On a GPU the work runs on torch's current stream."""

    def __init__(self, torch, compute="cpu"):
        self.torch = torch
        self.compute = compute
        self.lib = ctypes.CDLL(str(report.PROGRAMS / "libtorch_shim.so"))
        for name in ("shim_forward", "shim_backward", "shim_simd_target", "shim_version"):
            getattr(self.lib, name).restype = ctypes.c_char_p
        self.simd_target = self.lib.shim_simd_target().decode()
        self.version = self.lib.shim_version().decode()
        self.threads = self.lib.shim_threads()

    def call(self, case, **tensors):
        """Returns the struct for the library. It is valid as long as the tensors exist."""
        pointers = {name: tensor.data_ptr() for name, tensor in tensors.items()}
        b, h, s, d = case.shape
        on_gpu = tensors["q"].is_cuda
        stream = self.torch.cuda.current_stream().cuda_stream if on_gpu else None
        return Call(
            batch=b,
            num_heads=h,
            seqlen_q=s,
            seqlen_k=s,
            head_dim=d,
            dtype=DTYPES[case.dtype],
            causal=case.causal,
            device=tensors["q"].device.index or 0 if on_gpu else -1,
            stream=stream,
            compute=self.compute.encode(),
            **pointers,
        )

    @staticmethod
    def run(function, call):
        message = function(ctypes.byref(call))
        if message is not None:
            raise SystemExit(f"attend: {message.decode()}")

    def forward(self, case, q, k, v):
        o = self.torch.empty_like(q)
        lse = self.torch.empty(case.shape[:3], dtype=self.torch.float32, device=q.device)
        self.run(self.lib.shim_forward, self.call(case, q=q, k=k, v=v, o=o, lse=lse))
        return o, lse

    def backward(self, case, dout, q, k, v, o, lse):
        dq, dk, dv = (self.torch.empty_like(t) for t in (q, k, v))
        self.run(self.lib.shim_backward, self.call(case, q=q, k=k, v=v, o=o, lse=lse, dout=dout, dq=dq, dk=dk, dv=dv))
        return dq, dk, dv
