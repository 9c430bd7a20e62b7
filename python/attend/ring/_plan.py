"""How a ring would do a call, from its sizes alone."""

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
    """What each algorithm would make of a call: what travels, and how long it takes by the model that "automatic" uses.

    Arguments:
        num_ranks: ranks of the ring.
        batch, heads, seqlen, head_dim: of q, with the tokens of the whole sequence.
        dtype: "f32", "f16", "bf16" or "f64".
        heads_kv, seqlen_k, head_dim_v: where k and v differ from q.
        causal, window, dropout_p, sharding, algorithm: as `attend.ring.ring_attention` takes them.
        backward: True: the call for the gradients.
        device: "cuda" or "cpu".

    Returns:
        A list of dicts, one for each algorithm: algorithm, chosen, lack (why it cannot, or "automatic" leaves it out;
        one line, or ""), why, steps (dicts of what, sent_bytes, compute_us, exchange_us, exposed_us), sent_bytes,
        memory_bytes (beside the tensors) and estimated_us. Bytes are the most of any rank, times those of the slowest.

    Raises:
        attend.Error where the sizes make no sense, or the algorithm asked for cannot do the call.
    """
    left, right = window_of(window)
    q = (batch, heads, seqlen, head_dim)
    k = (batch, heads_kv or heads, seqlen_k or seqlen, head_dim_v or head_dim)
    return _core.explain_ring(
        num_ranks, device != "cpu", dtype, q, k, backward, causal, left, right, dropout_p, (sharding, algorithm, False)
    )
