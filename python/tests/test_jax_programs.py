"""Tests of the programs that XLA compiles from attend.jax: no copies, no communication, export, and refusals."""

import contextlib
import importlib
import re
import threading

import pytest
from conftest import SEED

np = pytest.importorskip("numpy")
pytest.importorskip("ml_dtypes")
jax = pytest.importorskip(
    "jax", reason=f"the tests of {__name__} need JAX: `make py-test ATTEND_TEST_JAX=1` installs it"
)

import attend
import attend.jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

# A JAX without `set_mesh` finds the mesh of a program only through this context.
in_mesh = (lambda mesh: mesh) if not hasattr(jax, "set_mesh") else (lambda mesh: contextlib.nullcontext())


def arrays(*shapes, dtype=np.float32):
    rng = np.random.default_rng(SEED)
    return [jnp.asarray(rng.standard_normal(shape).astype(np.float32), dtype) for shape in shapes]


def gradients_of(attention):
    return jax.grad(lambda *x: attention(*x).astype(jnp.float32).sum(), argnums=(0, 1, 2))


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_nothing_is_copied(layout, dtype):
    q, k, v = arrays((2, 8, 8, 16), (2, 8, 8, 16), (2, 8, 8, 16), dtype=dtype)
    attention = lambda q, k, v: attend.jax.attention(q, k, v, layout=layout, causal=True)
    text = jax.jit(attention).lower(q, k, v).compile().as_text()
    assert text.count('custom_call_target="attend_forward_1"') == 1
    assert not re.findall(r" (transpose|copy|convert|fusion)\(", text)
    text = jax.jit(lambda *x: jax.vjp(attention, *x[:3])[1](x[3])).lower(q, k, v, q).compile().as_text()
    assert text.count('custom_call_target="attend_backward_1"') == 1
    assert not re.findall(r" (transpose|convert|fusion)\(", text)


def test_the_gradient_of_a_bias_costs_only_where_it_is_asked_for():
    q, k, v, bias = arrays((1, 2, 8, 16), (1, 2, 8, 16), (1, 2, 8, 16), (1, 2, 8, 8))
    loss = lambda q, bias: attend.jax.attention(q, k, v, bias=bias).sum()
    assert "dbias" not in jax.jit(jax.grad(loss)).lower(q, bias).as_text()
    assert "dbias" in jax.jit(jax.grad(loss, argnums=1)).lower(q, bias).as_text()


def test_a_policy_of_checkpoint_keeps_what_backward_needs():
    q, k, v = arrays((1, 2, 8, 16), (1, 2, 8, 16), (1, 2, 8, 16))
    layer = lambda q, k, v: jnp.sin(attend.jax.attention(jnp.sin(q), k, v))
    for policy, is_saved in ((None, False), (jax.checkpoint_policies.save_only_these_names("attend_lse"), True)):
        _, pull = jax.vjp(jax.checkpoint(layer, policy=policy), q, k, v)
        assert ((1, 2, 8) in {x.shape for x in jax.tree.leaves(pull)}) == is_saved


@pytest.mark.parametrize("heads_k", [8, 4, 1])
@pytest.mark.parametrize("axes", ["batch", "heads", "both"])
def test_shards_need_no_communication(heads_k, axes):
    if len(jax.devices()) < 4:
        pytest.skip("needs 4 devices")
    if heads_k == 1 and axes != "batch":
        pytest.skip("one key head is on one device")
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("x", "y"))
    spec = {"batch": ("x", None), "heads": (None, None, "y"), "both": ("x", None, "y")}[axes]
    placed = NamedSharding(mesh, PartitionSpec(*spec))
    q, k, v = arrays((4, 16, 8, 32), (4, 16, heads_k, 32), (4, 16, heads_k, 32))
    attention = lambda q, k, v: attend.jax.attention(q, k, v, layout="bshd", causal=True)
    want, want_gradients = attention(q, k, v), gradients_of(attention)(q, k, v)
    q, k, v = (jax.device_put(x, placed) for x in (q, k, v))
    with in_mesh(mesh):
        for function, truth in ((attention, (want,)), (gradients_of(attention), want_gradients)):
            compiled = jax.jit(function).lower(q, k, v).compile()
            text = compiled.as_text()
            assert "attend_forward_1" in text
            assert not re.findall(r"all-gather|all-to-all|collective-permute|all-reduce|dynamic-slice", text)
            found = compiled(q, k, v)
            for x, y in zip(found if isinstance(found, tuple) else (found,), truth):
                assert x.sharding.is_equivalent_to(placed, 4)
                np.testing.assert_allclose(x, y, atol=1e-5)


@pytest.mark.parametrize("heads_k", [8, 4])
@pytest.mark.parametrize("spec", [("x",), ("x", None, "y"), (None, None, ("x", "y")), ("x", "y")])
def test_shardings_that_are_a_part_of_types(heads_k, spec):
    if len(jax.devices()) < 4 or not hasattr(jax, "set_mesh"):
        pytest.skip("needs 4 devices, and a JAX with explicit shardings")
    mesh = jax.make_mesh((2, 2), ("x", "y"), axis_types=(jax.sharding.AxisType.Explicit,) * 2)
    q, k, v = arrays((4, 16, 8, 32), (4, 16, heads_k, 32), (4, 16, heads_k, 32))
    attention = lambda q, k, v: attend.jax.attention(q, k, v, layout="bshd", causal=True)
    want, want_gradients = attention(q, k, v), gradients_of(attention)(q, k, v)
    shards = [jax.device_put(x, NamedSharding(mesh, PartitionSpec(*spec))) for x in (q, k, v)]
    with jax.set_mesh(mesh):
        found = jax.jit(attention)(*shards)
        np.testing.assert_allclose(found, want, atol=1e-5)
        for x, y, z in zip(jax.jit(gradients_of(attention))(*shards), want_gradients, shards):
            np.testing.assert_allclose(x, y, atol=1e-5)
            assert x.sharding.is_equivalent_to(z.sharding, 4)
        if spec != ("x", "y"):  # in this case the rows are gathered
            assert found.sharding.is_equivalent_to(shards[0].sharding, 4)
            assert "all-gather" not in jax.jit(attention).lower(*shards).compile().as_text()


@pytest.mark.parametrize("spec", [(None, "x"), ("x",), (None, None, None, "y")])
def test_vmap_of_shardings_that_are_a_part_of_types(spec):
    if len(jax.devices()) < 4 or not hasattr(jax, "set_mesh"):
        pytest.skip("needs 4 devices, and a JAX with explicit shardings")
    if spec == ("x",) and jax.__version_info__ < (0, 10):
        pytest.skip("JAX 0.8 takes the axis of a mapped dimension out of the mesh, and shard_map then refuses it")
    mesh = jax.make_mesh((2, 2), ("x", "y"), axis_types=(jax.sharding.AxisType.Explicit,) * 2)
    tensors = arrays((2, 4, 16, 8, 32), (2, 4, 16, 4, 32), (2, 4, 16, 4, 32))
    gradients = gradients_of(jax.vmap(lambda q, k, v: attend.jax.attention(q, k, v, layout="bshd", causal=True)))
    want = gradients(*tensors)
    shards = [jax.device_put(x, NamedSharding(mesh, PartitionSpec(*spec))) for x in tensors]
    with jax.set_mesh(mesh):
        compiled = jax.jit(gradients).lower(*shards).compile()
        assert not re.findall(r"all-gather|all-to-all|collective-permute|all-reduce", compiled.as_text())
        for x, y in zip(compiled(*shards), want):
            np.testing.assert_allclose(x, y, atol=1e-5)


def test_options_are_cut_with_the_heads():
    if len(jax.devices()) < 4:
        pytest.skip("needs 4 devices")
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("x", "y"))
    placed = NamedSharding(mesh, PartitionSpec("x", "y"))
    q, k, v, bias, sinks = arrays((4, 4, 9, 16), (4, 2, 9, 16), (4, 2, 9, 16), (4, 1, 9), (4,))
    slopes = jnp.float32([0.5, 0.25, 0.125, 0.0625])

    def loss(q, bias, sinks):
        return attend.jax.attention(q, k, v, bias=bias, sinks=sinks, alibi_slopes=slopes).sum()

    want = jax.grad(loss, argnums=(0, 1, 2))(q, bias, sinks)
    with in_mesh(mesh):
        found = jax.jit(jax.grad(loss, argnums=(0, 1, 2)))(jax.device_put(q, placed), bias, sinks)
    for x, y in zip(found, want):
        np.testing.assert_allclose(x, y, atol=1e-5)


def test_dropout_of_shards_is_that_of_the_whole():
    if len(jax.devices()) < 4:
        pytest.skip("needs 4 devices")
    mesh = Mesh(np.array(jax.devices()[:4]), ("x",))
    q, k, v = arrays((4, 2, 9, 16), (4, 2, 9, 16), (4, 2, 9, 16))
    attention = jax.jit(lambda q, k, v: attend.jax.attention(q, k, v, dropout_p=0.5, seed=3))
    want = attention(q, k, v)
    with in_mesh(mesh):
        found = attention(*(jax.device_put(x, NamedSharding(mesh, PartitionSpec("x"))) for x in (q, k, v)))
    np.testing.assert_array_equal(found, want)


def test_inside_of_shard_map():
    if len(jax.devices()) < 4:
        pytest.skip("needs 4 devices")
    module = jax if hasattr(jax, "shard_map") else importlib.import_module("jax.experimental.shard_map")
    mesh = Mesh(np.array(jax.devices()[:4]), ("x",))
    q, k, v = arrays((4, 2, 9, 16), (4, 2, 9, 16), (4, 2, 9, 16))
    attention = lambda q, k, v: attend.jax.attention(q, k, v, causal=True)
    spec = PartitionSpec("x")
    # This version of shard_map has no replication rule for custom_vmap.
    options = {} if module is jax else {"check_rep": False}
    mapped = module.shard_map(attention, mesh=mesh, in_specs=(spec, spec, spec), out_specs=spec, **options)
    np.testing.assert_allclose(jax.jit(mapped)(q, k, v), attention(q, k, v), atol=1e-6)
    for x, y in zip(jax.jit(gradients_of(mapped))(q, k, v), gradients_of(attention)(q, k, v)):
        np.testing.assert_allclose(x, y, atol=1e-5)


@pytest.mark.parametrize("argnums", [(0,), (0, 1, 2), (0, 4), (3,)])
def test_options_inside_of_shard_map(argnums):
    if len(jax.devices()) < 4 or not hasattr(jax, "shard_map"):
        pytest.skip("needs 4 devices, and a JAX that knows what varies")
    mesh = Mesh(np.array(jax.devices()[:4]), ("x",))
    tensors = arrays((4, 2, 9, 16), (4, 2, 9, 16), (4, 2, 9, 16), (4, 2, 9, 9), (2,))

    def attention(q, k, v, bias, sinks):
        slopes = jnp.float32([0.5, 0.25])  # like sinks, the slopes are the same on every device
        return attend.jax.attention(q, k, v, bias=bias, sinks=sinks, alibi_slopes=slopes, causal=True)

    spec = PartitionSpec("x")
    mapped = jax.shard_map(attention, mesh=mesh, in_specs=(spec,) * 4 + (PartitionSpec(),), out_specs=spec)
    found, want = (
        jax.jit(jax.grad(lambda *x, f=f: jnp.sin(f(*x)).sum(), argnums))(*tensors) for f in (mapped, attention)
    )
    for x, y in zip(found, want):
        np.testing.assert_allclose(x, y, atol=1e-5)


def test_export_with_an_open_batch():
    export = pytest.importorskip("jax.export")
    pytest.importorskip("flatbuffers", reason="jax.export needs flatbuffers")
    q, k, v = arrays((3, 9, 2, 16), (3, 9, 2, 16), (3, 9, 2, 16))
    attention = jax.jit(lambda q, k, v: attend.jax.attention(q, k, v, layout="bshd", causal=True))
    (batch,) = export.symbolic_shape("b")
    shape = jax.ShapeDtypeStruct((batch, 9, 2, 16), jnp.float32)
    exported = export.export(attention, disabled_checks=attend.jax.disabled_checks())(shape, shape, shape)
    again = export.deserialize(exported.serialize())
    np.testing.assert_array_equal(again.call(q, k, v), attention(q, k, v))


def test_export_with_open_rows_refuses_offsets_of_other_lengths():
    """If lengths are symbolic while the program is traced, wrong offsets can only be refused at run time."""
    export = pytest.importorskip("jax.export")
    pytest.importorskip("flatbuffers", reason="jax.export needs flatbuffers")
    (q,) = arrays((8, 2, 8))
    attention = jax.jit(lambda q, a, b: attend.jax.attention_varlen(q, q, q, a, b, 8, 8))
    (rows,) = export.symbolic_shape("t")
    shapes = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in
              (((rows, 2, 8), jnp.float32), ((5,), jnp.int32), ((3,), jnp.int32))]  # fmt: skip
    exported = export.export(attention, disabled_checks=attend.jax.disabled_checks())(*shapes)
    offsets = [jnp.asarray(x, jnp.int32) for x in ([0, 2, 4, 6, 8], [0, 4, 8])]
    with pytest.raises(Exception, match="cu_seqlens_k: 3 entries, allowed as many as cu_seqlens_q, 5"):
        jax.block_until_ready(exported.call(q, *offsets))


def test_export_with_an_open_batch_refuses_settings_and_dtypes():
    export = pytest.importorskip("jax.export")
    (batch,) = export.symbolic_shape("b")

    def traced(dtype, **options):
        shapes = [jax.ShapeDtypeStruct((batch, 2, 9, 16), x) for x in (jnp.float32, dtype, dtype)]
        jax.eval_shape(lambda *x: attend.jax.attention(*x, **options), *shapes)

    traced(jnp.float32, causal=True)
    with pytest.raises(attend.Error, match="scale: nan"):
        traced(jnp.float32, scale=float("nan"))
    with pytest.raises(attend.Error, match="k: dtype"):
        traced(jnp.bfloat16)


def test_calls_from_many_threads():
    q, k, v = arrays((2, 4, 64, 32), (2, 4, 64, 32), (2, 4, 64, 32))
    attention = jax.jit(lambda q, k, v: attend.jax.attention(q, k, v))
    want, found = np.asarray(attention(q, k, v)), []
    threads = [threading.Thread(target=lambda: found.append(np.asarray(attention(q, k, v)))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8 and all((x == want).all() for x in found)


def test_the_same_program_for_other_seeds():
    q, k, v = arrays((1, 2, 9, 16), (1, 2, 9, 16), (1, 2, 9, 16))
    traced = []

    @jax.jit
    def attention(seed):
        traced.append(seed)
        return attend.jax.attention(q, k, v, dropout_p=0.5, seed=seed)

    assert (attention(1) != attention(2)).any() and len(traced) == 1
    dropped = attend.jax.attention(q, k, v, dropout_p=0.5, seed=np.array([3]))
    assert (dropped == attend.jax.attention(q, k, v, dropout_p=0.5, seed=3)).all()


REFUSED = [
    ({}, {"k": (1, 3, 9, 16)}, "q: 4 heads|k:"),
    ({}, {"q": (4, 9, 16)}, "q: 3 dimensions, allowed 4"),
    ({}, {"v": (1, 2, 8, 16)}, "v: "),
    ({"layout": "sbhd"}, {}, "layout: 'sbhd', allowed 'bhsd', 'bshd'"),
    ({"window": (1, 2, 3)}, {}, "window: 3 values, allowed"),
    ({"scale": float("nan")}, {}, "scale: nan"),
    ({"softcap": -1.0}, {}, "softcap: -1"),
    ({"softcap": "much"}, {}, "softcap: "),
    ({"causal": 7.5}, {}, "causal: "),
    ({"dropout_p": 0.5}, {}, "seed: None with dropout_p"),
    ({"dropout_p": 1.0, "seed": 1}, {}, "dropout_p: 1"),
    ({"dropout_p": 0.5, "seed": -1}, {}, "seed: -1, allowed 0 to"),
    ({"dropout_p": 0.5, "seed": 1.5}, {}, "seed: float, allowed"),
    ({"compute": "fast"}, {}, "compute: 'fast' is unknown"),
    ({}, {"bias": (2, 9, 8)}, "bias: "),
    ({}, {"bias": (1, 1, 1, 9, 9)}, "bias: 5 dimensions"),
    ({}, {"sinks": (3,)}, "sinks: "),
    ({}, {"alibi_slopes": (2, 3)}, "alibi_slopes: "),
]


@pytest.mark.parametrize("options, shapes, line", REFUSED)
def test_bad_input_is_refused_with_one_line(options, shapes, line):
    given = {"q": (1, 4, 9, 16), "k": (1, 2, 9, 16), "v": (1, 2, 9, 16)} | shapes
    tensors = dict(zip(given, arrays(*given.values())))
    for function in (attend.jax.attention, jax.jit(lambda **x: attend.jax.attention(**x, **options))):
        more = options if function is attend.jax.attention else {}
        with pytest.raises(attend.Error, match=line) as caught:
            function(**tensors, **more)
        assert "\n" not in str(caught.value)


def test_other_things_are_refused():
    q, k, v = arrays((1, 2, 9, 16), (1, 2, 9, 16), (1, 2, 9, 16))
    with pytest.raises(attend.ArgumentError, match="v: builtins.list, allowed a JAX or NumPy array"):
        attend.jax.attention(q, k, v.tolist())
    with pytest.raises(attend.ArgumentError, match="k: dtype f16, allowed f32 as q"):
        attend.jax.attention(q, k.astype(jnp.float16), v)
    with pytest.raises(attend.ArgumentError, match="q: dtype int32, allowed|q: dtype i32, allowed"):
        attend.jax.attention(*(x.astype(jnp.int32) for x in (q, k, v)))
    with pytest.raises(attend.ArgumentError, match="scale: traced by JAX, allowed a number"):
        jax.jit(lambda scale: attend.jax.attention(q, k, v, scale=scale))(0.5)
    with pytest.raises(attend.ArgumentError, match="alibi_slopes: differentiated"):
        jax.grad(lambda slopes: attend.jax.attention(q, k, v, alibi_slopes=slopes).sum())(jnp.ones(2))
    with pytest.raises(attend.UnsupportedError, match="dropout_p: with vmap, allowed 0 only"):
        jax.vmap(lambda q: attend.jax.attention(q, k, v, dropout_p=0.5, seed=1))(q[None])
    loss = lambda q: attend.jax.attention(q, k, v).sum()
    for second in (jax.grad(lambda q: jax.grad(loss)(q).sum()), jax.hessian(loss), jax.jit(jax.hessian(loss))):
        with pytest.raises(attend.UnsupportedError, match="first derivatives only"):
            second(q)
    with pytest.raises(attend.UnsupportedError, match="cu_seqlens_q: mapped by vmap"):
        jax.vmap(lambda cu: attend.jax.attention_varlen(q[0], k[0], v[0], cu, cu, 2, 2))(jnp.int32([[0, 2]]))


OPERANDS = {"operands": "q k v", "results": "o", "layout": "bhsd", "compute": "auto"}
WRONG_CALLS = [
    ({"shape": (1, 2, 9, 8)}, "o: "),
    ({"operands": "q k"}, "custom call of attend: as many operands as names"),
    ({"operands": "q k w"}, "custom call of attend: there is no 'v'"),
    ({"results": "o lse"}, "custom call of attend: as many results"),
    ({"results": "lse"}, "custom call of attend: there is no 'o'"),
    ({"layout": "sbhd"}, "layout: 'sbhd', allowed"),
    ({"layout": np.int64(3)}, "custom call of attend: attribute 'layout' is of another type"),
    ({"causal": "yes"}, "custom call of attend: attribute 'causal' is of another type"),
    ({"compute": "fast"}, "compute: 'fast'"),
    ({"window_left": np.int64(-5)}, "window: left -5"),
]


@pytest.mark.parametrize("wrong, line", WRONG_CALLS)
def test_the_custom_call_checks_what_it_is_given(wrong, line):
    """The custom call refuses an invalid program, for example a damaged one, before it writes any result."""
    q, k, v = arrays((1, 2, 9, 16), (1, 2, 9, 16), (1, 2, 9, 16))
    ffi = importlib.import_module("jax.ffi" if hasattr(jax, "ffi") else "jax.extend.ffi")
    attributes = OPERANDS | wrong
    result = jax.ShapeDtypeStruct(attributes.pop("shape", q.shape), q.dtype)
    with pytest.raises(Exception, match=line) as caught:
        jax.block_until_ready(jax.jit(lambda *x: ffi.ffi_call("attend_forward_1", result)(*x, **attributes))(q, k, v))
    assert not isinstance(caught.value, (TypeError, attend.Error))


@pytest.mark.skipif(jax.default_backend() == "gpu", reason="a GPU does not read them before the kernels run")
def test_what_only_the_run_can_see_is_refused_by_it():
    q, k, v = arrays((9, 2, 16), (9, 2, 16), (9, 2, 16))
    wrong = jnp.int32([0, 5, 3, 9])
    with pytest.raises(Exception, match=r"cu_seqlens_q: .*allowed|cu_seqlens_q\[") as caught:
        jax.block_until_ready(attend.jax.attention_varlen(q, k, v, wrong, wrong, 9, 9))
    assert not isinstance(caught.value, attend.Error)
