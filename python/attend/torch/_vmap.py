"""torch.func.vmap, and what torch builds on it: the mapped dimension becomes part of the batch.

Packed sequences have no batch: there it becomes part of the heads.
"""

from __future__ import annotations

from typing import Any, Optional

from attend._errors import UnsupportedError
from attend._settings import Extras, Settings
from attend.torch._operators import split, wide

_Mapped = tuple[Any, Optional[int]]  # a tensor (or None) and its mapped dimension


def forward(run: Any, info: Any, in_dims: Any, *arguments: Any) -> tuple[Any, Any]:
    """The results of attend::forward and their mapped dimensions. `run`: what computes the folded call."""
    q, k, v, *rest = arguments
    extras, settings = split(tuple(rest))
    fold = _Folding(info.batch_size, settings, q, in_dims[0])
    heads = (fold.heads(x, d) for x, d in zip((q, k, v), in_dims))
    folded = fold.extras(extras, _extras_dims(in_dims[3:], extras), wants_dbias=False)
    o, lse = run(*heads, *folded, *settings)
    return (fold.out_of_heads(o), fold.out_of_rows(lse)), (0, 0)


def backward(run: Any, info: Any, in_dims: Any, *arguments: Any) -> tuple[Any, Any]:
    """Likewise of attend::backward."""
    q, k, v, o, lse, dout, dlse, needs_dbias, *rest = arguments
    extras, settings = split(tuple(rest))
    extras_dims = _extras_dims(in_dims[8:], extras)
    fold = _Folding(info.batch_size, settings, q, in_dims[0])
    q, k, v, o, dout = (fold.heads(x, d) for x, d in zip((q, k, v, o, dout), (*in_dims[:4], in_dims[5])))
    lse, dlse = (fold.rows(x, d) for x, d in ((lse, in_dims[4]), (dlse, in_dims[6])))
    widened = extras._replace(bias=wide(extras.bias)) if needs_dbias else extras
    folded = fold.extras(widened, extras_dims, wants_dbias=needs_dbias)
    *gradients, dbias = run(q, k, v, o, lse, dout, dlse, needs_dbias, *folded, *settings)
    shape = [n for d, n in enumerate(extras.bias.shape) if d != extras_dims.bias] if needs_dbias else [0]
    if needs_dbias:
        summed = fold.out_of_rows(dbias).sum_to_size(fold.size, *[1] * (4 - len(shape)), *shape)
        dbias = summed.reshape(fold.size, *shape).to(extras.bias.dtype)
    else:
        dbias = dbias.expand(fold.size, 0)
    return (*(fold.out_of_heads(x) for x in gradients), dbias), (0, 0, 0, 0)


def _extras_dims(in_dims: Any, extras: Extras) -> Extras:
    """The mapped dimensions of the extras. `split` gives its own empty tuple where there are none."""
    return Extras(*(None if x is None else d for x, d in zip(extras, in_dims)))


class _Folding:
    """Mapped and shared tensors, all with `size` times the batch, or the heads of packed sequences."""

    def __init__(self, size: int, settings: Settings, q: Any, q_dim: Optional[int]) -> None:
        if settings.dropout_p:
            raise UnsupportedError("dropout_p: with vmap, allowed 0 only: what a seed drops is defined for one call")
        self.size, self._is_packed = size, settings.layout == "thd"
        self._batch = next(n for d, n in enumerate(q.shape) if d != q_dim)

    def heads(self, x: Any, dim: Optional[int]) -> Any:
        """q, k, v, o and their gradients."""
        return self._into(self._first(x, dim), 1 if self._is_packed else 0)

    def rows(self, x: Any, dim: Optional[int]) -> Any:
        """lse and dlse: heads lead where sequences are packed."""
        return None if x is None else self._into(self._first(x, dim), 0)

    def extras(self, extras: Extras, dims: Extras, wants_dbias: bool) -> Extras:
        for name in ("cu_seqlens_q", "cu_seqlens_k", "philox_state"):
            if getattr(dims, name) is not None:
                raise UnsupportedError(f"{name}: mapped by vmap, allowed the same for all")
        return extras._replace(
            bias=self._scores(extras.bias, dims.bias, always=wants_dbias),
            mask=self._scores(extras.mask, dims.mask, always=False),
            alibi_slopes=self._slopes(extras.alibi_slopes, dims.alibi_slopes),
        )

    def out_of_heads(self, x: Any) -> Any:
        at = 1 if self._is_packed else 0
        return x.unflatten(at, (self.size, -1)).movedim(at, 0)

    def out_of_rows(self, x: Any) -> Any:
        return x.unflatten(0, (self.size, -1))

    def _first(self, x: Any, dim: Optional[int]) -> Any:
        return x.expand(self.size, *x.shape) if dim is None else x.movedim(dim, 0)

    def _into(self, x: Any, at: int) -> Any:
        """(size, ...) with the first dimension in front of dimension `at` of the others, and one with it."""
        return x.movedim(0, at).flatten(at, at + 1)

    def _scores(self, x: Any, dim: Optional[int], always: bool) -> Any:
        """bias and mask, (1 or batch, ...): where nothing is mapped and all of the batch share it, as it is."""
        if x is None:
            return None
        count = x.dim() - (dim is not None)
        if dim is None and not always and (count < 4 or x.shape[0] == 1):
            return x
        x = self._first(wide(x) if x.requires_grad else x, dim)
        x = x.reshape(self.size, *[1] * (4 - count), *x.shape[1:])
        return x.expand(self.size, self._batch, *x.shape[2:]).flatten(0, 1)

    def _slopes(self, x: Any, dim: Optional[int]) -> Any:
        """(heads) or (batch, heads)."""
        if x is None:
            return None
        x = self._first(x, dim)
        if self._is_packed:
            return self._into(x, x.dim() - 2)
        return (x if x.dim() == 3 else x[:, None].expand(-1, self._batch, -1)).flatten(0, 1)
