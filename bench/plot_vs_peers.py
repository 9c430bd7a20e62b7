#!/usr/bin/env python3
"""Draws attend and its peers: docs/vs_peers_DTYPE.svg and docs/vs_peers_own_bf16.svg, from results/h200.

python3 bench/plot_vs_peers.py
"""

import json
import textwrap

import peer_tables
import report

style = report.style()
plt = style.pyplot()
LOOKS = style.looks(["attend", "fa3", "cudnn", "fa2", "efficient", "fa4"])
TITLE_COLUMNS = 120


def draw(data):
    """Draws a panel for each head_dim (columns) and each pass and mask (rows). The panels of a row have the same
    vertical axis.
    """
    groups = peer_tables.groups(data["rows"])
    lines = sorted({(mode, mask) for mode, _, mask in groups}, key=lambda key: (key[0] != "fwd", key[1] != "full"))
    head_dims = sorted({head_dim for _, head_dim, _ in groups})
    figure, axes = plt.subplots(
        len(lines),
        len(head_dims),
        figsize=(3.2 * len(head_dims), 2.3 * len(lines)),
        squeeze=False,
        sharey="row",
        layout="constrained",
    )
    for (mode, mask), panels in zip(lines, axes):
        panels[0].set_ylabel("TFLOP/s")
        for head_dim, axis in zip(head_dims, panels):
            draw_panel(axis, groups.get((mode, head_dim, mask), []))
            axis.set_title(f"{peer_tables.PASSES[mode]}, {mask}, head_dim {head_dim}")
        largest = max(max(row["tflops"].values()) for d in head_dims for row in groups.get((mode, d, mask), []))
        panels[0].set_ylim(0, 1.05 * largest)  # sets the limits of all panels of the row, after all are drawn
        style.label_ends(panels[-1], panels[-1].get_lines())
    title = f"{data['dtype']}, 16384 tokens, 2048 channels; {peer_tables.title(data)}"
    figure.suptitle(textwrap.fill(title, TITLE_COLUMNS), fontsize=8)
    return figure


def draw_panel(axis, rows):
    rows = sorted(rows, key=lambda row: row["S"])
    for name, look in LOOKS.items():
        points = [(row["S"], row["tflops"][name]) for row in rows if name in row["tflops"]]
        if points:
            axis.plot(*zip(*points), label=peer_tables.NAMES[name], **look.of_line())
    axis.set_xscale("log", base=2)
    axis.set_xticks([row["S"] for row in rows], [str(row["S"]) for row in rows])
    axis.grid(alpha=0.3)


def draw_own(data):
    """Draws the speed with custom scores and masks, with a panel for each pass and a group of bars for each
    function.
    """
    masks = list(dict.fromkeys(row["mask"] for row in data["rows"]))
    sides = {
        "attend": ("attend", style.BLUE),
        "built_in": ("attend, the option", style.GREEN),
        "flex": ("FlexAttention", style.GREY),
        "fa4": ("FlashAttention-4", style.VERMILION),
    }
    sides = {side: look for side, look in sides.items() if any(side in row["tflops"] for row in data["rows"])}
    height = 0.81 / len(sides)
    figure, axes = plt.subplots(1, 2, figsize=(9.6, 0.42 * len(masks) + 1.2), sharey=True, layout="constrained")
    for mode, axis in zip(("fwd", "bwd"), axes):
        rows = {row["mask"]: row["tflops"] for row in data["rows"] if row["mode"] == mode}
        for n, (side, (label, color)) in enumerate(sides.items()):
            at = [i + height * (n - 0.5 * (len(sides) - 1)) for i in range(len(masks))]
            axis.barh(at, [rows[mask].get(side, 0) for mask in masks], 0.93 * height, color=color, label=label)
        axis.set_title(peer_tables.PASSES[mode])
        axis.set_xlabel("TFLOP/s of the pairs that are seen")
        axis.grid(axis="x", alpha=0.3)
    axes[0].set_yticks(range(len(masks)), masks)
    axes[0].invert_yaxis()
    axes[1].legend(fontsize=8)
    figure.suptitle(textwrap.fill(f"{data['dtype']}; {peer_tables.title(data)}", TITLE_COLUMNS), fontsize=8)
    return figure


def main():
    own = report.ROOT / "results" / "h200" / "vs_peers_own_bf16.json"
    if own.exists():
        report.save_picture(draw_own(json.loads(own.read_text())), "vs_peers_own_bf16.svg", [own])
    for dtype in ("bf16", "f16"):
        path = report.ROOT / "results" / "h200" / f"vs_peers_paper_{dtype}.json"
        if path.exists():
            report.save_picture(draw(json.loads(path.read_text())), f"vs_peers_{dtype}.svg", [path])


if __name__ == "__main__":
    main()
