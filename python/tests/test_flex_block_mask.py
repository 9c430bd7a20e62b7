"""Tests of FlexAttention's BlockMask objects: caller-provided block lists, parts of masks, and torch's masks."""

import copy
import gc
import weakref

import pytest

torch = pytest.importorskip("torch")
torchs = pytest.importorskip("torch.nn.attention.flex_attention")

import attend
from attend._flex import block_masks, functions
from attend.torch.flex_attention import BlockMask
from flex_problems import error, reference

BATCH, HEADS, LENGTH, SIZE = 4, 4, 300, 64
causal = lambda b, h, q, k: q >= k


def inputs(rows=LENGTH, batch=BATCH):
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(batch, HEADS, n, 16, generator=generator) for n in (rows, LENGTH, LENGTH)]


def check(mask, mask_mod, given=None):
    """Checks that attention with the object `mask` equals attention with the function `mask_mod`."""
    q, k, v = given or inputs()
    o, lse = attend.flex_attention(q, k, v, block_mask=mask, return_lse=True)
    want_o, want_lse = reference(q.double(), k.double(), v.double(), mask_mod=mask_mod)
    assert error(o, want_o) <= 1e-5 and error(lse, want_lse) <= 1e-5


def lists(rng, batch, heads, num=5):
    """Returns a random table of blocks as lists. The entries after the end of a list are arbitrary."""
    table = torch.from_numpy(rng.random((batch, heads, num, num)) < 0.5)
    order = torch.argsort(table.to(torch.int8), dim=-1, descending=True, stable=True).to(torch.int32)
    count = table.sum(-1).to(torch.int32)
    order[torch.arange(num) >= count[..., None]] = 12345
    return table, count, order


def test_lists_without_a_function_show_whole_blocks(rng):
    table, count, order = lists(rng, BATCH, HEADS)
    mask = BlockMask.from_kv_blocks(count, order, BLOCK_SIZE=SIZE, seq_lengths=(LENGTH, LENGTH), compute_q_blocks=False)
    assert mask.shape == (BATCH, HEADS, LENGTH, LENGTH)
    check(mask, lambda b, h, q, k: table[b, h, q // SIZE, k // SIZE])


@pytest.mark.parametrize(("batch", "heads"), [(1, 1), (2, 1), (1, 2), (2, 4), (4, 2)])
def test_lists_count_modulo_their_extents(rng, batch, heads):
    table, count, order = lists(rng, batch, heads)
    full = torch.from_numpy(rng.random(table.shape) < 0.3) & ~table
    full_order = torch.argsort(full.to(torch.int8), dim=-1, descending=True, stable=True).to(torch.int32)
    partial = lambda b, h, q, k: (q + k * (b + 1)) % 3 > h // 2  # b and h are those of the call
    mask = BlockMask.from_kv_blocks(
        count, order, full.sum(-1).to(torch.int32), full_order, (SIZE, SIZE), partial, (LENGTH, LENGTH), False
    )

    def wanted(b, h, q, k):
        place = (b % batch, h % heads, q // SIZE, k // SIZE)
        return full[place] | (table[place] & partial(b, h, q, k))

    check(mask, wanted)


def test_unlike_rows_and_keys_of_a_block(rng):
    table = torch.from_numpy(rng.random((5, 3)) < 0.6)
    order = torch.argsort(table.to(torch.int8), dim=-1, descending=True, stable=True)
    mask = BlockMask.from_kv_blocks(
        table.sum(-1)[None, None], order[None, None], BLOCK_SIZE=(64, 100), seq_lengths=(LENGTH, LENGTH)
    )
    check(mask, lambda b, h, q, k: table[q // 64, k // 100])


def test_masks_of_torch_are_taken_and_remembered_weakly():
    mask = torchs.create_block_mask(causal, 1, 1, LENGTH, LENGTH, device="cpu")
    check(mask, causal)
    first = block_masks.tiles_of(mask, BATCH, HEADS, LENGTH, LENGTH)
    assert block_masks.tiles_of(mask, 1, 2, LENGTH, LENGTH) is first
    even = mask.mask_mod = lambda b, h, q, k: (q >= k) & (k % 2 == 0)
    is_full = lambda q, k: (q // 128 == 1) & (k // 128 == 0)  # the last block has fewer rows
    check(mask, lambda b, h, q, k: is_full(q, k) | even(b, h, q, k))
    mask.full_kv_num_blocks.zero_()
    check(mask, lambda b, h, q, k: ~is_full(q, k) & even(b, h, q, k))
    reference_to_it = weakref.ref(mask)
    del mask
    gc.collect()
    assert reference_to_it() is None


def test_a_mask_that_asks_for_b_or_h_serves_the_calls_sequences_and_heads():
    mask_mod = lambda b, h, q, k: (q - k) % (b + h + 2) > 0
    check(attend.create_block_mask(mask_mod, BATCH, HEADS, LENGTH, LENGTH), mask_mod)
    check(attend.create_block_mask(mask_mod, None, None, LENGTH, LENGTH), mask_mod)


def test_captured_tensors_that_are_too_short_for_the_call_are_refused():
    length = torch.tensor([5, 200])
    mask_mod = lambda b, h, q, k: k < length[b]
    mask = attend.create_block_mask(mask_mod, 2, None, LENGTH, LENGTH)
    check(mask, mask_mod, inputs(batch=2))
    with pytest.raises(attend.ArgumentError, match=r"mask_mod: .*shape \(2,\) has 2 elements .* allowed 4"):
        attend.flex_attention(*inputs(), block_mask=mask)
    with pytest.raises(attend.ArgumentError, match="mask_mod: .*the number of keys"):
        attend.create_block_mask(lambda b, h, q, k: torch.zeros(LENGTH - 1, dtype=torch.bool)[k], 1, 1, 9, LENGTH)


def test_tables_of_blocks_are_decided_tile_by_tile():
    """A mask of 2^32 pairs must be decided tile by tile, because evaluating every pair would take minutes."""
    length = 1 << 15
    keep = torch.zeros(2, 2, length // 512, length // 512, dtype=torch.bool)
    keep[0, 1, 3, 5] = keep[1, 0, 7, 0] = True
    mask = attend.create_block_mask(lambda b, h, q, k: keep[b, h, q // 512, k // 512], 2, 2, length, length)
    tiles = block_masks.tiles_of(mask, 2, 2, length, length).tiles
    assert tiles == {"all": 4 * (length // 64) ** 2, "full": 2 * 64, "partial": 0, "patterns": 0}
    with pytest.raises(attend.ArgumentError, match=r"shape \(2, 2, 64, 64\) has 2 elements in dimension 1, allowed 3"):
        block_masks.tiles_of(mask, 2, 3, length, length)


def test_values_of_captured_tensors_are_those_of_when_it_was_made():
    limit = torch.tensor(100)
    mask = attend.create_block_mask(lambda b, h, q, k: k < limit, None, None, LENGTH, LENGTH)
    limit.fill_(7)
    check(mask.to("cpu"), lambda b, h, q, k: k < 100)
    check(mask, lambda b, h, q, k: k < 100)
    check(attend.create_block_mask(lambda b, h, q, k: k < limit, None, None, LENGTH, LENGTH), lambda b, h, q, k: k < 7)


def test_a_part_of_a_mask_needs_a_function_of_its_own():
    mask = attend.create_block_mask(causal, 1, 1, LENGTH, LENGTH, device="cpu", BLOCK_SIZE=SIZE)
    part = mask[:, :, 2]
    assert isinstance(part, BlockMask)
    part.seq_lengths = (SIZE, LENGTH)
    with pytest.raises((RuntimeError, attend.ArgumentError), match="mask_mod"):
        attend.flex_attention(*inputs(SIZE), block_mask=part)
    part.mask_mod = lambda b, h, q, k: mask.mask_mod(b, h, q + 2 * SIZE, k)
    check(part, part.mask_mod, inputs(SIZE))


def test_another_function_keeps_the_lists_of_the_first():
    mask = attend.create_block_mask(causal, 1, 1, LENGTH, LENGTH, device="cpu", BLOCK_SIZE=SIZE)
    mask.mask_mod = attend.noop_mask
    check(mask, lambda b, h, q, k: q // SIZE >= k // SIZE)


def test_methods_of_torch():
    mask = attend.create_block_mask(causal, 2, 1, LENGTH, LENGTH, device="cpu", BLOCK_SIZE=(32, SIZE))
    assert isinstance(mask, torchs.BlockMask) and "kv_indices" not in mask.__dict__
    assert mask.shape == (2, 1, LENGTH, LENGTH) and mask.numel() == 2 * LENGTH**2
    assert mask.BLOCK_SIZE == (32, SIZE) and mask.seq_lengths == (LENGTH, LENGTH) and mask.mask_mod is causal
    assert repr(mask) == "BlockMask(shape=(2, 1, 300, 300), BLOCK_SIZE=(32, 64), mask_mod=<lambda>)"
    assert "kv_indices" not in mask.__dict__
    smaller = mask._adjust(200, 100)
    assert isinstance(smaller, BlockMask) and smaller.shape == (2, 1, 200, 100)
    assert torch.equal(smaller.to_dense(), mask.to_dense()[:, :, :7, :2])
    for other in (mask.to("cpu"), copy.copy(mask), copy.deepcopy(mask)):
        assert isinstance(other, BlockMask) and torch.equal(other.kv_indices, mask.kv_indices)
        check(other, causal)
    assert "█" in str(mask) and "sparsity" in repr(mask)
    meta = mask.to("meta")
    assert meta.kv_indices.device.type == "meta" and mask.kv_indices.device.type == "cpu"
    with pytest.raises(AttributeError):
        mask.no_such_name  # noqa: B018


def test_torchs_paged_attention():
    """torch's PagedAttention changes the lists of a mask to pages of one cache, and wraps score_mod and mask_mod."""
    paged = pytest.importorskip("torch.nn.attention.experimental._paged_attention")
    q, k, v = inputs(batch=2)
    pages = paged.PagedAttention(n_pages=16, page_size=SIZE, max_batch_size=2, device="cpu")
    cache = torch.zeros(2, 1, HEADS, 16 * SIZE, 16)
    for first in range(0, LENGTH, 100):  # this order makes the pages of the two sequences alternate
        for sequence in (0, 1):
            pages.reserve(torch.tensor(sequence), torch.tensor(first + 100))
    place = torch.arange(LENGTH).expand(2, LENGTH)
    pages.assign(torch.tensor([0, 1]), place, k, v, *cache)
    slope = torch.rand(HEADS)
    alibi = lambda score, b, h, q, k: score + slope[h] * (k - q)
    lengths = torch.tensor([LENGTH, LENGTH - 70])
    mask_mod = lambda b, h, q, k: (q >= k) & (k < lengths[b])
    mask = attend.create_block_mask(mask_mod, 2, 1, LENGTH, LENGTH, device="cpu", BLOCK_SIZE=SIZE)
    mask = pages.convert_logical_block_mask(mask)
    o = attend.flex_attention(q, *cache, pages.get_score_mod(alibi), mask)
    want, _ = reference(q.double(), k.double(), v.double(), alibi, mask_mod)
    assert error(o, want) <= 1e-5


def test_a_step_of_decoding_with_a_part_of_a_mask():
    """A decoding step uses one row of blocks of a mask. Only the first step is traced."""
    mask = attend.create_block_mask(causal, 1, 1, LENGTH, LENGTH, device="cpu", BLOCK_SIZE=SIZE)
    q, k, v = inputs()
    known = len(functions._known)
    for position in (0, 70, 299):
        offset = torch.tensor(position)
        part = mask[:, :, position // SIZE]
        part.mask_mod = lambda b, h, q, k, offset=offset: causal(b, h, q + offset, k)
        part.seq_lengths = (1, LENGTH)
        check(part, lambda b, h, q, k, position=position: k <= position, (q[:, :, position : position + 1], k, v))
    assert len(functions._known) <= known + 1


def test_masks_of_masks():
    window = lambda b, h, q, k: (q - k).abs() < 40
    for together, wanted in (
        (attend.and_masks(causal, window), lambda b, h, q, k: (q >= k) & ((q - k).abs() < 40)),
        (attend.or_masks(causal, window), lambda b, h, q, k: (q >= k) | ((q - k).abs() < 40)),
        (attend.and_masks(attend.noop_mask, torchs.or_masks(causal)), causal),
        (attend.and_masks(), lambda b, h, q, k: q >= 0),
        (attend.or_masks(), lambda b, h, q, k: q < 0),
    ):
        check(attend.create_block_mask(together, None, None, LENGTH, LENGTH), wanted)
    with pytest.raises(attend.ArgumentError, match="mask_mods: int, allowed functions"):
        attend.and_masks(causal, 3)


def test_dense_masks_are_those_of_torch():
    tree = torch.rand(9, 11) < 0.5
    for mod in (causal, lambda b, h, q, k: tree[q, k], lambda s, b, h, q, k: torch.where(q > k, s, -torch.inf)):
        ours = attend.create_mask(mod, 2, None, 9, 11, "cpu")
        assert ours.dtype == torch.bool and torch.equal(ours, torchs.create_mask(mod, 2, None, 9, 11, "cpu"))


def test_lengths_of_another_call_are_refused():
    mask = attend.create_block_mask(causal, None, None, LENGTH, LENGTH)
    for rows in (LENGTH - 1, LENGTH + 1):
        with pytest.raises(attend.ArgumentError, match=f"block_mask: made for 300 rows and 300 keys, allowed {rows}"):
            attend.flex_attention(*inputs(rows), block_mask=mask)


def test_no_gradient_for_what_a_mask_captures():
    threshold = torch.tensor(20.0, requires_grad=True)
    mask = attend.create_block_mask(lambda b, h, q, k: q - k < threshold, None, None, LENGTH, LENGTH)
    with pytest.raises(attend.UnsupportedError, match="mask_mod: a captured tensor requires its gradient"):
        attend.flex_attention(*inputs(), block_mask=mask)
    with torch.no_grad():
        check(mask, lambda b, h, q, k: q - k < 20)
    mask = attend.create_block_mask(lambda b, h, q, k: q - k < threshold / 2, None, None, LENGTH, LENGTH)
    with pytest.raises(attend.UnsupportedError, match="mask_mod: a captured tensor requires its gradient"):
        attend.flex_attention(*inputs(), block_mask=mask)
    mask = attend.create_block_mask(lambda b, h, q, k: q - k < threshold.detach(), None, None, LENGTH, LENGTH)
    check(mask, lambda b, h, q, k: q - k < 20)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((3, 1, 1, 8, 8), "mask_mod: int, allowed a function"),
        ((lambda s, b, h, q, k: s, 1, 1, 8, 8), "mask_mod: a function of 5 arguments, allowed 4"),
        ((causal, 1, 1, 8.0, 8), "Q_LEN: float, allowed an integer"),
        ((causal, 1, 1, 8, None), "KV_LEN: NoneType, allowed an integer"),
        ((causal, 1, 1, 8, 8, "cpu", 0), "BLOCK_SIZE: 0, allowed one positive 32-bit integer"),
        ((causal, 1, 1, 8, 8, "cpu", (1, 2, 3)), "BLOCK_SIZE: .*, allowed one positive 32-bit integer, or two"),
        ((lambda b, h, q, k: True, 1, 1, 8, 8), "mask_mod: it returned bool, allowed a tensor"),
        ((lambda b, h, q, k: q, 1, 1, 8, 8), "mask_mod: it returned torch.int32, allowed torch.bool"),
        ((lambda b, h, q, k: torch.atan(q * 1.0) > 0, 1, 1, 8, 8), "mask_mod: test_flex_block_mask.py:.*aten.atan"),
    ],
)
def test_refusals_name_the_argument(arguments, message):
    with pytest.raises(attend.Error, match=f"^{message}"):
        attend.create_block_mask(*arguments)
