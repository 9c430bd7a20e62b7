"""Tests of unusual and invalid arguments. Earlier versions read some of these arguments before they checked them. Each
call works or raises a one-line error.
"""

import pytest

np = pytest.importorskip("numpy")

import attend
import attend.flash_attn
import attend.ring
from attend._settings import Extras, Settings


def arrays(rng, *shape, count=3):
    return [rng.standard_normal(shape).astype(np.float32) for _ in range(count)]


def line_of(call, kind=ValueError):
    with pytest.raises(attend.Error) as caught:
        call()
    assert isinstance(caught.value, kind) and "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("seed", [np.uint64(2**63 + 3), np.int32(5), np.array(5)])
def test_seeds_of_numpy(rng, seed):
    q, k, v = arrays(rng, 1, 2, 7, 8)
    want = attend.attention(q, k, v, dropout_p=0.5, seed=int(seed))
    assert np.array_equal(attend.attention(q, k, v, dropout_p=0.5, seed=seed), want)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"seed": 1.5}, "seed: float, allowed a whole number"),
        ({"seed": 1, "offset": "x"}, "offset: str, allowed a whole number"),
        ({"window": None}, "window: None, allowed (left, right)"),
        ({"window": 5}, "window: 5, allowed (left, right)"),
        ({"bias": np.array(1, np.float32)}, "bias: 0 dimensions, allowed 1 to 4"),
    ],
)
def test_options_without_sense(rng, options, message):
    q, k, v = arrays(rng, 1, 2, 7, 8)
    assert line_of(lambda: attend.attention(q, k, v, **options)).startswith(message)


def test_masked_arrays_are_not_read_as_if_nothing_were_masked(rng):
    q, k, v = arrays(rng, 1, 2, 7, 8)
    masked = np.ma.masked_array(v, mask=v > 0)
    line = line_of(lambda: attend.attention(q, k, masked), NotImplementedError)
    assert line.startswith("v: numpy.ma.MaskedArray, ")


def test_arrays_that_jax_traces_are_refused(rng):
    class Tracer:
        def __getattr__(self, name):
            raise RuntimeError("ConcretizationTypeError of many lines\n" * 9)

    Tracer.__module__ = "jax._src.core"
    q, k, v = arrays(rng, 1, 2, 7, 8)
    for position, name in enumerate("qkv"):
        arguments = [q, k, v]
        arguments[position] = Tracer()
        line = line_of(lambda some=arguments: attend.attention(*some), NotImplementedError)
        assert line.startswith(f"{name}: jax._src.core.")


def test_offsets_of_keys_alone_are_refused(rng):
    q, k, v = arrays(rng, 4, 2, 8)
    cu = np.array([0, 4], np.int32)
    message = "cu_seqlens_q: None, allowed an array i32 (sequences + 1)"
    assert line_of(lambda: attend.attention_varlen(q, k, v, None, cu, 4, 4)) == message
    dense = arrays(rng, 1, 4, 2, 8)
    message = "cu_seqlens_k: given without cu_seqlens_q, allowed with it only"
    assert line_of(lambda: attend.forward(*dense, cu_seqlens_k=cu)) == message


TORCH_LINES = {
    "a scale to learn": (lambda t, x: attend.attention(x, x, x, scale=t.nn.Parameter(t.tensor(0.3))),
                         NotImplementedError, "scale: requires grad; attend gives no gradient"),
    "a softcap to learn": (lambda t, x: attend.attention(x, x, x, softcap=t.ones((), requires_grad=True)),
                           NotImplementedError, "softcap: requires grad"),
    "many scales": (lambda t, x: attend.attention(x, x, x, scale=t.ones(4)), ValueError, "scale: (4,), allowed"),
    "a float as seed": (lambda t, x: attend.attention(x, x, x, seed=t.tensor(3.0)), ValueError,
                        "seed: torch.float32 (), allowed a whole number"),
    "two seeds": (lambda t, x: attend.attention(x, x, x, seed=t.tensor([3, 4])), ValueError, "seed: torch.int64 (2,)"),
    "no dimensions": (lambda t, x: attend.attention(t.tensor(1.0), x, x), ValueError, "q: 0 dimensions, allowed 4"),
    "k of none": (lambda t, x: attend.attention(x, t.tensor(1.0), x), ValueError, "k: 0 dimensions, allowed 4"),
    "bias of none": (lambda t, x: attend.attention(x, x, x, bias=t.tensor(1.0)), ValueError, "bias: 0 dimensions"),
    "no dout": (lambda t, x: attend.backward(None, x, x, x, *attend.forward(x, x, x)), ValueError, "dout: NoneType"),
    "no lse": (lambda t, x: attend.backward(x, x, x, x, x, None), ValueError, "lse: NoneType, allowed a torch.Tensor"),
    "NumPy's o": (lambda t, x: attend.backward(x, x, x, x, x.cpu().numpy(), x[..., 0]), ValueError, "o: ndarray"),
    "NumPy's k": (lambda t, x: attend.attention(x, x.cpu().numpy(), x), ValueError, "k: ndarray"),
    "no offsets": (lambda t, x: attend.attention_varlen(x[0], x[0], x[0], None, t.tensor([0, 4]).int(), 4, 4),
                   ValueError, "cu_seqlens_q: None, allowed"),
}  # fmt: skip


@pytest.mark.parametrize("name", TORCH_LINES)
def test_tensors_without_sense(torch, device, name):
    call, kind, start = TORCH_LINES[name]
    x = torch.randn(2, 4, 9, 8, device=device)
    assert line_of(lambda: call(torch, x), kind).startswith(start)


@pytest.mark.filterwarnings("ignore")
def test_quantized_tensors_are_refused(torch):
    x = torch.randn(2, 4, 9, 8)
    try:
        small = torch.quantize_per_tensor(x, 0.1, 0, torch.qint8)
    except (AttributeError, RuntimeError):
        pytest.skip("this torch has no quantized tensors")
    for arguments, name in (((small, x, x), "q"), ((x, x, small), "v")):
        line = line_of(lambda some=arguments: attend.attention(*some), NotImplementedError)
        assert line.startswith(f"{name}: dtype torch.qint8, ")


def test_a_number_may_be_a_tensor(torch, device):
    x = torch.randn(2, 4, 9, 8, device=device)
    want = attend.attention(x, x, x, scale=0.5, softcap=2.0, dropout_p=0.3, seed=9)
    options = {"scale": torch.tensor(0.5, device=device), "softcap": torch.tensor([2.0]), "seed": torch.tensor(9)}
    assert torch.equal(attend.attention(x, x, x, dropout_p=0.3, **options), want)
    assert torch.equal(attend.forward(x, x, x, dropout_p=0.3, **options)[0], want)


def on_meta(torch, *shape):
    return torch.empty(*shape, device="meta")


WRONG_SHAPES = {
    "head_dim": (lambda t, x: dict(k=on_meta(t, 2, 4, 9, 4)), "k: shape (2, 4, 9, 4), allowed"),
    "batch": (lambda t, x: dict(v=on_meta(t, 3, 4, 9, 8)), "v: shape (3, 4, 9, 8), allowed"),
    "heads": (lambda t, x: dict(k=on_meta(t, 2, 3, 9, 8)), "k: num_heads_k 3, allowed a divisor"),
    "bias": (lambda t, x: dict(bias=on_meta(t, 3, 3)), "bias: shape (1, 1, 3, 3), dimension 2 must be 9"),
    "mask": (lambda t, x: dict(mask=on_meta(t, 9, 9)), "mask: dtype f32, allowed bool"),
    "slopes": (lambda t, x: dict(alibi_slopes=on_meta(t, 3)), "alibi_slopes: shape (1, 3, 1, 1)"),
    "sinks": (lambda t, x: dict(sinks=on_meta(t, 3)), "sinks: shape (1, 3, 1, 1)"),
    "dtype": (lambda t, x: dict(v=x.half()), "v: dtype f16, allowed f32 as q"),
    "softcap": (lambda t, x: dict(softcap=-1.0), "softcap: -1, allowed"),
}


@pytest.mark.parametrize("name", WRONG_SHAPES)
def test_shapes_are_checked_without_memory_too(torch, name):
    change, start = WRONG_SHAPES[name]
    x = on_meta(torch, 2, 4, 9, 8)
    arguments = {"q": x, "k": x, "v": x} | change(torch, x)
    assert line_of(lambda: attend.attention(**arguments)).startswith(start)
    from torch._subclasses.fake_tensor import FakeTensorMode

    mode = FakeTensorMode(allow_non_fake_inputs=True)
    fake = {n: mode.from_tensor(y) if isinstance(y, torch.Tensor) else y for n, y in arguments.items()}
    with mode:
        assert line_of(lambda: attend.attention(**fake)).startswith(start)


def test_shapes_of_packed_sequences_are_checked_without_memory_too(torch):
    x, cu = on_meta(torch, 9, 4, 8), torch.empty(3, dtype=torch.int32, device="meta")
    assert attend.attention_varlen(x, x, x, cu, cu, 5, 5).shape == (9, 4, 8)
    line = line_of(lambda: attend.attention_varlen(x, x, x, cu, cu[:2], 5, 5))
    assert line.startswith("cu_seqlens_k: 2 entries")
    assert line_of(lambda: attend.attention_varlen(x, x, x, cu.long(), cu, 5, 5)).startswith("cu_seqlens_q: dtype i64")
    line = line_of(lambda: attend.attention_varlen(x, x, x, cu, cu, 4, 4))
    assert line.startswith("max_seqlen_q: 4, too small")


def test_gradients_of_wrong_shapes_are_refused_without_memory_too(torch):
    x = on_meta(torch, 2, 4, 9, 8)
    o, lse = attend.forward(x, x, x)
    assert [g.shape for g in attend.backward(o, x, x, x, o, lse)] == [x.shape] * 3
    assert line_of(lambda: attend.backward(o[..., :3], x, x, x, o, lse)).startswith("dout: shape (2, 4, 9, 3)")
    assert line_of(lambda: attend.backward(o, x, x, x, o, lse[:1])).startswith("lse: shape (1, 4, 9, 1)")


def test_every_argument_has_to_be_where_q_is(torch):
    """A tensor on the meta device must be refused. If one argument is such a tensor, torch's dispatcher computes
    nothing and returns uninitialised memory.
    """
    x = torch.randn(2, 4, 9, 8)
    far = x.to("meta")
    for name in ("k", "v", "bias", "mask", "alibi_slopes", "sinks"):
        of_heads = dict.fromkeys(("alibi_slopes", "sinks"), far[0, :, 0, 0])
        tensor = {"bias": far[..., :9, :1], "mask": far > 0, **of_heads}.get(name, far)
        call = lambda name=name, tensor=tensor: attend.attention(**{"q": x, "k": x, "v": x, name: tensor})
        assert line_of(call) == f"{name}: on meta, allowed the device of q, cpu"
    for arguments in ((x, far, x), (far, x, x)):
        call = lambda some=arguments: torch.ops.attend.forward(*some, *Extras(), *Settings())
        assert "allowed the device of q" in line_of(call)
    o, lse = attend.forward(x, x, x)
    assert line_of(lambda: attend.backward(far, x, x, x, o, lse)) == "dout: on meta, allowed the device of q, cpu"
    assert line_of(lambda: attend.backward(o, x, x, x, o, lse.to("meta"))).startswith("lse: on meta, ")


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "complex64"])
@pytest.mark.parametrize("name", ["q", "k", "bias"])
@pytest.mark.parametrize("place", ["cpu", "meta"])
def test_dtypes_of_tensors_are_told_by_name(torch, dtype, name, place):
    if not hasattr(torch, dtype):
        pytest.skip(f"this torch has no {dtype}")
    x = torch.randn(1, 2, 8, 8, device=place)
    given = dict(q=x, k=x, v=x) | {name: torch.zeros(1, 2, 8, 8, dtype=getattr(torch, dtype), device=place)}
    assert line_of(lambda: attend.attention(**given)).startswith(f"{name}: dtype {dtype}, allowed f32, f16, bf16")


@pytest.mark.parametrize(
    "options, message",
    [
        ({"window": (1.5, 0)}, "window: left 1.5, allowed a whole number"),
        ({"window": (0, -3)}, "window: right -3, allowed >= 0, or -1 for open"),
        ({"dropout_p": "x"}, "dropout_p: 'x', allowed a number"),
        ({"compute": 3}, "compute: 3, allowed a string"),
        ({"causal": "yes"}, "causal: 'yes', allowed True or False"),
    ],
)
@pytest.mark.parametrize("place", ["cpu", "meta"])
def test_options_of_a_wrong_type_are_named_whatever_way_the_call_goes(torch, place, options, message):
    x = torch.randn(2, 4, 9, 8, device=place)
    assert line_of(lambda: attend.attention(x, x, x, **options)).startswith(message)


@pytest.mark.filterwarnings("ignore")  # torch's warning about its nested tensors
@pytest.mark.parametrize("layout", ["jagged", "strided"])
def test_nested_tensors_are_sent_to_sdpa(torch, layout):
    nested = torch.nested.nested_tensor([torch.randn(n, 2, 8) for n in (3, 4)], layout=getattr(torch, layout))
    line = line_of(lambda: attend.attention(*[nested.transpose(1, 2)] * 3), NotImplementedError)
    assert line.startswith("q: a nested tensor, ") and "attend.sdpa" in line


@pytest.mark.parametrize("comm", ["x", None, 3])
def test_what_is_no_communicator_is_named(rng, comm):
    q, k, v = arrays(rng, 1, 2, 7, 8)
    message = f"comm: {type(comm).__name__}, allowed an mpi4py communicator"
    assert line_of(lambda: attend.ring.attention(q, k, v, comm=comm)) == message
    o, lse = attend.forward(q, k, v)
    assert line_of(lambda: attend.ring.backward(o, q, k, v, o, lse, comm=comm)) == message


def test_options_that_do_not_exist_are_told_by_the_function_that_was_called(rng):
    q, k, v = arrays(rng, 1, 2, 7, 8)
    calls = {
        "forward": lambda: attend.forward(q, k, v, causaal=True),
        "backward": lambda: attend.backward(q, q, k, v, q, q[..., 0], causaal=True),
        "explain": lambda: attend.explain(1, 2, 7, 8, causaal=True),
        "prepare": lambda: attend.prepare(1, 2, 7, 8, causaal=True),
        "attention": lambda: attend.ring.attention(q, k, v, comm=None, causaal=True),
    }
    for name, call in calls.items():
        with pytest.raises(TypeError, match=rf"^{name}\(\) got an unexpected keyword argument 'causaal'$"):
            call()
    for own in ("window_left", "philox_state"):  # internal options, which no caller passes
        with pytest.raises(TypeError, match=rf"^forward\(\) got an unexpected keyword argument '{own}'$"):
            attend.forward(q, k, v, **{own: 1})


def test_explain_names_a_dtype_or_a_mask_that_is_none():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    allowed = "allowed 'f32', 'f16', 'bf16', 'f64'"
    assert line_of(lambda: attend.explain(1, 2, 4, 8, dtype=torch.bfloat16)) == f"dtype: torch.bfloat16, {allowed}"
    assert line_of(lambda: attend.prepare(1, 2, 4, 8, dtype="foo")) == f"dtype: 'foo', {allowed}"
    for name in ("bias", "mask", "alibi", "backward"):
        for given in (torch.ones(4, 4), np.ones((4, 4))):
            wanted = f"{name}: {type(given).__name__}, allowed True or False"
            assert line_of(lambda n=name, x=given: attend.explain(1, 2, 4, 8, **{n: x})) == wanted
    for flag in (True, 1, np.True_, False, None):
        assert attend.explain(1, 2, 4, 8, device="cpu", mask=flag)


@pytest.mark.parametrize("frame", ["numpy", "torch"])
def test_dropout_p_is_one_number(rng, frame):
    q = arrays(rng, 1, 2, 7, 8, count=1)[0]
    p = np.array([0.5, 0.5])
    if frame == "torch":
        torch = pytest.importorskip("torch", reason="torch is not installed")
        q, p = torch.from_numpy(q), torch.from_numpy(p)
    qkv = q.swapaxes(1, 2)[:, :, None]
    qkv = np.repeat(qkv, 3, 2) if frame == "numpy" else qkv.repeat(1, 1, 3, 1, 1)
    for call in (
        lambda: attend.attention(q, q, q, dropout_p=p),
        lambda: attend.attention_qkvpacked(qkv, dropout_p=p),
        lambda: attend.forward(q, q, q, dropout_p=p),
        lambda: attend.flash_attn.flash_attn_func(q, q, q, p),
    ):
        assert line_of(call) == "dropout_p: shape (2,), allowed a number"
    attend.attention(q, q, q, dropout_p=p[0])


def test_what_is_no_array_is_refused_with_dropout_as_without():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    t = torch.ones(1, 2, 4, 8)
    for q in (torch.nn.Linear(1, 1), torch.float32, object(), None):
        for options in ({}, {"dropout_p": 0.5}):
            assert line_of(lambda q=q, o=options: attend.attention(q, t, t, **o)).startswith(f"q: {type(q).__name__}, ")
