"""Replaces torch's flash attention by overriding its operators, as torch's registry requires.

The operators' tensors are (batch, heads, seqlen, head_dim). Causal masks align top left on the CPU, and **bottom
right** on CUDA. On CUDA, only torch.nn.attention.bias calls these operators with different lengths, and it expects the
bottom-right alignment. All other functions of torch pass equal lengths.

The results have the shapes, strides, dtypes and devices that torch's meta functions declare to compilers.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Optional

import torch

from attend._drop_in import refuse_unless, top_left
from attend._settings import NO_EXTRAS, Extras, Gradients, Settings
from attend.torch import _activate_flex
from attend.torch._draw import drawn_numbers
from attend.torch._operators import fill_backward, fill_forward

_NAME = "attend"
_FORWARD, _BACKWARD = "_scaled_dot_product_flash_attention", "_scaled_dot_product_flash_attention_backward"
_CPU_FORWARD, _CPU_BACKWARD = f"{_FORWARD}_for_cpu", f"{_FORWARD}_for_cpu_backward"


class _Handle:
    """Holds the library object of the overrides. The overrides stay active as long as this object exists."""

    def __init__(self, libraries: list[torch.library.Library]) -> None:
        self._libraries = libraries

    def remove(self) -> None:
        for library in self._libraries:
            library._destroy()
        self._libraries.clear()


_handle: Optional[_Handle] = None  # used only if torch has no registry


def activate() -> None:
    global _handle
    _activate_flex.activate()
    if hasattr(torch.nn.attention, "register_flash_attention_impl"):
        torch.nn.attention.register_flash_attention_impl(_NAME, register_fn=_override)
        torch.nn.attention.activate_flash_attention_impl(_NAME)
    elif _handle is None:
        _handle = _override()


def restore() -> None:
    global _handle
    _activate_flex.restore()
    if hasattr(torch.nn.attention, "register_flash_attention_impl"):
        if torch.nn.attention.current_flash_attention_impl() == _NAME:
            torch.nn.attention.restore_flash_attention_impl()
    elif _handle is not None:
        _handle.remove()
        _handle = None


def _override() -> _Handle:
    libraries = [_library("CPU", {_CPU_FORWARD: cpu_forward, _CPU_BACKWARD: cpu_backward})]
    if torch.backends.cuda.is_built():
        libraries.append(_library("CUDA", {_FORWARD: cuda_forward, _BACKWARD: cuda_backward}))
    return _Handle(libraries)


def _library(key: str, kernels: dict[str, Callable[..., Any]]) -> torch.library.Library:
    library = torch.library.Library("aten", "IMPL", key)
    # The parameter was added after torch 2.6.
    knows_overrides = "allow_override" in inspect.signature(library.impl).parameters
    options: dict[str, Any] = {"allow_override": True} if knows_overrides else {}
    for name, kernel in kernels.items():
        library.impl(name, kernel, **options)
    return library


def cpu_forward(
    query: Any,
    key: Any,
    value: Any,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Any = None,
    scale: Optional[float] = None,
) -> tuple[Any, Any]:
    refuse_unless(dropout_p, (0.0,), "dropout_p")
    batch, heads, seqlen_q, _ = query.shape
    wide = torch.float64 if query.dtype == torch.float64 else torch.float32
    # lse has the strides of torch's own result, because compiled code relies on them.
    lse = torch.empty((batch, seqlen_q, heads), dtype=wide, device=query.device).transpose(1, 2)
    o = _empty_output(query, value)
    k, v, window = top_left(query, key, value) if is_causal else (key, value, (-1, -1))
    settings = _settings(scale, 0.0, window=window)
    fill_forward(query, k, v, o, lse, _extras(attn_mask), settings)
    return o, lse


def cpu_backward(
    grad_out: Any,
    query: Any,
    key: Any,
    value: Any,
    out: Any,
    logsumexp: Any,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: Any = None,
    scale: Optional[float] = None,
) -> tuple[Any, ...]:
    refuse_unless(dropout_p, (0.0,), "dropout_p")
    order = (0, 2, 1, 3)
    results = [torch.empty_permuted(x.shape, order, dtype=x.dtype, device=x.device) for x in (query, key, value)]
    dq, dk, dv = results
    k, v, window = key, value, (-1, -1)
    if is_causal:
        for x in (dk, dv):
            x[:, :, query.shape[2] :] = 0  # no row sees these keys, so their gradients are 0
        dk, dv, _ = top_left(query, dk, dv)
        k, v, window = top_left(query, key, value)
    gradients = Gradients(grad_out, None, dq, dk, dv)
    settings = _settings(scale, 0.0, window=window)
    fill_backward(query, k, v, out, logsumexp, gradients, _extras(attn_mask), settings)
    return tuple(results)


def cuda_forward(
    query: Any,
    key: Any,
    value: Any,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: Optional[float] = None,
) -> tuple[Any, ...]:
    refuse_unless(return_debug_mask, (False,), "return_debug_mask")
    seed, offset, state = drawn_numbers(query) if dropout_p else (0, 0, None)
    numbers: tuple[Any, ...] = (seed, offset) if state is None else state.unbind()
    lse = torch.empty(query.shape[:3], dtype=torch.float32, device=query.device)
    o = _empty_output(query, value)
    # The numbers are written by the GPU, in stream order, without a copy from the host. The call can therefore be
    # captured in a graph.
    philox_seed, philox_offset = (
        torch.empty(shape, dtype=torch.int64, device=query.device).fill_(value).view(dtype)
        for (shape, dtype), value in zip(_random_numbers_of_torch(), numbers)
    )
    extras = _drawn(dropout_p, philox_seed, philox_offset)
    fill_forward(query, key, value, o, lse, extras, _settings(scale, dropout_p, causal=is_causal))
    return o, lse, None, None, query.shape[2], key.shape[2], philox_seed, philox_offset, query.new_empty(0)


def cuda_backward(
    grad_out: Any,
    query: Any,
    key: Any,
    value: Any,
    out: Any,
    logsumexp: Any,
    cum_seq_q: Any,
    cum_seq_k: Any,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    philox_seed: Any,
    philox_offset: Any,
    *,
    scale: Optional[float] = None,
) -> tuple[Any, ...]:
    dq, dk, dv = results = [torch.empty_like(x) for x in (query, key, value)]
    gradients = Gradients(grad_out, None, dq, dk, dv)
    settings = _settings(scale, dropout_p, causal=is_causal)
    fill_backward(query, key, value, out, logsumexp, gradients, _drawn(dropout_p, philox_seed, philox_offset), settings)
    return tuple(results)


@functools.cache
def _random_numbers_of_torch() -> list[tuple[tuple[int, ...], torch.dtype]]:
    """Returns the shapes and dtypes of the operator's results `philox_seed` and `philox_offset`, which differ between
    releases of torch.
    """
    x = torch.empty((1, 1, 1, 8), device="meta")
    found = torch.ops.aten._scaled_dot_product_flash_attention(x, x, x)
    return [(tuple(result.shape), result.dtype) for result in found[6:8]]


def _empty_output(q: Any, v: Any) -> Any:
    return torch.empty_like(q) if q.shape[3] == v.shape[3] else q.new_empty((*q.shape[:3], v.shape[3]))


def _settings(
    scale: Optional[float], dropout_p: float, causal: bool = False, window: tuple[int, int] = (-1, -1)
) -> Settings:
    left, right = window
    return Settings(scale=scale, causal=causal, window_left=left, window_right=right, dropout_p=dropout_p)


def _drawn(dropout_p: float, philox_seed: Any, philox_offset: Any) -> Extras:
    """Returns extras with the seed and offset tensors. The host does not wait for values in GPU memory."""
    if dropout_p == 0.0:
        return NO_EXTRAS
    # In some releases the seed tensor has two elements, the first of which is the seed.
    return Extras(philox_state=torch.stack([x.view(torch.int64).reshape(-1)[0] for x in (philox_seed, philox_offset)]))


def _extras(attn_mask: Any) -> Extras:
    if attn_mask is None:
        return NO_EXTRAS
    return Extras(mask=attn_mask) if attn_mask.dtype == torch.bool else Extras(bias=attn_mask)
