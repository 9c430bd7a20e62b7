"""Defines the problems that are measured, and computes their theoretical costs."""

from __future__ import annotations

import dataclasses

MODES = ("forward", "backward")
DTYPE_BYTES = {"f32": 4, "f16": 2, "bf16": 2}


@dataclasses.dataclass(frozen=True)
class Problem:
    """A problem of self-attention. q, k, v and o are dense and (batch, num_heads, seqlen, head_dim)."""

    batch: int
    num_heads: int
    seqlen: int
    head_dim: int
    causal: bool = False

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return self.batch, self.num_heads, self.seqlen, self.head_dim

    def flops(self, mode: str) -> float:
        """Returns the number of operations of forward: 4 * batch * num_heads * seqlen^2 * head_dim, or half of it with
        a causal mask. Backward has 2.5 times that number.
        """
        forward = 4.0 * self.batch * self.num_heads * self.seqlen**2 * self.head_dim
        return forward * (0.5 if self.causal else 1.0) * (2.5 if mode == "backward" else 1.0)

    def bytes_moved(self, mode: str, dtype: str) -> float:
        """Returns the bytes of all inputs and outputs, each counted once: q, k, v, o and float32 lse, and for backward
        also dout, dq, dk and dv.
        """
        rows = self.batch * self.num_heads * self.seqlen
        tensors = 4 if mode == "forward" else 8
        return float(rows * (tensors * self.head_dim * DTYPE_BYTES[dtype] + 4))

    @property
    def input_bytes(self) -> int:
        """Returns the bytes of q, k, v and dout in float32."""
        return 4 * 4 * self.batch * self.num_heads * self.seqlen * self.head_dim

    def __str__(self) -> str:
        return f"({self.batch}, {self.num_heads}, {self.seqlen}, {self.head_dim}){' causal' if self.causal else ''}"


SEED_SHAPES = (
    (1, 1, 128, 64),
    (2, 4, 256, 64),
    (2, 8, 256, 64),
    (8, 16, 32, 64),
    (2, 8, 512, 64),
    (8, 16, 100, 64),
    (4, 8, 512, 64),
    (2, 8, 1024, 64),
    (4, 12, 1024, 64),
    (8, 16, 2048, 64),
)


def _doubling(first: int, last: int) -> list[int]:
    lengths = [first]
    while lengths[-1] < last:
        lengths.append(2 * lengths[-1])
    return lengths


def grid(name: str, causal: bool = False) -> list[Problem]:
    """Returns the problems of a grid.

    The grid "seed" has ten small problems with head_dim 64. "seqlen" has batch 4, 8 heads, head_dim 64 and seqlen 128
    to 4096. "paper" has 16384 tokens, 2048 channels and head_dim 64, 128 and 256, as in the papers of FlashAttention.
    "gpt3" has batch 4, 96 heads and head_dim 128.
    """
    shapes = {
        "seed": list(SEED_SHAPES),
        "seqlen": [(4, 8, s, 64) for s in _doubling(128, 4096)],
        "paper": [(16384 // s, 2048 // d, s, d) for d in (64, 128, 256) for s in _doubling(512, 16384)],
        "gpt3": [(4, 96, s, 128) for s in _doubling(512, 16384)],
    }[name]
    return [Problem(*shape, causal=causal) for shape in shapes]
