#!/usr/bin/env python3
"""Draws the timeline of a ring, with one band for each rank, from the file that `attend ring --json FILE` writes.

    .venv/bin/python bench/plot_ring.py FILE.json [PICTURE.svg]     default: ring_timeline.svg next to the file

Each rank has two bars, which are divided into steps: its exchanges and, below them, its computation. The time of an
exchange during which nothing was computed is red.
"""

import json
import pathlib
import sys

import report

style = report.style()
plt = style.pyplot()
BLUES = (style.BLUE, style.SKY)


def outside(span, others):
    """Returns the parts of the interval `span` that are in none of the intervals `others`."""
    parts = [span]
    for begin, end in others:
        parts = [p for a, b in parts for p in ((a, min(b, begin)), (max(a, end), b)) if p[0] < p[1]]
    return parts


def draw(axis, result):
    for rank in range(result["ranks"]):
        spans = [s for s in result["timeline"] if s["rank"] == rank]
        compute = [s for s in spans if s["activity"] == "compute"]
        computed = [(s["begin_ms"], s["end_ms"]) for s in compute]
        for s in compute:
            axis.broken_barh([(s["begin_ms"], s["end_ms"] - s["begin_ms"])], (rank, 0.4), color=BLUES[s["step"] % 2])
            axis.text((s["begin_ms"] + s["end_ms"]) / 2, rank + 0.2, s["step"], ha="center", va="center", color="white")
        for s in spans:
            if s["activity"] != "exchange":
                continue
            axis.broken_barh([(s["begin_ms"], s["end_ms"] - s["begin_ms"])], (rank - 0.25, 0.22), color=style.GREY)
            for begin, end in outside((s["begin_ms"], s["end_ms"]), computed):
                axis.broken_barh([(begin, end - begin)], (rank - 0.25, 0.22), color=style.VERMILION)
    axis.set_yticks(range(result["ranks"]), [f"rank {rank}" for rank in range(result["ranks"])])
    axis.invert_yaxis()
    axis.set_xlabel("ms")
    causal = ", causal" if result["causal"] else ""
    axis.set_title(
        f"{result['mode']} by {result['algorithm']}, {result['sharding']}, S {result['S']}{causal}: "
        f"{result['ms']:.3g} ms, {100 * result['share_of_ideal']:.0f} % of ideal"
    )


def main():
    source = pathlib.Path(sys.argv[1])
    results = [r for r in json.loads(source.read_text()) if r.get("timeline")]
    if not results:
        sys.exit(f"{source}: no timeline, allowed a file of attend ring --json")
    target = pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else source.with_name("ring_timeline.svg")
    height = sum(1.1 + 0.55 * r["ranks"] for r in results)
    figure, axes = plt.subplots(len(results), figsize=(9, height), layout="constrained", squeeze=False)
    for axis, result in zip(axes[:, 0], results):
        draw(axis, result)
    figure.savefig(target, metadata=style.metadata(target.suffix, [source]))
    print(f"wrote {target}")


if __name__ == "__main__":
    main()
