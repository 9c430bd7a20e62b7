"""Implements jax.vmap. The mapped dimension becomes part of the batch or, for packed sequences, part of the heads. This
conversion is called folding.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from attend._errors import UnsupportedError
from attend._settings import HEAD_TENSORS, SCORE_TENSORS
from attend.jax import _versions
from attend.jax._call import Call


class Folding:
    """Folds the arrays of a call into arrays with `size` times the batch or the heads. Arrays that are not mapped are
    shared.
    """

    def __init__(self, size: int, call: Call, q: Any, q_is_mapped: bool) -> None:
        if call.settings.dropout_p:
            raise UnsupportedError(
                "dropout_p: with vmap, allowed 0 only: the entries that a seed drops are defined for one call"
            )
        self._size, self._is_packed = size, call.settings.layout == "thd"
        self._batch = q.shape[1 if q_is_mapped else 0]
        # If the batch is sharded, the mapped dimension is placed after it, so that the merged dimension can stay
        # sharded.
        self._at = 1 if not self._is_packed and q_is_mapped and _versions.is_cut(q, 1) else 0

    def into(self, name: str, x: Any, is_mapped: bool, is_differentiated: bool) -> Any:
        """Returns an operand of the folded call. The mapped dimension of `x` is its first dimension."""
        if name in ("cu_seqlens_q", "cu_seqlens_k", "philox_state"):
            if is_mapped:
                raise UnsupportedError(f"{name}: mapped by vmap, allowed the same for all")
            return x
        if name in SCORE_TENSORS or (name in HEAD_TENSORS and not self._is_packed):
            if not is_mapped and not is_differentiated and x.shape[0] == 1:
                return x  # all mapped calls share this array
            x = self._mapped(x, is_mapped)
            x = jnp.broadcast_to(x, (self._size, self._batch, *x.shape[2:]))
            return jnp.moveaxis(x, 0, self._at).reshape(self._size * self._batch, *x.shape[2:])
        x, at = self._mapped(x, is_mapped), self._axis(name)
        shape = x.shape[1:]
        return jnp.moveaxis(x, 0, at + self._at).reshape(*shape[:at], self._size * shape[at], *shape[at + 1 :])

    def out_of(self, name: str, x: Any, option_batch: int) -> Any:
        """Returns a result with the mapped dimension first. `option_batch` is the batch size of the option whose
        gradient the result is.
        """
        at = self._axis(name)
        shape = x.shape
        parts = (self._size, shape[at] // self._size)
        x = x.reshape(*shape[:at], *(parts[::-1] if self._at else parts), *shape[at + 1 :])
        x = jnp.moveaxis(x, at + self._at, 0)
        is_summed = name.removeprefix("d") in SCORE_TENSORS and option_batch == 1 and self._batch != 1
        return x.sum(axis=1, keepdims=True) if is_summed else x

    def _mapped(self, x: Any, is_mapped: bool) -> Any:
        return x if is_mapped else jnp.broadcast_to(x, (self._size, *x.shape))

    def _axis(self, name: str) -> int:
        return 1 if self._is_packed and name not in ("lse", "dlse") else 0
