"""attend in the place of torch's flash attention: overrides of its operators, as torch's registry wants them.

The operators take (batch, heads, seqlen, head_dim), and align causal masks top left.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Optional

import torch

from attend._drop_in import dropout_seed, refuse_unless
from attend._sdpa import top_left
from attend._settings import NO_EXTRAS, Extras, Gradients, Settings, signed_bits
from attend.torch._operators import fill_backward, fill_forward

_NAME = "attend"
_FORWARD, _BACKWARD = "_scaled_dot_product_flash_attention", "_scaled_dot_product_flash_attention_backward"
_CPU_FORWARD, _CPU_BACKWARD = f"{_FORWARD}_for_cpu", f"{_FORWARD}_for_cpu_backward"


class _Handle:
    """The overrides hold as long as their library object lives."""

    def __init__(self, libraries: list[torch.library.Library]) -> None:
        self._libraries = libraries

    def remove(self) -> None:
        for library in self._libraries:
            library._destroy()
        self._libraries.clear()


_handle: Optional[_Handle] = None  # only where torch has no registry


def activate() -> None:
    global _handle
    if hasattr(torch.nn.attention, "register_flash_attention_impl"):
        torch.nn.attention.register_flash_attention_impl(_NAME, register_fn=_override)
        torch.nn.attention.activate_flash_attention_impl(_NAME)
    elif _handle is None:
        _handle = _override()


def restore() -> None:
    global _handle
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
    knows_overrides = "allow_override" in inspect.signature(library.impl).parameters  # younger than torch 2.6
    for name, kernel in kernels.items():
        library.impl(name, kernel, **({"allow_override": True} if knows_overrides else {}))
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
    # In memory as torch's own: what is compiled relies on it.
    lse = torch.empty((batch, seqlen_q, heads), dtype=wide, device=query.device).transpose(1, 2)
    o = _forward(query, key, value, lse, is_causal, scale, attn_mask, 0.0, 0)
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
    _backward(grad_out, query, key, value, out, logsumexp, results, is_causal, scale, attn_mask, 0.0, 0)
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
    seed = dropout_seed(dropout_p)
    lse = torch.empty(query.shape[:3], dtype=torch.float32, device=query.device)
    o = _forward(query, key, value, lse, is_causal, scale, None, dropout_p, seed)
    # The seed stays on the host: read back from the GPU it would make backward wait.
    philox_seed, philox_offset = torch.tensor([seed, 0], dtype=torch.int64).unbind()
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
    seed = int(philox_seed) if dropout_p else 0
    results = [torch.empty_like(x) for x in (query, key, value)]
    _backward(grad_out, query, key, value, out, logsumexp, results, is_causal, scale, None, dropout_p, seed)
    return tuple(results)


def _forward(
    q: Any, k: Any, v: Any, lse: Any, is_causal: bool, scale: Any, attn_mask: Any, dropout_p: float, seed: int
) -> Any:
    o = torch.empty_like(q) if q.shape[3] == v.shape[3] else q.new_empty((*q.shape[:3], v.shape[3]))
    k, v, window = top_left(q, k, v) if is_causal else (k, v, (-1, -1))
    fill_forward(q, k, v, o, lse, _extras(attn_mask, k), _settings(window, scale, dropout_p, seed))
    return o


def _backward(
    dout: Any,
    q: Any,
    k: Any,
    v: Any,
    o: Any,
    lse: Any,
    results: list[Any],
    is_causal: bool,
    scale: Any,
    attn_mask: Any,
    dropout_p: float,
    seed: int,
) -> None:
    """Writes `results`: dq, dk, dv."""
    dq, dk, dv = results
    window = (-1, -1)
    if is_causal:
        for x in (dk, dv):
            x[:, :, q.shape[2] :] = 0  # keys that no row sees
        dk, dv, _ = top_left(q, dk, dv)
        k, v, window = top_left(q, k, v)
    gradients = Gradients(dout, None, dq, dk, dv, None)
    fill_backward(q, k, v, o, lse, gradients, _extras(attn_mask, k), _settings(window, scale, dropout_p, seed))


def _settings(window: tuple[int, int], scale: Optional[float], dropout_p: float, seed: int) -> Settings:
    left, right = window
    return Settings(
        scale=scale, window_left=left, window_right=right, dropout_p=dropout_p, seed=signed_bits("seed", seed)
    )


def _extras(attn_mask: Any, k: Any) -> Extras:
    if attn_mask is None:
        return NO_EXTRAS
    if attn_mask.shape[-1] != k.shape[2]:
        attn_mask = attn_mask.expand(*attn_mask.shape[:-1], k.shape[2])
    return Extras(mask=attn_mask) if attn_mask.dtype == torch.bool else Extras(bias=attn_mask)
