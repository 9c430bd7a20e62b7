"""Lists the measured quantities, with their names in Nsight Compute and their meaning.

A GPU reports "n/a" for a name that it does not have. A quantity has several names if its name differs between
architectures or between Nsight Compute's metric sets. All names are requested, and the first one with a value is used.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Metric:
    """One measured quantity.

    Attributes:
        key: the name of the quantity in this package and in JSON.
        label: the name of the quantity in sentences and tables.
        unit: the unit of the value, after `report` has converted prefixes to powers of ten.
        names: Nsight Compute's names, best first.
        meaning: for a resource, the reason why it may bound an attention kernel.
    """

    key: str
    label: str
    unit: str
    names: tuple[str, ...]
    meaning: str = ""


def _percent(key: str, label: str, meaning: str, *names: str) -> Metric:
    return Metric(key, label, "%", names, meaning)


# Each value is the used share of a unit's capacity, so the values are comparable. The resource with the largest share
# bounds the kernel.
RESOURCES = (
    _percent(
        "tensor",
        "tensor cores",
        "the two matrix products themselves",
        "sm__pipe_tensor_op_hmma_cycles_active.avg.pct_of_peak_sustained_active",
        "sm__pipe_tensor_subpipe_hmma_cycles_active.avg.pct_of_peak_sustained_active",
        "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
    ),
    _percent(
        "fma",
        "the FMA pipe",
        "float32 multiply-adds, which compute the products if no tensor core does",
        "sm__inst_executed_pipe_fma.avg.pct_of_peak_sustained_active",
    ),
    _percent(
        "alu",
        "the ALU pipe",
        "comparisons, integer operations and addresses",
        "sm__inst_executed_pipe_alu.avg.pct_of_peak_sustained_active",
    ),
    _percent(
        "xu",
        "the XU pipe",
        "exponentials and conversions of the softmax",
        "sm__inst_executed_pipe_xu.avg.pct_of_peak_sustained_active",
    ),
    _percent(
        "lsu",
        "the LSU pipe",
        "the number of loads, stores and shuffles of any width",
        "sm__inst_executed_pipe_lsu.avg.pct_of_peak_sustained_active",
    ),
    _percent(
        "issue",
        "issue slots",
        "the number of instructions of any kind, because each scheduler issues one per cycle",
        "smsp__issue_active.avg.pct_of_peak_sustained_active",
    ),
    _percent(
        "shared",
        "shared memory",
        "words that threads read from and write to shared memory, including bank conflicts",
        "l1tex__data_pipe_lsu_wavefronts_mem_shared.avg.pct_of_peak_sustained_elapsed",
        "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum.pct_of_peak_sustained_elapsed",
    ),
    _percent(
        "banks",
        "banks of L1 and shared memory",
        "reads of tiles, including those of the tensor cores",
        "l1tex__data_bank_reads.avg.pct_of_peak_sustained_elapsed",
    ),
    _percent(
        "l2",
        "the L2 cache",
        "tiles of keys and values, which every block fetches again",
        "lts__throughput.avg.pct_of_peak_sustained_elapsed",
        "lts__t_sectors.avg.pct_of_peak_sustained_elapsed",
    ),
    _percent(
        "dram",
        "DRAM",
        "bytes that no cache holds: scores in memory, or the inputs and outputs of a problem with little arithmetic",
        "dram__throughput.avg.pct_of_peak_sustained_elapsed",
        "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
        "dram__bytes_read.sum.pct_of_peak_sustained_elapsed",
    ),
)

# The limits of the number of blocks per multiprocessor. Each value is the number of blocks that this limit alone would
# allow.
OCCUPANCY_LIMITS = (
    Metric("limit_registers", "registers", "block", ("launch__occupancy_limit_registers",)),
    Metric("limit_shared", "shared memory", "block", ("launch__occupancy_limit_shared_mem",)),
    Metric("limit_warps", "the number of warps", "block", ("launch__occupancy_limit_warps",)),
    Metric("limit_blocks", "the number of blocks", "block", ("launch__occupancy_limit_blocks",)),
    Metric("limit_barriers", "the number of barriers", "block", ("launch__occupancy_limit_barriers",)),
)

FACTS = (
    Metric("duration", "duration", "s", ("gpu__time_duration.sum",)),
    Metric(
        "sm_clock",
        "clock of the multiprocessors",
        "hz",
        ("sm__cycles_elapsed.avg.per_second", "gpc__cycles_elapsed.avg.per_second"),
    ),
    Metric("cycles_active", "cycles in which a multiprocessor has work", "cycle", ("sm__cycles_active.avg",)),
    Metric("cycles_elapsed", "cycles", "cycle", ("sm__cycles_elapsed.max",)),
    Metric("warp_latency", "cycles of a warp for one instruction", "cycle",
           ("smsp__average_warp_latency_per_inst_issued.ratio",)),
    Metric("occupancy", "achieved occupancy", "%", ("sm__warps_active.avg.pct_of_peak_sustained_active",)),
    Metric("occupancy_limit", "occupancy possible", "%", ("sm__maximum_warps_per_active_cycle_pct",)),
    Metric("registers", "registers of a thread", "", ("launch__registers_per_thread",)),
    Metric("shared_bytes", "shared memory of a block", "byte", ("launch__shared_mem_per_block",)),
    Metric("waves", "waves of blocks", "", ("launch__waves_per_multiprocessor",)),
    Metric("shared_wavefronts", "wavefronts of shared memory", "",
           ("l1tex__data_pipe_lsu_wavefronts_mem_shared.sum",)),
    Metric("bank_conflicts", "bank conflicts of shared memory", "",
           ("l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum",)),
    Metric("l2_hit_rate", "hit rate of the L2 cache", "%", ("lts__t_sector_hit_rate.pct",)),
    Metric("dram_bytes", "traffic of DRAM", "byte", ("dram__bytes.sum",)),
    Metric("load_sectors", "sectors of a global load", "",
           ("l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_ld.ratio",)),
    Metric("spill_loads", "instructions that load from local memory", "",
           ("smsp__sass_inst_executed_op_local_ld.sum", "smsp__inst_executed_op_local_ld.sum")),
    Metric("spill_stores", "instructions that store to local memory", "",
           ("smsp__sass_inst_executed_op_local_st.sum", "smsp__inst_executed_op_local_st.sum")),
    Metric("multiprocessors", "multiprocessors", "", ("device__attribute_multiprocessor_count",)),
)  # fmt: skip

GPU_NAME = "device__attribute_display_name"

STALL_PREFIX, STALL_SUFFIX = "smsp__average_warps_issue_stalled_", "_per_issue_active.ratio"


def stall_name(reason: str) -> str:
    """Returns Nsight Compute's name of this quantity: the number of warps that wait for `reason`, averaged over the
    cycles in which an instruction is issued.
    """
    return STALL_PREFIX + reason + STALL_SUFFIX


def all_names(stall_reasons: list[str]) -> list[str]:
    """Returns all names that are requested from Nsight Compute."""
    quantities = (*RESOURCES, *OCCUPANCY_LIMITS, *FACTS)
    return [name for metric in quantities for name in metric.names] + [GPU_NAME, *map(stall_name, stall_reasons)]
