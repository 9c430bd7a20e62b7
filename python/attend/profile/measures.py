"""Converts the measurements of a launch to the quantities that the diagnosis uses."""

from __future__ import annotations

from dataclasses import dataclass

from attend.profile import metrics, stalls
from attend.profile.metrics import Metric
from attend.profile.report import Launch


@dataclass(frozen=True)
class StallShare:
    """The time that a warp waits for one stall reason.

    Attributes:
        reason: Nsight Compute's name of the stall reason.
        share: fraction, 0 to 1, of a warp's time between two instructions during which the warp waits for `reason`.
        cycles: the waiting time per instruction in cycles.
    """

    reason: str
    share: float
    cycles: float


@dataclass(frozen=True)
class Measures:
    """The measurements of one launch.

    Attributes:
        values: {key of `metrics`: value in base units}, without values that the report does not have.
        missing: labels of values that the report does not have.
        stalls: the stall reasons, largest first, or an empty list if the report has none.
        gpu: the name of the GPU, or "".
    """

    kernel: str
    grid: str
    block: str
    gpu: str
    values: dict[str, float]
    missing: list[str]
    stalls: list[StallShare]

    def get(self, key: str) -> float | None:
        return self.values.get(key)

    def resources(self) -> list[tuple[Metric, float]]:
        """Returns the resources that may bound the kernel, with their utilisation in %, highest first."""
        known = [(m, self.values[m.key]) for m in metrics.RESOURCES if m.key in self.values]
        return sorted(known, key=lambda pair: -pair[1])

    def occupancy_limiters(self) -> tuple[list[str], int] | None:
        """Returns the limiters that allow the fewest blocks per multiprocessor, and that number of blocks."""
        known = [(m.label, self.values[m.key]) for m in metrics.OCCUPANCY_LIMITS if m.key in self.values]
        if not known:
            return None
        fewest = min(blocks for _, blocks in known)
        return [label for label, blocks in known if blocks == fewest], round(fewest)


def measure(launch: Launch) -> Measures:
    values, missing = {}, []
    for metric in (*metrics.RESOURCES, *metrics.OCCUPANCY_LIMITS, *metrics.FACTS):
        found = next((launch.values[name] for name in metric.names if name in launch.values), None)
        if found is None:
            missing.append(metric.label)
        else:
            values[metric.key] = found
    shares = _stall_shares(launch)
    if not shares:
        missing.append("why warps wait")
    return Measures(
        kernel=launch.kernel,
        grid=launch.grid,
        block=launch.block,
        gpu=launch.texts.get(metrics.GPU_NAME, ""),
        values=values,
        missing=missing,
        stalls=shares,
    )


def _stall_shares(launch: Launch) -> list[StallShare]:
    """Returns the stall reasons as shares of a warp's total time, which includes the cycle in which an instruction is
    issued.
    """
    # All names of this form are matched, so that the total includes stall reasons of newer GPUs, which are unknown
    # here.
    cycles = {
        name.removeprefix(metrics.STALL_PREFIX).removesuffix(metrics.STALL_SUFFIX): value
        for name, value in launch.values.items()
        if name.startswith(metrics.STALL_PREFIX) and name.endswith(metrics.STALL_SUFFIX)
    }
    whole = sum(cycles.values())
    if whole <= 0:
        return []
    waits = [StallShare(name, value / whole, value) for name, value in cycles.items() if name not in stalls.WORKING]
    return sorted(waits, key=lambda stall: -stall.share)
