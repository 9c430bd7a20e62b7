"""Problems with unusual sizes for bench/h200_vs_peers.py: few heads, few rows, very long sequences, large head_dim."""

from collections.abc import Iterator
from typing import Any

import peer_cases
from peer_cases import Case

# (batch, heads, heads_kv, seqlen_q, seqlen_k, head_dim, causal)
Shape = tuple[int, int, int, int, int, int, bool]
SHAPES: tuple[Shape, ...] = (
    (1, 2, 2, 16384, 16384, 128, True),
    (1, 1, 1, 32768, 32768, 64, False),
    (1, 4, 4, 8192, 8192, 128, True),
    (2, 16, 16, 64, 32768, 128, False),
    (2, 16, 16, 128, 32768, 128, False),
    (4, 16, 16, 256, 8192, 64, False),
    (4, 16, 16, 256, 8192, 128, False),
    (1, 32, 8, 1024, 1024, 128, True),
    (1, 8, 8, 4096, 4096, 64, True),
    (4, 4, 4, 4096, 4096, 512, False),
    (1, 8, 8, 131072, 131072, 128, True),
    (1, 1, 1, 524288, 524288, 128, True),
    (1, 8, 8, 1048576, 1048576, 128, True),
)
# float32 has other limits, so it has shapes of its own. torch's unfused path is one of its peers.
F32_SHAPES: tuple[Shape, ...] = tuple(
    (*sizes, causal)
    for sizes in ((4, 16, 16, 4096, 4096, 64), (4, 8, 8, 4096, 4096, 128), (8, 16, 16, 32, 32, 64))
    for causal in (False, True)
)
MOST_FOR_BACKWARD = 1 << 17  # largest number of tokens for backward; with more tokens, a peer would need minutes


def corners(dtype: str, device: str, shapes: tuple[Shape, ...] = ()) -> Iterator[Case]:
    """Yields problems without options, in shapes that the grid `paper` does not have."""
    is_f32 = dtype == "f32"
    for batch, heads, heads_kv, seqlen_q, seqlen_k, head_dim, causal in shapes or (F32_SHAPES if is_f32 else SHAPES):
        yield Case(
            _row(dtype, batch, heads, heads_kv, seqlen_q, seqlen_k, head_dim, causal),
            (
                peer_cases.draw(dtype, device, batch, seqlen_q, heads, head_dim),
                *(peer_cases.draw(dtype, device, batch, seqlen_k, heads_kv, head_dim) for _ in range(2)),
            ),
            _sides(causal, heads != heads_kv, seqlen_k, ("math",) if is_f32 else ()),
            4.0 * batch * heads * seqlen_q * seqlen_k * head_dim * (0.5 if causal else 1.0),
            modes=("fwd", "bwd") if seqlen_k <= MOST_FOR_BACKWARD else ("fwd",),
        )


def _row(
    dtype: str, batch: int, heads: int, heads_kv: int, seqlen_q: int, seqlen_k: int, head_dim: int, causal: bool
) -> dict[str, Any]:
    row = {"what": "corner", "dtype": dtype, "D": head_dim, "S": seqlen_k, "B": batch, "H": heads, "causal": causal}
    return row | ({"Hkv": heads_kv} if heads_kv != heads else {}) | ({"Sq": seqlen_q} if seqlen_q != seqlen_k else {})


def _sides(causal: bool, grouped: bool, seqlen_k: int, further: tuple[str, ...]) -> dict[str, peer_cases.Side]:
    """Returns the usable peers, with `further` backends of torch. torch's memory-efficient backend does not support
    grouped heads and is slow for long sequences.
    """
    more = {"enable_gqa": True} if grouped else {}
    names = [name for name in peer_cases.SDP if name != "efficient" or not (grouped or seqlen_k > MOST_FOR_BACKWARD)]
    names += further
    return {
        "attend": peer_cases.ours(causal=causal),
        **{name: peer_cases.sdpa(name, is_causal=causal, **more) for name in names},
        **peer_cases.fa3_and_fa4(causal=causal),
    }
