"""Tests of calls that the Python code of one rank refuses: all ranks soon raise the same error, and the ring works
afterwards.
"""

import time

import pytest

np = pytest.importorskip("numpy")
pytest.importorskip("torch")

import attend
from attend import ring
from ring_ranks import normal

SOON_S = 20  # seconds; the time limit after which a waiting rank gives up is 300 s


def text_of(call):
    start = time.monotonic()
    try:
        call()
    except Exception as error:  # noqa: BLE001 (the test checks which error it is)
        text = f"{type(error).__name__}: {error}"
    else:
        text = "nothing was raised"
    assert time.monotonic() - start < SOON_S, f"after {time.monotonic() - start:.0f} s: {text}"
    return text


def run_refused(rank, size, device, name, refusing):
    """Returns the text of the error, and whether the next call has the right result."""
    import torch

    x = normal(device, 1, 2, 4, 8)
    q, k, v, options = x, x, x, {}
    if rank == refusing:
        if name == "window":
            options["window"] = (1, 0, 0)
        elif name == "seed":
            options.update(seed=1.5, dropout_p=0.1)
        elif name == "layout":
            options["layout"] = "sbhd"
        elif name == "dimensions":
            q = x[0]
        elif name == "array":
            q = np.ones((1, 2, 4, 8), np.float32)
        elif name == "array of keys":
            k = np.ones((1, 2, 4, 8), np.float32)
        elif name == "None":
            q = None
        elif name == "meta":
            q = k = v = torch.empty(1, 2, 4, 8, device="meta")
        elif name == "sparse":
            k = x.to_sparse()
        elif name == "bias":
            options["bias"] = torch.zeros(1, 2, 4, 4 * size, device=device, requires_grad=True)
        elif name == "sinks":
            options["sinks"] = torch.zeros(2, device=device, requires_grad=True)
        elif name == "offset":
            options["offset"] = 3
        elif name == "scale":
            options["scale"] = torch.ones(3)
        elif name == "option":
            options["windw"] = 1
        elif name == "causal":
            options["causal"] = "yes"  # torch refuses this with a message of several lines
    text = text_of(lambda: ring.ring_attention(q, k, v, **options))
    whole = normal(device, 1, 2, 4 * size, 8, seed=7)
    mine = ring.shard(whole, 2)
    error = ring.unshard(ring.ring_attention(mine, mine, mine), 2) - attend.attention(whole, whole, whole)
    return text, error.abs().max().item() <= 1e-5


REFUSALS = {
    "window": "ArgumentError: window: 3 values, allowed (left, right) (rank {})",
    "seed": "ArgumentError: seed: float, allowed a whole number from 0 to 2^64 - 1 (rank {})",
    "layout": "ArgumentError: layout: 'sbhd', allowed 'bhsd', 'bshd' (rank {})",
    "dimensions": "ArgumentError: q: 3 dimensions, allowed 4 (batch, heads, seqlen, head_dim) (rank {})",
    "array": "ArgumentError: q: ndarray, allowed a torch.Tensor (attend.ring.attention supports other arrays)"
    " (rank {})",
    "array of keys": "ArgumentError: k: ndarray, allowed a torch.Tensor like q (rank {})",
    "None": "ArgumentError: q: NoneType, allowed a torch.Tensor (attend.ring.attention supports other arrays)"
    " (rank {})",
    "meta": "UnsupportedError: q: on meta, attend.ring runs on cpu and cuda",
    "causal": "RunError: RuntimeError: attend::ring_forward() Expected a value of type 'bool'",
    "sparse": "UnsupportedError: k: layout torch.sparse_coo, attend supports dense strided tensors (rank {})",
    "bias": "UnsupportedError: bias: requires grad; a ring gives no gradient for it. Detach it (rank {})",
    "sinks": "UnsupportedError: sinks: given, allowed none with ring_attention (rank {})",
    "offset": "ArgumentError: offset: given without seed, allowed with it only (rank {})",
    "scale": "ArgumentError: scale: (3,), allowed a number (rank {})",
    "option": "TypeError: ring_attention() got an unexpected keyword argument 'windw'",
}


@pytest.mark.parametrize(("size", "refusing"), [(2, 1), (3, 0)])
@pytest.mark.parametrize("name", REFUSALS)
def test_a_refusal_on_one_rank_is_raised_by_all(ranks, size, refusing, name):
    outcomes = ranks(size).run(run_refused, name, refusing)
    texts = [text for text, _ in outcomes]
    assert all(good for _, good in outcomes), texts
    if name == "option":  # the rank with the unknown option raises Python's error
        assert texts[refusing] == REFUSALS[name]
        others = f"ArgumentError: {REFUSALS[name]} (rank {refusing})"
        assert all(text == others for rank, text in enumerate(texts) if rank != refusing)
    else:
        assert set(texts) == {texts[0]} and texts[0].startswith(REFUSALS[name].format(refusing))
        assert texts[0].endswith(f" (rank {refusing})") and "\n" not in texts[0]


def run_refused_first(rank, size, device, group_ranks, name):
    """One rank refuses the first call on a group, before the ranks are connected."""
    import torch.distributed as dist

    group = dist.new_group(group_ranks)
    if rank not in group_ranks:
        return "", True
    x = q = normal(device, 1, 2, 4, 8)
    options = {}
    if rank == group_ranks[-1]:
        if name == "window":
            options["window"] = (1, 0, 0)
        else:
            q = x[0]
    text = text_of(lambda: ring.ring_attention(q, x, x, group=group, **options))
    return text, bool(ring.ring_attention(x, x, x, group=group).isfinite().all())


# The first is refused before the ranks connect, the second right after.
@pytest.mark.parametrize("name", ["window", "dimensions"])
def test_a_refusal_of_the_first_call_is_raised_by_all(ranks, name):
    outcomes = ranks(3).run(run_refused_first, [0, 2], name)
    text = REFUSALS[name].format(1)  # the rank's number in the group
    assert outcomes == [(text, True), ("", True), (text, True)]


def run_refused_gradients(rank, size, device):
    """On rank 1, the gradient of o has a form that the operator refuses."""
    import torch

    x = normal(device, 1, 2, 4, 8).requires_grad_()
    o, lse = ring.ring_attention(x, x, x, return_lse=True)
    dout = torch.ones_like(o)
    options = (*attend._settings.Extras(), *attend._settings.Settings(), "", "zigzag", "exchange", False)
    if rank == 1:
        dout = dout[:, :, :2]
    operator = torch.ops.attend.ring_backward
    text = text_of(lambda: operator(x, x, x, o.detach(), lse.detach(), dout, None, *options))
    return text, bool(torch.autograd.grad(o.sum(), x)[0].isfinite().all())


def test_a_refusal_of_backward_is_raised_by_all(ranks):
    outcomes = ranks(2).run(run_refused_gradients)
    assert outcomes[0] == outcomes[1] and outcomes[0][1]
    assert outcomes[0][0].startswith("ArgumentError: dout: shape ") and outcomes[0][0].endswith(" (rank 1)")


def run_refused_drop_in(rank, size, device, name):
    import torch
    from attend import ring_flash_attn

    x = normal(device, 1, 4, 2, 8)
    packed, rows = torch.stack([x, x, x], 2), x[0]
    offsets = torch.tensor([0, 4], dtype=torch.int32, device=device)
    wrong = rank == 1
    if name == "dense":
        text = text_of(lambda: ring_flash_attn.zigzag_ring_flash_attn_func(None if wrong else x, x, x))
    elif name == "packed":
        function = ring_flash_attn.ring_flash_attn_qkvpacked_func
        text = text_of(lambda: function(packed[:, :, :2] if wrong else packed))
    elif name == "varlen":
        function = ring_flash_attn.zigzag_ring_flash_attn_varlen_func
        text = text_of(lambda: function(rows, rows, rows, None if wrong else offsets, 4))
    else:
        function = ring_flash_attn.llama3_flash_attn_varlen_func
        told = ring_flash_attn.llama3_flash_attn_prepare_cu_seqlens(offsets * size, True, rank, size)
        if name == "llama3":
            options = {"heads_k_stride": 3 if wrong else 1}
        elif name == "llama3 array":
            options, rows = {"heads_k_stride": 1}, np.ones((4, 2, 8), np.float32) if wrong else rows
        else:
            options = {"heads_k_stride": 1 + rank}
        q_k, longest, where = told[:2], told[2:4], told[4]
        text = text_of(lambda: function(rows, rows, rows, *q_k, *longest, local_k_slice=where, causal=True, **options))
    good = ring_flash_attn.ring_flash_attn_func(x, x, x)
    return text, bool(good.isfinite().all())


DROP_INS = {
    "dense": "ArgumentError: q: NoneType, allowed a torch.Tensor",
    "packed": "ArgumentError: qkv: ",
    "varlen": "ArgumentError: cu_seqlens: NoneType, allowed a torch.Tensor i32",
    "llama3": "ArgumentError: heads_k_stride: 3, allowed a divisor of 2 heads of k (rank 1)",
    "llama3 array": "ArgumentError: q: ndarray, allowed a torch.Tensor like q (rank 1)",
    "llama3 otherwise": "ArgumentError: llama3_flash_attn_varlen_func: q float32 (4, 2, 8), k float32",
}


@pytest.mark.parametrize("name", DROP_INS)
def test_a_refusal_of_a_drop_in_is_raised_by_all(ranks, name):
    outcomes = ranks(2).run(run_refused_drop_in, name)
    assert outcomes[0] == outcomes[1] and outcomes[0][1], outcomes
    assert outcomes[0][0].startswith(DROP_INS[name])


def run_refused_context(rank, size, device, name):
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    x = normal(device, 1, 2, 4, 8)
    buffer = torch.ones(8, device=device, requires_grad=rank == 1 and name == "buffer")

    def call():
        with ring.context_parallel(buffers=[buffer], buffer_seq_dims=[0]):
            mask = torch.ones(4, 4 * size, dtype=torch.bool, device=device) if rank == 1 and name == "mask" else None
            scaled_dot_product_attention(x, x, x, attn_mask=mask)

    text = text_of(call)
    return text, bool(ring.ring_attention(x, x, x).isfinite().all()), len(buffer)


@pytest.mark.parametrize(
    ("name", "start"), [("mask", "UnsupportedError: attn_mask: "), ("buffer", "ArgumentError: buffers[0]: ")]
)
def test_a_refusal_within_context_parallel_is_raised_by_all(ranks, name, start):
    outcomes = ranks(2).run(run_refused_context, name)
    assert outcomes[0] == outcomes[1] and outcomes[0][1:] == (True, 8)
    assert outcomes[0][0].startswith(start) and outcomes[0][0].endswith(" (rank 1)")


def run_unseeded(rank, size, device):
    """Makes two calls without a seed. Returns their full results, and whether the gradients belong to the same dropped
    entries.
    """
    import torch

    torch.manual_seed(100 + rank)  # the generators of the ranks differ
    q, k, v = (normal(device, 1, 2, 8, 8, seed=n).requires_grad_() for n in range(3))
    draws = []
    for _ in range(2):
        state = torch.get_rng_state()
        o = ring.ring_attention(q, k, v, dropout_p=0.5)
        draws.append(ring.unshard(o, 2).detach())
    torch.set_rng_state(state)
    seed = int(torch.randint(2**62, ()))  # the seed that this rank drew in the call
    return [x.cpu().numpy() for x in draws], seed, torch.autograd.grad(o.sum(), v)[0].cpu().numpy()


def test_ranks_without_a_seed_drop_by_what_rank_0_draws(ranks):
    """Forward and backward equal those of one device with the seed of rank 0."""
    import torch

    outcomes = ranks(2).run(run_unseeded)
    seed = outcomes[0][1]
    assert seed != outcomes[1][1]
    mine = [normal("cpu", 1, 2, 8, 8, seed=n) for n in range(3)]
    q, k, v = (ring.join([x, x], 2).requires_grad_() for x in mine)
    o = attend.attention(q, k, v, dropout_p=0.5, seed=seed)
    dv = torch.autograd.grad(o.sum(), v)[0]
    for rank in range(2):
        first, second = outcomes[rank][0]
        assert np.abs(first - second).max() > 0.01, "both calls have dropped the same"
        assert np.abs(second - o.detach().numpy()).max() <= 1e-5
        own = ring.shard(dv, 2, rank=rank, size=2).numpy()
        assert np.abs(outcomes[rank][2] - own).max() <= 1e-4
