"""Explains a call of a ring from its sizes, without tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

from attend import _core
from attend._settings import window_of


def explain(
    num_ranks: int,
    batch: int,
    heads: int,
    seqlen: int,
    head_dim: int,
    *,
    dtype: str = "bf16",
    heads_kv: Optional[int] = None,
    seqlen_k: Optional[int] = None,
    head_dim_v: Optional[int] = None,
    causal: bool = False,
    window: Sequence[Optional[int]] = (-1, -1),
    dropout_p: float = 0.0,
    backward: bool = False,
    device: str = "cuda",
    sharding: str = "zigzag",
    algorithm: str = "automatic",
) -> list[dict[str, Any]]:
    """Reports for each algorithm the number of bytes that it sends and its estimated time, by the model that
    "automatic" uses.

    Arguments:
        num_ranks: number of ranks of the ring.
        batch, heads, seqlen, head_dim: sizes of q. seqlen is the length of the entire sequence.
        dtype: "f32", "f16", "bf16" or "f64".
        heads_kv, seqlen_k, head_dim_v: sizes of k and v if they differ from those of q.
        causal, window, dropout_p, sharding, algorithm: as in `attend.ring.ring_attention`.
        backward: True if the call computes gradients.
        device: "cuda" or "cpu".

    Returns:
        A list of dicts, one for each algorithm. The keys are algorithm, chosen, lack (one line with the reason why the
        algorithm is unsupported or "automatic" excludes it, or ""), why, steps (dicts with what, sent_bytes,
        compute_us, exchange_us and exposed_us), sent_bytes, memory_bytes (in addition to the tensors) and estimated_us.
        Bytes are the maximum over the ranks. Times are those of the slowest rank.

    Raises:
        attend.Error if the sizes are invalid, or the requested algorithm does not support the call.
    """
    left, right = window_of(window)
    q = (batch, heads, seqlen, head_dim)
    k = (batch, heads_kv or heads, seqlen_k or seqlen, head_dim_v or head_dim)
    return _core.explain_ring(
        num_ranks, device != "cpu", dtype, q, k, backward, causal, left, right, dropout_p, (sharding, algorithm, False)
    )
