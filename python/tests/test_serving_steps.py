"""Runs a small model step by step with every function for serving, and compares it with one pass over all tokens in
float64.
"""

import math

import pytest

pytest.importorskip(
    "torch", reason=f"the tests of {__name__} need torch: `make py-test ATTEND_TEST_TORCH=1` installs it"
)

import attend
from attend import flash_attn, flash_attn_3

WIDTH, HEADS, HEADS_K, DIM, LAYERS, BATCH, TOKENS = 24, 6, 2, 16, 2, 3, 41


class Model:
    def __init__(self, torch):
        self.embedded = torch.randn(BATCH, TOKENS, WIDTH)
        shapes = ((WIDTH, HEADS * DIM), (WIDTH, HEADS_K * DIM), (WIDTH, HEADS_K * DIM), (HEADS * DIM, WIDTH))
        self.layers = [[torch.randn(*shape) / shape[0] ** 0.5 for shape in shapes] for _ in range(LAYERS)]
        angles = torch.outer(torch.arange(TOKENS), 100.0 ** (-torch.arange(0, DIM, 2) / DIM))
        self.cos, self.sin = angles.cos(), angles.sin()

    def run(self, x, attention):
        """Runs the model. `attention` is a function of the layer's number and q, k, v (batch, rows, heads, DIM)."""
        for number, layer in enumerate(self.layers):
            wq, wk, wv, wo = (w.to(x.dtype) for w in layer)
            q, k, v = ((x @ w).unflatten(-1, (-1, DIM)) for w in (wq, wk, wv))
            x = (x + attention(number, q, k, v).flatten(-2) @ wo).tanh()
        return x


def whole(torch, model):
    def turned(x):
        a, b = x.chunk(2, -1)
        cos, sin = (t.double()[:, None] for t in (model.cos, model.sin))
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    def attention(_, q, k, v):
        q, k, v = (x.transpose(1, 2) for x in (turned(q), turned(k), v))
        k, v = (x.repeat_interleave(HEADS // HEADS_K, 1) for x in (k, v))
        scores = q @ k.mT / math.sqrt(DIM)
        hidden = torch.ones(TOKENS, TOKENS).triu(1).bool()
        return (scores.masked_fill(hidden, float("-inf")).softmax(-1) @ v).transpose(1, 2)

    return model.run(model.embedded.double(), attention)


def one_call(q, k, v, caches, at, rotary, rows):
    return attend.decode(q, *caches, layout="bshd", k=k, v=v, rotary=rotary, **at)


def two_calls(q, k, v, caches, at, rotary, rows):
    q = attend.append(k, v, *caches, layout="bshd", rotary=rotary, q=q, **at)
    return attend.decode(q, *caches, layout="bshd", **(at | {"seqlens_k": at["seqlens_k"] + rows}))


def packed(q, k, v, caches, at, rotary, rows):
    offsets = at["seqlens_k"].new_tensor(range(0, BATCH * rows + 1, rows))
    new = {"k": k.flatten(0, 1), "v": v.flatten(0, 1), "rotary": rotary}
    options = {"layout": "bshd", "cu_seqlens_q": offsets, "cu_seqlens_new": offsets}
    return attend.decode(q.flatten(0, 1), *caches, **new, **options, **at).unflatten(0, (BATCH, rows))


def by_flash_attn(door, table):
    def call(q, k, v, caches, at, rotary, rows):
        options = {"rotary_interleaved": False, "causal": True, "cache_seqlens": at["seqlens_k"]}
        return door.flash_attn_with_kvcache(
            q, *caches, k, v, rotary_cos=rotary.cos, rotary_sin=rotary.sin, **options, **{table: at["page_table"]}
        )

    return call


WAYS = {
    "one call": one_call, "two calls": two_calls, "packed": packed,
    "flash-attn": by_flash_attn(flash_attn, "block_table"), "flash-attn 3": by_flash_attn(flash_attn_3, "page_table"),
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("steps", [[TOKENS - 3, 1, 1, 1], [7, 20, 1, 4, 1, 1, 7], [1] * TOKENS], ids=len)
@pytest.mark.parametrize("page_size", [1, 16])
def test_steps_are_the_whole_prompt(torch, way, steps, page_size):
    assert sum(steps) == TOKENS
    model = Model(torch)
    pages = -(-TOKENS // page_size)
    caches = [[torch.full((BATCH * pages, page_size, HEADS_K, DIM), math.nan) for _ in "kv"] for _ in range(LAYERS)]
    at = {
        "page_table": torch.randperm(BATCH * pages).reshape(BATCH, pages).int(),
        "seqlens_k": torch.zeros(BATCH, dtype=torch.int32),
    }
    rotary = attend.Rotary(model.cos, model.sin)
    found = []
    for rows in steps:
        begin = sum(x.shape[1] for x in found)
        found.append(model.run(
            model.embedded[:, begin : begin + rows],
            lambda n, q, k, v, rows=rows: WAYS[way](q, k, v, caches[n], at, rotary, rows),
        ))  # fmt: skip
        at["seqlens_k"] += rows
    error = (torch.cat(found, 1) - whole(torch, model)).abs().max().item()
    print(f"error {error:.2g}, budget 1e-5")
    assert error < 1e-5


def test_rows_of_dead_sequences_are_not_written(torch):
    k, cache = torch.randn(3, 2, 1, 8), torch.zeros(3, 2, 4, 8)
    lengths = torch.tensor([1, -1, 0], dtype=torch.int32)
    q, q_out = torch.randn(3, 4, 1, 8), torch.full((3, 4, 1, 8), 7.0)
    attend.append(k, k, cache, cache.clone(), seqlens_k=lengths, q=q, q_out=q_out)
    assert torch.equal(q_out[0::2], q[0::2]) and (q_out[1] == 7).all()
    rows, q_out = q.flatten(0, 1)[:6].reshape(6, 1, 8), torch.full((6, 1, 8), 7.0)
    offsets = torch.tensor([0, 2, 3, 4], dtype=torch.int32)
    attend.append(k, k, cache, cache.clone(), seqlens_k=lengths, q=rows, q_out=q_out, cu_seqlens_q=offsets)
    assert torch.equal(q_out[[0, 1, 3]], rows[[0, 1, 3]]) and (q_out[[2, 4, 5]] == 7).all()
