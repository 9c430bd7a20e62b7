"""Makes problems for attend.xformers with biases of each class, attend's or xFormers', and computes their reference
results.
"""

import torch

CPU = torch.device("cpu")
# The number of rows and of keys of each sequence. FEW_KEYS has fewer keys than rows, which masks with top-left
# alignment allow.
ROWS, KEYS = [3, 1, 5, 4], [6, 2, 5, 7]
FEW_KEYS = [2, 2, 5, 3]
PADDING, PAGE_SIZE, PAGES_PER_ROW = 8, 4, 2
TABLE = [[5, 2], [0, 7], [3, 1], [6, 4]]
GAPS = [1, 9, 14, 21]  # index of the first key of each sequence
GAPS_IN_PAGES = [1, 2, 0, 1]

DENSE = {
    "LowerTriangularMask": lambda c: c.LowerTriangularMask(),
    "LowerTriangularFromBottomRightMask": lambda c: c.LowerTriangularFromBottomRightMask(),
    "LowerTriangularFromBottomRightLocalAttentionMask": (
        lambda c: c.LowerTriangularFromBottomRightMask().make_local_attention(3)
    ),
    "LocalAttentionFromBottomRightMask": lambda c: c.LocalAttentionFromBottomRightMask(2, 1),
}


def _table():
    return torch.tensor(TABLE, dtype=torch.int32)


def _block(c, keys=KEYS):
    return c.BlockDiagonalMask.from_seqlens(ROWS, keys, device=CPU)


def _gappy_pages(c, kind):
    starts = [s * PADDING + start for s, start in enumerate(GAPS_IN_PAGES)] + [PADDING * len(KEYS)]
    gappy = getattr(c, f"BlockDiagonal{kind}GappyKeysMask").from_seqlens(ROWS, starts, KEYS, device=CPU)
    return gappy.make_paged(_table(), PAGE_SIZE, PADDING, getattr(c, f"PagedBlockDiagonal{kind}GappyKeysMask"))


_PADDED = (ROWS, PADDING, KEYS)
BLOCKS = {
    "BlockDiagonalMask": _block,
    "BlockDiagonalCausalMask": lambda c: _block(c).make_causal(),
    "BlockDiagonalCausalMask, few keys": lambda c: _block(c, FEW_KEYS).make_causal(),
    "BlockDiagonalCausalMask, equal lengths": lambda c: _block(c, None).make_causal(),
    "BlockDiagonalCausalFromBottomRightMask": lambda c: _block(c).make_causal_from_bottomright(),
    "BlockDiagonalCausalLocalAttentionMask": lambda c: _block(c).make_local_attention(2),
    "BlockDiagonalCausalLocalAttentionMask, few keys": lambda c: _block(c, FEW_KEYS).make_local_attention(3),
    "BlockDiagonalCausalLocalAttentionFromBottomRightMask": (
        lambda c: _block(c).make_local_attention_from_bottomright(2)
    ),
    "BlockDiagonalPaddedKeysMask": lambda c: c.BlockDiagonalPaddedKeysMask.from_seqlens(*_PADDED, device=CPU),
    "BlockDiagonalCausalWithOffsetPaddedKeysMask": (
        lambda c: c.BlockDiagonalCausalWithOffsetPaddedKeysMask.from_seqlens(*_PADDED, device=CPU)
    ),
    "BlockDiagonalLocalAttentionPaddedKeysMask": (
        lambda c: c.BlockDiagonalPaddedKeysMask.from_seqlens(*_PADDED, device=CPU).make_local_attention(2, 1)
    ),
    "BlockDiagonalCausalLocalAttentionPaddedKeysMask": (
        lambda c: c.BlockDiagonalCausalLocalAttentionPaddedKeysMask.from_seqlens_local(*_PADDED, 3).to(CPU)
    ),
    "BlockDiagonalGappyKeysMask": (
        lambda c: c.BlockDiagonalGappyKeysMask.from_seqlens(ROWS, [*GAPS, 30], KEYS, device=CPU)
    ),
    "BlockDiagonalCausalWithOffsetGappyKeysMask": (
        lambda c: c.BlockDiagonalCausalWithOffsetGappyKeysMask.from_seqlens(ROWS, [*GAPS, 30], KEYS, device=CPU)
    ),
    "PagedBlockDiagonalPaddedKeysMask": (
        lambda c: c.PagedBlockDiagonalPaddedKeysMask.from_seqlens(ROWS, KEYS, _table(), PAGE_SIZE, device=CPU)
    ),
    "PagedBlockDiagonalCausalWithOffsetPaddedKeysMask": (
        lambda c: c.BlockDiagonalCausalWithOffsetPaddedKeysMask.from_seqlens(*_PADDED, device=CPU).make_paged(
            _table(), PAGE_SIZE, c.PagedBlockDiagonalCausalWithOffsetPaddedKeysMask
        )
    ),
    "PagedBlockDiagonalGappyKeysMask": lambda c: _gappy_pages(c, ""),
    "PagedBlockDiagonalCausalWithOffsetGappyKeysMask": lambda c: _gappy_pages(c, "CausalWithOffset"),
}


def num_keys(name, bias):
    """Returns the length of the key tensor for a bias of BLOCKS."""
    return PADDING * len(KEYS) if "Paged" in name else bias.k_seqinfo.seqstart_py[-1]


def truth(query, key, value, bias, scale=None):
    """Returns o and lse in float64 for (batch, seqlen, heads, head_dim) with equal numbers of heads. `bias` is a tensor
    or 0.
    """
    q, k, v = (x.double().transpose(1, 2) for x in (query, key, value))
    s = q @ k.transpose(2, 3) * (q.shape[3] ** -0.5 if scale is None else scale) + bias
    sees_nothing = s.isneginf().all(3, keepdim=True)  # a row that sees no key gives 0 and has no gradients
    s = torch.where(sees_nothing, 0.0, s)
    p = torch.where(sees_nothing, 0.0, s.softmax(3))
    lse = torch.where(sees_nothing, float("-inf"), torch.logsumexp(s, 3, keepdim=True)).squeeze(3)
    return (p @ v).transpose(1, 2), lse


def materialized(name, bias, rows, keys):
    """Returns a mask as a float64 matrix (rows, keys), computed by its class. For paged masks, the class needs the
    number of keys without pages.
    """
    return bias.materialize((rows, PADDING * len(KEYS) if "Paged" in name else keys), torch.float64)
