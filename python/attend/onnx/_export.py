"""Exports programs that call attend with torch.onnx.export, by translating attend's torch operator to ONNX's
Attention.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attend._errors import ArgumentError, UnsupportedError
from attend._settings import Extras, Settings

_MASKED_SCORES, _F32 = 2, 1  # ONNX's numbers of a mode of the fourth result, and of float32
FIRST_OPSET, FIRST_OPSET_OF_WINDOWS = 24, 25  # opset 24 has nonpad_kv_seqlen, which aligns masks bottom right


def translation_table(opset_version: int = FIRST_OPSET) -> dict[Any, Callable[..., Any]]:
    """Returns the table for `torch.onnx.export(model, inputs, opset_version=N,
    custom_translation_table=translation_table(N))`.

    `attend.attention` and functions that call it become ONNX's Attention with the same masks. Every ONNX runtime with
    this operator can run the model. The export refuses options that the operator does not have, and the message names
    the option. These are alibi_slopes, sinks, dropout_p, packed sequences, windows before opset 25, and a bias or mask
    of one column.

    Arguments:
        opset_version: 24 or 25. Windows require 25.

    Raises:
        attend.Error: the opset does not have the required operator.
    """
    if opset_version < FIRST_OPSET:
        raise ArgumentError(f"opset_version: {opset_version}, allowed {FIRST_OPSET} or later")
    import torch
    from onnxscript.values import Opset

    import attend.torch._operators  # noqa: F401  the operator

    op: Any = Opset("", opset_version)

    def forward(q: Any, k: Any, v: Any, *rest: Any) -> tuple[Any, Any]:
        extras = Extras(*rest[: len(Extras._fields)])
        settings = Settings(*rest[len(Extras._fields) :])
        _refuse(extras, settings, opset_version)
        is_bshd = settings.layout == "bshd"
        if is_bshd:
            q, k, v = (op.Transpose(x, perm=[0, 2, 1, 3]) for x in (q, k, v))
        inputs = (q, k, v, _mask_of(op, q, k, extras), None, None, _length_of(op, k, settings))
        y, *_ = op.Attention(*inputs, **_attributes(settings))
        # lse comes from a second node, which writes the scores and is slow. The exporter removes it if lse is unused.
        *_, scores = op.Attention(*inputs, **_attributes(settings), qk_matmul_output_mode=_MASKED_SCORES)
        lse = op.ReduceLogSumExp(op.Cast(scores, to=_F32), op.Constant(value_ints=[-1]), keepdims=0)
        return (op.Transpose(y, perm=[0, 2, 1, 3]) if is_bshd else y), lse

    return {torch.ops.attend.forward.default: forward}


def _refuse(extras: Any, settings: Any, opset_version: int) -> None:
    for name in Extras._fields:
        if getattr(extras, name) is not None and name not in ("bias", "mask"):
            raise UnsupportedError(f"{name}: given, allowed None in ONNX")
    if settings.dropout_p:
        raise UnsupportedError(f"dropout_p: {settings.dropout_p}, allowed 0 in ONNX")
    window = (settings.window_left, settings.window_right)
    if window != (-1, -1) and opset_version < FIRST_OPSET_OF_WINDOWS:
        raise UnsupportedError(f"window: {window}, allowed (-1, -1) in opset {opset_version}, any in opset 25")


def _attributes(settings: Any) -> dict[str, Any]:
    """Returns the operator's attributes that differ from ONNX's defaults."""
    found = {"is_causal": int(settings.causal), "softcap": settings.softcap, "scale": settings.scale}
    found = {name: value for name, value in found.items() if value}
    if settings.scale == 0:
        found["scale"] = 0.0
    for name in ("left", "right"):
        if getattr(settings, f"window_{name}") >= 0:
            found[f"{name}_window_size"] = getattr(settings, f"window_{name}")
    return found


def _mask_of(op: Any, q: Any, k: Any, extras: Any) -> Any:
    """Returns ONNX's input attn_mask, which combines bias and mask."""
    for name in ("bias", "mask"):
        x = getattr(extras, name)
        if x is not None and x.shape[-1] == 1 and k.shape[2] != 1:
            raise UnsupportedError(f"{name}: one column, allowed seqlen_k columns in ONNX")
    if extras.bias is None:
        return extras.mask
    bias = op.CastLike(extras.bias, q)
    if extras.mask is None:
        return bias
    return op.Where(extras.mask, bias, op.CastLike(op.Constant(value_float=float("-inf")), q))


def _length_of(op: Any, k: Any, settings: Any) -> Any:
    """Returns nonpad_kv_seqlen, which contains seqlen_k for each sequence. With this input, masks align bottom right.
    Returns None if the call has no causal mask and no window.
    """
    if not settings.causal and settings.window_left < 0 and settings.window_right < 0:
        return None
    return op.Expand(op.Shape(k, start=2, end=3), op.Shape(k, start=0, end=1))
