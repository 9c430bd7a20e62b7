"""Tests of flash_attn_with_kvcache of flash-attn 2 and 3. The reference implements flash-attn's definition in
PyTorch.
"""

import pytest

np = pytest.importorskip("numpy")
pytest.importorskip(
    "torch", reason=f"the tests of {__name__} need torch: `make py-test ATTEND_TEST_TORCH=1` installs it"
)

import attend
from attend import flash_attn, flash_attn_3

BATCH, HEADS, HEADS_K, DIM, CAPACITY = 3, 4, 2, 32, 48


def rotated(x, cos, sin, positions, interleaved):
    """Applies rotary embedding to x (batch, rows, heads, dim) at positions (batch, rows)."""
    import torch

    width = 2 * cos.shape[1]
    cos, sin = (t.double()[positions][:, :, None] for t in (cos, sin))  # (batch, rows, 1, width / 2)
    x, rest = x[..., :width].double(), x[..., width:].double()
    if interleaved:
        a, b = x[..., 0::2], x[..., 1::2]
        x = torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)
    else:
        a, b = x.chunk(2, -1)
        x = torch.cat([a * cos - b * sin, a * sin + b * cos], -1)
    return torch.cat([x, rest], -1)


def standard(q, k_all, v_all, lengths, causal, window, softcap=0.0, slopes=None, leftpad=None, scale=None, sinks=None):
    """Computes out and lse of q (batch, rows, heads, dim) and caches (batch, capacity, heads_k, dim) in float64."""
    import torch

    q, k, v = (x.double().transpose(1, 2) for x in (q, k_all, v_all))
    k, v = (x.repeat_interleave(HEADS // HEADS_K, 1) for x in (k, v))
    scores = q @ k.mT * (DIM**-0.5 if scale is None else scale)
    if softcap:
        scores = softcap * (scores / softcap).tanh()
    rows, keys = q.shape[2], k.shape[2]
    i = torch.arange(rows)[None, :, None] + (lengths - rows)[:, None, None]
    j = torch.arange(keys)[None, None, :]
    if slopes is not None:
        scores = scores - slopes.double().expand(BATCH, HEADS)[:, :, None, None] * (i - j).abs()[:, None]
    seen = (j < lengths[:, None, None]).expand(-1, rows, -1)
    if leftpad is not None:
        seen = seen & (j >= leftpad[:, None, None])
    left, right = window[0], 0 if causal else window[1]
    if left >= 0:
        seen = seen & (j >= i - left)
    if right >= 0:
        seen = seen & (j <= i + right)
    scores = scores.masked_fill(~seen[:, None], float("-inf"))
    if sinks is not None:
        scores = torch.cat([scores, sinks.double()[None, :, None, None].expand(BATCH, -1, rows, 1)], -1)
    lse = scores.logsumexp(-1)
    weights = (scores - lse.masked_fill(lse.isinf(), 0.0)[..., None]).exp()[..., :keys]
    return (weights @ v).transpose(1, 2), lse


def close(found, want, dtype):
    budget = {"float32": 2e-5, "float16": 2e-3, "bfloat16": 1.6e-2}[str(dtype).rpartition(".")[2]]
    return bool(((found == want) | ((found - want).abs() <= budget * (1 + want.abs()))).all())


class Cache:
    """New keys, and caches in two forms: one tensor for each sequence, and the arguments of flash-attn."""

    def __init__(self, torch, dtype, kind, new):
        capacity = CAPACITY
        self.lengths = torch.tensor([5, capacity - 4, 0 if new else 17], dtype=torch.int32)
        rows = 5 if kind == "batch_idx" else BATCH
        self.row = torch.tensor([4, 0, 2] if kind == "batch_idx" else [0, 1, 2])
        self.k, self.v = (torch.randn(BATCH, capacity, HEADS_K, DIM).to(dtype) for _ in range(2))
        self.options = {}
        if kind == "paged":
            size = 6
            table = torch.randperm(BATCH * capacity // size + 2)[: BATCH * capacity // size].reshape(BATCH, -1)
            self.caches = [torch.full((BATCH * capacity // size + 2, size, HEADS_K, DIM), 7.0).to(dtype) for _ in "kv"]
            self.options["page_table"] = table.int()
            self.index = (table[:, torch.arange(capacity) // size], torch.arange(capacity) % size)
        else:
            self.caches = [torch.full((rows, capacity, HEADS_K, DIM), 7.0).to(dtype) for _ in "kv"]
            self.index = (self.row[:, None], torch.arange(capacity)[None])
            if kind == "batch_idx":
                self.options["cache_batch_idx"] = self.row.int()
        for cache, x in zip(self.caches, (self.k, self.v)):
            cache[self.index] = x

    def read(self):
        return [x[self.index] for x in self.caches]


@pytest.mark.parametrize("door", ["2", "3"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("kind", ["plain", "batch_idx", "paged"])
@pytest.mark.parametrize("new", [False, True])
def test_every_kind_of_cache(torch, door, dtype, kind, new):
    dtype = getattr(torch, dtype)
    for causal, window, rotary_dim, interleaved in (
        (False, (-1, -1), 16, True), (True, (-1, -1), 32, False), (False, (9, 2), 16, False), (True, (6, -1), 0, True),
    ):  # fmt: skip
        cache = Cache(torch, dtype, kind, new)
        q = torch.randn(BATCH, 4, HEADS, DIM).to(dtype)
        options = dict(cache.options, cache_seqlens=cache.lengths, causal=causal, window_size=window)
        k_all, v_all, lengths, q_in = cache.k.clone(), cache.v.clone(), cache.lengths.long(), q
        if new:
            k, v = (torch.randn(BATCH, 4, HEADS_K, DIM).to(dtype) for _ in range(2))
            options |= {"k": k, "v": v}
            k_in = k.double()
            if rotary_dim:
                cos, sin = (f(torch.rand(CAPACITY, rotary_dim // 2) * 6).to(dtype) for f in (torch.cos, torch.sin))
                options |= {"rotary_cos": cos, "rotary_sin": sin, "rotary_interleaved": interleaved}
                at = lengths[:, None] + torch.arange(4)
                k_in = rotated(k, cos, sin, at, interleaved)
                of_q = at if causal or window != (-1, -1) else lengths[:, None].expand(-1, 4)
                q_in = rotated(q, cos, sin, of_q, interleaved).to(dtype)
            for s in range(BATCH):
                k_all[s, lengths[s] : lengths[s] + 4] = k_in[s].to(dtype)
                v_all[s, lengths[s] : lengths[s] + 4] = v[s]
            lengths = lengths + 4
        want, want_lse = standard(q_in, k_all, v_all, lengths, causal, window)
        if door == "2":
            if "page_table" in options:
                options["block_table"] = options.pop("page_table")
            out, lse = flash_attn.flash_attn_with_kvcache(q, *cache.caches, return_softmax_lse=True, **options)
        else:
            run = flash_attn_3.flash_attn_with_kvcache
            out, lse, *rest = run(q, *cache.caches, return_softmax_lse=True, **options)
            assert rest == [None, None]
        assert out.dtype == dtype and close(out, want, dtype)
        assert lse.shape == (BATCH, HEADS, 4) and close(lse, want_lse, dtype if new else torch.float32)
        for found, now in zip(cache.read(), (k_all, v_all)):
            assert close(found, now, dtype) and (new or torch.equal(found, now))


def test_other_options(torch):
    cache = Cache(torch, torch.float32, "plain", False)
    q = torch.randn(BATCH, 2, HEADS, DIM)
    slopes, leftpad = torch.rand(HEADS), torch.tensor([2, 0, 17], dtype=torch.int32)
    given = {"softcap": 2.0, "leftpad": leftpad, "scale": 0.3}
    lengths = cache.lengths.long()
    options = {"cache_seqlens": cache.lengths, "cache_leftpad": leftpad, "softmax_scale": 0.3, "softcap": 2.0}
    want, want_lse = standard(q, cache.k, cache.v, lengths, True, (-1, -1), slopes=slopes, **given)
    run = flash_attn.flash_attn_with_kvcache
    out, lse = run(q, *cache.caches, causal=True, alibi_slopes=slopes, num_splits=3, return_softmax_lse=True, **options)
    assert close(out, want, out.dtype) and close(lse, want_lse, lse.dtype)
    assert not out[2].any() and lse[2].isneginf().all()  # all keys of this sequence are padding
    sinks = torch.randn(HEADS)
    want, _ = standard(q, cache.k, cache.v, lengths, True, (-1, -1), sinks=sinks, **given)
    ignored = {"scheduler_metadata": torch.zeros(4), "num_splits": 2, "pack_gqa": True, "sm_margin": 8}
    for name in ("s_aux", "learnable_sink"):
        out = flash_attn_3.flash_attn_with_kvcache(q, *cache.caches, causal=True, **options, **{name: sinks}, **ignored)
        assert close(out, want, out.dtype)


def test_one_length_for_all(torch):
    cache = Cache(torch, torch.float32, "plain", False)
    q = torch.randn(BATCH, 2, HEADS, DIM)
    want, _ = standard(q, cache.k, cache.v, torch.full((BATCH,), 9), False, (-1, -1))
    for door in (flash_attn, flash_attn_3):
        assert close(door.flash_attn_with_kvcache(q, *cache.caches, cache_seqlens=9), want, q.dtype)
        full, _ = standard(q, cache.k, cache.v, torch.full((BATCH,), CAPACITY), False, (-1, -1))
        assert close(door.flash_attn_with_kvcache(q, *cache.caches), full, q.dtype)


def test_packed_rows_of_flash_attn_3(torch):
    cache = Cache(torch, torch.float32, "paged", True)
    q = torch.randn(BATCH, 4, HEADS, DIM)
    k, v = (torch.randn(BATCH, 4, HEADS_K, DIM) for _ in range(2))
    cos, sin = torch.rand(80, 8), torch.rand(80, 8)
    own = torch.tensor([7, 1, 60], dtype=torch.int32)
    options = {"cache_seqlens": cache.lengths, "page_table": cache.options["page_table"], "causal": True}
    options |= {"rotary_cos": cos, "rotary_sin": sin, "rotary_seqlens": own}
    cu = torch.tensor([0, 4, 8, 12], dtype=torch.int32)
    packed = {"cu_seqlens_q": cu, "cu_seqlens_k_new": cu, "max_seqlen_q": 4}
    out = flash_attn_3.flash_attn_with_kvcache(
        q.flatten(0, 1), *cache.caches, k.flatten(0, 1), v.flatten(0, 1), **options, **packed
    )
    at = own.long()[:, None] + torch.arange(4)
    for s in range(BATCH):
        rows = slice(cache.lengths[s], cache.lengths[s] + 4)
        cache.k[s, rows] = rotated(k, cos, sin, at, True)[s].float()
        cache.v[s, rows] = v[s]
    lengths = cache.lengths.long() + 4
    want, _ = standard(rotated(q, cos, sin, at, True), cache.k, cache.v, lengths, True, (-1, -1))
    assert close(out, want.flatten(0, 1), q.dtype)
    # If there are no new keys, cu_seqlens_k_new is ignored, as in flash-attn.
    again = {"cache_seqlens": cache.lengths + 4, "page_table": options["page_table"], "causal": True}
    out = flash_attn_3.flash_attn_with_kvcache(q.flatten(0, 1), *cache.caches, **again, **packed)
    want, _ = standard(q, cache.k, cache.v, lengths, True, (-1, -1))
    assert close(out, want.flatten(0, 1), q.dtype)


def test_numpy_arrays(torch):
    cache = Cache(torch, torch.float32, "plain", True)
    q, k, v = (torch.randn(BATCH, 1, heads, DIM) for heads in (HEADS, HEADS_K, HEADS_K))
    arrays = [x.clone().numpy() for x in (q, *cache.caches, k, v)]
    found = flash_attn.flash_attn_with_kvcache(*arrays, cache_seqlens=cache.lengths.numpy())
    want = flash_attn.flash_attn_with_kvcache(q, *cache.caches, k, v, cache_seqlens=cache.lengths)
    assert np.array_equal(found, want.numpy()) and np.array_equal(arrays[1], cache.caches[0].numpy())


REFUSED = {
    "v": ({"k": 0}, ValueError, "v: None, allowed with both of k and v or with neither"),
    "k": ({"v": 0}, ValueError, "k: None, allowed with both of k and v or with neither"),
    "cache_seqlens": ({"k": 0, "v": 0, "cache_seqlens": None}, ValueError, "cache_seqlens: None with k and v"),
    "rotary alone": ({"rotary_cos": 1, "rotary_sin": 1}, ValueError, "rotary_cos: given without k and v, allowed"),
    "rotary_sin": ({"k": 0, "v": 0, "rotary_cos": 1}, ValueError, "rotary_sin: None, allowed with both"),
    "rotary_cos": ({"k": 0, "v": 0, "rotary_sin": 1}, ValueError, "rotary_cos: None, allowed with both"),
    "cos": ({"k": 0, "v": 0, "rotary_cos": 2, "rotary_sin": 2}, ValueError, "rotary_cos: rotary_dim 64, allowed"),
    "lengths": ({"cache_seqlens": 3}, ValueError, "cache_seqlens: dtype i64, allowed i32"),
    "interleaved": (
        {"k": 0, "v": 0, "rotary_cos": 1, "rotary_sin": 1, "rotary_interleaved": "x"},
        ValueError,
        "rotary_interleaved: 'x', allowed True or False",
    ),
    "window": ({"window_size": (3,)}, ValueError, "window_size: 1 values, allowed (left, right)"),
    "scale": ({"softmax_scale": float("nan")}, ValueError, "softmax_scale: nan, allowed"),
    "softcap": ({"softcap": -1.0}, ValueError, "softcap: -1, allowed"),
}
REFUSED_2 = {"block_table": ({"block_table": 3}, ValueError, "block_table: 1 dimensions, allowed 2")}
REFUSED_3 = {
    "page_table": ({"page_table": 3}, ValueError, "page_table: 1 dimensions, allowed 2"),
    "rotary_seqlens": ({"k": 0, "v": 0, "rotary_seqlens": 3}, ValueError, "rotary_seqlens: given without rotary_cos"),
    "rotary_seqlens alone": ({"rotary_seqlens": 3}, ValueError, "rotary_seqlens: given without k and v, allowed"),
    "s_aux": ({"s_aux": 3}, ValueError, "s_aux: dtype i64, allowed"),
    "two sinks": ({"s_aux": 3, "learnable_sink": 3}, ValueError, "learnable_sink: given with s_aux, allowed one"),
    "qv": ({"qv": 0}, NotImplementedError, "qv: Tensor, attend supports None only"),
    "q_descale": ({"q_descale": 1}, NotImplementedError, "q_descale: Tensor, attend supports None only"),
    "k_descale": ({"k_descale": 1}, ValueError, "k_descale: given with a k_cache of f32, allowed with f8e4m3 and i8"),
    "attention_chunk": ({"attention_chunk": 4}, NotImplementedError, "attention_chunk: 4, attend supports 0 only"),
}


@pytest.mark.parametrize("generation, name", [
    *((door, name) for door in "23" for name in REFUSED), *(("2", name) for name in REFUSED_2),
    *(("3", name) for name in REFUSED_3),
])  # fmt: skip
def test_what_is_refused_has_flash_attns_names(torch, generation, name):
    door = flash_attn if generation == "2" else flash_attn_3
    change, kind, start = (REFUSED | (REFUSED_2 if generation == "2" else REFUSED_3))[name]
    cache = Cache(torch, torch.float32, "plain", True)
    q = torch.randn(BATCH, 2, HEADS, DIM)
    # The numbers 0 to 3 in the parameters stand for these tensors.
    tensors = {0: torch.randn(BATCH, 2, HEADS_K, DIM), 1: torch.rand(CAPACITY, 8), 2: torch.rand(CAPACITY, 32),
               3: torch.zeros(BATCH, dtype=torch.int64)}  # fmt: skip
    options = {key: tensors[x] if type(x) is int and key != "attention_chunk" else x for key, x in change.items()}
    before = [x.clone() for x in cache.caches]
    with pytest.raises(attend.Error) as caught:
        door.flash_attn_with_kvcache(q, *cache.caches, **({"cache_seqlens": cache.lengths} | options))
    assert isinstance(caught.value, kind) and "\n" not in str(caught.value)
    assert str(caught.value).startswith(start)
    assert all(torch.equal(x, y) for x, y in zip(cache.caches, before))


@pytest.mark.parametrize("door", [flash_attn, flash_attn_3])
def test_gradients_are_refused(torch, door):
    cache = Cache(torch, torch.float32, "plain", False)
    q = torch.randn(BATCH, 2, HEADS, DIM, requires_grad=True)
    with pytest.raises(NotImplementedError, match="^q: requires grad, decode gives no gradients"):
        door.flash_attn_with_kvcache(q, *cache.caches)
    with torch.no_grad():
        door.flash_attn_with_kvcache(q, *cache.caches)
