"""Formats the results of bench/h200_vs_peers.py as text and Markdown, and computes geometric means. Needs only
Python."""

import math

KIND = "vs_peers"
NAMES = {
    "attend": "attend",
    "fa3": "FlashAttention-3",
    "fa4": "FlashAttention-4",
    "fa3_kvcache": "FlashAttention-3, cache",
    "cudnn": "cuDNN",
    "fa2": "FlashAttention-2",
    "efficient": "PyTorch's memory-efficient kernel",
    "flex": "FlexAttention",
    "math": "PyTorch's unfused path",
}
PASSES = {"fwd": "forward", "bwd": "backward"}


def speed(row):
    """Returns ({side: speed}, unit of the speed)."""
    return (row["gbps"], "GB/s") if "gbps" in row else (row["tflops"], "TFLOP/s")


def best_peer(row):
    """Returns (name, speed) of the fastest peer, or None if no peer supports the problem."""
    found = [(value, name) for name, value in speed(row)[0].items() if name in NAMES and name != "attend"]
    return max(found)[::-1] if found else None


def ratio(row):
    """Returns attend's speed divided by the best peer's, or None if one of them is missing."""
    best, own = best_peer(row), speed(row)[0].get("attend")
    return own / best[1] if best and own else None


def ratios(rows):
    return [r for r in map(ratio, rows) if r is not None]


def geometric_mean(values):
    return math.exp(sum(map(math.log, values)) / len(values)) if values else None


def mask_of(row):
    return row["mask"] if "mask" in row else "causal" if row["causal"] else "full"


def sizes(row):
    heads = f"{row['H']}:{row['Hkv']}" if "Hkv" in row else row["H"]
    lengths = f"{row['Sq']} x {row['S']}" if "Sq" in row else row["S"]
    return f"({row['B']}, {heads}, {lengths}, {row['D']})"


def line(row):
    """Returns one line of text that reports a measured row."""
    figures, unit = speed(row)
    shown = " ".join(f"{name}={value:.0f}" for name, value in figures.items())
    share = ratio(row)
    left_out = "".join(f" [{name}: {why}]" for name, why in row["errors"].items())
    beside = "" if share is None else f"  {share:.2f}x"
    return f"{row['what']} {row['dtype']} {row['mode']} {sizes(row)} {mask_of(row)}: {shown} {unit}{beside}{left_out}"


def title(data):
    versions = ", ".join(f"{name} {version}" for name, version in data["versions"].items() if version)
    product = data["matrix_product_tflops"]
    board = f"; bfloat16 matrix product {product:.0f} TFLOP/s" if product else ""
    return f"{data['device_name']}, driver {data['driver']}, {versions}{board}"


def groups(rows):
    """Groups the measured rows. A group contains all lengths of one pass, head_dim and mask, and becomes one line of a
    table.
    """
    found = {}
    for row in rows:
        found.setdefault((row["mode"], row["D"], mask_of(row)), []).append(row)
    return found


def text(rows):
    """Returns the geometric mean and minimum of attend's ratio to its best peer, for each group and each pass."""
    lines = ["speed of attend relative to the best peer at each point: geometric mean, smallest"]
    for (mode, head_dim, mask), some in groups(rows).items():
        lines += [f"  {mode} d={head_dim:<4} {mask:<10} {merit(some)}"]
    for mode in dict.fromkeys(row["mode"] for row in rows):
        lines.append(f"{mode}, all: {merit([row for row in rows if row['mode'] == mode])}")
    for name in dict.fromkeys(n for row in rows for n in speed(row)[0] if n not in NAMES):
        found = [row["tflops"][name] / row["tflops"]["fa2"] for row in rows if {name, "fa2"} <= row["tflops"].keys()]
        if found:
            lines.append(f"{name} relative to FlashAttention-2: {geometric_mean(found):.3f}, smallest {min(found):.3f}")
    return "\n".join(lines)


def merit(rows):
    found = ratios(rows)
    return f"{geometric_mean(found):.3f}  {min(found):.3f}" if found else "no peer"


def emphasised(value, is_slow, digits=0):
    """Returns a number as text for a table, in bold if a peer is faster."""
    shown = f"{value:.{digits}f}"
    return f"**{shown}**" if is_slow else shown


def cell(row):
    """Returns the speeds of attend and its best peer in the form 700 (650)."""
    best, own = best_peer(row), speed(row)[0].get("attend")
    if own is None:
        return "-"
    return emphasised(own, best and own < best[1]) + (f" ({best[1]:.0f})" if best else "")


def by_length(rows, lengths=None):
    """Returns a Markdown table. Each pass, head_dim and mask has a line with the speeds of attend and, in brackets, of
    its best peer at each length, and the ratios.
    """
    lengths = lengths or sorted({row["S"] for row in rows})
    lines = ["| pass | D | mask | " + " | ".join(f"S = {s}" for s in lengths) + " | geometric mean | smallest |",
             "|---|---:|---|" + "---:|" * (len(lengths) + 2)]
    for (mode, head_dim, mask), some in groups(rows).items():
        cells = {row["S"]: cell(row) for row in some}
        found = ratios(some)
        mean, least = (geometric_mean(found), min(found)) if found else (None, None)
        merits = ["-" if x is None else emphasised(x, x < 1, 2) + "x" for x in (mean, least)]
        lines.append(
            f"| {PASSES[mode]} | {head_dim} | {mask} | "
            + " | ".join([*(cells.get(s, "-") for s in lengths), *merits])
            + " |"
        )
    return lines


def by_side(rows):
    """Returns a Markdown table with a line for each problem and a column for each side."""
    sides = list(dict.fromkeys(name for row in rows for name in speed(row)[0]))
    heads = " | ".join(NAMES.get(name, f"`{name}`") for name in sides)
    lines = [
        f"| (B, H, S, D) | mask | pass | {heads} | attend over the best |",
        "|---|---|---|" + "---:|" * (len(sides) + 1),
    ]
    for row in rows:
        figures, share = speed(row)[0], ratio(row)
        cells = [f"{figures[name]:.0f}" if name in figures else "-" for name in sides]
        beside = "-" if share is None else emphasised(share, share < 1, 2) + "x"
        cells = [sizes(row), mask_of(row), PASSES[row["mode"]], *cells, beside]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def options_table(rows):
    """Returns a Markdown table for the README, with forward and backward in one line for each option."""
    lines = ["| | forward | backward |", "|---|---:|---:|"]
    for mask in dict.fromkeys(map(mask_of, rows)):
        cells = {row["mode"]: cell(row) for row in rows if mask_of(row) == mask}
        lines.append(f"| {mask} | {cells.get('fwd', '-')} | {cells.get('bwd', '-')} |")
    return lines
