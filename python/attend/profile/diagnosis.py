"""Converts measured quantities to sentences. All thresholds are in the one table below."""

from __future__ import annotations

from typing import NamedTuple

from attend.profile import ladder
from attend.profile.measures import Measures
from attend.profile.stalls import STALLS


class Thresholds(NamedTuple):
    """The thresholds from which the sentences of a diagnosis are chosen.

    Attributes:
        bound: a resource bounds the kernel if at least this % of it is used. If no resource reaches this value, latency
            is the bound.
        ceiling: if more than this % of a resource is used, little can be gained.
        near: another resource is also named if its use is at most this number of percentage points below that of the
            resource that bounds the kernel.
        stall_share: a stall reason is named if it takes at least this share of a warp's time.
        stalls_named: largest number of stall reasons that are named.
        conflict_share: bank conflicts are named if they cause at least this share of the shared-memory wavefronts.
        load_sectors: if a global load touches more sectors than this, neighbouring threads do not read neighbouring
            words. 32 threads that read 16 bytes each need 16 sectors.
        busy_share: if multiprocessors are busy for less than this share of the cycles, the diagnosis reports that they
            are idle too long.
        occupancy_share: if the achieved occupancy is below this share of the possible occupancy, thread blocks of
            different duration leave slots empty.
    """

    bound: float = 60.0
    ceiling: float = 80.0
    near: float = 10.0
    stall_share: float = 0.10
    stalls_named: int = 3
    conflict_share: float = 0.10
    load_sectors: float = 16.5
    busy_share: float = 0.85
    occupancy_share: float = 0.75


THRESHOLDS = Thresholds()


class Diagnosis(NamedTuple):
    """The result of `diagnose`. `bound` is the key of the resource that bounds the kernel, "latency", or "unknown"
    without measurements.
    """

    bound: str
    sentences: list[str]


def diagnose(m: Measures, limits: Thresholds = THRESHOLDS) -> Diagnosis:
    bound, sentences = _bound(m, limits)
    for part in (_waits(m, bound, limits), _memory(m, limits), _occupancy(m, limits), _spills(m)):
        sentences += part
    sentences += filter(None, [ladder.place(m.kernel)])
    if m.missing:
        sentences.append(f"Not in the report: {', '.join(m.missing)}.")
    return Diagnosis(bound, sentences)


def _bound(m: Measures, limits: Thresholds) -> tuple[str, list[str]]:
    resources = m.resources()
    if not resources:
        return "unknown", ["The report has no measurement of any resource, so the bound of the kernel is unknown."]
    (first, used), rest = resources[0], resources[1:]
    if used < limits.bound:
        sentence = (
            f"Bound by latency: no unit is near its ceiling (the highest is {first.label}, {used:.0f} %). Warps wait "
            "for one another or for results, and too few other warps can run in the meantime."
        )
        return "latency", [sentence]
    judgement = (
        "That is close to the ceiling, so a faster kernel has to use this resource less."
        if used >= limits.ceiling
        else "No other resource is closer to its ceiling. The rest of the time is lost to waiting."
    )
    sentences = [f"Bound by {first.label}, {used:.0f} % of the peak: {first.meaning}. {judgement}"]
    near = [f"{metric.label} ({value:.0f} %)" for metric, value in rest if used - value <= limits.near]
    if near:
        sentences.append(f"Close behind: {', '.join(near)}.")
    return first.key, sentences


def _waits(m: Measures, bound: str, limits: Thresholds) -> list[str]:
    named = [s for s in m.stalls if s.share >= limits.stall_share][: limits.stalls_named]
    if not named:
        return []
    sentences = []
    latency = m.get("warp_latency")
    if latency is not None:
        sentences.append(f"A warp issues an instruction every {latency:.1f} cycles.")
    for stall in named:
        share = f"{100 * stall.share:.0f} % of a warp's time is `{stall.reason}`"
        known = STALLS.get(stall.reason)
        if known is None:
            sentences.append(f"{share}, which this command does not describe: see Nsight Compute's documentation.")
        elif bound == "latency":
            sentences.append(f"{share}: {known.meaning}. What helps: {known.remedy}.")
        else:
            sentences.append(f"{share}: {known.meaning}.")
    return sentences


def _memory(m: Measures, limits: Thresholds) -> list[str]:
    sentences = []
    wavefronts, conflicts = m.get("shared_wavefronts"), m.get("bank_conflicts")
    if wavefronts and conflicts is not None and conflicts / wavefronts >= limits.conflict_share:
        sentences.append(
            f"{100 * conflicts / wavefronts:.0f} % of the wavefronts of shared memory are bank conflicts: threads of a "
            "warp access different words of one bank. A swizzle (rung 13) or padded rows (03, 08) avoid them."
        )
    sectors = m.get("load_sectors")
    if sectors is not None and sectors > limits.load_sectors:
        sentences.append(
            f"A global load touches {sectors:.1f} sectors of 32 bytes, so neighbouring threads do not read "
            "neighbouring words. A copy in full lines (rung 03) needs 4 to 16."
        )
    return sentences


def _occupancy(m: Measures, limits: Thresholds) -> list[str]:
    sentences = []
    active, elapsed = m.get("cycles_active"), m.get("cycles_elapsed")
    waves = m.get("waves")
    if active is not None and elapsed and active / elapsed < limits.busy_share:
        reason = (
            f", because the blocks make {waves:.2f} waves, too few to fill all of them evenly"
            if waves is not None and waves < 2
            else ""
        )
        share = f"{100 * active / elapsed:.0f} %"
        sentences.append(f"On average, a multiprocessor has work in {share} of the cycles{reason}.")
    achieved, possible = m.get("occupancy"), m.get("occupancy_limit")
    if achieved is not None:
        limiters = m.occupancy_limiters()
        text = f"Occupancy: {achieved:.0f} % of the warps that a multiprocessor can hold"
        text += f"; this kernel allows {possible:.0f} %" if possible is not None else ""
        if limiters is not None:
            labels, blocks = limiters
            text += f", with at most {blocks} block{'s' if blocks != 1 else ''} at a time because of "
            text += " and ".join(labels)
        sentences.append(text + ".")
        if possible and achieved / possible < limits.occupancy_share:
            sentences.append(
                "That is well below the possible value: blocks of different length leave slots empty at the end."
            )
    return sentences


def _spills(m: Measures) -> list[str]:
    loads, stores = m.get("spill_loads"), m.get("spill_stores")
    if loads is None and stores is None:
        return []
    if not loads and not stores:
        return ["No register is spilled to local memory."]
    sentence = (
        f"The kernel uses local memory: {loads or 0:.0f} loads and {stores or 0:.0f} stores (warp instructions). "
        "Either registers are spilled, or an array is indexed by a variable. Smaller tiles or fewer blocks per "
        "multiprocessor help."
    )
    return [sentence]
