"""Describes Nsight Compute's stall reasons: what each reason means in an attention kernel, and how to remove the
stall.
"""

from __future__ import annotations

from typing import NamedTuple


class Stall(NamedTuple):
    meaning: str
    remedy: str


# These two reasons are not stalls. "selected" means that the warp issues an instruction, and "not_selected" that it was
# ready but another warp was chosen.
WORKING = ("selected", "not_selected")

STALLS = {
    "long_scoreboard": Stall(
        "warps wait for global memory, because a tile is requested too late or too few loads are in flight",
        "an earlier request for the next tile: into registers (rung 14), by cp.async (15) or by TMA (17)",
    ),
    "short_scoreboard": Stall(
        "warps wait for a result from shared memory or from the exponential unit",
        "fewer reads of shared memory per product: register tiles (05, 07, 08), no bank conflicts (13)",
    ),
    "mio_throttle": Stall(
        "the queue for shared memory, shuffles and exponentials is full",
        "fewer and wider reads of shared memory: taller register tiles (07), loads of 16 bytes (08), ldmatrix (12)",
    ),
    "lg_throttle": Stall(
        "the queue for global loads and stores is full, because of many small accesses in a row",
        "wider accesses (14), or one thread that requests an entire tile from the copy engine (17)",
    ),
    "barrier": Stall(
        "warps wait at a barrier for the slowest warp of their block; on Hopper, this reason also counts the wait for "
        "a warpgroup's product",
        "fewer barriers per tile (07, 14), one mbarrier per tile instead of a block-wide barrier (17), more "
        "consumers that compute in the meantime (18)",
    ),
    "gmma": Stall(
        "warps wait until the tensor cores accept or finish their warpgroup's product",
        "another warpgroup that multiplies during the softmax of this one (18)",
    ),
    "math_pipe_throttle": Stall(
        "the arithmetic unit of the next instruction is busy, so arithmetic is the limit",
        "fewer instructions per score: exp2 with the scale folded in (12), tensor cores for the products (09)",
    ),
    "wait": Stall(
        "warps wait for the fixed latency of their last instruction, because the next one depends on it",
        "more independent work per thread: a larger register tile (07, 08), 32 rows per warp (15)",
    ),
    "dispatch_stall": Stall(
        "a selected instruction cannot start, for example because two operands are in one bank of the register file",
        "products as column times row, which reuse one operand (08)",
    ),
    "no_instruction": Stall(
        "warps wait for their next instruction, because the loop exceeds the instruction cache or the block is ending",
        "less unrolling, or longer runs of one loop",
    ),
    "imc_miss": Stall(
        "warps wait for a kernel argument or a constant that is not in the constant cache",
        "nothing, because this wait occurs only at the start of a block",
    ),
    "membar": Stall(
        "warps wait for a memory fence",
        "fewer fences in the loop",
    ),
    "branch_resolving": Stall(
        "warps wait for the target of a branch",
        "loops without branches: a separate loop for tiles that no mask affects (15)",
    ),
    "drain": Stall(
        "warps wait for their stores before they end",
        "wider stores of the output (14)",
    ),
    "tex_throttle": Stall(
        "the queue of the texture unit is full",
        "nothing, because no kernel of the ladder uses this unit",
    ),
    "sleeping": Stall(
        "warps sleep while they wait for a barrier",
        "an earlier arrival at the barrier",
    ),
    "misc": Stall(
        "warps wait for a reason that the profiler does not name",
        "nothing specific, because this reason has no single cause",
    ),
}


def reasons() -> list[str]:
    """Returns all reasons that are requested from Nsight Compute."""
    return [*STALLS, *WORKING]
