"""A launch to the quantities that a diagnosis is made of."""

from __future__ import annotations

from dataclasses import dataclass

from attend.profile import metrics, stalls
from attend.profile.metrics import Metric
from attend.profile.report import Launch


@dataclass(frozen=True)
class StallShare:
    """share: of the time of a warp between two of its instructions, 0 to 1, that it waits for `reason`.
    cycles: of that time, for one instruction."""

    reason: str
    share: float
    cycles: float


@dataclass(frozen=True)
class Measures:
    """What was measured of one launch.

    values: by the keys of `metrics`, in base units; what is not in the report is not in it.
    missing: labels of what is not in the report.
    stalls: largest first; empty where the report has none.
    gpu: its name, or "".
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
        """What could bound the kernel, and how much of it is used in %, most used first."""
        known = [(m, self.values[m.key]) for m in metrics.RESOURCES if m.key in self.values]
        return sorted(known, key=lambda pair: -pair[1])

    def occupancy_limiters(self) -> tuple[list[str], int] | None:
        """What allows the fewest blocks on a multiprocessor, and how many."""
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
    """The reasons that are waits, as shares of all the time of a warp, work included."""
    # By the form of the name: a reason of a newer GPU that has no sentence here still belongs to the whole.
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
