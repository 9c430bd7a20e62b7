"""Defines the operators of flex_attention in graphs: schemas, implementations, fake implementations and autograd.

    attend::flex_forward(q, k, v, captures, text?, mask?, made?, scale?) -> (o, lse, tiles)
    attend::flex_backward(q, k, v, o, lse, dout, dlse?, captures, text?, tiles, scale?, needs)
        -> (dq, dk, dv, gradients of captures)

    attend::flex_tiles(captures, text, batch, num_heads, seqlen_q, seqlen_k) -> tiles

`captures` are the tensors that the text reads as t0, t1 and so on. Tiles and masks are passed as numbers, by which this
module finds them. `mask` identifies a BlockMask that was made outside of the graph, `made` identifies tiles of
flex_tiles, and `tiles` identifies the tiles that forward used, for backward. These numbers are tensors, i64 () on the
CPU, because a graph treats arguments that are not tensors as constants. A gradient that is not requested is an empty
tensor of shape (0).
"""

from __future__ import annotations

import collections
import itertools
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple, Optional

import torch

from attend._block_mask import make_block_mask
from attend._core import BlockMask as Tiles
from attend._drop_in import renamed
from attend._errors import Error, UnsupportedError
from attend._flex.block_masks import mask_of_token, tiles_of
from attend._flex.functions import NAMES
from attend._resolve import resolve
from attend._score import Own
from attend._settings import NEEDS_NONE, NO_EXTRAS, Gradients, Settings
from attend.torch import _meta, _score
from attend.torch._autograd import refuse_double_backward
from attend.torch._operators import TAGS, empty_like, empty_results, library

_GIVEN = "Tensor[] captures, str? text"
library.define(
    f"flex_forward(Tensor q, Tensor k, Tensor v, {_GIVEN}, Tensor? mask, Tensor? made, float? scale) "
    "-> (Tensor o, Tensor lse, Tensor tiles)",
    tags=TAGS,
)
library.define(
    "flex_backward(Tensor q, Tensor k, Tensor v, Tensor o, Tensor lse, Tensor dout, Tensor? dlse, "
    f"{_GIVEN}, Tensor tiles, float? scale, bool[] needs) -> (Tensor dq, Tensor dk, Tensor dv, Tensor[] of_captures)",
    tags=TAGS,
)
library.define(
    "flex_tiles(Tensor[] captures, str text, SymInt batch, SymInt num_heads, SymInt seqlen_q, SymInt seqlen_k) "
    "-> Tensor tiles",
    # This tag prevents compilers from evaluating the operator once for constant inputs, because its result refers to
    # tiles in memory.
    tags=(*TAGS, torch.Tag.nondeterministic_seeded),
)
forward, make_tiles = torch.ops.attend.flex_forward, torch.ops.attend.flex_tiles

_NONE = 0
_numbers = itertools.count(1)
_tiles: dict[int, Tiles] = {}


def _number_of(tiles: Optional[Tiles]) -> torch.Tensor:
    """Returns a tensor with a number that identifies the tiles. The tiles live as long as the memory of this tensor,
    because autograd may save an alias of it.
    """
    if tiles is None:
        return torch.tensor(_NONE)
    number = next(_numbers)
    token = torch.tensor(number)
    _tiles[number] = tiles
    weakref.finalize(token.untyped_storage(), _tiles.pop, number, None).atexit = False
    return token


def _tiles_of_number(token: torch.Tensor) -> Optional[Tiles]:
    number = int(token)
    if number != _NONE and number not in _tiles:
        raise UnsupportedError(
            "block_mask: its tiles have been freed, allowed a backward pass with the tensors of its forward pass"
        )
    return _tiles.get(number)


class _Made(NamedTuple):
    text: str
    sizes: tuple[int, ...]
    captures: list[torch.Tensor]
    tiles: Tiles


_MOST_MADE = 8
_made: collections.deque[_Made] = collections.deque(maxlen=_MOST_MADE)


def _make_tiles(captures: Any, text: str, *sizes: int) -> torch.Tensor:
    """Makes tiles. Reuses recent tiles that were made from equal values, because the layers of a model often request
    the same tiles.
    """
    here = [x.detach().cpu() for x in captures]
    for x in tuple(_made):
        if (x.text, x.sizes) == (text, sizes) and all(_are_equal(a, b) for a, b in zip(x.captures, here)):
            return _number_of(x.tiles)
    batch, heads, rows, keys = sizes
    named = {f"t{n}": x for n, x in enumerate(here)}
    try:
        tiles = make_block_mask(text, rows, keys, batch=batch, num_heads=heads, captures=named)
    except Error as error:
        raise renamed(error, {"captures": "mask_mod"}) from None
    _made.append(_Made(text, sizes, [x.clone() for x in here], tiles))
    return _number_of(tiles)


def _are_equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype == b.dtype and torch.equal(a, b)


def _own(text: Optional[str], captures: Sequence[torch.Tensor], tiles: Optional[Tiles]) -> Own:
    return Own(text, {f"t{n}": x for n, x in enumerate(captures)}, tiles)


def _settings(q: torch.Tensor, scale: Optional[float]) -> Settings:
    return resolve("flex_attention", q, {"scale": scale})[1]


def _forward(
    q: Any, k: Any, v: Any, captures: Any, text: Any, mask: Any, made: Any, scale: Any
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    try:
        tiles = None if made is None else _tiles_of_number(made)
        if mask is not None:
            with torch.no_grad():
                tiles = tiles_of(mask_of_token(mask), q.shape[0], q.shape[1], q.shape[2], k.shape[2])
        score = _own(text, captures, tiles)
        o, lse = _score.run_forward(score, q, k, v, NO_EXTRAS, _settings(q, scale), tuple(captures))
    except Error as error:
        raise renamed(error, NAMES) from None
    return o, lse, _number_of(tiles)


def _forward_fake(
    q: Any, k: Any, v: Any, captures: Any, text: Any, mask: Any, made: Any, scale: Any
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    settings = _settings(q, scale)
    o, lse = empty_results(q, v, settings.layout)
    try:
        _meta.check(q, k, v, o, lse, None, NO_EXTRAS, settings)
    except Error as error:
        raise renamed(error, NAMES) from None
    return o, lse, torch.empty((), dtype=torch.int64)


def _backward(
    q: Any, k: Any, v: Any, o: Any, lse: Any, dout: Any, dlse: Any, captures: Any, text: Any, tiles: Any,
    scale: Any, needs: Any,
) -> tuple[Any, ...]:  # fmt: skip
    score = _own(text, captures, _tiles_of_number(tiles))
    dq, dk, dv, *_, of_captures = _score.gradients(
        score, dout, q, k, v, o, lse, dlse, NEEDS_NONE, NO_EXTRAS, _settings(q, scale), needs, tuple(captures)
    )
    return dq, dk, dv, [x.new_empty(0) if y is None else y for x, y in zip(captures, of_captures)]


def _backward_fake(
    q: Any, k: Any, v: Any, o: Any, lse: Any, dout: Any, dlse: Any, captures: Any, text: Any, tiles: Any,
    scale: Any, needs: Any,
) -> tuple[Any, ...]:  # fmt: skip
    results = empty_like(q), empty_like(k), empty_like(v)
    _meta.check(q, k, v, o, lse, Gradients(dout, dlse, *results), NO_EXTRAS, _settings(q, scale))
    return *results, [
        x.new_empty(x.shape if is_needed and x.is_floating_point() else 0) for x, is_needed in zip(captures, needs)
    ]


for _key in ("CPU", "CUDA"):
    library.impl("flex_forward", _forward, _key)
    library.impl("flex_backward", _backward, _key)
library.impl("flex_tiles", _make_tiles, "CompositeExplicitAutograd")
torch.library.register_fake(
    "attend::flex_tiles", lambda captures, text, *sizes: torch.empty((), dtype=torch.int64), lib=library
)
torch.library.register_fake("attend::flex_forward", _forward_fake, lib=library)
torch.library.register_fake("attend::flex_backward", _backward_fake, lib=library)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
    q, k, v, captures, ctx.text, _, _, ctx.scale = inputs
    o, lse, tiles = output
    ctx.mark_non_differentiable(tiles)
    ctx.save_for_backward(q, k, v, o, lse, tiles, *captures)
    ctx.set_materialize_grads(False)


def _gradients(ctx: Any, dout: Any, dlse: Any, _: Any) -> tuple[Any, ...]:
    q, k, v, o, lse, tiles, *captures = ctx.saved_tensors
    wanted = ctx.needs_input_grad[3]
    needs = [bool(x) for x in wanted] if isinstance(wanted, (list, tuple)) else [bool(wanted)] * len(captures)
    dout = torch.zeros_like(o) if dout is None else dout
    dq, dk, dv, of_captures = torch.ops.attend.flex_backward(
        q, k, v, o, lse, dout, dlse, captures, ctx.text, tiles, ctx.scale, needs
    )
    are_floats = [x.is_floating_point() for x in captures]
    asked = [x if is_needed and is_float else None for x, is_needed, is_float in zip(of_captures, needs, are_floats)]
    return dq, dk, dv, asked, None, None, None, None


def _remember_nothing(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    pass


torch.library.register_autograd("attend::flex_forward", _gradients, setup_context=_setup_context, lib=library)
torch.library.register_autograd(
    "attend::flex_backward", refuse_double_backward, setup_context=_remember_nothing, lib=library
)
