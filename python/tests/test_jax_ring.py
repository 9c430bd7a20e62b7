"""Tests of attend.jax.ring_attention on four devices: the results are compared with the full sequence in float64, and
the communication of the compiled programs is checked.
"""

import importlib
import re

import pytest

np = pytest.importorskip("numpy")
jax = pytest.importorskip(
    "jax", reason=f"the tests of {__name__} need JAX: `make py-test ATTEND_TEST_JAX=1` installs it"
)

import attend.jax
import jax.numpy as jnp
import oracle
from attend import ring
from jax.sharding import Mesh, PartitionSpec

SIZE = 4
pytestmark = pytest.mark.skipif(len(jax.devices()) < SIZE, reason=f"{len(jax.devices())} devices, these take {SIZE}")


def mapped(function, in_specs, out_specs, mesh):
    if hasattr(jax, "shard_map"):
        return jax.shard_map(function, mesh=mesh, in_specs=in_specs, out_specs=out_specs)
    module = importlib.import_module("jax.experimental.shard_map")
    return module.shard_map(function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_rep=False)


def mesh_of(*shape):
    return Mesh(np.array(jax.devices()[:SIZE]).reshape(shape), ("data", "seq")[-len(shape) :])


def problem(rng, rows, keys=None, batch=2, causal=False, dtype=np.float32, **options):
    """Returns a Problem of oracle.py, in which four query heads share two key heads, and v has another head_dim."""
    keys = rows if keys is None else keys
    normal = lambda *shape: rng.standard_normal(shape).astype(dtype)
    arrays = (normal(batch, 4, rows, 16), normal(batch, 2, keys, 16), normal(batch, 2, keys, 24))
    return oracle.Problem(
        *arrays,
        dout=normal(batch, 4, rows, 24),
        dlse=normal(batch, 4, rows).astype(np.float32),
        causal=causal,
        **options,
    )


def run(p, mesh, sharding="zigzag", layout="bhsd", **options):
    """Returns o, lse and the gradients, with rows in the original order, and the text of the compiled program."""
    size = mesh.shape["seq"]
    batch_axis = "data" if "data" in mesh.shape else None
    axis, spec = layout.index("s"), [batch_axis, None, None, None]
    spec[axis] = "seq"
    spec, of_lse = PartitionSpec(*spec), PartitionSpec(batch_axis, None, "seq")
    options |= {"axis_name": "seq", "sharding": sharding, "layout": layout, "causal": p.causal}
    function = lambda q, k, v: attend.jax.ring_attention(q, k, v, return_lse=True, **options)
    whole = mapped(function, (spec,) * 3, (spec, of_lse), mesh)

    def loss(q, k, v, dout, of_rows):
        o, lse = whole(q, k, v)
        total = jnp.sum(o.astype(jnp.float32) * dout.astype(jnp.float32))
        return total + jnp.sum(lse * of_rows), (o, lse)

    positions = [attend.jax.ring_positions(x.shape[2], size, sharding) for x in (p.q, p.k)]
    turn = (lambda x: x.swapaxes(1, 2)) if layout == "bshd" else (lambda x: x)
    q, dout = (turn(x[:, :, positions[0]]) for x in (p.q, p.dout))
    k, v = (turn(x[:, :, positions[1]]) for x in (p.k, p.v))
    given = (q, k, v, dout, p.dlse[:, :, positions[0]])
    program = jax.jit(jax.grad(loss, argnums=(0, 1, 2), has_aux=True)).lower(*given).compile()
    (dq, dk, dv), (o, lse) = program(*given)
    back = [np.argsort(x) for x in positions]
    results = {"lse": np.asarray(lse)[:, :, back[0]]}
    for name, x in (("o", o), ("dq", dq), ("dk", dk), ("dv", dv)):
        results[name] = turn(np.asarray(x))[:, :, back[name in ("dk", "dv")]]
    return results, program.as_text()


def check(p, found, dtype="f32"):
    for name, want in oracle.solve(p).items():
        oracle.check(name, found[name], want, "f32" if name == "lse" else dtype)


def test_positions_are_those_of_other_rings():
    for sharding in ("zigzag", "contiguous", "striped"):
        found = attend.jax.ring_positions(24, 3, sharding)
        want = [ring.positions(24, rank=rank, size=3, sharding=sharding) for rank in range(3)]
        assert found.tolist() == [row for rows in want for row in rows]


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
@pytest.mark.parametrize("sharding", ["zigzag", "contiguous", "striped"])
def test_causal(sharding, layout, rng):
    p = problem(rng, 40, causal=True)
    found, program = run(p, mesh_of(SIZE), sharding, layout)
    check(p, found)
    assert "collective-permute" in program and not re.search("all-gather|all-to-all|all-reduce", program)


@pytest.mark.parametrize("keys", [40, 24])
def test_every_row_sees_every_key(keys, rng):
    p = problem(rng, 40, keys, scale=0.2, softcap=3.0)
    found, program = run(p, mesh_of(SIZE), "contiguous", scale=0.2, softcap=3.0)
    check(p, found)
    assert "collective-permute" in program and "all-gather" not in program


@pytest.mark.parametrize("sharding", ["zigzag", "contiguous", "striped"])
def test_beside_a_batch_that_is_sharded_too(sharding, rng):
    p = problem(rng, 12, causal=True)
    found, program = run(p, mesh_of(2, 2), sharding)
    check(p, found)
    assert "all-gather" not in program


@pytest.mark.parametrize("sharding", ["contiguous", "striped", "zigzag"])
def test_few_rows(sharding, rng):
    p = problem(rng, 8 if sharding == "zigzag" else 4, causal=True, batch=1)
    check(p, run(p, mesh_of(SIZE), sharding)[0])


def test_bfloat16(rng):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    p = problem(rng, 32, causal=True, dtype=ml_dtypes.bfloat16)
    found, _ = run(p, mesh_of(SIZE))
    assert found["o"].dtype == found["dk"].dtype == ml_dtypes.bfloat16 and found["lse"].dtype == np.float32
    check(p, found, "bf16")


def test_without_the_log_sum_exp_and_under_checkpoint(rng):
    p = problem(rng, 16, causal=True)
    p.dlse = np.zeros_like(p.dlse)
    spec, mesh = PartitionSpec(None, None, "seq"), mesh_of(SIZE)
    function = jax.checkpoint(
        lambda *x: attend.jax.ring_attention(*x, axis_name="seq", causal=True, sharding="striped")
    )
    whole = mapped(function, (spec,) * 3, spec, mesh)
    positions = attend.jax.ring_positions(16, SIZE, "striped")
    q, k, v, dout = (x[:, :, positions] for x in (p.q, p.k, p.v, p.dout))
    o, pull = jax.vjp(jax.jit(whole), q, k, v)
    results = dict(zip(("o", "dq", "dk", "dv"), (o, *pull(jnp.asarray(dout)))))
    found = {name: np.asarray(x)[:, :, np.argsort(positions)] for name, x in results.items()}
    for name, want in oracle.solve(p).items():
        if name != "lse":
            oracle.check(name, found[name], want, "f32")


def test_refusals():
    x = jnp.ones((1, 2, 8, 4))
    mesh, spec = mesh_of(SIZE), PartitionSpec(None, None, "seq")

    def call(k=x, **options):
        function = lambda q, k: attend.jax.ring_attention(q, k, k, axis_name="seq", **options)
        jax.eval_shape(mapped(function, (spec, spec), spec, mesh), x, k)

    for arguments, message in (
        (dict(sharding="spiral"), "sharding: 'spiral', allowed 'zigzag'"),
        (dict(layout="thd"), "layout: "),
        (dict(scale=float("nan")), "scale: nan"),
        (dict(k=x.astype(jnp.bfloat16)), "k: dtype"),
        (dict(k=jnp.ones((1, 2, 12, 4)), causal=True), "k: 3 rows, allowed 2 as q with causal"),
    ):
        with pytest.raises(attend.ArgumentError, match=f"^{message}"):
            call(**arguments)
    with pytest.raises(attend.ArgumentError, match="^q: 1 rows, allowed an even number with sharding='zigzag'"):
        function = lambda q: attend.jax.ring_attention(q, q, q, axis_name="seq", causal=True)
        jax.eval_shape(mapped(function, (spec,), spec, mesh), jnp.ones((1, 2, 4, 4)))
    with pytest.raises(attend.ArgumentError, match="^axis_name: 'seq', allowed an axis of the mesh"):
        attend.jax.ring_attention(x, x, x, axis_name="seq")
    with pytest.raises(attend.ArgumentError, match="^seqlen: 12, allowed a multiple of 8"):
        attend.jax.ring_positions(12, SIZE)


def test_no_second_derivative():
    mesh, spec = mesh_of(SIZE), PartitionSpec(None, None, "seq")
    whole = mapped(lambda q: attend.jax.ring_attention(q, q, q, axis_name="seq"), (spec,), spec, mesh)
    once = jax.grad(lambda q: whole(q).sum())
    with pytest.raises((attend.UnsupportedError, TypeError)):
        jax.grad(lambda q: once(q).sum())(jnp.ones((1, 2, 8, 4)))
