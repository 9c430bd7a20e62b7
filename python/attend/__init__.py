"""Exact attention, O = softmax(scale * Q K^T + bias) V, forward and backward, on CPUs and NVIDIA GPUs.

    o = attend.attention(q, k, v, causal=True)

`attention` accepts NumPy arrays, torch tensors, and arrays of any framework that supports DLPack. The result is an
array of the same framework.
"""

from attend._activation import activate, restore
from attend._api import attention, attention_qkvpacked, attention_varlen, backward, forward
from attend._append import append, merge
from attend._block_mask import make_block_mask
from attend._cache import cache_clear, cache_info
from attend._core import BlockMask, __version__
from attend._decode import decode
from attend._errors import ArgumentError, Error, RunError, UnsupportedError
from attend._flex_attention import and_masks, create_block_mask, create_mask, flex_attention, noop_mask, or_masks
from attend._info import backends, cpu_bf16_unit, cpu_simd_target, cpu_threads, gpus, memory, set_cpu_threads
from attend._plan import explain, prepare
from attend._random import manual_seed
from attend._sdpa import sdpa
from attend._serving import Rotary

__all__ = [
    "ArgumentError",
    "BlockMask",
    "Error",
    "Rotary",
    "RunError",
    "UnsupportedError",
    "__version__",
    "activate",
    "and_masks",
    "append",
    "attention",
    "attention_qkvpacked",
    "attention_varlen",
    "backends",
    "backward",
    "cache_clear",
    "cache_info",
    "cpu_bf16_unit",
    "cpu_simd_target",
    "cpu_threads",
    "create_block_mask",
    "create_mask",
    "decode",
    "explain",
    "flex_attention",
    "forward",
    "gpus",
    "make_block_mask",
    "manual_seed",
    "memory",
    "merge",
    "noop_mask",
    "or_masks",
    "prepare",
    "restore",
    "sdpa",
    "set_cpu_threads",
]
