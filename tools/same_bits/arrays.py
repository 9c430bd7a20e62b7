"""The arrays of the inputs: NumPy on the CPU; on a GPU torch, or CuPy if torch is not installed."""

import contextlib

import numpy as np


class Numpy:
    """NumPy arrays. Memory of results is NaN before it is written."""

    name = "NumPy"
    dtypes = ("f32", "f16", "bf16")

    def put(self, x):
        """Returns `x` with its strides."""
        return x

    def get(self, x):
        return x

    @contextlib.contextmanager
    def poisoned(self, *_):
        """Fills results that a call allocates with NaN, which stays in every element that the call does not write."""
        plain_empty = np.empty

        def empty(shape, dtype=float, *args, **kwargs):
            array = plain_empty(shape, dtype, *args, **kwargs)
            if array.dtype.kind == "f" or array.dtype.name == "bfloat16":
                array.fill(np.nan)
            return array

        np.empty = empty
        try:
            yield
        finally:
            np.empty = plain_empty


class Torch:
    """Tensors of torch, which reuses the most recently freed memory for new tensors of the same size."""

    name = "torch"
    dtypes = ("f32", "f16", "bf16")

    def __init__(self, device):
        import torch

        self._torch, self._device = torch, device

    def put(self, x):
        whole, offset, strides = memory_of(x)
        return self._moved(whole).as_strided(x.shape, strides, offset)

    def _moved(self, x):
        if x.dtype.name == "bfloat16":  # from_numpy does not support it
            return self._torch.from_numpy(x.view(np.int16)).to(self._device).view(self._torch.bfloat16)
        return self._torch.from_numpy(x).to(self._device)

    def get(self, x):
        x = x.detach().cpu().contiguous()
        if x.dtype is self._torch.bfloat16:
            import ml_dtypes

            return x.view(self._torch.int16).numpy().view(ml_dtypes.bfloat16)
        return x.numpy()

    @contextlib.contextmanager
    def poisoned(self, *like):
        """Fills memory with the sizes of `like` with NaN and frees it."""
        freed = [self._torch.full_like(x, float("nan")) for x in like]
        del freed
        yield


class Cupy:
    """CuPy arrays. attend allocates their results in its own memory, which this tool cannot fill."""

    name = "CuPy"
    dtypes = ("f32", "f16")  # earlier versions have no bfloat16

    def __init__(self):
        import cupy

        self._cupy = cupy

    def put(self, x):
        whole, offset, strides = memory_of(x)
        flat = self._cupy.asarray(whole).reshape(-1)[offset:]
        in_bytes = [stride * x.itemsize for stride in strides]
        return self._cupy.lib.stride_tricks.as_strided(flat, x.shape, in_bytes)

    def get(self, x):
        return self._cupy.asnumpy(x)

    @contextlib.contextmanager
    def poisoned(self, *_):
        yield


def memory_of(x):
    """Returns the contiguous array of which `x` is a view, the view's offset, and its strides, in elements."""
    whole = x if x.base is None else x.base
    offset = (x.ctypes.data - whole.ctypes.data) // x.itemsize if x.size else 0
    return whole, offset, [stride // x.itemsize for stride in x.strides]


def arrays_of(device):
    """Returns the arrays of a device: cpu, cuda, or `torch on cpu`, with which the tests try the GPU's code path."""
    if device == "cpu":
        return Numpy()
    if device == "torch on cpu":
        return Torch("cpu")
    try:
        return Torch("cuda")
    except ModuleNotFoundError:
        return Cupy()
