"""jax.nn.dot_product_attention with JAX's conventions, computed by attend."""

from __future__ import annotations

import operator
from typing import Any, Optional, Union

import jax.numpy as jnp
from jax import lax

from attend._drop_in import refuse_unless, renamed
from attend._errors import ArgumentError, Error, UnsupportedError
from attend.jax._api import Operand, attention

_NAMES = {"q": "query", "k": "key", "v": "value", "causal": "is_causal", "window": "local_window_size"}


def dot_product_attention(
    query: Operand,
    key: Operand,
    value: Operand,
    bias: Optional[Operand] = None,
    mask: Optional[Operand] = None,
    *,
    scale: Optional[float] = None,
    is_causal: bool = False,
    query_seq_lengths: Optional[Operand] = None,
    key_value_seq_lengths: Optional[Operand] = None,
    local_window_size: Union[int, tuple[int, int], None] = None,
    implementation: Optional[str] = None,
    return_residual: bool = False,
) -> Any:
    """``jax.nn.dot_product_attention`` with the same arguments.

    Arguments:
        query: f32, f16 or bf16 (batch, seqlen_q, heads_q, head_dim). The batch dimension may be missing in all arrays.
        key, value: same dtype, (batch, seqlen_k, heads_k, head_dim). heads_q is a multiple of heads_k.
        bias: float, broadcasts to (batch, heads_q, seqlen_q, seqlen_k). Differentiable.
        mask: bool, broadcasts like bias. True keeps a score.
        scale: a number. None means 1 / sqrt(head_dim).
        is_causal: row i sees the keys j <= i. The mask is aligned **top left**, unlike in other functions of attend.
            local_window_size is aligned in the same way.
        query_seq_lengths, key_value_seq_lengths: i32 (batch). Rows of the result after the length are 0, and keys after
            the length are not seen.
        local_window_size: (left, right), or one number for both sides.
        implementation: must be None.
        return_residual: return (o, lse). lse has the dtype of key and the shape (batch, seqlen_q, heads_q), and no
            gradient.

    Returns:
        o (batch, seqlen_q, heads_q, head_dim). A row that sees no key is 0. In JAX it is the mean of all values.

    Raises:
        attend.Error with JAX's names of the arguments.
    """
    refuse_unless(implementation, (None,), "implementation")
    given = {"query": query, "key": key, "value": value, "bias": bias, "mask": mask}
    for name, x in given.items():
        if x is not None and not hasattr(x, "shape"):
            raise ArgumentError(f"{name}: {type(x).__name__}, allowed a JAX or NumPy array")
    if query.ndim not in (3, 4) or key.ndim != query.ndim or value.ndim != query.ndim:
        found = f"{query.ndim}, {key.ndim} and {value.ndim}"
        raise ArgumentError(f"query, key, value: {found} dimensions, allowed 4, or 3 without the batch")
    q, k, v = (x if x.ndim == 4 else x[None] for x in (query, key, value))
    seqlen_q, seqlen_k = q.shape[1], k.shape[1]
    pair = _pair(local_window_size)
    try:
        window, keys, seen = _bottom_right(seqlen_q, seqlen_k, is_causal, pair)
    except Exception as error:  # the exception's class is in different modules in different releases
        if type(error).__name__ != "InconclusiveDimensionOperation":
            raise
        raise UnsupportedError(
            f"key: seqlen {seqlen_k} with {seqlen_q} rows, allowed with a causal mask: lengths "
            "of which the larger is known"
        ) from None
    mask = _both(mask, seen)
    lengths_q = _lengths("query_seq_lengths", query_seq_lengths, q.shape[0])
    lengths_k = _lengths("key_value_seq_lengths", key_value_seq_lengths, q.shape[0])
    if lengths_k is not None:
        mask = _both(mask, jnp.arange(seqlen_k) < lengths_k[:, None, None, None])
    if keys != seqlen_k:  # omits the keys after the last key that the last row sees
        k, v = k[:, :keys], v[:, :keys]
        bias, mask = (x if x is None or x.ndim == 0 or x.shape[-1] == 1 else x[..., :keys] for x in (bias, mask))
    try:
        results: Any = attention(
            q, k, v, layout="bshd", window=window, scale=scale, bias=bias, mask=mask, return_lse=return_residual
        )
    except Error as error:
        raise renamed(error, _NAMES) from None
    o, lse = results if return_residual else (results, results)
    if lengths_q is not None:
        o = jnp.where((jnp.arange(seqlen_q) < lengths_q[:, None])[:, :, None, None], o, jnp.zeros((), o.dtype))
    o = o if query.ndim == 4 else o[0]
    if not return_residual:
        return o
    lse = lax.stop_gradient(lse).swapaxes(1, 2).astype(k.dtype)
    return o, lse if query.ndim == 4 else lse[0]


def _pair(window: Any) -> tuple[Optional[int], Optional[int]]:
    if window is None:
        return None, None
    try:
        if hasattr(window, "__index__"):
            return operator.index(window), operator.index(window)
        left, right = map(operator.index, window)
    except (TypeError, ValueError):
        raise ArgumentError(f"local_window_size: {window!r}, allowed a number or (left, right)") from None
    return left, right


def _bottom_right(
    seqlen_q: int, seqlen_k: int, is_causal: bool, window: tuple[Optional[int], Optional[int]]
) -> tuple[tuple[int, int], int, Any]:
    """Returns attend's window, the number of keys to use, and a mask if no window is equivalent, otherwise None."""
    left, right = window
    if is_causal:
        right = 0 if right is None else min(right, 0)
    if left is None and right is None:
        return (-1, -1), seqlen_k, None
    keys = seqlen_k if right is None else min(seqlen_k, seqlen_q + right)
    offset = keys - seqlen_q
    is_window = keys > 0 and (left is None or (left >= 0 and left + offset >= 0))
    if is_window:
        return (-1 if left is None else left + offset, -1 if right is None else right - offset), keys, None
    i, j = jnp.arange(seqlen_q)[:, None], jnp.arange(seqlen_k)[None, :]
    seen = jnp.ones((seqlen_q, seqlen_k), bool)
    seen = seen if left is None else seen & (j >= i - left)
    return (-1, -1), seqlen_k, (seen if right is None else seen & (j <= i + right))[None, None]


def _both(mask: Any, other: Any) -> Any:
    if other is None:
        return mask
    if mask is None:
        return other
    if str(mask.dtype) != "bool":
        raise ArgumentError(f"mask: dtype {mask.dtype}, allowed bool")
    return jnp.asarray(mask) & other


def _lengths(name: str, lengths: Any, batch: int) -> Any:
    if lengths is None:
        return None
    if not hasattr(lengths, "dtype") or str(lengths.dtype) != "int32" or lengths.shape != (batch,):
        found = f"{lengths.dtype} {tuple(lengths.shape)}" if hasattr(lengths, "dtype") else type(lengths).__name__
        raise ArgumentError(f"{name}: {found}, allowed i32 ({batch},)")
    return jnp.asarray(lengths)
