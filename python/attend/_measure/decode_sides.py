"""The sides of a decode measurement: attend.decode and its peers. Each side is a function of a Cache. Needs torch.

The name of a side is a library, or a library and one of its variants, for example "torch flash". The results of a
library are those of its fastest variant. Peers that require another order than (sequences, keys, heads, head_dim)
receive transposed views, which need no copy.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right

import attend
from attend._measure.decode_problem import DESCALE, Cache, Problem, Side, page_counts
from attend._measure.implementations import SDP_BACKENDS

FA3_MODULES = ("flash_attn_interface", "flash_attn_3.flash_attn_interface", "flash_attn_3")
MODULES = {"flash_attn_3": FA3_MODULES, "flash_attn_2": ("flash_attn",), "flashinfer": ("flashinfer",)}
# The function that a library must have; by default flash_attn_with_kvcache.
NEEDED = {"flashinfer": "BatchDecodeWithPagedKVCacheWrapper"}
FLASHINFER_WORKSPACE_BYTES = 128 << 20  # the size that FlashInfer's documentation recommends
# FlashInfer reads a contiguous cache as pages of the largest of these sizes that divides the length.
FLASHINFER_PAGE_SIZES = (64, 32, 16, 1)


def importable(modules: Iterable[str], function: str) -> Any:
    """Returns the first of these modules that can be imported and has the function, or None."""
    for name in modules:
        # Importing a library that was built for another torch may raise any exception.
        with contextlib.suppress(Exception):
            module = importlib.import_module(name)
            if hasattr(module, function):
                return module
    return None


@functools.cache
def peer_module(library: str) -> Any:
    """Returns the module of a GPU peer, or None if it is not installed."""
    return importable(MODULES[library], NEEDED.get(library, "flash_attn_with_kvcache"))


def absent() -> list[str]:
    """Returns the GPU peers that are not installed."""
    return [library for library in MODULES if peer_module(library) is None]


def without(cache: str) -> list[str]:
    """Returns the GPU peers that do not support this 8-bit dtype with a 16-bit q."""
    return [library for library in MODULES if library != "flashinfer" or cache == "i8"]


def ours(one: Problem) -> dict[str, Side]:
    """Returns a side of attend for each cache of the problem."""
    return {name: attend_decode(one) for name in one.caches}


def theirs(one: Problem) -> dict[str, Side]:
    """Returns the peers that support the problem, by name."""
    return dict(_theirs(one))


def _theirs(one: Problem) -> Iterator[tuple[str, Side]]:
    shape, setting = one.shape, one.setting
    on_gpu, is_16_bit = setting.device == "cuda", setting.dtype != "f32"
    if shape.head_dim_v is not None:
        return
    if setting.cache is None and setting.page_size == 0 and shape.is_uniform:
        for backend in _torch_backends(on_gpu, is_16_bit):
            yield f"torch {backend}", sdpa(one, getattr(SDPBackend, SDP_BACKENDS[backend]))
    if not on_gpu or not is_16_bit:
        return
    if setting.cache is None:
        for library, table in (("flash_attn_3", "page_table"), ("flash_attn_2", "block_table")):
            if peer_module(library) is not None:
                yield library, flash_attn_kvcache(one, peer_module(library), table)
    has_pages = setting.page_size > 0 or shape.is_uniform
    if peer_module("flashinfer") is not None and shape.rows == 1 and setting.cache != "i8" and has_pages:
        for way, tensor_cores in (("cores", False), ("tensor_cores", True)):
            yield f"flashinfer {way}", flashinfer(one, peer_module("flashinfer"), tensor_cores)


def _torch_backends(on_gpu: bool, is_16_bit: bool) -> tuple[str, ...]:
    """Returns the backends to measure. A backend that writes the scores to memory is included only if there is no
    other.
    """
    if not on_gpu:
        return "flash", "math"
    return ("cudnn", "flash", "efficient") if is_16_bit else ("efficient", "math")


def attend_decode(one: Problem) -> Side:
    def side(cache: Cache) -> Any:
        return attend.decode(
            one.q, cache.k, cache.v, layout="bshd", seqlens_k=one.lengths, page_table=one.page_table,
            head_dim_v=one.shape.head_dim_v, k_descale=cache.k_descale, v_descale=cache.v_descale,
        )  # fmt: skip

    return side


def sdpa(one: Problem, backend: Any) -> Side:
    """Returns torch's scaled_dot_product_attention with one backend. The sequences must have equal lengths, and the
    cache no pages.
    """
    q = one.q.transpose(1, 2)
    takes_no_mask = backend == SDPBackend.FLASH_ATTENTION and q.is_cuda
    mask = rows_mask(one, as_bias=takes_no_mask) if one.shape.rows > 1 else None

    def side(cache: Cache) -> Any:
        k, v = cache.k.transpose(1, 2), cache.v.transpose(1, 2)
        with sdpa_kernel([backend]):
            o = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
        return o.transpose(1, 2)

    return side


def rows_mask(one: Problem, as_bias: bool) -> Any:
    """Returns the causal mask for several query rows. torch's is_causal cannot be used, because it aligns top left.

    The result is a boolean mask, or a bias that torch recognises as causal. FlashAttention in CUDA builds requires such
    a bias.
    """
    rows, keys = one.shape.rows, max(one.shape.lengths)
    if as_bias:
        return causal_lower_right(rows, keys)
    row, key = (torch.arange(count, device=one.q.device) for count in (rows, keys))
    return key <= row[:, None] + keys - rows


def flash_attn_kvcache(one: Problem, module: Any, table: str) -> Side:
    """Returns the side of flash-attn 2 or 3. `table` is the name of the page table argument in this version of
    flash-attn.

    Some versions return (o, lse, ...), others o alone.
    """

    def side(cache: Cache) -> Any:
        pages = {table: one.page_table}
        found = module.flash_attn_with_kvcache(
            one.q, cache.k, cache.v, cache_seqlens=one.lengths, causal=one.shape.rows > 1, **pages
        )
        return found[0] if isinstance(found, tuple) else found

    return side


def flashinfer(one: Problem, module: Any, tensor_cores: bool) -> Side:
    """Returns a side that calls FlashInfer's wrapper for paged caches. The first call of this side makes FlashInfer's
    plan and waits for the GPU. Therefore the first call must not be captured in a graph.
    """
    page_size, table = flashinfer_pages(one)
    factors: dict[str, float] = {} if one.setting.cache is None else {"k_scale": DESCALE, "v_scale": DESCALE}

    @functools.cache
    def wrapper() -> Any:
        workspace = torch.zeros(FLASHINFER_WORKSPACE_BYTES, dtype=torch.uint8, device=one.q.device)
        made = module.BatchDecodeWithPagedKVCacheWrapper(workspace, "NHD", use_tensor_cores=tensor_cores)
        counts = page_counts(one.shape, page_size)
        ends = torch.tensor([0, *counts]).cumsum(0).to(torch.int32)
        indices = torch.cat([row[:count] for row, count in zip(table, counts)])
        last = [length - (count - 1) * page_size for length, count in zip(one.shape.lengths, counts)]
        made.plan(
            ends.to(one.q.device), indices, torch.tensor(last, dtype=torch.int32, device=one.q.device),
            one.shape.heads, one.shape.heads_k, one.shape.head_dim, page_size,
            q_data_type=one.q.dtype, kv_data_type=one.caches["attend"].k.dtype,
        )  # fmt: skip
        return made

    def pages(x: Any) -> Any:
        return x if one.page_table is not None else x.unflatten(1, (-1, page_size)).flatten(0, 1)

    def side(cache: Cache) -> Any:
        return wrapper().run(one.q[:, 0], (pages(cache.k), pages(cache.v)), **factors)[:, None]

    return side


def flashinfer_pages(one: Problem) -> tuple[int, Any]:
    """Returns the page size and the page table that FlashInfer uses. A contiguous cache is read as consecutive
    pages.
    """
    if one.page_table is not None:
        return one.setting.page_size, one.page_table
    length, sequences = max(one.shape.lengths), len(one.shape.lengths)
    size = next(size for size in FLASHINFER_PAGE_SIZES if length % size == 0)
    order = torch.arange(sequences * length // size, dtype=torch.int32, device=one.q.device)
    return size, order.view(sequences, -1)
