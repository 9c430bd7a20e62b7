"""Tests of the backends of diffusers that call attend: torch's attention under the names of diffusers' dispatcher, and
xFormers' functions.
"""

import warnings

import pytest

pytest.importorskip("numpy")
pytest.importorskip(
    "torch", reason=f"the tests of {__name__} need torch: `make py-test ATTEND_TEST_TORCH=1` installs it"
)

import attend
import attend.xformers
from attend.torch import _activate, _operators


@pytest.fixture
def dispatch(torch):
    pytest.importorskip("diffusers", reason="diffusers is not installed")
    from diffusers.models import attention_dispatch

    return attention_dispatch


def tensors(torch, dtype=None):
    return [torch.randn(2, 9, 4, 8, dtype=dtype, requires_grad=True) for _ in range(3)]


def truth(torch, tensors, mask=None):
    """Computes float64 attention of (batch, seqlen, heads, head_dim). `mask` is bool (batch, seqlen_k)."""
    q, k, v = (x.double().transpose(1, 2) for x in tensors)
    s = q @ k.transpose(2, 3) / q.shape[3] ** 0.5
    s = s if mask is None else s.masked_fill(~mask[:, None, None], float("-inf"))
    return (s.softmax(3) @ v).transpose(1, 2)


def check(torch, found, given, want):
    torch.testing.assert_close(found.double(), want, rtol=0, atol=1e-5)
    for x, y in zip(*(torch.autograd.grad(o.square().sum(), given) for o in (found, want))):
        assert x.abs().sum() > 0
        torch.testing.assert_close(x, y, rtol=0, atol=1e-4)


@pytest.mark.parametrize("backend, has_mask", [("native", False), ("native", True), ("_native_flash", False)])
def test_torchs_backends(torch, dispatch, monkeypatch, backend, has_mask):
    seen, plain = [], _operators.fill_forward
    monkeypatch.setattr(_activate, "fill_forward", lambda *a: seen.append(backend) or plain(*a))
    given = tensors(torch)
    mask = torch.arange(9) < torch.tensor([[9], [4]]) if has_mask else None
    attend.activate()
    try:
        found = dispatch.dispatch_attention_fn(*given, attn_mask=mask, backend=backend)
        check(torch, found, given, truth(torch, given, mask))
    finally:
        attend.restore()
    assert seen == [backend]


@pytest.mark.parametrize("has_mask", [False, True])
def test_xformers_backend(torch, dispatch, has_mask):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("xformers.ops", reason="xFormers is not installed")
    given = tensors(torch)
    mask = torch.arange(9) < torch.tensor([[9], [4]]) if has_mask else None
    attend.xformers.activate()  # required, because xFormers itself has no attention on a CPU
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # for example, attend warns if it refuses a call
            found = dispatch.dispatch_attention_fn(*given, attn_mask=mask, backend="xformers")
        check(torch, found, given, truth(torch, given, mask))
    finally:
        attend.xformers.restore()
