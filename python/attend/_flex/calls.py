"""Implements flex_attention, create_block_mask and create_mask by converting torch's arguments to attend's."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any, Optional

import torch
from torch.nn.attention import flex_attention as torchs

from attend._api import attention
from attend._drop_in import renamed
from attend._errors import ArgumentError, Error, UnsupportedError
from attend._flex import graphs
from attend._flex.block_masks import BlockMask, tiles_of
from attend._flex.functions import (
    NAMES,
    check_signature,
    dtype_of_scores,
    evaluated,
    number_of_arguments,
    outside_of_graphs,
    text_and_captures,
    traced,
)
from attend._flex.results import AuxOutput
from attend._resolve import resolve
from attend._score import Own
from attend.torch import _score
from attend.torch._autograd import autocast
from attend.torch._front import check_tensor

_OPTIONS = {
    "num_warps", "num_stages", "BLOCK_M", "BLOCK_N", "BLOCK_M1", "BLOCK_N1", "BLOCK_M2", "BLOCK_N2", "PRESCALE_QK",
    "ROWS_GUARANTEED_SAFE", "BLOCKS_ARE_CONTIGUOUS", "WRITE_DQ", "FORCE_USE_FLEX_ATTENTION", "USE_TMA", "kpack",
    "matrix_instr_nonkdim", "waves_per_eu", "BACKEND", "SPARSE_Q_BLOCK_SIZE", "SPARSE_KV_BLOCK_SIZE",
    "FLOAT32_PRECISION",
}  # fmt: skip
_BACKENDS = ("AUTO", "TRITON", "FLASH", "TRITON_DECODE")


def flex_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, score_mod: Optional[Callable[..., Any]],
    block_mask: Any, scale: Optional[float], enable_gqa: bool, return_lse: bool, kernel_options: Any, return_aux: Any,
) -> Any:  # fmt: skip
    given = (query, key, value, score_mod, block_mask, scale, enable_gqa, return_lse, kernel_options, return_aux)
    if torch.compiler.is_compiling() and graphs.can_follow():
        _tell_compilers()
        return _followed(*given)
    if graphs.is_exporting():
        if score_mod is None and block_mask is None:
            return _run(_computed, *given)
        _refuse_exporters()
    return _run_outside_of_graphs(*given)


def _tell_compilers() -> None:
    graphs.substitute(_followed, _run_inside_of_graphs)
    graphs.substitute(_followed_mask, _mask_inside_of_graphs)


_tell_compilers._dynamo_marked_constant = True  # type: ignore[attr-defined]  # see graphs.py


_OF_EXPORTERS = (
    "score_mod, mask_mod and block_mask: under torch.export, allowed outside of it only; use "
    "attend.attention(..., score=TEXT), which can be exported"
)


def _refusal_of_exporters() -> None:
    raise UnsupportedError(_OF_EXPORTERS)


# Dynamo reports _OF_EXPORTERS as the reason.
_refuse_exporters = outside_of_graphs(_refusal_of_exporters, _OF_EXPORTERS)


def _followed(*given: Any) -> Any:
    """Compilers trace a substitute for this function. If a compiler cannot trace the substitute, it calls this function
    instead.
    """
    return _run_outside_of_graphs(*given)


def _run_inside_of_graphs(*given: Any) -> Any:
    return _run(graphs.computed, *given)


@outside_of_graphs
def _run_outside_of_graphs(*given: Any) -> Any:
    try:
        return _run(_computed, *given)
    except Error as error:
        raise renamed(error, NAMES) from None


def _run(
    compute: Callable[..., Any],
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, score_mod: Optional[Callable[..., Any]],
    block_mask: Any, scale: Optional[float], enable_gqa: bool, return_lse: bool, kernel_options: Any, return_aux: Any,
) -> Any:  # fmt: skip
    _check_options(kernel_options)
    if score_mod is None and block_mask is None:
        compute = _without_functions
    with_lse = _wants_lse(return_lse, return_aux)
    key, value = _broadcast(query, key, value, enable_gqa)
    # q, k and v are cast to the dtype of autocast. Score functions are evaluated without autocast.
    if torch.is_autocast_enabled(query.device.type):
        query, key, value = autocast(query, key, value)
        with torch.autocast(query.device.type, enabled=False):
            o, lse = compute(query, key, value, score_mod, block_mask, scale)
    else:
        o, lse = compute(query, key, value, score_mod, block_mask, scale)
    if return_aux is not None:
        return o, AuxOutput(lse=lse if with_lse else None, max_scores=None)
    return (o, lse) if with_lse else o


def _without_functions(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, score_mod: None, block_mask: None,
    scale: Optional[float],
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    both: tuple[torch.Tensor, torch.Tensor] = attention(query, key, value, scale=scale, return_lse=True)
    return both


def _computed(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, score_mod: Optional[Callable[..., Any]],
    block_mask: Any, scale: Optional[float],
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Returns (o, lse), computed outside of a graph."""
    _score.refuse_tracers("score_mod or block_mask", (query, key, value))
    tiles = None if block_mask is None else _tiles_of(block_mask, query, key)
    if score_mod is None and tiles is None:
        return _without_functions(query, key, value, None, None, scale)
    text: Optional[str] = None
    captures: dict[str, torch.Tensor] = {}
    if score_mod is not None:
        function, captured = traced("score_mod", score_mod, query.device, dtype_of_scores(query))
        text, captures = text_and_captures(function, captured, query, key)
    extras, settings = resolve("flex_attention", query, {"scale": scale})
    return _score.attention(Own(text, captures, tiles), query, key, value, extras, settings, with_autograd=True)


def _tiles_of(block_mask: Any, query: torch.Tensor, key: torch.Tensor) -> Any:
    if not isinstance(block_mask, torchs.BlockMask):
        raise ArgumentError(
            f"block_mask: {type(block_mask).__name__}, allowed a mask from create_block_mask, attend's or torch's"
        )
    batch, heads, rows, _ = query.shape
    return tiles_of(block_mask, batch, heads, rows, key.shape[2])


def _check_options(kernel_options: Any) -> None:
    if kernel_options is not None and not isinstance(kernel_options, Mapping):
        raise ArgumentError(f"kernel_options: {type(kernel_options).__name__}, allowed a dictionary")
    for name, x in (kernel_options or {}).items():
        plain = name[4:] if isinstance(name, str) and name.startswith(("fwd_", "bwd_")) else name
        if plain not in _OPTIONS:
            raise ArgumentError(f"kernel_options: {name!r}, allowed {', '.join(sorted(_OPTIONS))}")
        if plain == "BACKEND" and x not in _BACKENDS:
            raise ArgumentError(f"kernel_options: BACKEND {x!r}, allowed {', '.join(_BACKENDS)}")


def _wants_lse(return_lse: bool, return_aux: Any) -> bool:
    if return_aux is None:
        return return_lse
    if return_lse:
        raise ArgumentError("return_lse: given with return_aux, allowed without it only")
    if not hasattr(return_aux, "max_scores"):
        raise ArgumentError(f"return_aux: {type(return_aux).__name__}, allowed an AuxRequest")
    if return_aux.max_scores:
        raise UnsupportedError("return_aux: max_scores, allowed lse")
    return bool(return_aux.lse)


def _broadcast(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, enable_gqa: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns key and value with the batch size of query."""
    for name, x in (("query", query), ("key", key), ("value", value)):
        check_tensor(name, x, "query")
        if x.dim() != 4:
            raise ArgumentError(f"{name}: {x.dim()} dimensions, allowed 4 (B, H, S, D)")
    heads, heads_k = query.shape[1], key.shape[1]
    if heads != heads_k and not enable_gqa:
        raise ArgumentError(f"key: {heads_k} heads with {heads} of query, allowed with enable_gqa=True only")
    if heads_k == 0 or heads % heads_k != 0:
        raise ArgumentError(f"key: {heads_k} heads, allowed a divisor of query's {heads}")
    batch = query.shape[0]
    if key.shape[0] not in (batch, 1):
        raise ArgumentError(f"key: batch {key.shape[0]}, allowed {batch}, that of query, or 1")
    if value.shape[0] != key.shape[0]:
        raise ArgumentError(f"value: batch {value.shape[0]}, allowed {key.shape[0]}, that of key")
    if key.shape[0] == batch:
        return key, value
    return key.expand(batch, -1, -1, -1), value.expand(batch, -1, -1, -1)


def create_block_mask(
    mask_mod: Callable[..., Any], sizes: tuple[Any, ...], device: Any, block_size: Any, has_full_blocks: bool
) -> Any:
    """Makes the mask of attend.create_block_mask. `sizes` is (B, H, Q_LEN, KV_LEN)."""
    if torch.compiler.is_compiling() and graphs.can_follow():
        _tell_compilers()
        return _followed_mask(mask_mod, sizes, device, block_size, has_full_blocks)
    if graphs.is_exporting():
        _refuse_exporters()
    return _mask_outside_of_graphs(mask_mod, sizes, device, block_size, has_full_blocks)


def _followed_mask(*given: Any) -> Any:
    return _mask_outside_of_graphs(*given)


def _mask_inside_of_graphs(
    mask_mod: Callable[..., Any], sizes: tuple[Any, ...], device: Any, block_size: Any, has_full_blocks: bool
) -> Any:
    return graphs.make_block_mask(mask_mod, _shape(sizes), _block_size(block_size), _device(device))


@outside_of_graphs
def _mask_outside_of_graphs(
    mask_mod: Callable[..., Any], sizes: tuple[Any, ...], device: Any, block_size: Any, has_full_blocks: bool
) -> BlockMask:
    check_signature("mask_mod", mask_mod)
    shape = _shape(sizes)
    both = _block_size(block_size)
    mask = BlockMask._of_function(mask_mod, shape, both, _device(device), has_full_blocks)
    with torch.no_grad():
        tiles_of(mask, *shape)  # refuses functions that cannot be translated, and reads captured tensors
    return mask


def _block_size(given: Any) -> tuple[int, int]:
    try:
        both = tuple(operator.index(n) for n in (given if isinstance(given, (tuple, list)) else (given, given)))
    except TypeError:
        both = ()
    if len(both) != 2 or any(not 1 <= n < 2**31 for n in both):
        raise ArgumentError(f"BLOCK_SIZE: {given}, allowed one positive 32-bit integer, or two (rows, keys)")
    return both[0], both[1]


def create_mask(mod_fn: Callable[..., Any], sizes: tuple[Any, ...], device: Any) -> torch.Tensor:
    """Computes attend.create_mask. `sizes` is (B, H, Q_LEN, KV_LEN)."""
    shape, where = _shape(sizes), _device(device)
    positions = [torch.arange(n, dtype=torch.int32, device=where) for n in shape]
    count = number_of_arguments("mask_mod", mod_fn)
    if count == 5:
        return ~torch.isneginf(evaluated(mod_fn, positions, torch.zeros(shape, device=where)))
    if count != 4:
        raise ArgumentError(f"mod_fn: a function of {count} arguments, allowed 4 or 5")
    return evaluated(mod_fn, positions)


def _shape(sizes: tuple[Any, ...]) -> tuple[int, int, int, int]:
    found = []
    for name, n in zip(("B", "H", "Q_LEN", "KV_LEN"), sizes):
        try:
            found.append(1 if name in ("B", "H") and n is None else operator.index(n))
        except TypeError:
            raise ArgumentError(f"{name}: {type(n).__name__}, allowed an integer") from None
        least = 1 if name in ("B", "H") else 0
        if found[-1] < least:
            raise ArgumentError(f"{name}: {n}, allowed {least} or more")
    return found[0], found[1], found[2], found[3]


def _device(device: Any) -> torch.device:
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(device)
