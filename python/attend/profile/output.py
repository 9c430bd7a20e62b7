"""Writes a diagnosis as text and as JSON."""

from __future__ import annotations

from typing import Any, NamedTuple, Optional

from attend.profile import metrics
from attend.profile.diagnosis import diagnose
from attend.profile.measures import Measures

_OPERATIONS = {"forward": 4.0, "backward": 10.0}


class Problem(NamedTuple):
    """The profiled call."""

    compute: str
    mode: str
    batch_size: int
    num_heads: int
    seq_len: int
    head_dim: int
    dtype: str
    causal: bool

    def operations(self) -> float:
        """Returns the number of operations, which is the same for every kernel. With B = batch, H = heads, S = seqlen
        and D = head_dim it is 4 B H S^2 D for forward and 10 B H S^2 D for backward. With a causal mask it is half of
        that.
        """
        whole = _OPERATIONS[self.mode] * self.batch_size * self.num_heads * self.seq_len**2 * self.head_dim
        return whole / 2 if self.causal else whole

    def text(self) -> str:
        shape = f"({self.batch_size}, {self.num_heads}, {self.seq_len}, {self.head_dim})"
        return f"{self.mode} {self.dtype} {shape}{' causal' if self.causal else ''}, compute={self.compute}"


def as_json(
    m: Measures, launches: list[Measures], problem: Optional[Problem], tool: str, kernel_regex: Optional[str] = None
) -> dict[str, Any]:
    """Returns the JSON data, with all values in base units (s, hz, byte, %).

    `m` contains the measurements of the explained kernel. `launches` contains all launches of the call, or those that
    match `kernel_regex`. `tool` is the version of the profiler, or "".
    """
    bound, sentences = diagnose(m)
    seconds = [other.get("duration") for other in launches]
    known = [s for s in seconds if s is not None]
    # Without the time of all launches no speed is computed, because the number of operations is that of the entire
    # call.
    whole = not kernel_regex and known and len(known) == len(seconds)
    tflops = problem.operations() / sum(known) / 1e12 if problem and whole else None
    known_metrics = {x.key: x for x in (*metrics.RESOURCES, *metrics.OCCUPANCY_LIMITS, *metrics.FACTS)}
    return {
        "gpu": m.gpu,
        "tool": tool,
        "problem": problem._asdict() if problem else None,
        "kernel_regex": kernel_regex,
        "tflops": tflops,
        "kernel": m.kernel,
        "grid": m.grid,
        "block": m.block,
        "launches": [{"kernel": other.kernel, "duration": other.get("duration")} for other in launches],
        "measures": {
            key: {"label": known_metrics[key].label, "value": value, "unit": known_metrics[key].unit}
            for key, value in m.values.items()
        },
        "stalls": [{"reason": s.reason, "share": s.share, "cycles": s.cycles} for s in m.stalls],
        "missing": m.missing,
        "bound": bound,
        "diagnosis": sentences,
    }


def as_text(data: dict[str, Any]) -> str:
    """Returns the command's text output for the JSON data."""
    lines = []
    if data["problem"]:
        lines.append(Problem(**data["problem"]).text())
    lines.append(" ".join(filter(None, [data["kernel"], f"grid {data['grid']} block {data['block']}", data["gpu"]])))
    if len(data["launches"]) > 1:
        lines.append("the longest of " + ", ".join(_launch_text(launch) for launch in data["launches"]))
    lines += ["", *_table(data), ""]
    lines += data["diagnosis"]
    return "\n".join(lines)


def _table(data: dict[str, Any]) -> list[str]:
    values = {key: entry["value"] for key, entry in data["measures"].items()}
    rows = []
    if "duration" in values:
        speed = f", {data['tflops']:.1f} TFLOP/s of the call" if data["tflops"] else ""
        if data["problem"] and data["kernel_regex"]:
            speed = ", no TFLOP/s of the call: --kernel-regex excludes the time of its other kernels"
        rows.append(("duration", f"{_time_text(values['duration'])}{speed}"))
    if "sm_clock" in values:
        rows.append(("clock", f"{values['sm_clock'] / 1e6:.0f} MHz"))
    rows += [(m.label, f"{values[m.key]:.1f} %") for m in metrics.RESOURCES if m.key in values]
    for key, label, text in (
        ("occupancy", "achieved occupancy", "{:.1f} %"),
        ("registers", "registers of a thread", "{:.0f}"),
        ("shared_bytes", "shared memory of a block", "{:.0f} bytes"),
        ("waves", "waves of blocks", "{:.2f}"),
        ("bank_conflicts", "bank conflicts", "{:.0f}"),
        ("l2_hit_rate", "hit rate of the L2 cache", "{:.1f} %"),
    ):
        if key in values:
            rows.append((label, text.format(values[key])))
    width = max((len(label) for label, _ in rows), default=0)
    return [f"  {label:<{width}}  {value}" for label, value in rows]


def _launch_text(launch: dict[str, Any]) -> str:
    duration = launch["duration"]
    return f"{launch['kernel']} ({_time_text(duration)})" if duration is not None else str(launch["kernel"])


def _time_text(seconds: float) -> str:
    return f"{1e6 * seconds:.1f} us" if seconds < 1e-3 else f"{1e3 * seconds:.3f} ms"
