"""Calls whose results must have the type of q. The type checkers (tools/lint.sh types) read this file. It is never
run.
"""

from __future__ import annotations

from typing import Any, Union

import attend
import attend.jax
import jax
import numpy as np
import torch
from attend import flash_attn, flash_attn_3, ring_flash_attn, vllm_flash_attn
from attend.ring import ring_attention, shard
from attend.torch.flex_attention import create_block_mask, flex_attention
from numpy.typing import NDArray
from typing_extensions import assert_type

Floats = NDArray[np.float32]


def arrays(q: Floats, flags: NDArray[np.bool_], offsets: NDArray[np.int32], wants: bool) -> None:
    assert_type(attend.attention(q, q, q, causal=True, window=(256, 0), scale=0.5, mask=flags), Floats)
    assert_type(attend.attention(q, q, q, return_lse=True), tuple[Floats, Floats])
    assert_type(attend.attention(q, q, q, return_lse=wants), Union[Floats, tuple[Floats, Floats]])
    assert_type(attend.attention(q, q, q, score="score - m * abs(q - k)", captures={"m": q, "n": 0.5}), Floats)
    assert_type(attend.attention_qkvpacked(q, dropout_p=0.1, seed=7), Floats)
    assert_type(attend.attention_varlen(q, q, q, offsets, offsets, 8, 8, return_lse=True), tuple[Floats, Floats])
    assert_type(attend.forward(q, q, q, bias=q, sinks=q), tuple[Floats, Floats])
    assert_type(attend.backward(q, q, q, q, q, q, dlse=q, bias=q), tuple[Floats, ...])
    assert_type(
        attend.backward(q, q, q, q, q, q, score="score", captures={"m": q}),
        tuple[Union[Floats, dict[str, Floats]], ...],
    )
    mask = attend.make_block_mask("k <= q && doc[q] == doc[k]", 8, 8, captures={"doc": offsets}, device="cpu")
    assert_type(attend.attention(q, q, q, block_mask=mask), Floats)
    assert_type(mask.shape, tuple[int, int, int, int])


def caches(q: Floats, cache: NDArray[np.int8], lengths: NDArray[np.int32], wants: bool) -> None:
    assert_type(attend.decode(q, cache, cache, seqlens_k=lengths, page_table=lengths), Floats)
    assert_type(attend.decode(q, cache, seqlens_k=5, head_dim_v=8, return_lse=True), tuple[Floats, Floats])
    rotary = attend.Rotary(q, q, interleaved=True)
    attend.append(q, q, cache, cache, seqlens_k=lengths, rotary=rotary)  # returns None
    assert_type(attend.append(q, q, cache, cache, seqlens_k=lengths, q=q), Floats)
    assert_type(attend.merge([(q, q), (q, q)]), Floats)
    assert_type(attend.merge([(q, q)], return_lse=wants), Union[Floats, tuple[Floats, Floats]])


def tensors(q: torch.Tensor, seed: torch.Tensor) -> None:
    assert_type(attend.attention(q, q, q, bias=q, dropout_p=0.1, seed=seed), torch.Tensor)
    assert_type(attend.attention_qkvpacked(q, return_lse=True), tuple[torch.Tensor, torch.Tensor])
    assert_type(attend.decode(q, q, q, k=q, v=q, seqlens_k=seed), torch.Tensor)
    assert_type(attend.sdpa(q, q, q, is_causal=True), torch.Tensor)
    assert_type(ring_attention(shard(q, 2), q, q, sharding="striped"), torch.Tensor)
    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, 8, 8)
    assert_type(flex_attention(q, q, q, block_mask=mask), torch.Tensor)
    assert_type(flex_attention(q, q, q, return_lse=True), tuple[torch.Tensor, torch.Tensor])


def flash_attn_of_arrays(q: Floats, offsets: NDArray[np.int32], wants: bool) -> None:
    func = flash_attn.flash_attn_func
    assert_type(func(q, q, q, 0.0, None, True, (-1, -1)), Floats)
    assert_type(func(q, q, q, causal=True, return_attn_probs=True), tuple[Floats, Floats, None])
    assert_type(func(q, q, q, return_attn_probs=wants), Union[Floats, tuple[Floats, Floats, None]])
    assert_type(flash_attn.flash_attn_varlen_func(q, q, q, offsets, offsets, 8, 8), Floats)
    assert_type(flash_attn.flash_attn_with_kvcache(q, q, q, cache_seqlens=5), Floats)
    cached = flash_attn_3.flash_attn_with_kvcache(q, q, q, cache_seqlens=offsets, return_softmax_lse=True)
    assert_type(cached, tuple[Floats, Floats, None, None])
    assert_type(flash_attn_3.get_scheduler_metadata(1, 1, 8, 4, 2, 16, offsets), NDArray[np.int32])
    vllm = vllm_flash_attn.flash_attn_varlen_func
    assert_type(vllm(q, q, q, 8, offsets, 8, offsets, return_softmax_lse=True), tuple[Floats, Floats])
    vllm_flash_attn.merge_attn_states(q, q, q, q, q)  # returns None


def flash_attn_of_tensors(q: torch.Tensor, offsets: torch.Tensor) -> None:
    assert_type(flash_attn.flash_attn_qkvpacked_func(q, 0.1), torch.Tensor)
    assert_type(flash_attn_3.flash_attn_func(q, q, q, qv=q, s_aux=q), torch.Tensor)
    assert_type(flash_attn_3.flash_attn_func(q, q, q, return_attn_probs=True), tuple[torch.Tensor, torch.Tensor])
    assert_type(flash_attn_3.flash_attn_combine(q, q), tuple[torch.Tensor, torch.Tensor])
    assert_type(flash_attn_3.flash_attn_combine(q, q, return_lse=False), torch.Tensor)
    assert_type(vllm_flash_attn.flash_attn_varlen_func(q, q, q, 8, offsets, 8, seqused_k=offsets), torch.Tensor)
    vllm_flash_attn.reshape_and_cache_flash(q, q, q, q, offsets, "auto")  # returns None
    assert_type(ring_flash_attn.zigzag_ring_flash_attn_func(q, q, q, causal=True), torch.Tensor)
    gathered = ring_flash_attn.llama3_flash_attn_varlen_kvpacked_func
    found = gathered(q, q, offsets, offsets, 8, 8, 1, slice(0, 8), return_attn_probs=True)
    assert_type(found, tuple[torch.Tensor, torch.Tensor, None])


def arrays_of_jax(q: jax.Array, constant: NDArray[Any]) -> None:
    assert_type(attend.jax.attention(q, q, q, layout="bshd", mask=constant), jax.Array)
    assert_type(attend.jax.attention(q, q, q, return_lse=True), tuple[jax.Array, jax.Array])
    assert_type(attend.attention(q, q, q), jax.Array)
