"""Tests of attend with torch's DTensor: results must equal those of the full tensors and stay sharded over batch and
heads.
"""

import functools

import pytest

pytest.importorskip("numpy")
pytest.importorskip("torch")

import attend
from ring_ranks import normal

BATCH, HEADS, ROWS, KEYS, DIM = 4, 4, 6, 10, 8


@functools.cache
def mesh_of(device, *sizes):
    """Returns a mesh. Each process makes a mesh of the same sizes only once, because torch's compiler makes a new graph
    for a new mesh.
    """
    from torch.distributed.tensor import init_device_mesh

    return init_device_mesh(device.type, sizes)


def gradients(call, tensors, weights):
    """Returns (o, lse), and the gradients of the sum of o * `weights` and lse with respect to the tensors."""
    import torch

    o, lse = call(*tensors)
    return [o, lse, *torch.autograd.grad((o * weights).sum() + lse.sum(), tensors)]


def check(call, tensors, placements, weights):
    """Compares DTensors with full tensors. Returns the placements of o, lse and the gradients."""
    import torch
    from torch.distributed.tensor import Replicate, distribute_tensor

    mesh, cuts = placements
    whole = gradients(call, [x.clone().requires_grad_() for x in tensors], weights)
    spread = [distribute_tensor(x, mesh, cut).requires_grad_() for x, cut in zip(tensors, cuts)]
    found = gradients(call, spread, distribute_tensor(weights, mesh, [Replicate()] * mesh.ndim))
    for a, b in zip(found, whole):
        torch.testing.assert_close(a.full_tensor(), b, atol=1e-5, rtol=1e-5)
    return [x.placements for x in found]


def dense(device, layout, heads_k=2):
    shapes = ((BATCH, HEADS, ROWS, DIM), (BATCH, heads_k, KEYS, DIM), (BATCH, heads_k, KEYS, DIM))
    tensors = [normal(device, *shape, seed=n) for n, shape in enumerate(shapes)]
    weights = normal(device, *shapes[0], seed=9)
    return [x if layout == "bhsd" else x.transpose(1, 2).contiguous() for x in (*tensors, weights)]


def run_dense(rank, size, device, layout, axis_name):
    from torch.distributed.tensor import Replicate, Shard

    axes = {"batch": 0, "heads": layout.index("h"), "rows": layout.index("s")}
    *tensors, weights = dense(device, layout)
    mesh = mesh_of(device, size)
    cut = [Replicate() if axis_name == "nothing" else Shard(axes[axis_name])]
    call = lambda q, k, v: attend.attention(q, k, v, layout=layout, causal=True, return_lse=True)
    o, lse, *found = check(call, tensors, (mesh, [cut] * 3), weights)
    if axis_name == "rows":  # each row needs all keys, so communication is necessary
        return True
    assert o == tuple(cut) and all(x == tuple(cut) for x in found), (o, found)
    assert lse == (Shard({"batch": 0, "heads": 1}[axis_name]) if axis_name != "nothing" else Replicate(),), lse
    return True


@pytest.mark.parametrize("axis_name", ["nothing", "batch", "heads", "rows"])
@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_results_stay_where_the_inputs_are(ranks, layout, axis_name):
    assert ranks(2).run(run_dense, layout, axis_name) == [True, True]


def run_uneven_heads(rank, size, device):
    """If 3 key heads and 6 query heads were split over two ranks, a rank would get 2 key heads and 3 query heads, which
    need other key heads.
    """
    from torch.distributed.tensor import Replicate, Shard

    q, weights = (normal(device, BATCH, 6, ROWS, DIM, seed=n) for n in (0, 9))
    k, v = (normal(device, BATCH, 3, KEYS, DIM, seed=n) for n in (1, 2))
    call = lambda q, k, v: attend.attention(q, k, v, return_lse=True)
    o, *_ = check(call, [q, k, v], (mesh_of(device, size), [[Shard(1)]] * 3), weights)
    assert o == (Replicate(),), o
    return True


def test_heads_that_do_not_divide_are_gathered(ranks):
    assert ranks(2).run(run_uneven_heads) == [True, True]


OPTIONS = {
    "bias of all": ("bias", (BATCH, HEADS, ROWS, KEYS)),
    "bias of a head": ("bias", (HEADS, 1, KEYS)),
    "bias of the batch": ("bias", (BATCH, 1, ROWS, KEYS)),
    "bias of a key": ("bias", (KEYS,)),
    "bias of one column": ("bias", (1, HEADS, ROWS, 1)),
    "mask": ("mask", (1, HEADS, ROWS, KEYS)),
    "slopes": ("alibi_slopes", (HEADS,)),
    "slopes of a batch": ("alibi_slopes", (BATCH, HEADS)),
    "sinks": ("sinks", (HEADS,)),
    "sinks of a batch": ("sinks", (BATCH, HEADS)),
}


def run_option(name, whole, spread, q, k, v):
    from torch.distributed.tensor import DTensor

    return attend.attention(q, k, v, return_lse=True, **{name: spread if isinstance(q, DTensor) else whole})


def run_options(rank, size, device):
    """Tests each option with its tensor replicated, sharded over the batch, and sharded over the heads."""
    import torch
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    *tensors, weights = dense(device, "bhsd")
    mesh = mesh_of(device, size)
    for name, shape in OPTIONS.values():
        option = normal(device, *shape, seed=5)
        option = option < 1 if name == "mask" else option.abs()
        for axis in (0, 1):
            cuts = [[Shard(axis)]] * 3
            if name in ("bias", "sinks"):
                call = lambda q, k, v, x, name=name: attend.attention(q, k, v, **{name: x}, return_lse=True)
                o, *_ = check(call, [*tensors, option], (mesh, [*cuts, [Replicate()]]), weights)
            else:
                call = functools.partial(run_option, name, option, distribute_tensor(option, mesh, [Replicate()]))
                o, *_ = check(call, tensors, (mesh, cuts), weights)
            assert o == (Shard(axis),), (name, shape, o)
    # DTensor caches sharding decisions. A decision for a call with the gradient of the bias must not be used for a call
    # without it.
    bias = distribute_tensor(normal(device, HEADS, ROWS, KEYS, seed=5), mesh, [Replicate()])
    leaf = distribute_tensor(tensors[0], mesh, [Shard(0)]).requires_grad_()
    k, v = (distribute_tensor(x, mesh, [Shard(0)]) for x in tensors[1:])
    for wanted in (False, True, False):
        bias.requires_grad_(wanted)
        o = attend.attention(leaf, k, v, bias=bias)
        found = torch.autograd.grad(o.sum(), (leaf, bias) if wanted else (leaf,))
        assert [tuple(x.shape) for x in found] == [tuple(x.shape) for x in (leaf, bias)[: len(found)]]
    return True


def test_what_belongs_to_heads_is_cut_with_them(ranks):
    assert ranks(2).run(run_options) == [True, True]


def run_doors(rank, size, device):
    import torch
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = mesh_of(device, size)
    q, k, v = (normal(device, 9, heads, DIM, seed=n) for n, heads in enumerate((HEADS, 2, 2)))
    offsets = torch.tensor([0, 4, 9], dtype=torch.int32, device=device)
    spread = distribute_tensor(offsets, mesh, [Replicate()])

    def packed(q, k, v):
        cu = offsets if type(q) is torch.Tensor else spread
        return attend.attention_varlen(q, k, v, cu, cu, 5, 5, causal=True, return_lse=True)

    o, lse, *_ = check(packed, [q, k, v], (mesh, [[Shard(1)]] * 3), normal(device, 9, HEADS, DIM, seed=9))
    assert (o, lse) == ((Shard(1),), (Shard(0),)), (o, lse)

    qkv = normal(device, BATCH, ROWS, 3, HEADS, DIM)
    side_by_side = lambda qkv: attend.attention_qkvpacked(qkv, causal=True, return_lse=True)
    weights = normal(device, BATCH, ROWS, HEADS, DIM, seed=9)
    o, *_ = check(side_by_side, [qkv], (mesh, [[Shard(3)]]), weights)
    assert o == (Shard(2),), o

    tensors = dense(device, "bhsd")[:3]
    o = attend.sdpa(*(distribute_tensor(x, mesh, [Shard(1)]) for x in tensors), is_causal=True, enable_gqa=True)
    assert o.placements == (Shard(1),)
    torch.testing.assert_close(o.full_tensor(), attend.sdpa(*tensors, is_causal=True, enable_gqa=True))
    return True


def test_every_front_door_takes_them(ranks):
    assert ranks(2).run(run_doors) == [True, True]


def run_mesh_of_two(rank, size, device):
    from torch.distributed.tensor import Shard

    *tensors, weights = dense(device, "bhsd")
    mesh = mesh_of(device, 2, 2)
    call = lambda q, k, v: attend.attention(q, k, v, return_lse=True)
    o, *_ = check(call, tensors, (mesh, [[Shard(0), Shard(1)]] * 3), weights)
    assert o == (Shard(0), Shard(1)), o
    return True


def test_a_mesh_of_batch_and_heads(new_ranks):
    assert new_ranks(4).run(run_mesh_of_two) == [True] * 4


def run_compiled(rank, size, device):
    import torch
    from torch.distributed.tensor import Shard, distribute_tensor

    *tensors, _ = dense(device, "bhsd")
    mesh = mesh_of(device, size)
    q, k, v = (distribute_tensor(x, mesh, [Shard(1)]).requires_grad_() for x in tensors)
    call = lambda q, k, v: attend.attention(q, k, v, causal=True)
    o = torch.compile(call, fullgraph=True, backend="aot_eager")(q, k, v)
    assert o.placements == (Shard(1),)
    torch.testing.assert_close(o.full_tensor(), attend.attention(*tensors, causal=True))
    (dq,) = torch.autograd.grad(o.sum(), q)
    leaf = tensors[0].clone().requires_grad_()
    (want,) = torch.autograd.grad(attend.attention(leaf, *tensors[1:], causal=True).sum(), leaf)
    torch.testing.assert_close(dq.full_tensor(), want, atol=1e-5, rtol=1e-5)
    return True


def test_a_compiler_follows(ranks):
    assert ranks(2).run(run_compiled) == [True, True]


def run_dropout(rank, size, device, is_compiled):
    import torch
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = mesh_of(device, size)
    q, k, v = (distribute_tensor(x, mesh, [Shard(1)]) for x in dense(device, "bhsd")[:3])
    call = lambda q, k, v: attend.attention(q, k, v, dropout_p=0.2, seed=1)
    (torch.compile(call, backend="eager") if is_compiled else call)(q, k, v)


@pytest.mark.parametrize("is_compiled", [False, True])
def test_dropout_is_refused_by_name(ranks, is_compiled):
    for outcome in ranks(2).outcomes(run_dropout, is_compiled):
        assert "dropout_p: 0.2 with DTensor, allowed 0 only" in outcome.text
        assert is_compiled or "UnsupportedError" in outcome.classes
