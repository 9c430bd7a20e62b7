"""Registers the shardings that the operators support: over batch and heads.

If a tensor is sharded otherwise (over the sequence, for example), torch's DTensor redistributes it first. The result is
correct, at the cost of communication.
"""

from __future__ import annotations

import itertools
import math
from typing import Any, Optional

import torch

from attend._errors import UnsupportedError
from attend._settings import HEAD_TENSORS, OPTION_GRADIENTS, SCORE_TENSORS, Extras
from attend.torch._operators import split, split_needs

_HEADS_AXIS = {"bhsd": 1, "bshd": 2, "thd": 1}
_FIRST_OPTIONAL = {"forward": 3, "backward": 6}  # index of the first argument that may be None
_is_known = False


def learn() -> None:
    """Registers the operators with DTensor when the first DTensor appears. An earlier registration would import
    torch's DTensor, which takes half a second.
    """
    global _is_known
    if not _is_known:
        _register()
        _is_known = True


learn._dynamo_marked_constant = True  # type: ignore[attr-defined]  # see attend.torch._transforms.are_active


def is_dtensor(x: Any) -> bool:
    return type(x).__name__ == "DTensor"


def _register() -> None:
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor.experimental import register_sharding

    for name, shardings in (("forward", _forward), ("backward", _backward)):
        operator = getattr(torch.ops.attend, name).default
        register_sharding(operator)(shardings)
        # DTensor caches a sharding decision. The key contains the tensors, and the values of all arguments from index
        # static_argnum on. By default this index is that of the first integer, so the key would not contain the bools
        # in `needs`.
        info = DTensor._op_dispatcher.sharding_propagator.op_to_schema_info[operator]
        info.static_argnum = _FIRST_OPTIONAL[name]


def refuse_dropout(dropout_p: float, *tensors: Any) -> None:
    if dropout_p and any(map(is_dtensor, tensors)):
        raise UnsupportedError(
            f"dropout_p: {dropout_p} with DTensor, allowed 0 only: the entries that a seed drops depend on "
            "the batch and the head in the whole tensor. Call attend with to_local(), and a seed for each rank"
        )


def _forward(q: Any, k: Any, v: Any, *rest: Any) -> list[Any]:
    """Returns the supported placements on one dimension of the mesh: a list of (placements of o and lse, placements of
    the arguments).
    """
    extras, settings = split(rest)
    found = []
    for cut in _cuts(k, settings.layout):
        rows, lse = _of_rows(cut, settings.layout), _of_lse(cut, settings.layout)
        others = [*_of_extras(cut, extras, settings.layout), *[None] * len(settings)]
        found.append(([rows, lse], [rows, rows, rows, *others]))
    return found


def _backward(q: Any, k: Any, v: Any, o: Any, lse: Any, dout: Any, dlse: Any, *rest: Any) -> list[Any]:
    from torch.distributed.tensor import Partial, Replicate

    needs, extras, settings = split_needs(rest)
    found = []
    for cut in _cuts(k, settings.layout):
        rows, of_lse = _of_rows(cut, settings.layout), _of_lse(cut, settings.layout)
        of_dlse = None if dlse is None else of_lse
        of_extras = _of_extras(cut, extras, settings.layout)
        of_options = []
        for (name, _), is_needed in zip(OPTION_GRADIENTS, needs):
            placement = of_extras[Extras._fields.index(name)] if is_needed else Replicate()
            if is_needed and cut is not None and placement == Replicate():
                placement = Partial()  # each rank has the sum over the rows that it holds
            of_options.append(placement)
        others = [*[None] * len(needs), *of_extras, *[None] * len(settings)]
        arguments = [rows, rows, rows, rows, of_lse, rows, of_dlse, *others]
        found.append(([rows, rows, rows, *of_options], arguments))
    return found


def _cuts(k: Any, layout: str) -> list[Optional[str]]:
    """Returns the dimensions along which tensors can be split over the ranks: None (no split), "batch", "heads"."""
    cuts: list[Optional[str]] = [None]
    if layout != "thd":
        cuts.append("batch")
    # The query heads of a rank must read the key heads of the same rank. They do so if each rank gets the same number
    # of heads. Each rank must get the same number of heads for every subset of the mesh's dimensions, because DTensor
    # combines the splits of several dimensions.
    heads = k.shape[_HEADS_AXIS[layout]]
    sizes = k.mesh.shape
    subsets = itertools.chain.from_iterable(itertools.combinations(sizes, n) for n in range(1, len(sizes) + 1))
    if all(heads % math.prod(some) == 0 for some in subsets if math.prod(some) <= heads):
        cuts.append("heads")
    return cuts


def _of_rows(cut: Optional[str], layout: str) -> Any:
    """Returns the placement of q, k, v, o and their gradients."""
    return _shard(cut, 0, _HEADS_AXIS[layout])


def _of_lse(cut: Optional[str], layout: str) -> Any:
    return _shard(cut, 0, 0 if layout == "thd" else 1)


def _of_extras(cut: Optional[str], extras: Extras, layout: str) -> list[Any]:
    found = {name: None if x is None else _shard(None) for name, x in extras._asdict().items()}
    for name, x in extras._asdict().items():
        if x is not None and name in SCORE_TENSORS:
            found[name] = _of_scores(cut, x)
        elif x is not None and name in HEAD_TENSORS:
            found[name] = _per_head(cut, x, layout)
    return list(found.values())


def _per_head(cut: Optional[str], x: Any, layout: str) -> Any:
    """Returns the placement of an option with an entry for each head: (heads) or (1 or batch, heads)."""
    has_batch = x.ndim == 2 and x.shape[0] > 1 and layout != "thd"
    return _shard(cut, 0 if has_batch else None, x.ndim - 1)


def _of_scores(cut: Optional[str], x: Any) -> Any:
    """Returns the placement of an option with an entry for each score: (1 or batch, 1 or heads, ...), or fewer
    dimensions.
    """
    batch, heads = (axis if axis >= 0 and x.shape[axis] > 1 else None for axis in (x.ndim - 4, x.ndim - 3))
    return _shard(cut, batch, heads)


def _shard(cut: Optional[str], batch: Optional[int] = None, heads: Optional[int] = None) -> Any:
    """Returns the placement of a tensor. `batch` and `heads` are the indices of these dimensions, or None if the tensor
    does not have them.
    """
    from torch.distributed.tensor import Replicate, Shard

    axis = {"batch": batch, "heads": heads}.get(cut or "")
    return Replicate() if axis is None else Shard(axis)
