"""Arguments of flash-attn 3 that attend takes by rearranging the others."""

from __future__ import annotations

from typing import Any, Optional

from attend._errors import ArgumentError, UnsupportedError
from attend._frameworks import is_torch

_MAX_HEAD_DIM = 512


def joined(q: Any, k: Any, v: Any, qv: Optional[Any]) -> tuple[Any, Any]:
    """q beside qv and k beside v, copies: <q, k> + <qv, v> is one product, and the default of scale follows it."""
    if qv is None:
        return q, k
    if getattr(qv, "shape", None) is None or tuple(qv.shape) != (*q.shape[:-1], v.shape[-1]):
        found = f"shape {tuple(qv.shape)}" if hasattr(qv, "shape") else type(qv).__name__
        raise ArgumentError(f"qv: {found}, allowed {(*q.shape[:-1], v.shape[-1])}, as q with the head_dim of v")
    if qv.dtype != q.dtype:
        raise ArgumentError(f"qv: dtype {qv.dtype}, allowed that of q, {q.dtype}")
    total = q.shape[-1] + v.shape[-1]
    if total > _MAX_HEAD_DIM:
        raise UnsupportedError(
            f"qv: head_dim {q.shape[-1]} of q + {v.shape[-1]} of v = {total}, attend takes up to {_MAX_HEAD_DIM}"
        )
    module = _module_of(q)
    return module.concatenate((q, qv), -1), module.concatenate((k, v), -1)


def without_unused(cu_seqlens_q: Any, cu_seqlens_k: Any, seqused_q: Any, seqused_k: Any) -> tuple[Any, Any]:
    """Offsets of sequences in which the first seqused tokens see each other, and no other token sees any.

    Sequence s becomes three: its used rows and keys; its unused rows, without keys; its unused keys, without rows. The
    numbers stay on the device that they are on.
    """
    if seqused_q is None and seqused_k is None:
        return cu_seqlens_q, cu_seqlens_k
    _check_used("seqused_q", seqused_q, "cu_seqlens_q", cu_seqlens_q)
    _check_used("seqused_k", seqused_k, "cu_seqlens_k", cu_seqlens_k)
    begin_q, end_q = cu_seqlens_q[:-1], cu_seqlens_q[1:]
    begin_k, end_k = cu_seqlens_k[:-1], cu_seqlens_k[1:]
    used_q = end_q if seqused_q is None else begin_q + seqused_q
    used_k = end_k if seqused_k is None else begin_k + seqused_k
    module = _module_of(cu_seqlens_q)

    def offsets(parts: tuple[Any, ...], whole: Any) -> Any:
        return module.concatenate((module.stack(parts, 1).reshape(-1), whole[-1:]), 0)

    return offsets((begin_q, used_q, end_q), cu_seqlens_q), offsets((begin_k, used_k, used_k), cu_seqlens_k)


def _check_used(name: str, used: Any, offsets_name: str, offsets: Any) -> None:
    for its_name, x in ((offsets_name, offsets), (name, used)):
        if x is not None and not hasattr(x, "shape") or (x is None and its_name == offsets_name):
            raise ArgumentError(f"{its_name}: {type(x).__name__}, allowed an array i32")
    if used is None:
        return
    wanted = (offsets.shape[0] - 1,)
    if tuple(used.shape) != wanted or str(used.dtype).rpartition(".")[2] != "int32":
        raise ArgumentError(f"{name}: {used.dtype} {tuple(used.shape)}, allowed int32 {wanted}, one for each sequence")
    if is_torch(used):
        import torch

        if used.device != offsets.device:
            raise ArgumentError(f"{name}: on {used.device}, allowed the device of {offsets_name}, {offsets.device}")
        # What is on a GPU, or has no values yet, is not waited for.
        if torch.compiler.is_compiling() or type(used) is not torch.Tensor or used.device.type != "cpu":
            return
    elif type(used).__module__ != "numpy":
        return
    for i, (count, begin, end) in enumerate(zip(used.tolist(), offsets[:-1].tolist(), offsets[1:].tolist())):
        if not 0 <= count <= end - begin:
            raise ArgumentError(f"{name}: {count} of sequence {i}, allowed 0 to its length, {end - begin}")


def _module_of(x: Any) -> Any:
    if is_torch(x):
        import torch

        return torch
    import numpy  # and what dispatches from it

    return numpy
