#!/usr/bin/env python3
"""Draws the block masks of docs/custom_scores.md: docs/custom_masks.svg. Needs attend and NumPy.

    python3 bench/draw_masks.py [FOLDER]

The names and texts are those of tests/mask/mask_cookbook.cpp, and the page shows the same texts. The library evaluates
each text for TOKENS rows and keys, or for those of SIZES, with example tensors. Each pixel is a pair of a row and a
key.
"""

import base64
import pathlib
import re
import struct
import sys
import zlib

import numpy as np
from draw_flash_attention import GREY, INK, Picture

ROOT = pathlib.Path(__file__).resolve().parent.parent
COOKBOOK = ROOT / "tests" / "mask" / "mask_cookbook.cpp"
PICTURE = "custom_masks.svg"
TOKENS, COLUMNS, GAP, HEAD, FOOT = 192, 4, 40, 62, 26
SIZES = {"Causal, aligned at the end": (128, TOKENS)}  # (rows, keys); all other masks have TOKENS rows and keys
HEADS, SHOWN_HEAD = 4, 1  # the number of heads, for masks that depend on h, and the head whose mask is drawn
SEEN = b"\x00\x72\xb2"
TEXT_COLUMNS = 38


def documents():
    """Returns the document number of each token. There are five documents, one after another."""
    return np.repeat(np.arange(5, dtype=np.int32), (24, 52, 36, 56, 24))


def tree():
    """Returns the visible keys of 63 draft tokens, which form a binary tree after a prompt. A draft token sees the
    prompt, its ancestors and itself.
    """
    prompt = TOKENS - 63
    sees = np.tril(np.ones((TOKENS, TOKENS), bool))
    sees[prompt:, prompt:] = False
    for draft in range(63):
        at = draft
        while at >= 0:
            sees[prompt + draft, prompt + at] = True
            at = (at - 1) // 2 if at > 0 else -1
    return sees


def captures():
    """Returns the tensors that the texts read, by their names in the texts."""
    doc = documents()
    blocks = -(-TOKENS // 32)
    chosen = np.random.default_rng(4).random((1, HEADS, blocks, blocks)) < 0.3
    return {
        "doc": doc,
        "valid": np.array([136]),
        "tree": tree(),
        "media": doc.astype(np.float32),
        "seen": (doc - 1).astype(np.float32),
        "keep": chosen | np.eye(blocks, dtype=bool),
    }


def recipes():
    """Returns (name, text) of each mask, in the order of the page."""
    found = re.findall(r'^      \{"([^"]+)",\s*"([^"]+)",', COOKBOOK.read_text(), flags=re.MULTILINE)
    if len(found) < 19 or len({name for name, _ in found}) < len(found):
        sys.exit(f"{COOKBOOK}: {len(found)} masks with distinct names, at least 19 are expected")
    return found


def pairs(name, text):
    """Returns bools (rows, keys): True for each visible pair, as the library evaluates it."""
    import attend

    rows, keys = SIZES.get(name, (TOKENS, TOKENS))
    read = {key: value for key, value in captures().items() if re.search(rf"\b{key}\b", text)}
    heads = HEADS if re.search(r"\bh\b", text) else 1
    mask = attend.make_block_mask(text, rows, keys, num_heads=heads, captures=read)
    head = SHOWN_HEAD if heads > 1 else 0
    return np.array([[mask.sees(0, head, q, k) for k in range(keys)] for q in range(rows)])


def png(seen):
    """Returns a PNG with one bit per pixel. A visible pair has the colour SEEN, and other pixels are transparent."""
    rows, keys = seen.shape
    lines = b"".join(b"\x00" + np.packbits(row).tobytes() for row in seen)

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    return b"\x89PNG\r\n\x1a\n" + b"".join(
        (
            chunk(b"IHDR", struct.pack(">IIBBBBB", keys, rows, 1, 3, 0, 0, 0)),
            chunk(b"PLTE", b"\xff\xff\xff" + SEEN),
            chunk(b"tRNS", b"\x00"),
            chunk(b"IDAT", zlib.compress(lines, 9)),
            chunk(b"IEND", b""),
        )
    )


def pixels(svg):
    """Returns the text of the picture with each PNG replaced by its pixels, because different versions of zlib compress
    the same pixels differently.
    """

    def lines(found):
        data = base64.b64decode(found[1])
        start = data.index(b"IDAT")
        size = int.from_bytes(data[start - 4 : start], "big")
        return zlib.decompress(data[start + 4 : start + 4 + size]).hex()

    return re.sub(r"data:image/png;base64,([^\"]+)", lines, svg)


def in_lines(text):
    """Splits a text into lines. A text that is too long for one line is split after `;` and `&&`."""
    lines = [""]
    for part in re.split(r"(?<=;) |(?<=&&) ", text):
        if len(lines[-1]) + len(part) >= TEXT_COLUMNS:
            lines.append("")
        lines[-1] = f"{lines[-1]} {part}".strip()
    return lines


def draw_panel(p, left, top, name, text):
    seen = pairs(name, text)
    rows, keys = seen.shape
    lines = in_lines(text)
    for n, line in enumerate(reversed(lines)):
        p.text(left, top - 7 - 11 * n, line, 8.5, "start", fill=GREY)
    p.text(left, top - 10 - 11 * len(lines), name, 13, "start", weight="bold")
    p.box(left - 0.5, top - 0.5, keys + 1, rows + 1, "#f2f2f2", GREY)
    data = base64.b64encode(png(seen)).decode()
    p.shapes.append(
        f'<image x="{left:g}" y="{top:g}" width="{keys}" height="{rows}" href="data:image/png;base64,{data}"/>'
    )
    p.text(left + keys / 2, top + rows + 15, "key", 11)
    p.shapes.append(
        f'<text transform="translate({left - 8:g} {top + rows / 2:g}) rotate(-90)" font-size="11" '
        f'text-anchor="middle" fill="{INK}">row</text>'
    )


def draw():
    found = recipes()
    width, height = TOKENS + GAP, TOKENS + HEAD + FOOT
    p = Picture(COLUMNS * width + 12, -(-len(found) // COLUMNS) * height + 26)
    for n, (name, text) in enumerate(found):
        draw_panel(p, 28 + n % COLUMNS * width, HEAD + n // COLUMNS * height, name, text)
    p.text(28, p.size[1] - 12, f"Blue: the row sees the key. Masks that read h are shown for head {SHOWN_HEAD}.", 12, "start")
    return p


def main(folder=ROOT / "docs"):
    path = pathlib.Path(folder) / PICTURE
    path.write_text(draw().svg(), encoding="utf-8")
    print(f"wrote {path}")


if __name__ == "__main__":
    main(*sys.argv[1:2])
