"""Implements torch.func.vmap, and transforms based on it, by making the mapped dimension part of the batch.

Packed sequences have no batch, so their mapped dimension becomes part of the heads. Both conversions are called
folding.
"""

from __future__ import annotations

from typing import Any, Optional

from attend._errors import UnsupportedError
from attend._settings import (
    HEAD_TENSORS,
    NEEDS_NONE,
    OPTION_GRADIENTS,
    SCORE_TENSORS,
    Extras,
    Needs,
    Settings,
)
from attend.torch._operators import split, split_needs, wide

_Mapped = tuple[Any, Optional[int]]  # a tensor or None, and the index of its mapped dimension


def forward(run: Any, info: Any, in_dims: Any, *arguments: Any) -> tuple[Any, Any]:
    """Returns the results of attend::forward and their mapped dimensions. `run` computes the folded call."""
    q, k, v, *rest = arguments
    extras, settings = split(tuple(rest))
    fold = _Folding(info.batch_size, settings, q, in_dims[0])
    heads = (fold.heads(x, d) for x, d in zip((q, k, v), in_dims))
    folded = fold.extras(extras, _extras_dims(in_dims[3:], extras), NEEDS_NONE)
    o, lse = run(*heads, *folded, *settings)
    return (fold.out_of_heads(o), fold.out_of_rows(lse)), (0, 0)


def backward(run: Any, info: Any, in_dims: Any, *arguments: Any) -> tuple[Any, Any]:
    """Returns the results of attend::backward and their mapped dimensions. `run` computes the folded call."""
    q, k, v, o, lse, dout, dlse, *rest = arguments
    needs, extras, settings = split_needs(tuple(rest))
    extras_dims = _extras_dims(in_dims[7 + len(needs) :], extras)
    fold = _Folding(info.batch_size, settings, q, in_dims[0])
    q, k, v, o, dout = (fold.heads(x, d) for x, d in zip((q, k, v, o, dout), (*in_dims[:4], in_dims[5])))
    lse, dlse = (fold.rows(x, d) for x, d in ((lse, in_dims[4]), (dlse, in_dims[6])))
    folded = fold.extras(extras, extras_dims, needs)
    dq, dk, dv, *of_options = run(q, k, v, o, lse, dout, dlse, *needs, *folded, *settings)
    results = [fold.out_of_heads(x) for x in (dq, dk, dv)]
    for (name, _), is_needed, x in zip(OPTION_GRADIENTS, needs, of_options):
        option, dim = getattr(extras, name), getattr(extras_dims, name)
        results.append(fold.gradient(name, x, option, dim) if is_needed else x.expand(fold.size, 0))
    return tuple(results), (0,) * len(results)


def _extras_dims(in_dims: Any, extras: Extras) -> Extras:
    """Returns the mapped dimension of each field of `extras`. `extras` may be NO_EXTRAS."""
    return Extras(*(None if x is None else d for x, d in zip(extras, in_dims)))


class _Folding:
    """Folds the mapped dimension of tensors, whose length is `size`, into the batch or, for packed sequences, into the
    heads. A tensor without a mapped dimension is shared by all `size` calls.
    """

    def __init__(self, size: int, settings: Settings, q: Any, q_dim: Optional[int]) -> None:
        if settings.dropout_p:
            raise UnsupportedError(
                "dropout_p: with vmap, allowed 0 only: the entries that a seed drops are defined for one call"
            )
        self.size, self._is_packed = size, settings.layout == "thd"
        self._batch = next(n for d, n in enumerate(q.shape) if d != q_dim)

    def heads(self, x: Any, dim: Optional[int]) -> Any:
        """Folds q, k, v, o and their gradients."""
        return self._into(self._first(x, dim), 1 if self._is_packed else 0)

    def rows(self, x: Any, dim: Optional[int]) -> Any:
        """Folds lse and dlse. For packed sequences, heads are their first dimension."""
        return None if x is None else self._into(self._first(x, dim), 0)

    def extras(self, extras: Extras, dims: Extras, needs: Needs) -> Extras:
        """Folds the extras. `needs` has a flag for each gradient that will be computed."""
        for name in ("cu_seqlens_q", "cu_seqlens_k", "philox_state"):
            if getattr(dims, name) is not None:
                raise UnsupportedError(f"{name}: mapped by vmap, allowed the same for all")
        needed = {name for (name, _), is_needed in zip(OPTION_GRADIENTS, needs) if is_needed}
        folded = {}
        for names, fold in ((SCORE_TENSORS, self._scores), (HEAD_TENSORS, self._per_head)):
            for name in names:
                x = getattr(extras, name)
                if x is not None:
                    folded[name] = fold(x, getattr(dims, name), name in needed)
        return extras._replace(**folded)

    def gradient(self, name: str, x: Any, option: Any, dim: Optional[int]) -> Any:
        """Converts the gradient of a folded option to (size, *shape of `option`), summed over entries that were
        shared.
        """
        shape = [n for d, n in enumerate(option.shape) if d != dim]
        if name in SCORE_TENSORS or not self._is_packed:
            x = self.out_of_rows(x)
        else:
            x = x.unflatten(-1, (self.size, -1)).movedim(-2, 0)
        summed = x.sum_to_size(self.size, *[1] * (x.dim() - 1 - len(shape)), *shape)
        return summed.reshape(self.size, *shape).to(option.dtype)

    def out_of_heads(self, x: Any) -> Any:
        at = 1 if self._is_packed else 0
        return x.unflatten(at, (self.size, -1)).movedim(at, 0)

    def out_of_rows(self, x: Any) -> Any:
        return x.unflatten(0, (self.size, -1))

    def _first(self, x: Any, dim: Optional[int]) -> Any:
        return x.expand(self.size, *x.shape) if dim is None else x.movedim(dim, 0)

    def _into(self, x: Any, at: int) -> Any:
        """Merges the first dimension of x (size, ...) into dimension `at` of the other dimensions."""
        return x.movedim(0, at).flatten(at, at + 1)

    def _scores(self, x: Any, dim: Optional[int], is_needed: bool) -> Any:
        """Folds an option (1 or batch, ...) with an entry for each score. Returns it unchanged if it is not mapped, is
        shared by the batch, and needs no gradient.
        """
        count = x.dim() - (dim is not None)
        if dim is None and not is_needed and (count < 4 or x.shape[0] == 1):
            return x
        x = self._first(wide(x) if is_needed or x.requires_grad else x, dim)
        x = x.reshape(self.size, *[1] * (4 - count), *x.shape[1:])
        return x.expand(self.size, self._batch, *x.shape[2:]).flatten(0, 1)

    def _per_head(self, x: Any, dim: Optional[int], is_needed: bool) -> Any:
        """Folds an option with an entry for each head: (heads) or (1 or batch, heads)."""
        x = self._first(wide(x) if is_needed or x.requires_grad else x, dim)
        if self._is_packed:
            return self._into(x, x.dim() - 2)
        return (x if x.dim() == 3 else x[:, None]).expand(-1, self._batch, -1).flatten(0, 1)
