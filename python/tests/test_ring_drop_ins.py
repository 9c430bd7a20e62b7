"""Tests of ring-flash-attention's functions in attend. The tests of that project print differences from one device. The
tests here check that these differences are small.

The tests of ring-flash-attention print the differences of out, lse and the gradients of qkv between `flash_attn`'s
functions on the full problem and the ring's functions on the rank's rows. These tests use bfloat16, a causal mask and 5
heads, for each sharding, with dense and packed sequences.
"""

import inspect

import pytest

np = pytest.importorskip("numpy")
pytest.importorskip("torch")

from attend import ring, ring_flash_attn
from attend._drop_in import StandIn
from attend.flash_attn import flash_attn_qkvpacked_func, flash_attn_varlen_qkvpacked_func

PREFIXES = {"ring_flash_attn": "contiguous", "zigzag_ring_flash_attn": "zigzag", "stripe_flash_attn": "striped"}
# Allowed error relative to the largest magnitude. The error for bfloat16 corresponds to two roundings.
TOLERANCE = {"bfloat16": 2.0**-6, "float32": 1e-5}


def forms(prefix):
    """Returns the functions whose names have this prefix, for each packed form, with the form's arguments made from q,
    k and v.
    """
    return {
        "": lambda qkv, axis: (qkv.select(axis, 0), qkv.select(axis, 1), qkv.select(axis, 2)),
        "_kvpacked": lambda qkv, axis: (qkv.select(axis, 0), qkv.narrow(axis, 1, 2)),
        "_qkvpacked": lambda qkv, axis: (qkv,),
    }


def same_numbers(name, found, want):
    error = (found.double() - want.double()).abs().max().item()
    budget = TOLERANCE[str(want.dtype).removeprefix("torch.")] * max(1.0, want.double().abs().max().item())
    print(f"{name}: error {error:.2e}, budget {budget:.2e}")
    assert error <= budget, f"{name}: error {error:.2e}, budget {budget:.2e}"


def inputs(device, dtype, *shape):
    """Returns qkv and dout, the same on every rank."""
    import torch

    random = torch.Generator().manual_seed(len(shape) + shape[1])
    qkv = torch.randn(*shape, generator=random).to(device, dtype)
    dout = torch.randn(*shape[:-3], *shape[-2:], generator=random).to(device, dtype)
    return qkv, dout


def run_dense(rank, size, device, prefix, form, dtype_name, causal):
    import torch

    sharding, dtype = PREFIXES[prefix], getattr(torch, dtype_name)
    qkv, dout = inputs(device, dtype, 1, 48, 3, 5, 32)
    whole = qkv.clone().requires_grad_()
    out, lse, _ = flash_attn_qkvpacked_func(whole, causal=causal, return_attn_probs=True)
    out.backward(dout)
    local = ring.shard(qkv, 1, sharding=sharding).requires_grad_()
    function = getattr(ring_flash_attn, f"{prefix}{form}_func")
    ring_out, ring_lse, nothing = function(
        *forms(prefix)[form](local, 2), dropout_p=0, causal=causal, window_size=(-1, -1), alibi_slopes=None,
        deterministic=False, return_attn_probs=True,
    )  # fmt: skip
    ring_out.backward(ring.shard(dout, 1, sharding=sharding))
    assert nothing is None
    assert ring_out.dtype == dtype and ring_lse.dtype == torch.float32
    same_numbers("out", ring_out, ring.shard(out, 1, sharding=sharding))
    same_numbers("lse", ring_lse, ring.shard(lse, 2, sharding=sharding))
    for n, name in enumerate(("dq", "dk", "dv")):
        same_numbers(name, local.grad[:, :, n], ring.shard(whole.grad, 1, sharding=sharding)[:, :, n])
    assert torch.equal(function(*forms(prefix)[form](local, 2), causal=causal), ring_out)
    return True


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("form", ["", "_kvpacked", "_qkvpacked"])
@pytest.mark.parametrize("prefix", PREFIXES)
def test_dense(ranks, size, prefix, form):
    for dtype, causal in (("bfloat16", True), ("float32", False)):
        assert all(ranks(size).run(run_dense, prefix, form, dtype, causal))


def run_varlen(rank, size, device, prefix, form, dtype_name, causal):
    import torch

    sharding, dtype = PREFIXES[prefix], getattr(torch, dtype_name)
    # Each length is a multiple of twice the number of ranks, as in ring-flash-attention's tests.
    offsets = [0, 8, 40, 88]
    cu_seqlens = torch.tensor(offsets, dtype=torch.int32, device=device)
    qkv, dout = inputs(device, dtype, 88, 3, 5, 32)
    whole = qkv.clone().requires_grad_()
    out, lse, _ = flash_attn_varlen_qkvpacked_func(whole, cu_seqlens, 48, causal=causal, return_attn_probs=True)
    out.backward(dout)
    own = dict(sharding=sharding, cu_seqlens=offsets)
    local = ring.shard(qkv, 0, **own).requires_grad_()
    ring_out, ring_lse, _ = getattr(ring_flash_attn, f"{prefix}_varlen{form}_func")(
        *forms(prefix)[form](local, 1), cu_seqlens // size, 48 // size, causal=causal, return_attn_probs=True
    )
    ring_out.backward(ring.shard(dout, 0, **own))
    same_numbers("out", ring_out, ring.shard(out, 0, **own))
    same_numbers("lse", ring_lse, ring.shard(lse, 1, **own))
    for n, name in enumerate(("dq", "dk", "dv")):
        same_numbers(name, local.grad[:, n], ring.shard(whole.grad, 0, **own)[:, n])
    return True


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("form", ["", "_kvpacked", "_qkvpacked"])
@pytest.mark.parametrize("prefix", PREFIXES)
def test_varlen(ranks, size, prefix, form):
    for dtype, causal in (("bfloat16", True), ("float32", False)):
        assert all(ranks(size).run(run_varlen, prefix, form, dtype, causal))


def run_llama3(rank, size, device, form, dtype_name, options, heads_k_stride):
    import torch

    dtype = getattr(torch, dtype_name)
    causal = options.get("causal", False)
    cu_seqlens = torch.tensor([0, 7, 40, 88], dtype=torch.int32, device=device)
    qkv, dout = inputs(device, dtype, 88, 3, 6, 32)
    whole = qkv.clone().requires_grad_()
    named = {"window_size": (-1, -1), **options}
    out, lse, _ = flash_attn_varlen_qkvpacked_func(whole, cu_seqlens, 48, return_attn_probs=True, **named)
    out.backward(dout)
    mine = slice(rank * 88 // size, (rank + 1) * 88 // size)
    local = qkv[mine].clone().requires_grad_()
    told = ring_flash_attn.llama3_flash_attn_prepare_cu_seqlens(cu_seqlens, causal, rank, size)
    its_out, its_lse, _ = getattr(ring_flash_attn, f"llama3_flash_attn_varlen{form}_func")(
        *forms("")[form](local, 1), *told[:4], heads_k_stride=heads_k_stride, local_k_slice=told[4],
        return_attn_probs=True, **named,
    )  # fmt: skip
    its_out.backward(dout[mine])
    same_numbers("out", its_out, out[mine])
    same_numbers("lse", its_lse, lse[:, mine])
    for n, name in enumerate(("dq", "dk", "dv")):
        same_numbers(name, local.grad[:, n], whole.grad[mine, n])
    return True


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("form", ["", "_kvpacked", "_qkvpacked"])
def test_llama3(ranks, size, form):
    for dtype, options, stride in (
        ("bfloat16", {"causal": True}, 1),
        ("float32", {"causal": True, "window_size": (9, 0)}, 2),
        ("float32", {}, 6),
    ):
        assert all(ranks(size).run(run_llama3, form, dtype, options, stride))


def run_grouped_heads(rank, size, device):
    import torch

    q, k, v = (torch.randn(16, h, 8, generator=torch.Generator().manual_seed(h)).to(device) for h in (6, 3, 3))
    cu_seqlens = torch.tensor([0, 10, 16], dtype=torch.int32, device=device)
    from attend import attention_varlen

    slopes = torch.linspace(0.1, 0.6, 6, device=device)
    want = attention_varlen(q, k, v, cu_seqlens, cu_seqlens, 10, 10, causal=True, alibi_slopes=slopes)
    mine = slice(rank * 16 // size, (rank + 1) * 16 // size)
    told = ring_flash_attn.llama3_flash_attn_prepare_cu_seqlens(cu_seqlens, True, rank, size)
    out = ring_flash_attn.llama3_flash_attn_varlen_func(
        q[mine], k[mine], v[mine], *told[:4], 1, told[4], causal=True, alibi_slopes=slopes
    )
    same_numbers("out", out, want[mine])
    dropped = ring_flash_attn.llama3_flash_attn_varlen_func(
        q[mine], k[mine], v[mine], *told[:4], 3, told[4], dropout_p=0.5, causal=True
    )
    return bool((dropped != out).any())


def test_llama3_of_grouped_heads(ranks):
    assert ranks(2).run(run_grouped_heads) == [True, True]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("cu_seqlens", [[0, 7, 14, 16], [0, 16], [0, 2, 2, 16, 16], [0, 8, 16]], ids=str)
def test_llama3_prepare(cu_seqlens, causal):
    """Each of 8 ranks gets its rows and the keys that the sequences of these rows need. With causal, the keys end at
    the same position as the rows.
    """
    import torch

    given = torch.tensor(cu_seqlens, dtype=torch.int32)
    for rank in range(8):
        q, k, longest_q, longest_k, keys = ring_flash_attn.llama3_flash_attn_prepare_cu_seqlens(given, causal, rank, 8)
        assert q.dtype == k.dtype == torch.int32 and len(q) == len(k) > 1
        assert (q[0], q[-1]) == (0, 2) and (k[0], k[-1]) == (0, keys.stop - keys.start)
        assert (longest_q, longest_k) == (int(q.diff().max()), int(k.diff().max()))
        for row in range(2):
            token = 2 * rank + row
            begin = max(n for n in cu_seqlens[:-1] if n <= token)
            end = min(n for n in cu_seqlens if n > token)
            sequence = int((q[1:] <= row).sum())
            assert keys.start + int(k[sequence]) == begin
            assert keys.start + int(k[sequence + 1]) == (min(end, 2 * rank + 2) if causal else end)
    with pytest.raises(ValueError, match="cu_seqlens: 16 tokens, allowed a multiple of world_size, 3"):
        ring_flash_attn.llama3_flash_attn_prepare_cu_seqlens(given, causal, 0, 3)


def run_dropout(rank, size, device, prefix):
    """A ring with dropout drops the same entries as one device with the seed of rank 0, even if the generators of the
    ranks differ.
    """
    import attend
    import torch

    torch.manual_seed(100 + rank)
    qkv, _ = inputs(device, torch.float32, 1, 40, 3, 2, 16)
    local = ring.shard(qkv, 1, sharding=PREFIXES[prefix])
    out = getattr(ring_flash_attn, f"{prefix}_qkvpacked_func")(local, dropout_p=0.3, causal=True)
    seed = int(torch.randint(2**62, (), generator=torch.Generator().manual_seed(100)))
    q, k, v = qkv.unbind(2)
    want = attend.attention(q, k, v, layout="bshd", causal=True, dropout_p=0.3, seed=seed)
    same_numbers("out", out, ring.shard(want, 1, sharding=PREFIXES[prefix]))
    return True


@pytest.mark.parametrize("prefix", PREFIXES)
def test_dropout_is_that_of_one_device(ranks, prefix):
    assert all(ranks(2).run(run_dropout, prefix))


def test_names_and_positional_orders():
    """The functions have ring-flash-attention's names, and the same order of positional arguments."""
    options = ["dropout_p", "softmax_scale", "causal", "window_size", "alibi_slopes", "deterministic"]
    options += ["return_attn_probs", "group"]
    lengths = ["cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k", "heads_k_stride", "local_k_slice"]
    packed = {"_func": ["q", "k", "v"], "_kvpacked_func": ["q", "kv"], "_qkvpacked_func": ["qkv"]}
    wanted = {"llama3_flash_attn_prepare_cu_seqlens": ["cu_seqlens", "causal", "rank", "world_size"]}
    for end, tensors in packed.items():
        wanted[f"llama3_flash_attn_varlen{end}"] = [*tensors, *lengths, *options]
        for prefix in PREFIXES:
            wanted[f"{prefix}{end}"] = [*tensors, *options]
            wanted[f"{prefix}_varlen{end}"] = [*tensors, "cu_seqlens", "max_seqlen", *options]
    doors = {name: getattr(ring_flash_attn, name) for name in ring_flash_attn.__all__}
    found = {n: list(inspect.signature(x).parameters) for n, x in doors.items() if not isinstance(x, StandIn)}
    assert found == wanted
    for name in wanted:
        function = getattr(ring_flash_attn, name)
        assert function.__name__ == name and function.__doc__


REFUSED = {
    "stride": (dict(heads_k_stride=4), "heads_k_stride: 4, allowed a divisor of 3 heads of k"),
    "window": (dict(window_size=(3, 0)), r"window_size: \(3, 0\) without causal, attend supports \(-1, -1\) only"),
    "slopes": (dict(alibi_slopes=[0.5]), r"alibi_slopes: \[0.5\] without causal, attend supports None only"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_llama3_refuses_what_it_cannot_place(name):
    import torch

    options, text = REFUSED[name]
    x, offsets = torch.zeros(8, 3, 4), torch.tensor([0, 8], dtype=torch.int32)
    options = dict(heads_k_stride=1, local_k_slice=slice(0, 8)) | options
    with pytest.raises((ValueError, NotImplementedError), match=f"^{text}$"):
        ring_flash_attn.llama3_flash_attn_varlen_func(x, x, x, offsets, offsets, 8, 8, **options)


def run_llama3_refused(rank, size, device, name):
    """Rank 0 passes an invalid value of an argument that may differ between ranks. Afterwards a valid call succeeds."""
    import torch

    cu_seqlens = torch.tensor([0, 5, 8 * size], dtype=torch.int32, device=device)
    *told, at_k = ring_flash_attn.llama3_flash_attn_prepare_cu_seqlens(cu_seqlens, True, rank, size)
    q = torch.randn(8, 2, 16, generator=torch.Generator().manual_seed(rank)).to(device)

    def attention(**wrong):
        named = dict(zip(("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k"), told), local_k_slice=at_k)
        named |= wrong if rank == 0 else {}
        return ring_flash_attn.llama3_flash_attn_varlen_func(q, q, q, heads_k_stride=1, causal=True, **named)

    wrong = {
        "max_seqlen_k": 1,
        "local_k_slice": slice(0, 3),
        "softmax_scale": "x",
        "dropout_p": 1.5,
        "alibi_slopes": torch.ones(5, device=device),
    }
    if name == "slice":
        wrong["local_k_slice"], name = 5, "local_k_slice"
    try:
        attention(**{name: wrong[name]})
    except Exception as error:  # noqa: BLE001 (the caller compares the errors of the ranks)
        text = str(error)
    else:
        text = "nothing was raised"
    return text, bool(attention().isfinite().all())


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("max_seqlen_k", "max_seqlen_k: 1, too small"),
        ("local_k_slice", "cu_seqlens_k"),
        ("slice", "local_k_slice: int, allowed a slice"),
        ("softmax_scale", "scale: "),
        ("dropout_p", "dropout_p: 1.5"),
        ("alibi_slopes", "alibi_slopes: shape (5,), allowed (2,)"),
    ],
)
def test_llama3_refusals_of_one_rank_are_raised_by_all(ranks, ring_device, name, why):
    if ring_device == "cuda" and why == "cu_seqlens_k":
        pytest.skip("offsets on a GPU are looked at with ATTEND_CHECK=1 only")
    outcomes = ranks(2).run(run_llama3_refused, name)
    assert all(good for _, good in outcomes), outcomes
    assert len({text for text, _ in outcomes}) == 1 and why in outcomes[0][0], outcomes
