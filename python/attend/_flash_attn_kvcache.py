"""Computes flash-attn's attention with a cache of keys and values, by `attend.decode`."""

from __future__ import annotations

from typing import Any, Optional

from attend._decode import decode
from attend._drop_in import FLASH_NAMES, renamed
from attend._errors import ArgumentError, Error
from attend._serving import Rotary
from attend._settings import window_of

# Maps attend's argument names to those of flash-attn.
_NAMES = {
    **FLASH_NAMES, "seqlens_k": "cache_seqlens", "cu_seqlens_new": "cu_seqlens_k_new", "rotary.cos": "rotary_cos",
    "rotary.sin": "rotary_sin", "rotary.seqlens": "rotary_seqlens", "rotary.interleaved": "rotary_interleaved",
}  # fmt: skip


def with_kvcache(
    q: Any,
    k_cache: Any,
    v_cache: Any,
    k: Any,
    v: Any,
    *,
    rotary: tuple[Any, Any, bool, Any],
    cache_seqlens: Any,
    causal: bool,
    window_size: Any,
    softmax_scale: Optional[float],
    return_lse: bool,
    names: dict[str, str],
    **options: Any,
) -> tuple[Any, Any]:
    """Returns (out, softmax_lse or None). As in flash-attn, `cache_seqlens` contains the lengths before k and v are
    appended.

    `rotary` contains flash-attn's arguments rotary_cos, rotary_sin, rotary_interleaved and rotary_seqlens. `names` maps
    names of additional arguments to those of flash-attn, and `options` contains additional options of decode.
    """
    if v_cache is None:
        raise ArgumentError("v_cache: None, allowed an array")
    if (k is None) != (v is None):
        raise ArgumentError(f"{'k' if k is None else 'v'}: None, allowed with both of k and v or with neither")
    if k is not None and cache_seqlens is None:
        raise ArgumentError("cache_seqlens: None with k and v, allowed a whole number or an array i32 (batch)")
    if k is not None:
        # Without a mask, flash-attn rotates all query rows at the position of the first new key.
        is_masked = causal or window_of(window_size) != (-1, -1)
        options |= {"k": k, "v": v, "rotary": _rotary_of(*rotary), "query_positions": "first" if is_masked else "one"}
    else:
        for name, x in (("rotary_cos", rotary[0]), ("rotary_sin", rotary[1]), ("rotary_seqlens", rotary[3])):
            if x is not None:
                raise ArgumentError(f"{name}: given without k and v, allowed with them only")
    try:
        results = decode(
            q, k_cache, v_cache, layout="bshd", seqlens_k=cache_seqlens, causal=causal, window=window_size,
            scale=softmax_scale, return_lse=return_lse, **options,
        )  # fmt: skip
    except Error as error:
        raise renamed(error, {**_NAMES, **names}) from None
    return results if return_lse else (results, None)


def _rotary_of(cos: Any, sin: Any, interleaved: bool, seqlens: Any) -> Optional[Rotary]:
    if (cos is None) != (sin is None):
        name = "rotary_cos" if cos is None else "rotary_sin"
        raise ArgumentError(f"{name}: None, allowed with both of rotary_cos and rotary_sin or with neither")
    if cos is not None:
        return Rotary(cos, sin, interleaved, seqlens=seqlens)
    if seqlens is not None:
        raise ArgumentError("rotary_seqlens: given without rotary_cos, allowed with it only")
    return None
