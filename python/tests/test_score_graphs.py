"""Tests of scores as text in graphs: torch.compile, torch.export, AOTInductor, opcheck, and refusals."""

import io
import subprocess
import sys

import pytest

pytest.importorskip("numpy")

torch = pytest.importorskip(
    "torch", reason=f"the tests of {__name__} need torch: `make py-test ATTEND_TEST_TORCH=1` installs it"
)

import attend
import attend.torch
from attend._settings import NEEDS_NONE, OPTION_GRADIENTS, Extras, Settings

TEXT = "doc[q] == doc[k] ? cap * tanh(score / cap) + table[h][clamp(q - k, -4, 3) + 4] : -inf"
BATCH, HEADS, HEADS_K, ROWS, DIM = 2, 4, 2, 21, 8


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    torch.manual_seed(11)


def inputs(rows=ROWS):
    return [torch.randn(BATCH, heads, rows, DIM, requires_grad=True) for heads in (HEADS, HEADS_K, HEADS_K)]


class Layer(torch.nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.table = torch.nn.Parameter(torch.randn(HEADS, 8))
        self.register_buffer("doc", torch.arange(64, dtype=torch.int32) // 6)
        self.options = options

    def forward(self, q, k, v):
        captures = {"table": self.table, "doc": self.doc, "cap": 2.5}
        o, lse = attend.attention(q, k, v, score=TEXT, captures=captures, return_lse=True, **self.options)
        return o * 2, lse


def gradients(layer, run, given):
    o, lse = run(*given)
    assert o.requires_grad and lse.requires_grad
    return o, lse, *torch.autograd.grad((o * o.detach().cos()).sum() + lse.sin().sum(), [*given, layer.table])


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("options", [{}, {"causal": True, "softcap": 3.0, "window": (9, 0), "scale": 0.3}], ids=str)
def test_compiled_results_have_the_bits_of_eager_ones(backend, options):
    layer, given = Layer(**options), inputs()
    want = gradients(layer, layer, given)
    found = gradients(layer, torch.compile(layer, backend=backend, fullgraph=True), given)
    for a, b in zip(found, want):
        assert torch.equal(a, b) if backend != "inductor" else torch.allclose(a, b, rtol=1e-4, atol=1e-5)
    assert all(x.abs().max() > 1e-3 for x in want)


def test_other_values_and_lengths_make_no_other_graph():
    from torch._dynamo.testing import CompileCounterWithBackend

    layer, counter = Layer(), CompileCounterWithBackend("aot_eager")
    run = torch.compile(layer, backend=counter, fullgraph=True, dynamic=True)
    run(*inputs())
    count = counter.frame_count  # Dynamo counts a frame again if the function uses a number, such as cap
    for rows in (ROWS, 33, 40):
        with torch.no_grad():
            layer.table.add_(0.5)
        given = inputs(rows)
        assert all(torch.equal(a, b) for a, b in zip(run(*given), layer(*given)))
    assert counter.frame_count == count > 0


def test_a_bias_beside_a_score_gets_its_gradient():
    given, bias = inputs(), torch.randn(HEADS, ROWS, ROWS, requires_grad=True)
    gain = torch.ones(HEADS, requires_grad=True)
    run = lambda q, k, v, bias: attend.attention(q, k, v, bias=bias, score="gain[h] * score", captures={"gain": gain})
    leaves = [*given, bias, gain]
    found, want = (
        torch.autograd.grad(f(*given, bias).square().sum(), leaves)
        for f in (torch.compile(run, backend="aot_eager", fullgraph=True), run)
    )
    assert all(torch.equal(a, b) for a, b in zip(found, want))


@pytest.mark.parametrize("strict", [False, True])
def test_exported_programs_are_saved_and_differentiated(strict):
    layer, given = Layer(causal=True), inputs()
    seqlen = torch.export.Dim("seqlen", min=2, max=64)
    shapes = {name: {2: seqlen} for name in "qkv"}
    program = torch.export.export(layer, tuple(given), dynamic_shapes=shapes, strict=strict)
    assert len([x for x in program.graph.nodes if "attend.score_forward" in str(x.target)]) == 1
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    again = torch.export.load(file).module()
    for rows in (ROWS, 50):
        given = inputs(rows)
        want = gradients(layer, layer, given)
        (table,) = [x for name, x in again.named_parameters() if name == "table"]
        o, lse = again(*given)
        found = torch.autograd.grad((o * o.detach().cos()).sum() + lse.sin().sum(), [*given, table])
        for a, b in zip((o, lse, *found), want):
            torch.testing.assert_close(a, b)


PACKAGE = """
import sys, torch, attend
class Layer(torch.nn.Module):
    def forward(self, q, k, v, table):
        text = "score + table[h][clamp(q - k, -4, 3) + 4]"
        return attend.attention(q * 2, k, v, causal=True, score=text, captures={"table": table})
torch.manual_seed(0)
inputs = [torch.randn(1, 2, 24, 16) for _ in range(3)] + [torch.randn(2, 8)]
with torch.no_grad():
    want = Layer()(*inputs)
    torch._inductor.aoti_compile_and_package(
        torch.export.export(Layer(), tuple(inputs)), package_path=sys.argv[1],
        inductor_configs={"aot_inductor.custom_op_libs": [":libstdc++.so.6"]})
    torch.testing.assert_close(torch._inductor.aoti_load_package(sys.argv[1])(*inputs), want)
print("the same")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="names a library of Linux")
def test_a_package_of_aotinductor(tmp_path):
    """The test runs in a separate process and first loads libstdc++. The same test in test_torch_operators.py explains
    why.
    """
    command = [sys.executable, "-W", "ignore", "-c", PACKAGE, str(tmp_path / "layer.pt2")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0 and "the same" in done.stdout, done.stdout + done.stderr


ENDING = """
import torch, attend
q = torch.randn(1, 1, 8, 8)
attend.attention(q, q, q, score="score + 1")
"""


def test_a_program_ends_in_silence():
    """At exit the extension module prints a report if objects outlive it, which must not happen."""
    done = subprocess.run([sys.executable, "-c", ENDING], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0 and done.stderr == "", done.stderr


@pytest.mark.filterwarnings("ignore")
def test_opcheck():
    q, k, v = inputs()
    captures = [torch.randn(HEADS, 8, requires_grad=True), torch.arange(ROWS) // 6, torch.tensor(2.5)]
    rest = (*Extras(), *Settings(causal=True))
    of_text = (captures, ["table", "doc", "cap"], TEXT)
    torch.library.opcheck(torch.ops.attend.score_forward, (q, k, v, *rest, *of_text))
    q, k, v = (x.detach() for x in (q, k, v))
    of_text = ([x.detach() for x in captures], *of_text[1:])
    o, lse = torch.ops.attend.score_forward(q, k, v, *rest, *of_text)
    given = (q, k, v, o, lse, torch.randn_like(o), torch.randn_like(lse), *NEEDS_NONE, *rest, *of_text)
    results = torch.ops.attend.score_backward(*given, [True, False, True])
    assert [x.shape for x in results[-1]] == [(HEADS, 8), (0,), ()] and len(results) == 4 + len(OPTION_GRADIENTS)
    torch.library.opcheck(torch.ops.attend.score_backward, (*given, [True, False, True]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"score": "score + tabel[h]", "captures": {"table": torch.ones(4)}},
            "score: column 9: 'tabel' is not a name here",
        ),
        ({"score": "score + t[h]", "captures": {"t": torch.ones(4, dtype=torch.complex64)}}, "'t': dtype complex64"),
        ({"score": "score", "window": (1, 2, 3)}, "window: 3 values"),
        ({"score": "score", "block_mask": attend.make_block_mask("k <= q", ROWS, ROWS)}, "score: under torch.compile"),
        ({"block_mask": attend.make_block_mask("k <= q", ROWS, ROWS)}, "block_mask: under torch.compile, torch.func"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
@pytest.mark.parametrize("how", ["compile", "export", "strict export"])
def test_what_is_refused(how, options, message):
    class Refused(torch.nn.Module):
        def forward(self, q, k, v):
            return attend.attention(q, k, v, **options)

    given = tuple(x.detach() for x in inputs())
    with pytest.raises(Exception, match=message):
        if how == "compile":
            torch.compile(Refused(), backend="eager", fullgraph=True)(*given)
        else:
            torch.export.export(Refused(), given, strict=how != "export")


def test_a_second_derivative_is_refused():
    layer, given = Layer(), inputs()
    o, _ = torch.compile(layer, backend="eager", fullgraph=True)(*given)
    (dq,) = torch.autograd.grad(o.square().sum(), given[0], create_graph=True)
    with pytest.raises(RuntimeError, match="double backward"):
        dq.sum().backward()
