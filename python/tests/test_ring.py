"""Tests of attend.ring.ring_attention on processes of torch.distributed, with options, shardings and sizes from a
covering array.

Each result is compared with float64 under the budgets of one device, and with `attend.attention` of the full problem.
"""

import inspect
import re
import subprocess
import sys

import covering
import pytest
from conftest import SEED

np = pytest.importorskip("numpy")
pytest.importorskip("torch")

import attend
import problems
from attend import ring
from oracle import check, solve

OPTIONS = {name: values for name, values in problems.OPTIONS.items() if name != "sinks"} | {
    "sharding": ["zigzag", "contiguous", "striped"],
    "algorithm": ["automatic", "exchange", "all_gather", "all_to_all", "two_level"],
    "size": [2, 4],
    "bias": [None, "full", "heads", "keys"],
    "seqlens": [(1, 1), (17, 33), (33, 17), (48, 48), (3, 40), (0, 5), (5, 0)],
    "head_dims": [(16, 16), (8, 24), (1, 3)],
    "strides": ["dense", "packed"],
    "batch": [1, 2],
}
CASES = covering.cases(OPTIONS, SEED)
SHARDINGS = OPTIONS["sharding"]


def tensor(x, device, dtype=None):
    """Converts a NumPy array to a torch tensor. bfloat16 and float16 are converted through float64."""
    import torch

    if x is None:
        return None
    if x.dtype == bool:
        return torch.from_numpy(x).to(device)
    kinds = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32, "f64": torch.float64}
    name = {"float16": "f16", "bfloat16": "bf16", "float32": "f32"}.get(x.dtype.name, "f64") if dtype is None else dtype
    return torch.from_numpy(x.astype(np.float64)).to(device, kinds[name])


def numbers(x):
    return x.detach().double().cpu().numpy()


def rows_of(x, whole_rows, **kw):
    """Returns the rank's rows of a bias or mask. Returns it unchanged if it has the same entries for all rows."""
    return x if x is None or x.dim() < 2 or x.shape[-2] != whole_rows or whole_rows == 1 else ring.shard(x, -2, **kw)


def run_case(rank, size, device, case, p, seed):
    """Runs one rank of a case. Returns its rows of o, lse, dq, dk, dv."""
    import torch

    sharding, layout = case["sharding"], case["layout"]
    own = dict(rank=rank, size=size, sharding=sharding)
    inputs = []
    for x in (p.q, p.k, p.v, p.dout):
        mine = ring.shard(tensor(x, device), 2, **own)
        mine = mine.transpose(1, 2).contiguous() if layout == "bshd" else mine
        if case["strides"] == "packed":
            mine = torch.stack([mine, mine, mine], 2)[:, :, 1]
        inputs.append(mine.detach().requires_grad_())
    q, k, v, dout = inputs
    options = problems.options_of(p, seed) | {
        "bias": rows_of(tensor(p.bias, device), p.q.shape[2], **own),
        "mask": rows_of(tensor(p.mask, device), p.q.shape[2], **own),
        "alibi_slopes": tensor(p.alibi_slopes, device),
    }
    spread = dict(sharding=sharding, algorithm=algorithm_of(case, size))
    o, lse = ring.ring_attention(q, k, v, **spread, layout=layout, return_lse=True, **options)
    dlse = ring.shard(tensor(p.dlse, device), 2, **own) if case["dlse"] else torch.zeros_like(lse)
    if case["dlse"]:
        torch.autograd.backward([o, lse], [dout.detach(), dlse])
    else:
        o.backward(dout.detach())
    assert o.dtype == q.dtype and all(x.grad.dtype == x.dtype for x in (q, k, v))
    found = {"o": o, "dq": q.grad, "dk": k.grad, "dv": v.grad}
    found = {name: x.transpose(1, 2) if layout == "bshd" else x for name, x in found.items()}
    return {name: numbers(x) for name, x in {**found, "lse": lse}.items()}


def algorithm_of(case, size):
    """Returns the algorithm of the case, or another algorithm if the number of ranks does not divide the heads."""
    algorithm = case["algorithm"]
    cannot = any(heads % (size if algorithm == "all_to_all" else 2) for heads in case["heads"])
    is_dealt_out = algorithm in ("all_to_all", "two_level")
    return "exchange" if is_dealt_out and (cannot or (algorithm == "two_level" and size < 4)) else algorithm


def joined(parts, sharding, **kw):
    return {name: ring.join([part[name] for part in parts], 2, sharding=sharding, **kw) for name in parts[0]}


def is_refused_on_gpus(case):
    gathers_columns = case["sharding"] == "striped" or algorithm_of(case, case["size"]) in ("all_to_all", "two_level")
    return case["dtype"] == "f64" or (gathers_columns and (case["bias"] or case["mask"]))


@pytest.mark.parametrize("index", range(len(CASES)))
def test_covering_array(ranks, ring_device, index):
    case = CASES[index]
    if ring_device == "cuda" and is_refused_on_gpus(case):
        pytest.skip("refused on a GPU: docs/ring.md")
    rng = np.random.default_rng([SEED, index])
    p = problems.make(case, rng)
    seed = int(rng.integers(2**63)) * 2 + 1
    if p.dropout_p:
        p.keep = problems.dropout_pattern(p, seed)
    truth, dtype = solve(p), case["dtype"]
    found = joined(ranks(case["size"]).run(run_case, case, p, seed), case["sharding"])
    wide = "f32" if dtype in ("f16", "bf16") else dtype
    for name, x in found.items():
        check(name, x, truth[name], wide if name == "lse" else dtype)


PLAIN = dict(
    algorithm="exchange", dtype="f32", layout="bhsd", strides="dense", dlse=False, batch=1, heads=(4, 2),
    head_dims=(16, 16), seqlens=(37, 37), visible={"causal": True}, softcap=0.0, scale=None, bias=None, mask=False,
    alibi=None, dropout_p=0.0,
)  # fmt: skip


@pytest.mark.parametrize("algorithm", OPTIONS["algorithm"])
@pytest.mark.parametrize("sharding", SHARDINGS)
def test_it_is_attention_of_the_whole(ranks, sharding, algorithm, rng):
    """The result equals that of one device, except for the order of sums."""
    case = PLAIN | {"heads": (8, 4), "sharding": sharding, "algorithm": algorithm}
    p = problems.make(case, rng)
    o, lse = attend.attention(p.q, p.k, p.v, causal=True, return_lse=True)
    want = dict(zip(("dq", "dk", "dv"), attend.backward(p.dout, p.q, p.k, p.v, o, lse, causal=True)))
    found = joined(ranks(4).run(run_case, case, p, 0), sharding)
    for name, x in (want | {"o": o, "lse": lse}).items():
        error = np.abs(found[name] - x).max()
        print(f"{name}: {error:.2e}")
        assert error <= 1e-5


def dropped(rank, size, device, sharding, seed):
    """Returns the rank's rows of the probabilities after dropout, by computing attention with the identity matrix as
    v.
    """
    import torch

    q, v = torch.zeros(2, 3, 40, 8), torch.eye(40).expand(2, 3, 40, 40)
    q, v = (ring.shard(x, 2, sharding=sharding).to(device) for x in (q, v))
    return {"kept": numbers(ring.ring_attention(q, q, v, sharding=sharding, dropout_p=0.4, seed=seed)) > 0}


@pytest.mark.parametrize("sharding", SHARDINGS)
def test_a_seed_drops_what_it_drops_on_one_device(ranks, sharding, rng):
    seed = int(rng.integers(2**62))
    q, v = np.zeros((2, 3, 40, 8), np.float32), np.broadcast_to(np.eye(40, dtype=np.float32), (2, 3, 40, 40))
    want = attend.attention(q, q, v, dropout_p=0.4, seed=seed) > 0
    found = joined(ranks(2).run(dropped, sharding, seed), sharding)["kept"]
    assert 0.5 < want.mean() < 0.7
    assert np.array_equal(found, want)


LENGTHS = [0, 5, 5, 23, 24, 40]  # cu_seqlens with an empty and a short sequence


def run_packed(rank, size, device, sharding, dtype, arrays, options):
    import torch

    q, k, v, dout = (
        ring.shard(tensor(x, device, dtype), 0, sharding=sharding, cu_seqlens=LENGTHS).requires_grad_() for x in arrays
    )
    cu_seqlens = torch.tensor(LENGTHS, dtype=torch.int32, device=device)
    o, lse = ring.ring_attention(
        q, k, v, sharding=sharding, cu_seqlens_q=cu_seqlens, cu_seqlens_k=cu_seqlens, return_lse=True, **options
    )
    o.backward(dout.detach())
    found = {"o": o, "dq": q.grad, "dk": k.grad, "dv": v.grad, "lse": lse.T[..., None]}
    return {name: numbers(x) for name, x in found.items()}


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("sharding", SHARDINGS)
@pytest.mark.parametrize("options", [{}, {"causal": True, "dropout_p": 0.2, "seed": 5}, {"window": (4, 1)}], ids=str)
def test_packed_sequences(ranks, size, sharding, options, rng):
    arrays = [rng.standard_normal((40, heads, 16)).astype(np.float32) for heads in (4, 2, 2, 4)]
    q, k, v, dout = arrays
    offsets = np.array(LENGTHS, np.int32)
    kw = dict(cu_seqlens_q=offsets, cu_seqlens_k=offsets, max_seqlen_q=18, max_seqlen_k=18, **options)
    o, lse = attend.forward(q, k, v, **kw)
    dq, dk, dv = attend.backward(dout, q, k, v, o, lse, **kw)
    parts = ranks(size).run(run_packed, sharding, "f32", arrays, options)
    for name, want in {"o": o, "dq": dq, "dk": dk, "dv": dv, "lse": lse.T[..., None]}.items():
        found = ring.join([part[name] for part in parts], 0, sharding=sharding, cu_seqlens=LENGTHS)
        error = np.abs(found - want).max()
        print(f"{name}: {error:.2e}")
        assert error <= 1e-5


def run_in_half_precision(rank, size, device, arrays):
    import torch

    q, k, v = (ring.shard(tensor(x, device), 2).requires_grad_() for x in arrays)
    with torch.autocast(device.type, torch.bfloat16):
        o = ring.ring_attention(q, k, v, causal=True)
    o.float().sum().backward()
    return str(o.dtype), str(q.grad.dtype)


def test_autocast(ranks, rng):
    arrays = [rng.standard_normal((1, 2, 20, 8)).astype(np.float32) for _ in range(3)]
    assert ranks(2).run(run_in_half_precision, arrays) == [("torch.bfloat16", "torch.float32")] * 2


@pytest.mark.parametrize("sharding", SHARDINGS)
@pytest.mark.parametrize("cu_seqlens", [None, [0, 3, 3, 20, 21]], ids=["one", "packed"])
@pytest.mark.parametrize("size", [1, 2, 3, 30])
def test_shards_are_a_partition(sharding, cu_seqlens, size):
    import torch

    x = torch.arange(42).reshape(2, 21)
    parts = [ring.shard(x, 1, rank=r, size=size, sharding=sharding, cu_seqlens=cu_seqlens) for r in range(size)]
    assert sorted(torch.cat(parts, 1)[0].tolist()) == list(range(21))
    assert torch.equal(ring.join(parts, 1, sharding=sharding, cu_seqlens=cu_seqlens), x)
    array = ring.shard(x.numpy(), -1, rank=0, size=size, sharding=sharding, cu_seqlens=cu_seqlens)
    assert isinstance(array, np.ndarray) and np.array_equal(array, parts[0].numpy())
    held = ring.positions(21, rank=0, size=size, sharding=sharding, cu_seqlens=cu_seqlens)
    assert held == parts[0][0].tolist()


def test_who_holds_what_is_as_documented():
    for sharding, want in {"contiguous": [0, 1, 2, 3], "zigzag": [0, 1, 10, 11], "striped": [0, 3, 6, 9]}.items():
        assert ring.positions(12, rank=0, size=3, sharding=sharding) == want


def run_unshard(rank, size, device, sharding):
    import torch

    x = torch.arange(2 * 11, device=device).reshape(2, 11)
    return torch.equal(ring.unshard(ring.shard(x, 1, sharding=sharding), 1, sharding=sharding), x)


@pytest.mark.parametrize("sharding", SHARDINGS)
def test_unshard_gives_every_rank_the_whole(ranks, sharding):
    assert ranks(2).run(run_unshard, sharding) == [True, True]


@pytest.mark.parametrize("name", ["ring_attention", "shard", "unshard", "connect", "context_parallel", "explain"])
def test_every_parameter_is_documented(name):
    function = getattr(ring, name)
    for parameter in inspect.signature(function).parameters:
        assert re.search(rf"\b{parameter}\b[^:\n]*:", function.__doc__), f"{name} does not describe {parameter}"


def test_explain():
    plan = ring.explain(4, 1, 16, 65536, 128, causal=True, heads_kv=2)
    found = {entry["algorithm"]: entry for entry in plan}
    assert set(found) == {"exchange", "all_gather", "all_to_all", "two_level"}
    assert sum(entry["chosen"] for entry in plan) == 1
    # all_to_all cannot divide 2 heads of k among 4 ranks.
    assert found["all_to_all"]["lack"] and not found["exchange"]["lack"]
    # The keys and values of a rank are passed on to three other ranks.
    assert found["exchange"]["sent_bytes"] == 3 * (65536 // 4) * 2 * (128 + 128) * 2
    assert len(found["exchange"]["steps"]) >= 4 and found["exchange"]["estimated_us"] > 0
    for options, text in (
        (dict(algorithm="pigeons"), "algorithm: 'pigeons', allowed"),
        (dict(dtype="f8"), "dtype: 'f8', allowed 'f32'"),
        (dict(algorithm="all_to_all", heads_kv=2), ""),
        (dict(algorithm="two_level", heads_kv=1), "num_ranks: 4 with 16 heads of q and 1 of k, allowed"),
    ):
        with pytest.raises(attend.Error, match=f"^{text}"):
            ring.explain(4, 1, 16, 4096, 64, **options)


def test_arrays_need_no_torch():
    code = "import sys; sys.modules['torch'] = None; import numpy as np; from attend import ring; "
    code += "print(ring.join([ring.shard(np.arange(9), 0, rank=r, size=2) for r in range(2)], 0).tolist())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout.strip() == str(list(range(9))), done.stderr


def test_shard_is_differentiable():
    import torch

    x = torch.zeros(9, requires_grad=True)
    ring.shard(x, 0, rank=1, size=2, sharding="striped").sum().backward()
    assert x.grad.tolist() == [0, 1] * 4 + [0]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (dict(sharding="spiral", rank=0, size=2), "sharding: 'spiral', allowed 'contiguous', 'zigzag', 'striped'"),
        (dict(rank=2, size=2), "rank: 2, allowed 0 to 1"),
        (dict(rank=0), "rank: given without size or size without rank, allowed both or neither"),
        (dict(rank=0, size=2, cu_seqlens=[0, 4]), "cu_seqlens"),
    ],
)
def test_a_wrong_shard_is_named(options, text):
    with pytest.raises(attend.ArgumentError, match=f"^{text}"):
        ring.shard(np.zeros(5), 0, **options)


def dropped_without_a_seed(rank, size, device):
    """Returns the probabilities after dropout of two calls, with torch generators that differ from rank to rank."""
    import torch

    torch.manual_seed(100 + rank)
    q, v = torch.zeros(2, 3, 40, 8), torch.eye(40).expand(2, 3, 40, 40)
    q, v = (ring.shard(x, 2).to(device) for x in (q, v))
    return {name: numbers(ring.ring_attention(q, q, v, dropout_p=0.4)) > 0 for name in ("first", "second")}


def test_without_a_seed_all_ranks_drop_by_the_one_that_rank_0_draws(ranks, torch):
    q, v = np.zeros((2, 3, 40, 8), np.float32), np.broadcast_to(np.eye(40, dtype=np.float32), (2, 3, 40, 40))
    found = joined(ranks(2).run(dropped_without_a_seed), "zigzag")
    generator = torch.Generator().manual_seed(100)
    for name in ("first", "second"):
        seed = int(torch.randint(2**62, (), generator=generator))
        assert np.array_equal(found[name], attend.attention(q, q, v, dropout_p=0.4, seed=seed) > 0)
