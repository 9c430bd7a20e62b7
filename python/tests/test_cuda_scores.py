"""Tests of custom scores and masks on a GPU, with and without autograd."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("numpy")
torch_here = pytest.importorskip(
    "torch", reason=f"the tests of {__name__} need torch: `make py-test ATTEND_TEST_TORCH=1` installs it"
)

import attend
from test_cuda import check_budget, normal, with_gradients

pytestmark = pytest.mark.skipif(not torch_here.cuda.is_available(), reason="no GPU here")

TEXT = "cap * tanh(score / cap) + table[h][clamp(q - k, -8, 7) + 8]"


def standard(torch, q, k, v, table):
    scores = (q @ k.transpose(-1, -2)) * q.shape[-1] ** -0.5
    distance = torch.arange(q.shape[2], device=q.device)[:, None] - torch.arange(k.shape[2], device=q.device)
    scores = 5 * torch.tanh(scores / 5) + table.to(scores.dtype)[:, distance.clamp(-8, 7) + 8]
    return scores.softmax(dim=-1) @ v


@pytest.mark.parametrize("head_dim", [64, 128, 192])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_attention_errs_no_more_than_a_materialised_one(torch, dtype, head_dim):
    torch.manual_seed(3)
    dtype = getattr(torch, dtype)
    leaves = [normal(torch, 2, 3, 300, head_dim, dtype=dtype) for _ in range(3)]
    dout, table = normal(torch, 2, 3, 300, head_dim, dtype=dtype), normal(torch, 3, 16)
    captures = {"table": table, "cap": 5.0}  # the number is copied to the device
    found = with_gradients(torch, lambda *x: attend.attention(*x, score=TEXT, captures=captures), leaves, dout)
    baseline = with_gradients(torch, lambda *x: standard(torch, *x, table), leaves, dout)
    wide = [x.double() for x in leaves]
    truth = with_gradients(torch, lambda *x: standard(torch, *x, table), wide, dout)
    check_budget(found, baseline, truth, half=dtype != torch.float32)


def test_other_values_compile_nothing_and_are_the_ones_used(torch):
    q, k, v = (normal(torch, 1, 2, 70, 64, dtype=torch.bfloat16) for _ in range(3))
    for rate in (0.0, 0.5):
        o = attend.attention(q, k, v, score="score - rate * abs(q - k)", captures={"rate": rate})
        slopes = torch.full((2,), rate, device="cuda")
        torch.testing.assert_close(o, attend.attention(q, k, v, alibi_slopes=slopes), rtol=2e-2, atol=2e-2)


def test_backward_leaves_captures_out_that_want_no_gradient(torch):
    q, k, v, dout = (normal(torch, 1, 2, 70, 64, dtype=torch.bfloat16) for _ in range(4))
    options = {"score": TEXT, "captures": {"table": normal(torch, 2, 16), "cap": 5.0}}
    o, lse = attend.forward(q, k, v, **options)
    *gradients, of_captures = attend.backward(dout, q, k, v, o, lse, **options)
    assert of_captures == {} and len(gradients) == 3 and all(x.isfinite().all() for x in gradients)


def test_deterministic_gradients_of_captures_are_refused_in_one_line(torch):
    q, k, v = (normal(torch, 1, 2, 70, 64, dtype=torch.bfloat16) for _ in range(3))
    captures = {"table": normal(torch, 2, 16, requires_grad=True), "cap": 5.0}
    torch.use_deterministic_algorithms(True)
    o, lse = attend.attention(q, k, v, score=TEXT, captures=captures, return_lse=True)
    for ask in (
        lambda: o.sum().backward(),
        lambda: attend.backward(o, q, k, v, o, lse, score=TEXT, captures=captures),
    ):
        with pytest.raises(NotImplementedError, match="^captures: given.*none with deterministic") as caught:
            ask()
        assert "\n" not in str(caught.value)


def test_captures_of_another_device_are_refused(torch):
    q, k, v = (normal(torch, 1, 2, 70, 64, dtype=torch.bfloat16) for _ in range(3))
    with pytest.raises(ValueError, match="capture 'table': on cpu"):
        attend.attention(q, k, v, score=TEXT, captures={"table": torch.zeros(2, 16), "cap": 5.0})


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_learned_table_has_the_gradient_of_a_materialised_one(torch, dtype):
    torch.manual_seed(4)
    torch.use_deterministic_algorithms(False)  # the sums in the table's gradient have no fixed order
    dtype = getattr(torch, dtype)
    leaves = [normal(torch, 2, 3, 300, 64, dtype=dtype) for _ in range(3)]
    dout, table = normal(torch, 2, 3, 300, 64, dtype=dtype), normal(torch, 3, 16)
    distance = torch.arange(300, device="cuda")[:, None] - torch.arange(300, device="cuda")

    def ours(q, k, v, table):
        score = "score + table[h][clamp(q - k, -8, 7) + 8]"
        return attend.attention(q, k, v, score=score, captures={"table": table})

    def materialised(q, k, v, table):
        scores = (q @ k.transpose(-1, -2)) * q.shape[-1] ** -0.5
        return (scores + table.to(scores.dtype)[:, distance.clamp(-8, 7) + 8]).softmax(dim=-1) @ v

    *found, of_table = with_gradients(torch, ours, [*leaves, table], dout)
    *baseline, of_baseline = with_gradients(torch, materialised, [*leaves, table], dout)
    *truth, of_truth = with_gradients(torch, materialised, [x.double() for x in (*leaves, table)], dout)
    check_budget(found, baseline, truth, half=True)
    error, allowed = ((x.double() - of_truth).square().mean().sqrt().item() for x in (of_table, of_baseline))
    print(f"table: rms error {error:.3g}, budget {1.25 * allowed:.3g}")
    assert of_table.dtype == torch.float32 and error <= 1.25 * allowed


@pytest.mark.parametrize("head_dim", [64, 128, 192])
def test_a_block_mask_is_its_mask_of_bools(torch, head_dim):
    torch.manual_seed(5)
    leaves = [normal(torch, 2, 3, 300, head_dim, dtype=torch.bfloat16) for _ in range(3)]
    dout = normal(torch, 2, 3, 300, head_dim, dtype=torch.bfloat16)
    document = torch.arange(300) // 70
    block_mask = attend.make_block_mask("k <= q && doc[q] == doc[k]", 300, 300, captures={"doc": document})
    bools = (torch.ones(300, 300).tril().bool() & (document[:, None] == document)).cuda()

    def materialised(q, k, v):
        scores = (q @ k.transpose(-1, -2)) * q.shape[-1] ** -0.5
        return scores.masked_fill(~bools, float("-inf")).softmax(dim=-1) @ v

    found = with_gradients(torch, lambda *x: attend.attention(*x, block_mask=block_mask), leaves, dout)
    baseline = with_gradients(torch, materialised, leaves, dout)
    truth = with_gradients(torch, materialised, [x.double() for x in leaves], dout)
    check_budget(found, baseline, truth, half=True)


def same_mask(a, b):
    assert (a.shape, a.tiles, a.density, a.nbytes) == (b.shape, b.tiles, b.density, b.nbytes)
    batch, heads, rows, keys = a.shape
    for n in range(0, 4000, 7):
        at = (n % batch, n % heads, n * 7919 % rows, n * 104729 % keys)
        assert a.sees(*at) == b.sees(*at), at


@pytest.mark.parametrize("where", ["cuda", "cpu"])
def test_a_block_mask_made_on_the_gpu_is_that_of_the_host(torch, where):
    torch.manual_seed(5)
    document = torch.sort(torch.randint(0, 9, (2, 1000), dtype=torch.int32), dim=1).values
    bias = torch.randn(1000, dtype=torch.bfloat16)
    text = "k <= q + 3 && doc[b][q] == doc[b][k] || bias[k] * 3 > bias[q] + limit"
    sizes = {"batch": 2, "num_heads": 3}
    host = attend.make_block_mask(
        text, 1000, 900, captures={"doc": document, "bias": bias, "limit": 2.5}, **sizes
    )  # fmt: skip
    captures = {"doc": document.to(where), "bias": bias.to(where), "limit": 2.5}
    same_mask(attend.make_block_mask(text, 1000, 900, captures=captures, device="cuda", **sizes), host)
    with torch.cuda.stream(torch.cuda.Stream()):
        # The new bias is computed on this stream.
        late = {**captures, "bias": (captures["bias"].double() * 1).to(torch.bfloat16)}
        same_mask(attend.make_block_mask(text, 1000, 900, captures=late, device=torch.device("cuda", 0), **sizes), host)


def test_attention_takes_a_mask_made_on_the_gpu(torch):
    q, k, v = (normal(torch, 2, 4, 300, 64, dtype=torch.bfloat16) for _ in range(3))
    text = "k <= q && (q // 30 + k // 7 + h) % 3 != 0"
    here = attend.make_block_mask(text, 300, 300, num_heads=4)
    there = attend.make_block_mask(text, 300, 300, num_heads=4, device="cuda")
    assert torch.equal(attend.attention(q, k, v, block_mask=there), attend.attention(q, k, v, block_mask=here))


def test_what_a_gpu_cannot_make_is_refused_in_one_line(torch):
    with pytest.raises(attend.UnsupportedError, match="^mask: exp, allowed if the mask is made on a CPU"):
        attend.make_block_mask("exp(float(q)) < 3", 64, 64, device="cuda")
    document = torch.zeros(64, dtype=torch.int32, device="cuda")
    with pytest.raises(attend.ArgumentError, match="^captures: 'doc': on cuda:0, allowed on the CPU"):
        attend.make_block_mask("doc[q] == 0", 64, 64, captures={"doc": document})


def test_flex_masks_of_tensors_on_the_gpu_are_made_there(torch, monkeypatch):
    from attend._flex import block_masks
    from attend.torch.flex_attention import create_block_mask

    document = torch.sort(torch.randint(0, 9, (4096,), device="cuda")).values
    devices = []

    def spy(*args, device=None, **options):
        devices.append(device)
        return attend.make_block_mask(*args, device=device, **options)

    monkeypatch.setattr(block_masks, "make_block_mask", spy)
    causal = lambda b, h, q, k: (document[q] == document[k]) & (k <= q)
    curved = lambda b, h, q, k: (document[q] == document[k]) & (torch.exp(q / 4096) * 1000 < 500 + k)
    for function, wanted in ((causal, [document.device]), (curved, [document.device, None])):
        devices.clear()
        mask = create_block_mask(function, None, None, 4096, 4096, device="cuda")
        assert devices == wanted
        tiles = block_masks.tiles_of(mask, 1, 1, 4096, 4096)
        monkeypatch.setattr(block_masks, "_LEAST_ON_GPU", 1 << 62)
        other = create_block_mask(function, None, None, 4096, 4096, device="cuda")
        same_mask(tiles, block_masks.tiles_of(other, 1, 1, 4096, 4096))
        monkeypatch.setattr(block_masks, "_LEAST_ON_GPU", 1 << 24)


FIRST_USE = """
import os, pathlib, sys, threading
import attend, torch
from attend.torch import _ahead

def compiled():
    return len(list(pathlib.Path(os.environ["ATTEND_CACHE_DIR"]).rglob("*.bin")))

case, dtype = sys.argv[1], getattr(torch, sys.argv[2])
table = torch.randn(2, 16, device="cuda", requires_grad=True)
options = {
    "score": {"score": "score * (1 + 0.5 * sin(0.1 * float(q - k)))"},
    "learned table": {"score": "score + table[h][clamp(q - k, -8, 7) + 8]", "captures": {"table": table}},
    "mask": {"block_mask": attend.make_block_mask("k <= q && q - k < 100", 300, 300)},
    "learned bias": {"score": "50 * tanh(score / 50)",
                     "bias": torch.randn(1, 2, 300, 300, device="cuda", dtype=dtype, requires_grad=True)},
    "bshd": {"score": "score * (1 + 0.5 * sin(0.1 * float(q - k)))", "layout": "bshd"},
}[case]
shape = (1, 300, 2, 64) if case == "bshd" else (1, 2, 300, 64)
q, k, v = (torch.randn(shape, device="cuda", dtype=dtype, requires_grad=True) for _ in range(3))
with torch.no_grad():
    attend.attention(q, k, v, **options)
at = [len(_ahead._begun), compiled()]
o = attend.attention(q, k, v, **options)
for thread in threading.enumerate():
    if thread.name == _ahead.NAME:
        thread.join()
at += [len(_ahead._begun), compiled()]
o.sum().backward()
torch.cuda.synchronize()
print(*at, compiled())
"""


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("case", ["score", "learned table", "mask", "learned bias", "bshd"])
def test_what_backward_runs_is_compiled_from_forward_on(torch, tmp_path, case, dtype):
    """The thread that compiles the kernels of backward does not report errors. Only this count shows that it compiles
    the right kernels.
    """
    done = subprocess.run(
        [sys.executable, "-c", FIRST_USE, case, dtype], env={**os.environ, "ATTEND_CACHE_DIR": str(tmp_path)},
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    begun, of_forward, begun_with_gradients, of_both, at_end = map(int, done.stdout.split())
    assert (begun, begun_with_gradients) == (0, 1)
    assert 0 < of_forward < of_both == at_end
