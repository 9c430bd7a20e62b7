#!/usr/bin/env python3
"""Draws the pictures of docs/what_is_flash_attention.md: docs/flash_attention_*.svg. Needs only Python.

python3 bench/draw_flash_attention.py [FOLDER]
"""

import html
import math
import pathlib
import sys

DOCS = pathlib.Path(__file__).resolve().parent.parent / "docs"
INK, GREY, PALE, WARM, COOL, GREEN = "#222222", "#8a8a8a", "#f2f2f2", "#f4b183", "#9dc3e6", "#a9d18e"

# The scores of one row, in tiles of two keys, and the value of each key, which has one column.
SCORES = ((1.0, 3.0), (2.0, 0.0), (5.0, 1.0), (4.0, 4.0))
VALUES = ((1.0, 2.0), (3.0, 4.0), (5.0, 6.0), (7.0, 8.0))


class Picture:
    """An SVG picture to which methods add shapes."""

    def __init__(self, width, height):
        self.size = width, height
        self.shapes = []

    def box(self, x, y, width, height, fill=PALE, stroke=INK):
        self.shapes.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" fill="{fill}" stroke="{stroke}"/>'
        )

    def text(self, x, y, words, size=13, anchor="middle", fill=INK, weight="normal"):
        self.shapes.append(
            f'<text x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}" fill="{fill}" '
            f'font-weight="{weight}">{html.escape(words)}</text>'
        )

    def arrow(self, x0, y0, x1, y1, color=INK):
        self.shapes.append(
            f'<line x1="{x0:g}" y1="{y0:g}" x2="{x1:g}" y2="{y1:g}" stroke="{color}" '
            'stroke-width="1.5" marker-end="url(#head)"/>'
        )

    def svg(self):
        width, height = self.size
        head = (
            '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
            f'orient="auto"><path d="M0,0 L8,4 L0,8 z" fill="{INK}"/></marker></defs>'
        )
        body = "\n".join(self.shapes)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
            f'height="{height}" font-family="sans-serif">\n{head}\n'
            f'<rect width="{width}" height="{height}" fill="white"/>\n{body}\n</svg>\n'
        )


def mebibytes(*factors):
    return f"{math.prod(factors) * 4 / 2**20:g} MiB"


def memory():
    """Draws the traffic to the GPU's memory, of the unfused path on the left and of the fused path on the right."""
    seqlen, head_dim = 8192, 64
    thin, square = mebibytes(seqlen, head_dim), mebibytes(seqlen, seqlen)
    p = Picture(760, 330)
    p.text(180, 24, "unfused: three kernels", 15, weight="bold")
    p.text(570, 24, "FlashAttention: one kernel", 15, weight="bold")
    p.text(
        380,
        318,
        f"One head, {seqlen} queries and keys, head_dim {head_dim}, float32: what each matrix takes "
        "in the GPU's memory",
        12,
        fill=GREY,
    )
    for y, name in ((70, "q"), (140, "k"), (210, "v")):
        p.box(20, y, 26, 56, COOL)
        p.text(33, y + 33, name)
    p.text(33, 284, thin + " each", 11)
    for x, name in ((100, "S = q kᵀ"), (210, "P = softmax(S)")):
        p.box(x, 80, 90, 90, WARM)
        p.text(x + 45, 129, name, 11)
        p.text(x + 45, 70, square, 12)
    p.box(330, 97, 26, 56, GREEN)
    p.text(343, 129, "o")
    p.arrow(48, 98, 98, 110)
    p.arrow(48, 168, 98, 140)
    p.arrow(192, 125, 208, 125)
    p.arrow(302, 125, 328, 125)
    p.arrow(48, 250, 343, 160)
    p.text(230, 252, "S and P are written and read again", 12)
    p.shapes.append(f'<line x1="378" y1="40" x2="378" y2="295" stroke="{GREY}" stroke-dasharray="4 4"/>')
    for y, name in ((70, "q"), (140, "k"), (210, "v")):
        for tile in range(4):
            p.box(405, y + 14 * tile, 26, 14, COOL)
        p.text(395, y + 33, name)
    p.box(480, 60, 190, 220, PALE, GREY)
    p.text(575, 80, "on the chip", 12, fill=GREY)
    p.box(505, 95, 60, 60, WARM)
    p.text(535, 122, "a tile", 12)
    p.text(535, 138, "of S, P", 12)
    p.text(620, 118, "row maxima m", 12)
    p.text(620, 136, "row sums l", 12)
    p.box(505, 185, 60, 36, GREEN)
    p.text(535, 208, "o so far")
    p.text(575, 252, "the next tile of keys takes", 12)
    p.text(575, 268, "the place of the last", 12)
    p.arrow(433, 98, 503, 112)
    p.arrow(433, 168, 503, 132)
    p.arrow(433, 238, 503, 205)
    p.arrow(535, 157, 535, 183)
    p.box(715, 175, 26, 56, GREEN)
    p.text(728, 207, "o")
    p.text(722, 250, thin, 11)
    p.arrow(567, 203, 713, 203)
    return p


def keys_seen(row_tile, key_tile, causal):
    """Returns the visible share of a square tile of scores: 0, 0.5 for a tile on the diagonal, or 1."""
    if not causal or key_tile < row_tile:
        return 1
    return 0.5 if key_tile == row_tile else 0


def tiles():
    """Draws the order in which tiles of scores are computed, and the thread block that computes each tile."""
    count, side, top = 4, 46, 70
    p = Picture(760, 330)
    panels = (
        ("FlashAttention: keys outside", "o of every row is read and written", "each time keys change"),
        ("FlashAttention-2: rows outside", "a block for each tile of rows:", "o stays in registers"),
        ("the same, causal", "tiles that nobody sees are skipped,", "the mask costs on the diagonal only"),
    )
    for panel, (title, *below) in enumerate(panels):
        left = 36 + 252 * panel
        p.text(left + count * side / 2, 24, title, 13, weight="bold")
        p.text(left + count * side / 2, 50, "tiles of keys →", 12, fill=GREY)
        step = 0
        order = [(i, j) for j in range(count) for i in range(count)]
        if panel > 0:
            order = [(i, j) for i in range(count) for j in range(count)]
        for i, j in order:
            seen = keys_seen(i, j, causal=panel == 2)
            color = "white" if seen == 0 else (WARM, COOL, GREEN, "#d9c3e6")[0 if panel == 0 else i]
            x, y = left + j * side, top + i * side
            p.box(x, y, side, side, color)
            if seen == 0.5:
                p.shapes.append(
                    f'<path d="M{x},{y} L{x + side},{y} L{x + side},{y + side} z" fill="white" stroke="{INK}"/>'
                )
            if seen > 0:
                step = step + 1 if panel == 0 else j + 1
                p.text(x + side * (0.5 if seen == 1 else 0.28), y + side * (0.6 if seen == 1 else 0.8), str(step))
        for line, words in enumerate(below):
            p.text(left + count * side / 2, top + count * side + 26 + 18 * line, words, 12)
    p.text(380, 318, "Numbers: the order in which a block computes its tiles; a colour for each block", 12, fill=GREY)
    return p


def online_softmax():
    """Returns a list of (m, factor, l, unnormalised o) after each tile, which the picture shows as a table, and the
    final o. m is the row maximum, and l the softmax sum.
    """
    m, total, o = -math.inf, 0.0, 0.0
    steps = []
    for scores, values in zip(SCORES, VALUES):
        new = max(m, *scores)
        factor = math.exp(m - new)
        p = [math.exp(s - new) for s in scores]
        total = total * factor + sum(p)
        o = o * factor + sum(x * v for x, v in zip(p, values))
        m = new
        steps.append((m, factor, total, o))
    scores = [s for tile in SCORES for s in tile]
    weights = [math.exp(s - max(scores)) for s in scores]
    exact = sum(w * v for w, v in zip(weights, (v for tile in VALUES for v in tile))) / sum(weights)
    assert math.isclose(steps[-1][3] / steps[-1][2], exact, rel_tol=1e-12)
    return steps, exact


def softmax():
    """Draws the state of one row after each of four tiles: the maximum, the factor that rescales earlier sums to the
    new maximum, the sum, and o.
    """
    steps, exact = online_softmax()
    p = Picture(720, 300)
    p.text(360, 24, "One row, four tiles of two keys", 15, weight="bold")
    columns = ("scores", "values", "m: maximum", "factor exp(m old − m)", "l: sum", "o · l")
    centers = (110, 210, 310, 430, 550, 640)
    for center, words in zip(centers, columns):
        p.text(center, 56, words, 12, fill=GREY)
    for line, (step, scores, values) in enumerate(zip(steps, SCORES, VALUES)):
        y = 70 + 44 * line
        changed = line > 0 and step[1] < 1
        p.text(30, y + 23, str(line + 1), 13, fill=GREY)
        for k in range(2):
            p.box(66 + 44 * k, y, 40, 34, COOL)
            p.text(86 + 44 * k, y + 22, f"{scores[k]:g}")
            p.box(166 + 44 * k, y, 40, 34, GREEN)
            p.text(186 + 44 * k, y + 22, f"{values[k]:g}")
        factor = "0 (nothing yet)" if line == 0 else f"{step[1]:.4f}"
        for center, words in zip(centers[2:], (f"{step[0]:g}", factor, f"{step[2]:.4f}", f"{step[3]:.4f}")):
            p.text(center, y + 22, words, 13, weight="bold" if changed and center == centers[3] else "normal")
    p.text(
        360,
        272,
        f"o = {steps[-1][3]:.4f} / {steps[-1][2]:.4f} = {exact:.4f}, as softmax over all eight scores "
        "gives; lse = m + ln l",
        13,
    )
    return p


PICTURES = {"memory": memory, "tiles": tiles, "softmax": softmax}


def main(folder=DOCS):
    for name, draw in PICTURES.items():
        path = pathlib.Path(folder) / f"flash_attention_{name}.svg"
        path.write_text(draw().svg(), encoding="utf-8")
        print(f"wrote {path}")


if __name__ == "__main__":
    main(*sys.argv[1:2])
