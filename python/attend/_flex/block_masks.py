"""A BlockMask that makes torch's lists of blocks only on request, and the conversion of masks into attend's tiles."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable
from typing import Any, Optional, Union

import torch
from torch.nn.attention import flex_attention as torchs

from attend._block_mask import make_block_mask
from attend._core import BlockMask as Tiles
from attend._errors import ArgumentError, Error, UnsupportedError
from attend._flex.functions import evaluated, outside_of_graphs, traced
from attend._flex.keys import key_of
from attend._flex.traced import Traced

_LISTS = (
    "kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices",
    "q_num_blocks", "q_indices", "full_q_num_blocks", "full_q_indices",
)  # fmt: skip
_ORDERS = ("dq_write_order", "dq_write_order_full", "dq_kv_order", "dq_kv_order_spt")
NO_BLOCKS = 1 << 30  # the block size of the mask that torch uses if none is given; that mask hides nothing
_MOST_AT_ONCE = 1 << 24  # the largest number of (row, key) pairs that are evaluated at once
_LEAST_ON_GPU = 1 << 24  # a CPU makes masks with fewer (row, key) pairs, because it is as fast


_masks: weakref.WeakValueDictionary[int, BlockMask] = weakref.WeakValueDictionary()
_numbers = itertools.count()


def _new_token(mask: BlockMask) -> torch.Tensor:
    """Returns a tensor that contains the number of the mask. Operators in graphs find the mask by this number, so a new
    mask causes no recompilation.
    """
    number = next(_numbers)
    _masks[number] = mask
    return torch.tensor(number)


def mask_of_token(token: torch.Tensor) -> BlockMask:
    return _masks[int(token)]


class BlockMask(torchs.BlockMask):
    """Defines which keys each row sees, by `mask_mod` and by lists of blocks of BLOCK_SIZE rows and keys.

    A subclass of torch.nn.attention.flex_attention.BlockMask with its attributes, methods and constructors, so torch's
    flex_attention accepts it too. `create_block_mask` returns a mask whose lists are computed when they are first read,
    because attend does not need them. `from_kv_blocks(kv_num_blocks, kv_indices, ...)` makes a mask from lists:
    mask_mod decides the pairs of a listed block, all pairs of a block that is listed as full are seen, and all other
    blocks are hidden. Batch and head index the lists modulo the lists' sizes, as in torch's kernels. mask_mod receives
    the batch and head of the call.
    """

    _token: torch.Tensor  # one element: the key of this mask in _masks
    _asks_for_gradients = False  # whether a captured tensor requires grad; set only for a mask without lists
    _unlisted: Optional[dict[str, Any]]  # the inputs from which the lists are computed, or None if the lists were given

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._unlisted = None
        self._token = _new_token(self)
        super().__init__(*args, **kwargs)

    @classmethod
    def _of_function(
        cls, mask_mod: Callable[..., Any], shape: tuple[int, int, int, int], block_size: tuple[int, int],
        device: torch.device, has_full_blocks: bool,
    ) -> BlockMask:  # fmt: skip
        mask = cls.__new__(cls)
        mask._unlisted = None
        mask._token = _new_token(mask)
        mask.seq_lengths, mask.BLOCK_SIZE, mask.mask_mod = shape[2:], block_size, mask_mod
        mask._unlisted = {"shape": shape, "device": device, "has_full_blocks": has_full_blocks}
        return mask

    @classmethod
    def _like(cls, mask: torchs.BlockMask) -> BlockMask:
        """Returns a mask with the same lists and mask_mod."""
        copy = cls.__new__(cls)
        copy.__setstate__({"_unlisted": None, **mask.__dict__})
        return copy

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restores the state. Copies are made by this function too, so each copy gets a new token."""
        self.__dict__.update({**state, "_token": _new_token(self)})

    def __getattr__(self, name: str) -> Any:
        if name in _LISTS and self.__dict__.get("_unlisted"):
            self._make_lists()
            return self.__dict__[name]
        if name in _ORDERS:
            return None
        raise AttributeError(name)

    def __setattr__(self, name: str, value: Any) -> None:
        if self.__dict__.get("_unlisted") and (name == "mask_mod" or name in _LISTS):
            self._make_lists()  # the lists must come from the mask_mod with which the mask was made
            self._unlisted = None
        super().__setattr__(name, value)

    @outside_of_graphs
    def _make_lists(self) -> None:
        given = self._unlisted
        assert given is not None
        if "kv_num_blocks" in self.__dict__:
            return
        blocks = _states_of_blocks(self.mask_mod, given["shape"], self.BLOCK_SIZE, given["device"])
        full = blocks == 2 if given["has_full_blocks"] else None
        partial = blocks == 1 if given["has_full_blocks"] else blocks > 0
        lists = [*_lists(partial), *(_lists(full) if full is not None else (None, None))]
        lists += [*_lists(partial.mT), *(_lists(full.mT) if full is not None else (None, None))]
        self.__dict__.update(zip(_LISTS, lists))

    @property
    def shape(self) -> tuple[int, ...]:
        """(B, H, Q_LEN, KV_LEN)."""
        if self._unlisted:
            shape: tuple[int, ...] = self._unlisted["shape"]
            return shape
        return (*self.kv_indices.shape[:-2], *self.seq_lengths)

    def __repr__(self) -> str:
        if "kv_num_blocks" in self.__dict__:
            return super().__repr__()
        # A debugger may print a long mask, so this method does not make the mask's lists.
        name = getattr(self.mask_mod, "__name__", self.mask_mod)
        return f"BlockMask(shape={self.shape}, BLOCK_SIZE={self.BLOCK_SIZE}, mask_mod={name})"

    def __getitem__(self, index: Any) -> BlockMask:
        return self._like(super().__getitem__(index))

    def _adjust(self, new_q_len: int, new_kv_len: int) -> BlockMask:
        given = self._unlisted
        if not given:
            return self._like(super()._adjust(new_q_len, new_kv_len))
        shape = (*given["shape"][:2], new_q_len, new_kv_len)
        mask = self._of_function(self.mask_mod, shape, self.BLOCK_SIZE, given["device"], given["has_full_blocks"])
        mask._asks_for_gradients = self._asks_for_gradients
        return mask

    def to(self, device: Union[torch.device, str]) -> BlockMask:
        """Returns the same mask with its lists on this device. The tensors that mask_mod captures are not moved."""
        moved = self._like(self)
        if moved._unlisted:
            moved.__dict__["_unlisted"] = {**moved._unlisted, "device": torch.device(device)}
        for name in (*_LISTS, *_ORDERS):
            if isinstance(moved.__dict__.get(name), torch.Tensor):
                moved.__dict__[name] = moved.__dict__[name].to(device)
        if moved._unlisted and self in _known:
            _known[moved] = _known[self]  # keeps the values that captured tensors had when the mask was made
        return moved


def _lists(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns for each row the number of listed blocks, and all block indices with the listed ones first."""
    order = torch.argsort(blocks.to(torch.int8), dim=-1, descending=True, stable=True)
    return blocks.sum(-1).to(torch.int32), order.to(torch.int32).contiguous()


def _states_of_blocks(
    mask_mod: Callable[..., Any], shape: tuple[int, int, int, int], block_size: tuple[int, int], device: torch.device
) -> torch.Tensor:
    """Returns i8 (B, H, blocks of rows, blocks of keys): 0 if nothing is seen, 1 if a part, 2 if all.

    A truncated block at the end counts as partial, as in torch.
    """
    batch, heads, rows, keys = shape
    size_q, size_k = block_size
    num_q, num_k = -(-rows // size_q), -(-keys // size_k)
    asked = traced("mask_mod", mask_mod, device)[0].variables
    lists = (batch if "b" in asked else 1, heads if "h" in asked else 1)
    states = torch.zeros(*lists, num_q, num_k, dtype=torch.int8, device=device)
    at_once = max(1, _MOST_AT_ONCE // max(1, size_q * keys))
    k = torch.arange(keys, dtype=torch.int32, device=device)
    for b, h, first in itertools.product(range(lists[0]), range(lists[1]), range(0, num_q, at_once)):
        last = min(first + at_once, num_q)
        q = torch.arange(first * size_q, min(last * size_q, rows), dtype=torch.int32, device=device)
        here = [torch.full((1,), n, dtype=torch.int32, device=device) for n in (b, h)]
        padded = torch.zeros((last - first) * size_q, num_k * size_k, dtype=torch.bool, device=device)
        padded[: len(q), :keys] = evaluated(mask_mod, [*here, q, k])[0, 0]
        count = padded.view(last - first, size_q, num_k, size_k).sum((1, 3))
        states[b, h, first:last] = (count > 0).to(torch.int8) + (count == size_q * size_k).to(torch.int8)
    return states.expand(batch, heads, -1, -1)


# Conversion of masks for attend


class _Known:
    """Data derived from a mask with these `parts`.

    The parts are held by weak references. A mask_mod often references an object that holds the mask, and an entry of
    `_known` must not keep that object alive.
    """

    def __init__(
        self, parts: tuple[Any, ...], state: Optional[tuple[Any, ...]], traced: Traced, captured: list[torch.Tensor]
    ) -> None:
        self.parts = tuple(_reference(x) for x in parts)
        self.versions = _versions(parts)
        self.state = state
        self.traced = traced
        self.captured = captured
        self.asks_for_gradients = False  # set when the tiles are made
        self.tiles: dict[tuple[int, int, int, int], Tiles] = {}

    def is_of(self, parts: tuple[Any, ...]) -> bool:
        is_same = len(parts) == len(self.parts) and all(x is y() for x, y in zip(parts, self.parts))
        return is_same and self.versions == _versions(parts)


def _reference(x: Any) -> Callable[[], Any]:
    try:
        return weakref.ref(x)
    except TypeError:  # a tuple, None, or an object that does not support weak references
        return lambda: x


_known: weakref.WeakKeyDictionary[torchs.BlockMask, _Known] = weakref.WeakKeyDictionary()


def tiles_of(mask: torchs.BlockMask, batch: int, heads: int, rows: int, keys: int) -> Optional[Tiles]:
    """Returns the tiles for a call with these sizes, or None if the mask hides nothing."""
    if tuple(mask.BLOCK_SIZE) == (NO_BLOCKS, NO_BLOCKS):
        return None
    check_lengths(mask, rows, keys)
    known = _look_up(mask)
    size = (
        batch if "b" in known.traced.variables else 1, heads if "h" in known.traced.variables else 1, rows, keys
    )  # fmt: skip
    if size not in known.tiles:
        known.tiles[size] = _tiles(known, size)
        if type(mask) is BlockMask:
            mask._asks_for_gradients = known.asks_for_gradients
    refuse_gradients(known.asks_for_gradients)
    return known.tiles[size]


def refuse_gradients(are_asked_for: bool) -> None:
    if are_asked_for and torch.is_grad_enabled():
        raise UnsupportedError("mask_mod: a captured tensor requires its gradient, and masks have none; detach it")


def check_lengths(mask: torchs.BlockMask, rows: int, keys: int) -> None:
    lengths = tuple(mask.seq_lengths)
    if lengths != (rows, keys):
        raise ArgumentError(
            f"block_mask: made for {lengths[0]} rows and {lengths[1]} keys, allowed {rows} and {keys}, "
            "the lengths of query and key; make a new one"
        )


def _look_up(mask: torchs.BlockMask) -> _Known:
    parts, state = _parts(mask), _state(mask)
    known = _known.get(mask)
    if known is None or state is None or not known.is_of(parts) or not _is_same_state(state, known.state):
        known = _known[mask] = _Known(parts, state, *_traced(mask))
    return known


def _state(mask: torchs.BlockMask) -> Optional[tuple[Any, ...]]:
    """For a mask with lists, returns everything else that the mask depends on. Returns None if this cannot be
    determined.

    torch evaluates the mask_mod of such a mask in each call. attend's own mask without lists has already read the
    tensors that its mask_mod captures.
    """
    if getattr(mask, "_unlisted", None):
        return ()
    key, tensors = key_of(mask.mask_mod)
    return None if key is None else (key, *((x, 0 if x.is_inference() else x._version) for x in tensors))


def _is_same_state(a: tuple[Any, ...], b: Optional[tuple[Any, ...]]) -> bool:
    if b is None or len(a) != len(b):
        return False
    if not a:
        return True
    return a[0] == b[0] and all(x is y and n == m for (x, n), (y, m) in zip(a[1:], b[1:]))


def _tiles(known: _Known, size: tuple[int, int, int, int]) -> Tiles:
    sizes: dict[str, int] = dict(zip(("b", "h", "q", "k"), size))
    known.traced.check_extents("mask_mod", sizes)
    with torch.enable_grad(), torch.autocast("cpu", enabled=False):
        tensors = known.traced.captures(known.captured, torch.device("cpu"))
    known.asks_for_gradients = any(x.requires_grad for x in tensors.values())
    captures = {name: x.detach() for name, x in tensors.items()}
    return _made_near(captures, known.traced.text_for(sizes), size)


def _made_near(captures: dict[str, torch.Tensor], text: str, size: tuple[int, int, int, int]) -> Tiles:
    """Makes a large mask on the GPU of its captures. The CPU makes a small mask, and a mask whose text GPUs do not
    support.
    """
    batch, heads, rows, keys = size
    devices = {x.device for x in captures.values() if x.is_cuda}
    if len(devices) == 1 and batch * heads * rows * keys >= _LEAST_ON_GPU:
        try:
            return make_block_mask(
                text, rows, keys, batch=batch, num_heads=heads, captures=captures, device=devices.pop()
            )
        except Error:  # unsupported text, no GPU memory or no compiler: use the CPU, which may report the error
            pass
    here = {name: x.cpu() for name, x in captures.items()}
    return make_block_mask(text, rows, keys, batch=batch, num_heads=heads, captures=here)


def _parts(mask: torchs.BlockMask) -> tuple[Any, ...]:
    lists = () if getattr(mask, "_unlisted", None) else tuple(getattr(mask, name) for name in _LISTS[:4])
    return (mask.mask_mod, mask.seq_lengths, mask.BLOCK_SIZE, *lists)


def _versions(parts: tuple[Any, ...]) -> tuple[int, ...]:
    """Returns how often each tensor was changed in place."""
    return tuple(0 if x.is_inference() else x._version for x in parts if isinstance(x, torch.Tensor))


def _traced(mask: torchs.BlockMask) -> tuple[Traced, list[torch.Tensor]]:
    given = getattr(mask, "_unlisted", None)
    if given:
        return traced("mask_mod", mask.mask_mod, given["device"])
    table = table_of_blocks(mask)
    return traced("mask_mod", of_lists(table, mask), table.device)


def of_lists(table: torch.Tensor, mask: torchs.BlockMask) -> Callable[..., Any]:
    """Returns a mask_mod that combines the mask's lists with its mask_mod. `table` is the result of
    `table_of_blocks`.
    """
    batch, heads, *_ = table.shape
    block_size, mask_mod = mask.BLOCK_SIZE, mask.mask_mod
    if mask_mod is None:
        raise ArgumentError("block_mask: mask_mod is None, allowed a function; a part of a mask has no mask_mod")

    def seen(b: Any, h: Any, q: Any, k: Any) -> torch.Tensor:
        lists = (b % batch if batch > 1 else 0, h % heads if heads > 1 else 0)
        place = (*lists, q // block_size[0], k // block_size[1])
        state: torch.Tensor = table[place]
        if mask_mod is torchs.noop_mask:
            return state > 0
        partial: torch.Tensor = (state == 1) & mask_mod(b, h, q, k)
        return (state == 2) | partial

    return seen


def table_of_blocks(mask: torchs.BlockMask) -> torch.Tensor:
    """Returns i32 (B, H, blocks of rows, blocks of keys): 0 for a block that is not listed, 1 for a listed block, 2 for
    a block that is listed as full.
    """
    num_keys = -(-mask.seq_lengths[1] // mask.BLOCK_SIZE[1])
    num_rows = -(-mask.seq_lengths[0] // mask.BLOCK_SIZE[0])
    table: Any = None
    lists = ((mask.kv_num_blocks, mask.kv_indices, 1), (mask.full_kv_num_blocks, mask.full_kv_indices, 2))
    for num_blocks, indices, state in lists:
        if num_blocks is None or indices is None:
            continue
        num_blocks, indices = (x.detach().to(torch.int64) for x in (num_blocks, indices))
        is_listed = torch.arange(indices.shape[-1], device=indices.device) < num_blocks[..., None]
        # The entries of `indices` after the first num_blocks have no meaning.
        columns = torch.where(is_listed, indices, num_keys).clamp(0, num_keys)
        found = torch.zeros(*indices.shape[:-1], num_keys + 1, dtype=torch.int32, device=indices.device)
        found = found.scatter(-1, columns, state)[..., :num_keys]
        table = found if table is None else torch.maximum(table, found)
    while table.dim() < 4:
        table = table[None]
    if table.shape[2] < num_rows:
        raise ArgumentError(f"block_mask: lists of {table.shape[2]} rows of blocks, allowed {num_rows}")
    states: torch.Tensor = table[:, :, :num_rows]
    return states
