"""The problems with custom scores and masks of bench/h200_vs_peers.py. The sides are attend with a custom score or
mask, attend with a built-in option, FlexAttention, and FlashAttention-4 if it has an option of the same meaning.

The number of operations of a problem includes only its visible pairs. The side `built_in` exists if attend has an
option of the same meaning.
"""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, Optional

import attend
import torch
from peer_cases import Case, Side, draw, fa4, flex, ours

CAP = 50.0


@dataclasses.dataclass(frozen=True)
class Own:
    """The sizes of the problems. `image` is the number of rows and of columns of the image in the neighbourhood
    problem.
    """

    batch: int = 2
    heads: int = 16
    seqlen: int = 8192
    head_dim: int = 128
    window: int = 1024
    document: int = 1024
    prefix: int = 1024
    noised: int = 32
    chosen: int = 128
    image: int = 256
    neighbourhood: int = 80
    tile: int = 8
    image_heads: int = 4


def own(dtype: str, device: str, sizes: Own = Own()) -> Iterator[Case]:
    yield from _scores(dtype, device, sizes)
    yield _table(dtype, device, sizes)
    yield from _masks(dtype, device, sizes)
    yield _neighbours(dtype, device, sizes)


def _case(dtype: str, device: str, sizes: Own, mask: str, sides: dict[str, Side], share: float) -> Case:
    b, h, s, d = sizes.batch, sizes.heads, sizes.seqlen, sizes.head_dim
    row = {"what": "own", "dtype": dtype, "D": d, "S": s, "B": b, "H": h, "mask": mask}
    return Case(row, tuple(draw(dtype, device, b, s, h, d) for _ in range(3)), sides, 4.0 * b * h * s * s * d * share)


def _flex_mask(rule: Callable[..., Any], seqlen: int, device: str, block: int = 128) -> Any:
    from torch.nn.attention.flex_attention import create_block_mask

    return create_block_mask(rule, None, None, seqlen, seqlen, device=device, BLOCK_SIZE=block)


def _scores(dtype: str, device: str, sizes: Own) -> Iterator[Case]:
    h, s = sizes.heads, sizes.seqlen
    causal = _flex_mask(lambda b, h, i, j: i >= j, s, device)
    slopes = torch.exp2(-8.0 * torch.arange(1, h + 1, device=device, dtype=torch.float32) / h)
    rows: list[tuple[str, str, dict[str, Any], dict[str, Any], Callable[..., Any], bool]] = [
        ("alibi-causal", "score - slope[h] * abs(q - k)", {"slope": slopes}, {"alibi_slopes": slopes},
         lambda score, b, h, i, j: score - slopes[h] * (i - j).abs(), True),
        ("softcap-causal", f"{CAP} * tanh(score / {CAP})", {}, {"softcap": CAP},
         lambda score, b, h, i, j: CAP * torch.tanh(score / CAP), True),
    ]  # fmt: skip
    for name, text, captures, option, rule, is_causal in rows:
        sides = {
            "attend": ours(causal=is_causal, score=text, captures=captures),
            "flex": flex(device, score_mod=rule, block_mask=causal if is_causal else None),
        }
        if option:
            sides["built_in"] = ours(causal=is_causal, **option)
            if "softcap" in option:
                sides |= fa4(causal=is_causal, **option)
        yield _case(dtype, device, sizes, name, sides, 0.5 if is_causal else 1.0)


def _table(dtype: str, device: str, sizes: Own) -> Case:
    """Returns a case with a learned bias for each head and distance. Backward also computes the gradient of the
    bias.
    """
    text = "score + table[h][clamp(q - k, -128, 127) + 128]"
    case = _case(dtype, device, sizes, "table", {}, 1.0)

    def ours_with(q: Any, k: Any, v: Any, table: Any) -> Any:
        return attend.attention(q, k, v, layout="bshd", score=text, captures={"table": table})

    def flex_with(q: Any, k: Any, v: Any, table: Any) -> Any:
        return flex(device, score_mod=lambda score, b, h, i, j: score + table[h, torch.clamp(i - j, -128, 127) + 128])(
            q, k, v
        )

    table = torch.randn(sizes.heads, 256, device=device).requires_grad_()
    sides = {"attend": ours_with, "flex": flex_with}
    return dataclasses.replace(case, leaves=(*case.leaves, table), sides=sides)


def _masks(dtype: str, device: str, sizes: Own) -> Iterator[Case]:
    s, n = sizes.seqlen, sizes.chosen
    document = torch.arange(s) // sizes.document
    there = document.to(device)
    generator = torch.Generator().manual_seed(3)
    keep = torch.rand(s // n, s // n, generator=generator) < 0.12
    kept = keep.to(device)
    lower = torch.ones(s, s, dtype=torch.bool).tril()
    shown = lower.to(device)
    rows: list[tuple[str, str, dict[str, Any], Optional[dict[str, Any]], Callable[..., Any]]] = [
        (f"window{sizes.window}", f"k <= q && q - k < {sizes.window}", {}, {"window": (sizes.window - 1, 0)},
         lambda b, h, i, j: (i >= j) & (i - j < sizes.window)),
        (f"documents{sizes.document}-causal", "k <= q && doc[q] == doc[k]", {"doc": document}, None,
         lambda b, h, i, j: (there[i] == there[j]) & (i >= j)),
        (f"prefix{sizes.prefix}", f"k <= q || k < {sizes.prefix}", {}, None,
         lambda b, h, i, j: (i >= j) | (j < sizes.prefix)),
        (f"diffusion{sizes.noised}", f"q // {sizes.noised} >= k // {sizes.noised}", {}, None,
         lambda b, h, i, j: i // sizes.noised >= j // sizes.noised),
        (f"blocks{n}", f"keep[q // {n}][k // {n}]", {"keep": keep}, None, lambda b, h, i, j: kept[i // n, j // n]),
        ("bools", "mask[q][k]", {"mask": lower}, {"mask": shown}, lambda b, h, i, j: shown[i, j]),
    ]  # fmt: skip
    for name, text, captures, option, rule in rows:
        mask = attend.make_block_mask(text, s, s, captures=captures)
        sides = {"attend": ours(block_mask=mask), "flex": flex(device, block_mask=_flex_mask(rule, s, device))}
        if option:
            sides["built_in"] = ours(**option)
            if "window" in option:
                sides |= fa4(causal=True, window_size=option["window"])
        yield _case(dtype, device, sizes, name, sides, mask.density)


def _neighbours(dtype: str, device: str, sizes: Own) -> Case:
    """Returns the case of an image whose pixels are ordered in square tiles. As in NATTEN, each pixel sees the pixels
    in a window around it.
    """
    edge, reach, tile = sizes.image, sizes.neighbourhood, sizes.tile
    in_row = edge // tile
    area = tile * tile

    def place(n: Any) -> tuple[Any, Any]:
        t, inside = n // area, n % area
        return t // in_row * tile + inside // tile, t % in_row * tile + inside % tile

    def rule(b: Any, h: Any, i: Any, j: Any) -> Any:
        (y, x), (v, u) = place(i), place(j)
        top = torch.clamp(y - reach // 2, 0, edge - reach)
        left = torch.clamp(x - reach // 2, 0, edge - reach)
        return (v >= top) & (v < top + reach) & (u >= left) & (u < left + reach)

    def coordinates(n: str) -> str:
        tile_of, inside = f"({n} // {area})", f"({n} % {area})"
        return (
            f"let y{n} = {tile_of} // {in_row} * {tile} + {inside} // {tile}; "
            f"let x{n} = {tile_of} % {in_row} * {tile} + {inside} % {tile}; "
        )

    last = edge - reach
    text = (
        coordinates("q")
        + coordinates("k")
        + f"let top = clamp(yq - {reach // 2}, 0, {last}); let left = clamp(xq - {reach // 2}, 0, {last}); "
        f"yk >= top && yk < top + {reach} && xk >= left && xk < left + {reach}"
    )
    mask = attend.make_block_mask(text, edge * edge, edge * edge)
    image = dataclasses.replace(sizes, batch=1, heads=sizes.image_heads, seqlen=edge * edge)
    sides = {"attend": ours(block_mask=mask), "flex": flex(device, block_mask=_flex_mask(rule, edge * edge, device))}
    return _case(dtype, device, image, f"neighbours{reach}", sides, mask.density)
