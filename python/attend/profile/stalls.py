"""Describes Nsight Compute's stall reasons: the meaning of each reason in an attention kernel, and its remedy."""

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
        "warps wait for global memory: a tile was asked for too late, or too few loads are on their way",
        "ask for the next tile before this one is used: into registers (rung 14), by cp.async (15), by TMA (17)",
    ),
    "short_scoreboard": Stall(
        "warps wait for an answer of shared memory or of the exponential unit",
        "read less from shared memory for each product: register tiles (05, 07, 08), no bank conflicts (13)",
    ),
    "mio_throttle": Stall(
        "the queue for shared memory, shuffles and exponentials is full",
        "fewer and wider reads of shared memory: taller register tiles (07), loads of 16 bytes (08), ldmatrix (12)",
    ),
    "lg_throttle": Stall(
        "the queue for global loads and stores is full: many small accesses in a row",
        "wider accesses (14), or one thread that asks the copy engine for a whole tile (17)",
    ),
    "barrier": Stall(
        "warps wait at a barrier for the slowest of their block; on Hopper, waiting for a warpgroup's product counts "
        "here too",
        "fewer barriers for each tile (07, 14), an mbarrier for each tile in place of one for the block (17), more "
        "consumers to fill the time (18)",
    ),
    "gmma": Stall(
        "warps wait for the tensor cores to take or finish their warpgroup's product",
        "another warpgroup with products ready while this one is in its softmax (18)",
    ),
    "math_pipe_throttle": Stall(
        "the arithmetic unit that the next instruction needs is taken: the arithmetic itself is the limit",
        "fewer instructions for each score: exp2 with the scale folded in (12), tensor cores for the products (09)",
    ),
    "wait": Stall(
        "warps wait the fixed latency of their own last instruction: dependent instructions, few warps to fill the gap",
        "more independent work in a thread: a larger register tile (07, 08), 32 rows for each warp (15)",
    ),
    "dispatch_stall": Stall(
        "an instruction was chosen and could not start: operands in the same bank of the register file, for example",
        "products as column times row, with one operand kept (08)",
    ),
    "no_instruction": Stall(
        "warps wait for their next instruction: the loop is longer than the instruction cache, or the block is ending",
        "less unrolling; longer runs of one loop",
    ),
    "imc_miss": Stall(
        "warps wait for a kernel argument or constant that is not in its cache",
        "nothing in a long loop: it happens at the start of a block",
    ),
    "membar": Stall(
        "warps wait for a memory fence",
        "fewer fences in the loop",
    ),
    "branch_resolving": Stall(
        "warps wait for the target of a branch",
        "loops without branches: tiles that no mask touches in a loop of their own (15)",
    ),
    "drain": Stall(
        "warps wait for their stores before they end",
        "wider stores of the output (14)",
    ),
    "tex_throttle": Stall(
        "the queue of the texture unit is full",
        "no kernel of the ladder uses it",
    ),
    "sleeping": Stall(
        "warps sleep: a wait for a barrier that backs off",
        "an earlier arrival of what they wait for",
    ),
    "misc": Stall(
        "warps wait for something that the profiler has no name for",
        "nothing to learn from it alone",
    ),
}


def reasons() -> list[str]:
    """Returns all reasons that are requested from Nsight Compute."""
    return [*STALLS, *WORKING]
