"""Custom masks: compiles a condition, given as text, into tiles. docs/custom_scores.md describes the language."""

from __future__ import annotations

import operator
import sys
from typing import TYPE_CHECKING, Any, Optional

from attend import _core
from attend._core import BlockMask
from attend._errors import ArgumentError
from attend._frameworks import is_torch
from attend._score import check_captures, check_text, view_of_capture
from attend._spaces import KDL_CUDA

if TYPE_CHECKING:
    from attend._types import Captures, Device


def make_block_mask(
    mask: str,
    seqlen_q: int,
    seqlen_k: int,
    *,
    batch: int = 1,
    num_heads: int = 1,
    captures: Optional[Captures] = None,
    device: Optional[Device] = None,
) -> BlockMask:
    """Makes a mask for `attention(..., block_mask=...)`, which skips tiles in which no row sees a key.

        mask = attend.make_block_mask("k <= q && doc[q] == doc[k]", 8192, 8192, captures={"doc": doc})

    Arguments:
        mask: text of a condition on b (sequence), h (query head), q (row), k (key), q_len, k_len and captures. Rows and
            keys are both counted from 0, so row q aligns with key q.
        seqlen_q, seqlen_k: the lengths of the calls that use the mask, 0 to 2^31 - 1.
        batch, num_heads: the number of sequences (or query heads) of the calls, if the text uses b (or h). A mask whose
            text does not use b (or h) can be used with any number of sequences (or query heads).
        captures: {"doc": array, ...}: the numbers and arrays (0 to 4 dimensions) that the text reads. They are read
            once, in this call. If a GPU makes the mask, captures may be on the CPU or on that GPU. Otherwise they are
            on the CPU. All captures belong to one framework.
        device: the device that makes the mask. None or "cpu": the CPU. "cuda", "cuda:N" or a torch.device: that GPU. On
            a GPU the work runs in the current stream of the captures' framework. Without captures it runs in torch's
            current stream. The call waits until the mask is complete. The mask is bit-identical on every device, and
            can be used on every device.

    Returns:
        An immutable `BlockMask`. `shape` is (batch, num_heads, seqlen_q, seqlen_k). `tiles` is a dictionary with the
        numbers of all, full and partial tiles of 64 rows and 64 keys, and the number of distinct patterns of partial
        tiles. `density` is the fraction of pairs that are seen. `nbytes` is the size of the mask. `sees(batch, head,
        row, key)` returns whether a row sees a key.

    attend computes bounds of the condition for each tile, and evaluates single pairs only in tiles that the bounds do
    not decide. The time for causal masks and sorted documents therefore grows with the lengths, not with their product.
    The mask may be copied and shared between threads. When a text is used on a GPU for the first time, small kernels
    are compiled. The compilation takes a fraction of a second. These kernels are stored in the on-disk cache like all
    kernels.

    Raises:
        attend.ArgumentError, which names the column of the text, the capture, the size or the device. On a GPU,
        attend.UnsupportedError for a text that uses exp, log, sin or similar functions, because their last bits differ
        between GPU and CPU.
    """
    check_text("mask", mask)
    check_captures(captures)
    given = captures or {}
    sizes = (
        _size("batch", batch), _size("num_heads", num_heads), _size("seqlen_q", seqlen_q), _size("seqlen_k", seqlen_k)
    )  # fmt: skip
    index = _gpu_of(device, tuple(given.values()))
    if index is None:
        views = tuple(_view(name, x) for name, x in given.items())
        return _core.make_block_mask(mask, tuple(given), views, *sizes, _ON_CPU, 0)
    views = tuple(_view_near(name, x, index) for name, x in given.items())
    return _core.make_block_mask(mask, tuple(given), views, *sizes, index, _stream(index, tuple(given.values())))


_ON_CPU = -1  # represents the CPU as a GPU index


def _gpu_of(device: Any, given: tuple[Any, ...]) -> Optional[int]:
    """Returns the GPU's index, or None for the CPU. "cuda" means the GPU of the captures or torch's current GPU."""
    name = "cpu" if device is None else str(device)
    kind, colon, number = name.partition(":")
    if name == "cpu":
        return None
    if kind != "cuda" or (colon and not number.isdecimal()) or len(number) > 9:
        raise ArgumentError(f"device: {name[:32]!r}, allowed 'cpu', 'cuda' or 'cuda:N'")
    if colon:
        return int(number)
    for x in given:
        if _is_on_gpu(x):
            return int(x.__dlpack_device__()[1])
    torch = sys.modules.get("torch")
    return int(torch.cuda.current_device()) if torch is not None and torch.cuda.is_available() else 0


def _is_on_gpu(x: Any) -> bool:
    if is_torch(x):
        return bool(x.is_cuda)
    return hasattr(x, "__dlpack_device__") and int(x.__dlpack_device__()[0]) == KDL_CUDA


def _stream(index: int, given: tuple[Any, ...]) -> int:
    """Returns the current stream of the captures' framework on GPU `index`."""
    on_gpu = [x for x in given if _is_on_gpu(x)]
    if on_gpu and not is_torch(on_gpu[0]):
        from attend._cuda_space import CudaSpace

        return CudaSpace(on_gpu[0], index, "captures").stream
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return 0
    return int(torch.cuda.current_stream(index).cuda_stream)


def _view_near(name: str, x: Any, index: int) -> Any:
    """Returns the view of a capture, which must be on GPU `index` or on the CPU."""
    if is_torch(x):
        from attend.torch._score import view_of_near_capture

        return view_of_near_capture(name, x, index)
    if not _is_on_gpu(x):
        return _view(name, x)
    from attend._cuda_space import CudaSpace

    return view_of_capture(CudaSpace(x, index, "captures"), name, x)


def _size(name: str, n: Any) -> int:
    try:
        size = operator.index(n)
    except TypeError:
        raise ArgumentError(f"{name}: {type(n).__name__}, allowed an integer") from None
    if not -(2**63) <= size < 2**63:
        raise ArgumentError(f"{name}: {size}, allowed 0 to {2**31 - 1}")
    return size


def _view(name: str, x: Any) -> Any:
    if is_torch(x):
        from attend.torch._score import view_of_host_capture

        return view_of_host_capture(name, x)
    from attend import _arrays

    return view_of_capture(_arrays.space_of(x) if hasattr(x, "__dlpack_device__") else None, name, x)
