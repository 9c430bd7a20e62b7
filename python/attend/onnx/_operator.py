"""The operator Attention of ONNX, opset 23 to 25, on NumPy arrays.

In ONNX, row i has position i + offset, where offset is the number of preceding keys. attend instead aligns the last row
with the last key. Therefore this operator calls attend without the keys after the last row's window, and without the
rows that see no key. The masks then agree, and no mask has to be stored as a matrix.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Optional

import numpy as np

from attend._api import attention as attend_attention
from attend._errors import ArgumentError, UnsupportedError

_FLOATS = ("float32", "float16", "bfloat16", "float64")
_SOFTMAX_PRECISIONS = (1, 10, 11, 16)  # ONNX's numbers of f32, f16, f64 and bf16


class Band(NamedTuple):
    """The rows and keys of a call that attend computes, and the window, aligned bottom right. -1 means an open side."""

    rows: int  # number of leading rows that attend computes; later rows see no key
    keys: int
    left: int
    right: int


def attention(
    q: Any,
    k: Any,
    v: Any,
    attn_mask: Any = None,
    past_key: Any = None,
    past_value: Any = None,
    nonpad_kv_seqlen: Any = None,
    *,
    is_causal: int = 0,
    kv_num_heads: Optional[int] = None,
    left_window_size: int = -1,
    q_num_heads: Optional[int] = None,
    qk_matmul_output_mode: int = 0,
    right_window_size: int = -1,
    scale: Optional[float] = None,
    softcap: float = 0.0,
    softmax_precision: Optional[int] = None,
    with_qk: bool = False,
) -> tuple[Any, Any, Any, Any]:
    """Computes ONNX's Attention. The operator's inputs are positional arguments, and its attributes are keyword
    arguments.

    Arguments:
        q: f32, f16, bf16 or f64 (batch, heads_q, seqlen_q, head_dim) or (batch, seqlen_q, heads_q * head_dim).
        k, v: same dtype, (batch, heads_k, seqlen_k, head_dim) and (batch, heads_k, seqlen_k, head_dim_v), or with three
            dimensions as for q. Inputs of three dimensions require q_num_heads and kv_num_heads.
        attn_mask: bool or float, broadcasts to (batch, heads_q, seqlen_q, total), where total = seqlen_past + seqlen_k.
            Its last dimension may be shorter. Keys without an entry are hidden.
        past_key, past_value: (batch, heads_k, seqlen_past, head_dim) and (..., head_dim_v), placed before k and v.
        nonpad_kv_seqlen: i64 (batch): the number of valid keys of each sequence. Not allowed with past_key.
        is_causal: if 1, row i sees the keys j <= i + offset. The offset is seqlen_past with past_key, nonpad_kv_seqlen
            - seqlen_q with nonpad_kv_seqlen, and otherwise 0.
        left_window_size, right_window_size: row i sees the keys i + offset - left to i + offset + right. -1 leaves a
            side open.
        scale: None means 1 / sqrt(head_dim).
        softcap: 0 disables it.
        softmax_precision: checked, but has no effect. The softmax is computed in float32, or in float64 for f64 inputs.
        qk_matmul_output_mode: selects the fourth result. 0 means the scaled products, 1 the scores after softcap, 2 the
            scores with masks, and 3 the softmax weights.
        with_qk: True computes the fourth result, a matrix of seqlen_q x total scores. NumPy computes it, which is slow.

    Returns:
        (y, present_key, present_value, qk). y has the dtype and the number of dimensions of q. present_key and
        present_value have four dimensions and contain the past keys and values, followed by k and v. qk is (batch,
        heads_q, seqlen_q, total) in the dtype of q, or None. A row of y that sees no key is 0.

    Raises:
        attend.Error: its message has the argument, the value found, and the allowed values.
    """
    q, k, v = (np.asarray(x) for x in (q, k, v))
    rank = q.ndim
    q, k, v = _four_dimensions(q, k, v, q_num_heads, kv_num_heads)
    k, v = _with_past(k, v, past_key, past_value)
    _check(q, k, v, softmax_precision, qk_matmul_output_mode, (left_window_size, right_window_size))
    total = k.shape[2]
    mask = None if attn_mask is None else _mask_of(np.asarray(attn_mask), (*q.shape[:3], total))
    window = (left_window_size, 0 if is_causal else right_window_size)
    lengths, offsets = _positions(q, k, past_key, nonpad_kv_seqlen)
    options = {"scale": scale, "softcap": softcap}
    y: Any = np.zeros((*q.shape[:3], v.shape[3]), q.dtype)
    for first, last in _runs(lengths):
        part = slice(first, last)
        hidden = None if mask is None else mask if mask.shape[0] == 1 else mask[part]
        _attend(y[part], q[part], k[part], v[part], hidden, (lengths[first], offsets[first]), window, options)
    qk = None
    if with_qk:
        qk = _qk(q, k, mask, lengths, offsets, window, options, qk_matmul_output_mode).astype(q.dtype)
    if rank == 3:
        y = np.ascontiguousarray(y.transpose(0, 2, 1, 3)).reshape(y.shape[0], y.shape[2], -1)
    return y, k, v, qk


def band(seqlen_q: int, seqlen_k: int, offset: int, window: tuple[int, int]) -> Band:
    """Returns the part of a call that attend computes for ONNX's window. Row i has position i + offset."""
    left, right = window
    rows, keys = seqlen_q, seqlen_k
    if right >= 0:
        keys = max(0, min(keys, rows + offset + right))
        right = offset + right - (keys - rows)
    if left >= 0:
        left += keys - rows - offset
        if left < 0:  # the last rows are so far after the last key that their windows contain no key
            rows, right, left = max(0, rows + left), right + left if right >= 0 else right, 0
    if rows == 0 or keys == 0:
        return Band(0, 0, -1, -1)
    if right >= rows - 1:
        right = -1
    if left >= keys - 1:
        left = -1
    return Band(rows, keys, left, right)


def _attend(
    y: Any, q: Any, k: Any, v: Any, mask: Any, place: tuple[int, int], window: tuple[int, int], options: dict[str, Any]
) -> None:
    """Computes sequences that all have the length and offset `place`. Writes the result into y, whose other rows are
    0.
    """
    length, offset = place
    if mask is not None:
        length = min(length, mask.shape[3])
    rows, keys, left, right = band(q.shape[2], length, offset, window)
    if rows == 0 or y.size == 0:
        return
    kind = {}
    if mask is not None:
        kind["mask" if mask.dtype == np.bool_ else "bias"] = mask[:, :, : rows if mask.shape[2] > 1 else 1, :keys]
    window = (left, right) if right != 0 else (left, -1)
    q, k, v = q[:, :, :rows], k[:, :, :keys], v[:, :, :keys]
    y[:, :, :rows] = attend_attention(q, k, v, causal=right == 0, window=window, **kind, **options)


def _four_dimensions(q: Any, k: Any, v: Any, q_num_heads: Optional[int], kv_num_heads: Optional[int]) -> Any:
    """Returns views of q, k and v as (batch, heads, seqlen, head_dim)."""
    found = []
    for name, x, of_heads in (("Q", q, "q_num_heads"), ("K", k, "kv_num_heads"), ("V", v, "kv_num_heads")):
        heads = q_num_heads if name == "Q" else kv_num_heads
        if x.ndim != q.ndim or x.ndim not in (3, 4):
            raise ArgumentError(f"{name}: {x.ndim} dimensions, allowed 3 or 4, the same for Q, K and V")
        if x.ndim == 3:
            if heads is None or heads < 1 or x.shape[2] % heads:
                raise ArgumentError(
                    f"{of_heads}: {heads}, allowed a divisor of {x.shape[2]}, the last dimension of {name}"
                )
            x = x.reshape(*x.shape[:2], heads, x.shape[2] // heads).transpose(0, 2, 1, 3)
        elif heads is not None and heads != x.shape[1]:
            raise ArgumentError(f"{of_heads}: {heads}, allowed {x.shape[1]}, the heads of {name}")
        found.append(x)
    return found


def _with_past(k: Any, v: Any, past_key: Any, past_value: Any) -> tuple[Any, Any]:
    if (past_key is None) != (past_value is None):
        name, other = ("past_value", "past_key") if past_value is None else ("past_key", "past_value")
        raise ArgumentError(f"{name}: missing, allowed with {other} only")
    if past_key is None:
        return k, v
    results = []
    for name, past, x in (("past_key", np.asarray(past_key), k), ("past_value", np.asarray(past_value), v)):
        wanted = (*x.shape[:2], "seqlen_past", x.shape[3])
        if past.ndim != 4 or past.shape[:2] != x.shape[:2] or past.shape[3] != x.shape[3] or past.dtype != x.dtype:
            text = ", ".join(map(str, wanted))
            raise ArgumentError(f"{name}: {past.dtype.name} {past.shape}, allowed {x.dtype.name} ({text})")
        results.append(np.concatenate((past, x), axis=2))
    if results[0].shape[2] != results[1].shape[2]:
        raise ArgumentError(
            f"past_value: seqlen {results[1].shape[2]} with V, allowed {results[0].shape[2]} as the keys"
        )
    return results[0], results[1]


def _check(q: Any, k: Any, v: Any, softmax_precision: Optional[int], mode: int, window: tuple[int, int]) -> None:
    """Checks the arguments that attend's errors would not call by ONNX's names. attend itself checks the shapes of Q, K
    and V.
    """
    for name, x in (("Q", q), ("K", k), ("V", v)):
        if x.dtype.name not in _FLOATS:
            raise ArgumentError(f"{name}: {x.dtype.name}, allowed {', '.join(_FLOATS)}")
        if x.dtype != q.dtype:
            raise UnsupportedError(f"{name}: {x.dtype.name}, allowed {q.dtype.name}, the dtype of Q")
    if softmax_precision is not None and softmax_precision not in _SOFTMAX_PRECISIONS:
        raise ArgumentError(f"softmax_precision: {softmax_precision}, allowed 1, 10, 11, 16")
    if mode not in (0, 1, 2, 3):
        raise ArgumentError(f"qk_matmul_output_mode: {mode}, allowed 0 to 3")
    for name, side in zip(("left_window_size", "right_window_size"), window):
        if side < -1:
            raise ArgumentError(f"{name}: {side}, allowed >= 0, or -1 for open")


def _mask_of(mask: Any, shape: tuple[int, ...]) -> Any:
    """Returns the mask with four dimensions. The last dimension of the result is at most the last dimension of
    `shape`.
    """
    if mask.dtype != np.bool_ and mask.dtype.name not in _FLOATS:
        raise UnsupportedError(f"attn_mask: {mask.dtype.name}, allowed bool, {', '.join(_FLOATS)}")
    full = (1,) * (4 - mask.ndim) + mask.shape
    fits = len(full) == 4 and full[3] <= shape[3] and all(n in (1, m) for n, m in zip(full[:3], shape))
    if not fits:
        raise ArgumentError(
            f"attn_mask: {mask.shape}, allowed shapes that broadcast to {shape}; the last dimension may be shorter"
        )
    return mask.reshape(full)


def _positions(q: Any, k: Any, past_key: Any, nonpad: Any) -> tuple[list[int], list[int]]:
    """Returns two lists: the number of valid keys of each sequence, and the position of its row 0 among these keys."""
    batch, total = q.shape[0], k.shape[2]
    if nonpad is None:
        return [total] * batch, [0 if past_key is None else np.shape(past_key)[2]] * batch
    if past_key is not None:
        raise ArgumentError("nonpad_kv_seqlen: given with past_key, allowed without it only")
    lengths = np.asarray(nonpad)
    if lengths.dtype != np.int64 or lengths.shape != (batch,):
        raise ArgumentError(f"nonpad_kv_seqlen: {lengths.dtype.name} {lengths.shape}, allowed int64 ({batch},)")
    for length in lengths:
        if not 0 <= length <= total:
            raise ArgumentError(f"nonpad_kv_seqlen: {length}, allowed 0 to {total}")
    return lengths.tolist(), [int(length) - q.shape[2] for length in lengths]


def _runs(lengths: list[int]) -> list[tuple[int, int]]:
    """Returns ranges of adjacent sequences with the same length. Each range needs one call."""
    starts = [i for i, length in enumerate(lengths) if i == 0 or length != lengths[i - 1]]
    return list(zip(starts, [*starts[1:], len(lengths)]))


def _qk(
    q: Any, k: Any, mask: Any, lengths: Any, offsets: Any, window: tuple[int, int], options: dict[str, Any], mode: int
) -> Any:
    """Returns the matrix of scores in float64, at the stage that `mode` selects."""
    wide = np.float64
    keys = np.repeat(k.astype(wide), q.shape[1] // k.shape[1], axis=1)
    scale = 1 / np.sqrt(q.shape[3]) if options["scale"] is None else options["scale"]
    s = scale * (q.astype(wide) @ keys.transpose(0, 1, 3, 2))
    if mode == 0:
        return s
    if options["softcap"] > 0:
        s = options["softcap"] * np.tanh(s / options["softcap"])
    if mode == 1:
        return s
    i = np.arange(q.shape[2])[:, None] + np.asarray(offsets, int)[:, None, None, None]
    j = np.arange(k.shape[2])
    seen = j < np.asarray(lengths, int)[:, None, None, None]
    if window[0] >= 0:
        seen = seen & (j >= i - window[0])
    if window[1] >= 0:
        seen = seen & (j <= i + window[1])
    if mask is not None:
        missing = ((0, 0),) * 3 + ((0, k.shape[2] - mask.shape[3]),)
        if mask.dtype == np.bool_:
            seen = seen & np.pad(mask, missing)
        else:
            bias = np.pad(mask.astype(wide), missing, constant_values=-np.inf)
            s, seen = s + bias, seen & (bias != -np.inf)
    s = np.where(seen, s, -np.inf)
    if mode == 2:
        return s
    top = s.max(axis=3, keepdims=True, initial=-np.inf)
    weights = np.exp(s - np.where(np.isneginf(top), 0, top))
    sums = weights.sum(axis=3, keepdims=True)
    return weights / np.where(sums == 0, 1, sums)
