"""Tests of 8-bit caches with NumPy (and ml_dtypes) and torch, with factors of every shape, and of their refusals."""

import pytest

np = pytest.importorskip("numpy")
ml_dtypes = pytest.importorskip("ml_dtypes")

import attend
from attend import flash_attn_3

pytestmark = pytest.mark.usefixtures("poisoned_numpy")

DTYPES = {"f8e4m3": ml_dtypes.float8_e4m3fn, "i8": np.int8}
SEQUENCES, HEADS_Q, HEADS_K, PAGE, PAGES_OF_ROW, DIM = 3, 6, 2, 16, 4, 40
PAGES = SEQUENCES * PAGES_OF_ROW + 1
LENGTHS = np.array([60, 0, 37], np.int32)
SHAPES = {"one": (), "heads": (HEADS_K,), "sequences": (SEQUENCES, HEADS_K), "rows": (PAGES, HEADS_K, PAGE)}


def rounded(x, dtype):
    """Returns x in the dtype, rounded as append must round it."""
    if dtype == "i8":
        return np.clip(np.rint(x), -128, 127).astype(np.int8)
    return np.clip(x, -448, 448).astype(ml_dtypes.float8_e4m3fn)


class Cache:
    """Pages of random elements (pages, heads, page_size, ...), and factors of a given shape."""

    def __init__(self, rng, dtype, shape):
        self.dtype = dtype
        self.table = rng.permutation(PAGES)[: SEQUENCES * PAGES_OF_ROW].astype(np.int32).reshape(SEQUENCES, -1)
        self.k, self.v = (
            rounded(rng.standard_normal((PAGES, HEADS_K, PAGE, DIM)) * 30, dtype).view(DTYPES[dtype]) for _ in "kv"
        )
        self.k_descale, self.v_descale = (rng.uniform(0.01, 0.05, SHAPES[shape]).astype(np.float32) for _ in "kv")

    def options(self):
        return dict(page_table=self.table, seqlens_k=LENGTHS, k_descale=self.k_descale, v_descale=self.v_descale)

    def numbers(self, s):
        """Returns the keys and values of sequence s in float64, (1, heads, length, dim)."""
        parts = []
        for elements, descale in ((self.k, self.k_descale), (self.v, self.v_descale)):
            pages = elements[self.table[s]].astype(np.float64)
            if descale.ndim == 3:
                pages *= descale[self.table[s]][..., None]
            elif descale.ndim == 2:
                pages *= descale[s][:, None, None]
            else:
                pages *= descale.reshape(-1, 1, 1)
            parts.append(pages.swapaxes(0, 1).reshape(1, HEADS_K, -1, DIM)[:, :, : LENGTHS[s]])
        return parts


def queries(rng, dtype=np.float32):
    return rng.standard_normal((SEQUENCES, HEADS_Q, 2, DIM)).astype(dtype)


def as_torch(torch, x):
    if not isinstance(x, np.ndarray):
        return x
    if x.dtype.name == "float8_e4m3fn":
        return torch.from_numpy(x.view(np.uint8)).view(torch.float8_e4m3fn)
    return torch.from_numpy(x)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_decode_against_float64(rng, dtype, shape):
    cache, q = Cache(rng, dtype, shape), queries(rng)
    o = attend.decode(q, cache.k, cache.v, **cache.options())
    for s in range(SEQUENCES):
        k, v = cache.numbers(s)
        rows = q[s : s + 1].astype(np.float64)
        want = attend.attention(rows, k, v, causal=True, compute="reference") if LENGTHS[s] else np.zeros(q[s].shape)
        error = np.abs(o[s : s + 1] - want).max()
        print(f"sequence {s}: error {error:.2g}, budget 1e-5")
        assert error <= 1e-5


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_torch_tensors_give_the_same_bits(rng, torch, dtype, shape):
    cache, q = Cache(rng, dtype, shape), queries(rng, np.float16)
    want = attend.decode(q, cache.k, cache.v, **cache.options())
    tensors = [as_torch(torch, x) for x in (q, cache.k, cache.v)]
    options = {name: as_torch(torch, x) for name, x in cache.options().items()}
    assert torch.equal(attend.decode(*tensors, **options), torch.from_numpy(want))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        by_operator = attend.decode(*tensors, **options)
    assert any(event.name == "attend::decode" for event in profile.events())
    assert torch.equal(by_operator, torch.from_numpy(want))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("by_torch", [False, True])
def test_append_writes_the_rounded_quotients(rng, torch, dtype, shape, by_torch):
    cache = Cache(rng, dtype, shape)
    k, v = rng.standard_normal((2, SEQUENCES, HEADS_K, 1, DIM)).astype(np.float32)
    want = [cache.k.copy(), cache.v.copy()]
    for s in range(SEQUENCES):
        page, row = cache.table[s, LENGTHS[s] // PAGE], LENGTHS[s] % PAGE
        for elements, x, descale in ((want[0], k, cache.k_descale), (want[1], v, cache.v_descale)):
            factor = {
                "one": descale,
                "heads": descale.reshape(-1, 1),
                "sequences": descale[s].reshape(-1, 1) if descale.ndim == 2 else None,
                "rows": descale[page, :, row].reshape(-1, 1) if descale.ndim == 3 else None,
            }[shape]
            elements[page, :, row] = rounded(x[s, :, 0] / factor, dtype)
    of = (lambda x: as_torch(torch, x)) if by_torch else (lambda x: x)
    options = {name: of(x) for name, x in cache.options().items()}
    attend.append(of(k), of(v), of(cache.k), of(cache.v), **options)
    for found, wanted in zip((cache.k, cache.v), want):
        assert np.array_equal(found.view(np.uint8), wanted.view(np.uint8))


def test_heads_behind_tokens(rng):
    cache, q = Cache(rng, "i8", "rows"), queries(rng)
    want = attend.decode(q, cache.k, cache.v, **cache.options())
    turned = cache.options()
    for name in ("k_descale", "v_descale"):
        turned[name] = np.ascontiguousarray(turned[name].swapaxes(1, 2))
    k, v = (np.ascontiguousarray(x.swapaxes(1, 2)) for x in (cache.k, cache.v))
    o = attend.decode(np.ascontiguousarray(q.swapaxes(1, 2)), k, v, layout="bshd", **turned)
    assert np.array_equal(o.swapaxes(1, 2), want)


def test_flash_attn_3_takes_the_factors_of_sequences(rng, torch):
    cache, q = Cache(rng, "f8e4m3", "sequences"), queries(rng, np.float16)
    want = attend.decode(q, cache.k, cache.v, causal=False, **cache.options())
    turned = [as_torch(torch, x).transpose(1, 2) for x in (q, cache.k, cache.v)]
    options = {name: as_torch(torch, x) for name, x in cache.options().items()}
    options["cache_seqlens"] = options.pop("seqlens_k")
    o = flash_attn_3.flash_attn_with_kvcache(*turned, **options)
    assert torch.equal(o.transpose(1, 2), torch.from_numpy(want))


@pytest.mark.parametrize("place", ["cpu", "meta"])
def test_refusals_name_the_argument(rng, torch, place):
    def refusal(call):
        with pytest.raises(attend.Error) as caught:
            call()
        return str(caught.value)

    q = torch.zeros(2, 4, 1, 8, device=place)
    k = torch.zeros(2, 2, 5, 8, device=place).to(torch.float8_e4m3fn)
    one = torch.ones((), device=place)
    assert attend.decode(q, k, k.clone(), k_descale=one, v_descale=one).shape == q.shape
    for options, message in (
        ({"k_descale": one.half()}, "k_descale: dtype f16, allowed f32"),
        ({"k_descale": one.expand(3)}, "k_descale: shape (1, 3, 1, 1), allowed (1 or 2, 1 or 2, 1, 1)"),
        ({"v_descale": one.expand(1, 1, 1, 1)}, "v_descale: 4 dimensions, allowed 0, 1 (heads), 2 (sequences, heads)"),
    ):
        assert refusal(lambda options=options: attend.decode(q, k, k.clone(), **options)).startswith(message)
    given = refusal(lambda: attend.decode(q, q[:, :2], q[:, :2].clone(), k_descale=one))
    assert given == "k_descale: given with a k_cache of f32, allowed with f8e4m3 and i8"
    mixed = refusal(lambda: attend.decode(q, k, k.to(torch.int8)))
    assert mixed == "v_cache: dtype i8, allowed the dtype of k_cache, f8e4m3"
    for x in (k, torch.zeros(2, 2, 5, 8, dtype=torch.int8, device=place)):
        assert refusal(lambda x=x: attend.attention(x, x, x)).startswith("q: dtype ")


@pytest.mark.parametrize("by_torch", [False, True])
@pytest.mark.parametrize("call", ["decode", "append"])
def test_refused_caches_name_the_types_of_caches(torch, by_torch, call):
    allowed = "allowed f32, f16, bf16, float8_e4m3fn, i8"
    q = np.zeros((2, 2, 1, 8), np.float32)
    for dtype, name in ((np.uint8, "u8"), (ml_dtypes.float8_e5m2, "float8_e5m2")):
        cache = np.full((2, 2, 5, 8), 0x55, np.uint8).view(dtype)
        arrays = [q, q, cache, cache.copy()]
        if by_torch:
            torch_dtype = torch.uint8 if dtype is np.uint8 else torch.float8_e5m2
            arrays = [torch.from_numpy(x.view(np.uint8)).view(torch_dtype) if x is not q else torch.from_numpy(q)
                      for x in arrays]  # fmt: skip
        with pytest.raises(attend.Error) as caught:
            if call == "decode":
                attend.decode(arrays[0], *arrays[2:])
            else:
                attend.append(*arrays, seqlens_k=0)
        assert str(caught.value) == f"k_cache: dtype {name}, {allowed}"
        assert (cache.view(np.uint8) == 0x55).all()
