"""The implementations that can be measured: attend's backends, PyTorch's, flash-attn's, and unfused paths.

All implementations read q, k and v (batch, num_heads, seqlen, head_dim) and return o like q. The scale is 1 /
sqrt(head_dim). All implementations allocate their results inside the call. An implementation that needs an optional
package is available only if the package is installed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import attend
from attend._measure.errors import torch_or_none
from attend._measure.inputs import Inputs

# attend's float32-only backends. The other backends on a GPU use half precision.
FLOAT32_RUNGS = ("standard", "naive", "tiled", "fa1", "flash_2d", "fa2_naive", "scalar2d_row_tile", "fa2")
SDP_BACKENDS = {
    "math": "MATH",
    "efficient": "EFFICIENT_ATTENTION",
    "flash": "FLASH_ATTENTION",
    "cudnn": "CUDNN_ATTENTION",
}
# Texts by which an error of torch or its libraries is recognised as a refusal of an unsupported problem.
_REFUSALS = ("No available kernel", "not supported", "No valid execution plan", "No valid engine", "No execution plan")

Forward = Callable[[Any, Any, Any, bool], Any]
Sets = tuple[Any, Any, Any, Any]


class Prepared(NamedTuple):
    """`call(i)` computes with the i-th set of inputs. `call` must run inside `context()`."""

    call: Callable[[int], Any]
    context: Callable[[], contextlib.AbstractContextManager[Any]]


@dataclasses.dataclass(frozen=True)
class Implementation:
    """An implementation of attention. `name` is unique; `library` is attend, torch or flash_attn."""

    name: str
    library: str
    device: str
    dtype: str
    has_backward: bool = True
    rounds_scores: bool = False  # True if the implementation stores the scores in its dtype

    def step(self, tensors: Sets, causal: bool, mode: str) -> tuple[Any, ...]:
        """Runs one call as a user would. Returns (o,) in mode forward. Otherwise runs forward and backward and returns
        (dq, dk, dv).
        """
        raise NotImplementedError

    def prepare(self, inputs: Inputs, causal: bool, mode: str) -> Prepared:
        """Returns the calls to time: forward without autograd, or backward alone after forward passes that are not
        timed.
        """
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class OnTorch(Implementation):
    """An implementation on torch tensors, whose gradients come from torch's autograd."""

    forward: Forward = None  # type: ignore[assignment]
    settings: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext

    def step(self, tensors: Sets, causal: bool, mode: str) -> tuple[Any, ...]:
        with self._context(mode):
            if mode == "forward":
                return (self.forward(*tensors[:3], causal),)
            return self._gradients(*self._graph(tensors, causal), tensors[3])

    def prepare(self, inputs: Inputs, causal: bool, mode: str) -> Prepared:
        sets = inputs.sets

        def forward(i: int) -> Any:
            q, k, v, _ = sets[i % len(sets)]
            return self.forward(q, k, v, causal)

        if mode == "forward":
            return Prepared(forward, lambda: self._context(mode))
        with self._context(mode):
            graphs = [self._graph(tensors, causal) for tensors in sets]

        def backward(i: int) -> Any:
            o, leaves = graphs[i % len(sets)]
            return self._gradients(o, leaves, sets[i % len(sets)][3])

        return Prepared(backward, lambda: self._context(mode))

    def _graph(self, tensors: Sets, causal: bool) -> tuple[Any, tuple[Any, ...]]:
        q, k, v = (x.detach().requires_grad_() for x in tensors[:3])
        return self.forward(q, k, v, causal), (q, k, v)

    @staticmethod
    def _gradients(o: Any, leaves: tuple[Any, ...], dout: Any) -> tuple[Any, ...]:
        import torch

        return tuple(torch.autograd.grad(o, leaves, dout, retain_graph=True))

    @contextlib.contextmanager
    def _context(self, mode: str) -> Iterator[None]:
        import torch

        with self.settings(), torch.set_grad_enabled(mode == "backward"):
            yield


@dataclasses.dataclass(frozen=True)
class OnNumpy(Implementation):
    """attend's CPU backends on NumPy arrays, for systems without torch."""

    def step(self, tensors: Sets, causal: bool, mode: str) -> tuple[Any, ...]:
        q, k, v, dout = tensors
        o, lse = attend.forward(q, k, v, causal=causal, compute=self.name)
        if mode == "forward":
            return (o,)
        return attend.backward(dout, q, k, v, o, lse, causal=causal, compute=self.name)

    def prepare(self, inputs: Inputs, causal: bool, mode: str) -> Prepared:
        q, k, v, dout = inputs.sets[0]
        options: dict[str, Any] = {"causal": causal, "compute": self.name}
        if mode == "forward":
            return Prepared(lambda i: attend.forward(q, k, v, **options), contextlib.nullcontext)
        o, lse = attend.forward(q, k, v, **options)
        return Prepared(lambda i: attend.backward(dout, q, k, v, o, lse, **options), contextlib.nullcontext)


def attend_backend(name: str, device: str, dtype: str) -> Implementation:
    """Returns the implementation of a backend of attend, or of "auto"."""
    has_backward = name == "auto" or any(b["name"] == name and b["has_backward"] for b in attend.backends())
    if torch_or_none() is None:
        return OnNumpy(name, "attend", device, dtype, has_backward)

    def forward(q: Any, k: Any, v: Any, causal: bool) -> Any:
        return attend.attention(q, k, v, causal=causal, compute=name)

    return OnTorch(name, "attend", device, dtype, has_backward, forward=forward)


def torch_sdpa(name: str, device: str, dtype: str, backend: str = "") -> Implementation:
    """Returns torch.nn.functional.scaled_dot_product_attention. `backend` is one of SDP_BACKENDS, or "" for torch's
    choice.
    """
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def forward(q: Any, k: Any, v: Any, causal: bool) -> Any:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

    def settings() -> contextlib.AbstractContextManager[Any]:
        if not backend:
            return contextlib.nullcontext()
        chosen: contextlib.AbstractContextManager[Any] = sdpa_kernel(getattr(SDPBackend, SDP_BACKENDS[backend]))
        return chosen

    return OnTorch(name, "torch", device, dtype, forward=forward, settings=settings)


def unfused(name: str, device: str, dtype: str) -> Implementation:
    """Returns attention in three steps, with S and P in memory, as in Megatron-LM without a fused kernel."""
    import torch

    def forward(q: Any, k: Any, v: Any, causal: bool) -> Any:
        b, h, s, d = q.shape
        q, k, v = (x.reshape(b * h, s, d) for x in (q, k, v))
        buffer = torch.empty(b * h, s, s, dtype=q.dtype, device=q.device)
        scores = torch.baddbmm(buffer, q, k.transpose(1, 2), beta=0.0, alpha=1 / math.sqrt(d))
        if causal:
            scores = scores.masked_fill(torch.ones(s, s, dtype=torch.bool, device=q.device).triu(1), -math.inf)
        return torch.bmm(scores.softmax(-1), v).reshape(b, h, s, d)

    return OnTorch(name, "torch", device, dtype, rounds_scores=True, forward=forward)


def fused_softmax(name: str, dtype: str) -> Implementation:
    """Returns unfused attention with scale, mask and softmax in one kernel, as in Megatron-LM. Runs on a GPU in half
    precision.
    """
    from attend._measure import fused_softmax as path

    return OnTorch(name, "torch", "cuda", dtype, rounds_scores=True, forward=path.attention)


def flash_attn_is_here() -> bool:
    return torch_or_none() is not None and importlib.util.find_spec("flash_attn") is not None


def flash_attn(name: str, dtype: str) -> Implementation:
    """Returns the attention of the package flash-attn, which runs on a GPU in half precision."""
    from flash_attn import flash_attn_func

    def forward(q: Any, k: Any, v: Any, causal: bool) -> Any:
        return flash_attn_func(*(x.transpose(1, 2) for x in (q, k, v)), causal=causal).transpose(1, 2)

    return OnTorch(name, "flash_attn", "cuda", dtype, forward=forward)


def refusal(error: Exception) -> str:
    """Returns why an implementation does not support a problem, in one line, or "" if the error is a failure."""
    text = str(error).strip().partition("\n")[0]
    if isinstance(error, (NotImplementedError, MemoryError)):
        return text or type(error).__name__
    if type(error).__name__ == "OutOfMemoryError" or "OUT_OF_MEMORY" in text or "can't allocate memory" in text:
        return "out of memory"
    if isinstance(error, RuntimeError) and any(words in text for words in _REFUSALS):
        return text
    return ""
