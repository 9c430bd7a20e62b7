"""Makes the arrays of the inputs with NumPy on the CPU. On a GPU they are torch tensors, or CuPy arrays if torch is not
installed.
"""

import contextlib

import numpy as np


class Numpy:
    """NumPy arrays. The memory of results is filled with NaN before it is written."""

    name = "NumPy"
    dtypes = ("f32", "f16", "bf16")

    def put(self, x):
        """Copies `x` to the device, with the same strides."""
        return x

    def get(self, x):
        return x

    @contextlib.contextmanager
    def poisoned(self, *_):
        """Returns a context in which new arrays are filled with NaN. Elements that a call does not write stay NaN."""
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
    """Tensors of torch. For a new tensor, torch reuses the most recently freed memory of the same size."""

    name = "torch"
    dtypes = ("f32", "f16", "bf16")

    def __init__(self, device):
        import torch

        self._torch, self._device = torch, device

    def put(self, x):
        whole, offset, strides = memory_of(x)
        return self._moved(whole).as_strided(x.shape, strides, offset)

    def _moved(self, x):
        if x.dtype.name == "bfloat16":  # torch.from_numpy does not support bfloat16
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
        """Allocates tensors with the sizes of `like`, fills them with NaN and frees them, so that results are allocated
        there.
        """
        freed = [self._torch.full_like(x, float("nan")) for x in like]
        del freed
        yield


class Cupy:
    """CuPy arrays. attend allocates results for CuPy in its memory pool, which this tool cannot fill."""

    name = "CuPy"
    dtypes = ("f32", "f16")  # early versions of CuPy have no bfloat16

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
    """Returns the class of arrays of a device: cpu, cuda, or `torch on cpu`, with which the tests run the GPU's code
    path.
    """
    if device == "cpu":
        return Numpy()
    if device == "torch on cpu":
        return Torch("cpu")
    try:
        return Torch("cuda")
    except ModuleNotFoundError:
        return Cupy()
