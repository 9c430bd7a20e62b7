"""Implements arguments of flash-attn 3 that attend does not have, by changing other arguments."""

from __future__ import annotations

from typing import Any, Optional

from attend._errors import ArgumentError, UnsupportedError
from attend._frameworks import is_torch

_MAX_HEAD_DIM = 512


def joined(q: Any, k: Any, v: Any, qv: Optional[Any]) -> tuple[Any, Any]:
    """Concatenates copies of q and qv, and of k and v, along head_dim. <q, k> + <qv, v> then becomes one product, whose
    default scale is that of flash-attn 3.
    """
    if qv is None:
        return q, k
    for name, x in (("q", q), ("k", k), ("v", v), ("qv", qv)):
        _check_like_q(name, x, q)
    if tuple(qv.shape) != (*q.shape[:-1], v.shape[-1]):
        wanted = (*q.shape[:-1], v.shape[-1])
        raise ArgumentError(f"qv: shape {tuple(qv.shape)}, allowed {wanted}, as q with the head_dim of v")
    if k.shape[:-1] != v.shape[:-1]:
        raise ArgumentError(f"v: shape {tuple(v.shape)}, allowed that of k, {tuple(k.shape)}, except for the head_dim")
    total = q.shape[-1] + v.shape[-1]
    if total > _MAX_HEAD_DIM:
        raise UnsupportedError(
            f"qv: head_dim {q.shape[-1]} of q + {v.shape[-1]} of v = {total}, attend supports up to {_MAX_HEAD_DIM}"
        )
    module = module_of(q)
    return module.concatenate((q, qv), -1), module.concatenate((k, v), -1)


def _check_like_q(name: str, x: Any, q: Any) -> None:
    """Checks that x has the framework, dtype and device of q. Otherwise x cannot be concatenated with q."""
    if getattr(x, "shape", None) is None or not hasattr(x, "dtype"):
        raise ArgumentError(f"{name}: {type(x).__name__}, allowed an array")
    if is_torch(x) != is_torch(q):
        raise ArgumentError(f"{name}: {type(x).__name__}, allowed an array of the framework of q, {type(q).__name__}")
    if len(x.shape) != len(q.shape) or len(x.shape) < 3:
        raise ArgumentError(f"{name}: {len(x.shape)} dimensions, allowed 4, or 3 if packed, the same as q")
    if x.dtype != q.dtype:
        raise ArgumentError(f"{name}: dtype {x.dtype}, allowed that of q, {q.dtype}")
    if is_torch(x) and x.device != q.device:
        raise ArgumentError(f"{name}: on {x.device}, allowed the device of q, {q.device}")


def without_unused(cu_seqlens_q: Any, cu_seqlens_k: Any, seqused_q: Any, seqused_k: Any) -> tuple[Any, Any]:
    """Returns offsets of sequences such that in each original sequence only the first seqused_q rows see keys, and only
    the first seqused_k keys are seen.

    Each sequence becomes three sequences: its used rows and keys; its unused rows, without keys; its unused keys,
    without rows. The offsets stay on their device.
    """
    if seqused_q is None and seqused_k is None:
        return cu_seqlens_q, cu_seqlens_k
    _check_used("seqused_q", seqused_q, "cu_seqlens_q", cu_seqlens_q)
    _check_used("seqused_k", seqused_k, "cu_seqlens_k", cu_seqlens_k)
    if is_torch(cu_seqlens_k) != is_torch(cu_seqlens_q):
        wanted = f"an array of the framework of cu_seqlens_q, {type(cu_seqlens_q).__name__}"
        raise ArgumentError(f"cu_seqlens_k: {type(cu_seqlens_k).__name__}, allowed {wanted}")
    if cu_seqlens_k.shape != cu_seqlens_q.shape:
        found, wanted = cu_seqlens_k.shape[0], cu_seqlens_q.shape[0]
        raise ArgumentError(f"cu_seqlens_k: {found} entries, allowed as many as cu_seqlens_q, {wanted}")
    begin_q, end_q = cu_seqlens_q[:-1], cu_seqlens_q[1:]
    begin_k, end_k = cu_seqlens_k[:-1], cu_seqlens_k[1:]
    used_q = end_q if seqused_q is None else begin_q + seqused_q
    used_k = end_k if seqused_k is None else begin_k + seqused_k
    module = module_of(cu_seqlens_q)

    def offsets(parts: tuple[Any, ...], whole: Any) -> Any:
        return module.concatenate((module.stack(parts, 1).reshape(-1), whole[-1:]), 0)

    return offsets((begin_q, used_q, end_q), cu_seqlens_q), offsets((begin_k, used_k, used_k), cu_seqlens_k)


def rows_cut_in_two(cu_seqlens_q: Any, seqused_q: Any, lengths_name: str, lengths: Any) -> tuple[Any, Any, Any]:
    """Splits each sequence into two: the first seqused_q rows with all keys, and the other rows without keys.

    Returns three i32 arrays: the offsets, the number of keys of each half, and the index of the original sequence of
    each half.
    """
    _check_used("seqused_q", seqused_q, "cu_seqlens_q", cu_seqlens_q)
    begin, wanted = cu_seqlens_q[:-1], (cu_seqlens_q.shape[0] - 1,)
    if is_torch(lengths) != is_torch(begin) or tuple(getattr(lengths, "shape", ())) != wanted:
        shape = tuple(lengths.shape) if hasattr(lengths, "shape") else type(lengths).__name__
        raise ArgumentError(f"{lengths_name}: {shape}, allowed an array i32 {wanted}, one for each of cu_seqlens_q")
    module = module_of(begin)
    parts = module.stack((begin, begin + seqused_q), 1).reshape(-1)
    keys = module.stack((lengths, lengths * 0), 1).reshape(-1)
    number = module.ones_like(begin).cumsum(0) - 1
    rows = module.stack((number, number), 1).reshape(-1)
    rows = rows.to(module.int32) if is_torch(rows) else rows.astype(module.int32)
    return module.concatenate((parts, cu_seqlens_q[-1:]), 0), keys, rows


def _check_used(name: str, used: Any, offsets_name: str, offsets: Any) -> None:
    for its_name, x in ((offsets_name, offsets), (name, used)):
        if x is not None and not hasattr(x, "shape") or (x is None and its_name == offsets_name):
            raise ArgumentError(f"{its_name}: {type(x).__name__}, allowed an array i32")
    if len(offsets.shape) != 1:
        raise ArgumentError(f"{offsets_name}: {len(offsets.shape)} dimensions, allowed 1 (sequences + 1)")
    if used is None:
        return
    if is_torch(used) != is_torch(offsets):
        framework = f"an array of the framework of {offsets_name}, {type(offsets).__name__}"
        raise ArgumentError(f"{name}: {type(used).__name__}, allowed {framework}")
    wanted = (offsets.shape[0] - 1,)
    if tuple(used.shape) != wanted or str(used.dtype).rpartition(".")[2] != "int32":
        raise ArgumentError(f"{name}: {used.dtype} {tuple(used.shape)}, allowed int32 {wanted}, one for each sequence")
    if is_torch(used):
        import torch

        if used.device != offsets.device:
            raise ArgumentError(f"{name}: on {used.device}, allowed the device of {offsets_name}, {offsets.device}")
        # Values on a GPU, or under a compiler, are not checked, because the host would have to wait for them.
        if torch.compiler.is_compiling() or type(used) is not torch.Tensor or used.device.type != "cpu":
            return
    elif type(used).__module__ != "numpy":
        return
    for i, (count, begin, end) in enumerate(zip(used.tolist(), offsets[:-1].tolist(), offsets[1:].tolist())):
        if not 0 <= count <= end - begin:
            raise ArgumentError(f"{name}: {count} of sequence {i}, allowed 0 to its length, {end - begin}")


def module_of(x: Any) -> Any:
    """Returns the module torch for a torch tensor, otherwise NumPy."""
    if is_torch(x):
        import torch

        return torch
    import numpy  # NumPy's functions dispatch to other frameworks

    return numpy
