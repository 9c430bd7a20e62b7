"""Masks as users of FlexAttention write them, see flex_problems.py."""

import torch
from flex_problems import BATCH, HEADS, KEYS, ROWS, SQUARE, bools, case, integers, rising
from torch.nn.attention.flex_attention import and_masks, or_masks


@case()
def causal(c):
    return lambda b, h, q, k: q >= k


@case()
def sliding_window(c):
    return lambda b, h, q, k: (q >= k) & (q - k <= 20)


@case()
def dilated(c):
    return lambda b, h, q, k: ((q - k).abs() <= 30) & ((q - k) % 3 == 0)


@case()
def global_and_sliding(c):
    return or_masks(lambda b, h, q, k: (k < 4) | (q < 4), lambda b, h, q, k: (q - k).abs() <= 16)


@case(length=lambda _: torch.tensor([10, 60]))
def prefix_lm(c):
    return or_masks(lambda b, h, q, k: k < c.length[b], lambda b, h, q, k: q >= k)


@case(doc=rising(5, KEYS))
def documents(c):
    return and_masks(lambda b, h, q, k: c.doc[q] == c.doc[k], lambda b, h, q, k: q >= k)


@case(doc=rising(4, BATCH, KEYS), first=integers(40, BATCH, 4))
def packed_documents(c):
    def inside(b, h, q, k):
        return (q - k <= 9) | (k % 5 == 0)

    def mask(b, h, q, k):
        here = c.doc[b, q]
        start = c.first[b, here]
        return (here == c.doc[b][k]) & inside(b, h, q - start, k - start)

    return mask


@case(group=rising(4, KEYS))
def shared_prefix(c):
    return lambda b, h, q, k: ((c.group[k] == 0) | (c.group[q] == c.group[k])) & (q >= k)


@case()
def block_diffusion(c):
    half, size = SQUARE // 2, 8

    def mask(b, h, q, k):
        noisy_q, noisy_k = q < half, k < half
        block_q = torch.where(noisy_q, q, q - half) // size
        block_k = torch.where(noisy_k, k, k - half) // size
        own = (block_q == block_k) & (noisy_q == noisy_k)
        before = (block_q > block_k) & ~noisy_k & noisy_q
        clean = (block_q >= block_k) & ~noisy_k & ~noisy_q
        return own | before | clean

    return mask


@case(ancestors=bools(ROWS, KEYS))
def tree(c):
    return lambda b, h, q, k: c.ancestors[q, k] | (q == k)


@case()
def natten_1d(c):
    def mask(b, h, q, k):
        center = q.clamp(5, SQUARE - 6)
        return (center - k).abs() <= 5

    return mask


def window_2d(place, size=12, window=5):
    def mask(b, h, q, k):
        (q_x, q_y), (k_x, k_y) = place(q), place(k)
        x, y = (n.clamp(window // 2, size - 1 - window // 2) for n in (q_x, q_y))
        return ((x - k_x).abs() <= window // 2) & ((y - k_y).abs() <= window // 2)

    return mask


@case()
def natten_2d(c):
    return window_2d(lambda n: (n // 12, n % 12))


@case()
def natten_tiled(c):
    def place(n):
        tile, inner = n // 16, n % 16
        return tile // 3 * 4 + inner // 4, tile % 3 * 4 + inner % 4

    return window_2d(place)


@case()
def natten_morton(c):
    def every_other_bit(n):
        n = n & 0x55555555
        n = (n | (n >> 1)) & 0x33333333
        n = (n | (n >> 2)) & 0x0F0F0F0F
        n = (n | (n >> 4)) & 0x00FF00FF
        return (n | (n >> 8)) & 0x0000FFFF

    return window_2d(lambda n: (every_other_bit(n >> 1), every_other_bit(n)), size=16, window=7)


@case()
def sta_2d(c):
    def mask(b, h, q, k):
        tile = lambda n: (n // 16 // 3, n // 16 % 3)
        (q_x, q_y), (k_x, k_y) = tile(q), tile(k)
        center = [n.clamp(1, 1) for n in (q_x, q_y)]
        return ((center[0] - k_x).abs() <= 1) & ((center[1] - k_y).abs() <= h // 2)

    return mask


@case()
def sta_3d(c):
    def mask(b, h, q, k):
        def tile(n):
            n = n // 8
            return n // 9, n // 3 % 3, n % 3

        near = [(x - y).abs() <= 1 for x, y in zip(tile(q), tile(k))]
        return near[0] & near[1] & near[2]

    return mask


@case(media=rising(6, KEYS), seen=rising(6, ROWS))
def flamingo(c):
    return lambda b, h, q, k: c.media[k] == torch.maximum(c.seen[q], torch.ones_like(c.seen[q]))


@case(keep=bools(BATCH, HEADS, -(-ROWS // 16), -(-KEYS // 16)))
def chosen_blocks(c):
    return lambda b, h, q, k: c.keep[b, h, q // 16, k // 16]


@case(keep=bools(BATCH, HEADS, 2, 3), kind=integers(3, 2, 3), row=bools(3))
def chosen_tiles(c):
    by_kind = lambda b, q, k: c.kind[q // 64, k // 64] > b
    return lambda b, h, q, k: (c.keep[b, h, q // 64, k // 64] & by_kind(b, q, k)) | (c.row[k // 64] & (h == 1))


@case(mask=bools(BATCH, 1, ROWS, KEYS))
def any_mask(c):
    return lambda b, h, q, k: c.mask[b, 0, q, k]


@case(sequence=integers(BATCH, KEYS))
def heads_apart(c):
    return lambda b, h, q, k: torch.logical_xor(q - k <= (4 << h), c.sequence[k] == b)


ANY_LENGTHS = (
    causal, sliding_window, dilated, global_and_sliding, prefix_lm, documents, packed_documents, shared_prefix, tree,
    flamingo, chosen_blocks, chosen_tiles, any_mask, heads_apart,
)  # fmt: skip
SQUARES = (block_diffusion, natten_1d, natten_2d, natten_tiled, natten_morton, sta_2d, sta_3d)
MASKS = {f.__name__: f for f in (*ANY_LENGTHS, *SQUARES)}


def lengths(make):
    return (SQUARE, SQUARE) if make in SQUARES else (ROWS, KEYS)
