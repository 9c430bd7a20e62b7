"""Finds the rung of a kernel on the ladder of docs/ladder.md, and how the next rung removes its bound."""

from __future__ import annotations

from typing import NamedTuple, Optional


class Rung(NamedTuple):
    number: int
    name: str
    next_step: str  # what the next rung changes: the end of a sentence that begins with "Rung NN"


RUNGS = (
    Rung(1, "standard", "keeps no scores in memory: one kernel with an online softmax, so memory grows linearly"),
    Rung(2, "naive", "shares key tiles in shared memory between the rows of a block, and reads memory in full lines"),
    Rung(3, "tiled", "copies each key tile once per head instead of once per 16 rows"),
    Rung(4, "fa1", "gives each thread a rectangle of scores, so a multiply-add needs half a load"),
    Rung(5, "flash_2d", "swaps the loops, so the output stays in registers and is written once"),
    Rung(6, "fa2_naive", "keeps scores and row statistics in registers, with two barriers per tile instead of four"),
    Rung(7, "scalar2d_row_tile", "loads four words at a time and fetches the next tile during the use of this one"),
    Rung(8, "fa2", "uses tensor cores and 16-bit types; rung 08 is the last one for float32"),
    Rung(9, "warp_wmma", "lets four warps share the tiles of keys and values"),
    Rung(10, "block_wmma", "divides the work by rows, so no warp waits for another warp's part of the softmax"),
    Rung(11, "wmma_row_block", "keeps scores and probabilities in registers, because mma.sync has a documented layout"),
    Rung(12, "mma", "swizzles the tiles, so ldmatrix causes no bank conflicts"),
    Rung(13, "mma_swizzle", "requests the next tile during the products of this one, with one barrier per tile"),
    Rung(14, "mma_qreg", "copies by cp.async, which bypasses the registers, and gives each warp 32 rows"),
    Rung(15, "mma_qreg_async", "multiplies by warpgroups, which read their operands directly from shared memory"),
    Rung(16, "wgmma", "leaves loads to the copy engine, with one mbarrier per tile and no block-wide barrier"),
    Rung(17, "wgmma_tma", "uses one warpgroup for loads and three for computation, so one can multiply during the "
                          "softmax of another"),
    Rung(18, "wgmma_specialized", "runs the softmax of a tile during the products of the next tile, in an "
                                  "enforced order, and lets each block compute many row tiles"),
    Rung(19, "sm90_forward", ""),
    Rung(19, "sm90_backward", ""),
    Rung(19, "sm80_backward", ""),
    Rung(19, "sm80_forward", ""),
)  # fmt: skip


# Some rungs have backward kernels whose names do not contain "backward". The steps of such kernels have these names.
_BACKWARD_STEPS = {"delta", "probabilities", "dscores", "dq", "dk", "dv"}


def rung_of(kernel: str) -> Optional[Rung]:
    """Returns the rung of a kernel named `attend_RUNG_STEP` or `attend_PRODUCT`, or None for any other kernel."""
    step = kernel.removeprefix("attend_")
    if step == kernel:
        return None
    found = [rung for rung in RUNGS if f"{step}_".startswith(rung.name + "_")]
    return max(found, key=lambda rung: len(rung.name), default=None)


def place(kernel: str) -> str:
    """Returns one sentence about the rung of a kernel and the next rung, or "" for a kernel that is not on the
    ladder.
    """
    rung = rung_of(kernel)
    if rung is None:
        return ""
    here = f"This is rung {rung.number:02}, `{rung.name}`"
    step = kernel.removeprefix(f"attend_{rung.name}_")
    if step in _BACKWARD_STEPS:
        return f"{here}. Rung 08, `fa2`, is the next with a backward pass: it recomputes the scores tile by tile."
    if step.startswith("backward"):
        return f"{here}, the last with a backward pass."
    after = next((other for other in RUNGS if other.number == rung.number + 1), None)
    if after is None:
        return f"{here}, the last of the ladder."
    return f"{here}. Rung {after.number:02}, `{after.name}`, {rung.next_step}."
