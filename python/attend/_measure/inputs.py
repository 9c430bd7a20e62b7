"""Draws random inputs. They are torch tensors if torch is installed, otherwise NumPy arrays."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from attend._measure.errors import UsageError, gpu_is_here, require, torch_or_none
from attend._measure.memory import lacking
from attend._measure.problems import DTYPE_BYTES, Problem

MOST_SETS = 32


@dataclasses.dataclass(frozen=True)
class Inputs:
    """Copies of (q, k, v, dout), each (batch, num_heads, seqlen, head_dim) of N(0, 1) numbers.

    On a GPU, calls use the copies in turn. The number of copies (at most MOST_SETS) is so large that a copy has left
    the L2 cache before it is used again. On a CPU there is one copy. The first copy has the same numbers on every
    device, rounded to the dtype.
    """

    sets: list[tuple[Any, Any, Any, Any]]
    dtype: str
    device: str


def torch_dtype(name: str) -> Any:
    import torch

    return {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}[name]


def numpy_dtype(name: str) -> Any:
    import numpy as np

    if name == "bf16":
        (ml_dtypes,) = require("ml_dtypes", purpose="bf16 without torch")
        return ml_dtypes.bfloat16
    return {"f32": np.float32, "f16": np.float16}[name]


def keep_float32_products() -> None:
    """Configures torch to compute float32 matrix products on a GPU in float32, even if the environment enables TF32."""
    torch = torch_or_none()
    if torch is not None:
        torch.set_float32_matmul_precision("highest")


def refuse_too_large(options: str, problems: Iterable[Problem]) -> None:
    """Raises a UsageError for the first problem whose inputs do not fit in memory. The message names `options`, the
    command-line options that set its sizes.
    """
    for problem in problems:
        lack = lacking(problem.input_bytes, _drawn_on())
        if lack:
            raise UsageError(f"{options}: {problem} needs {lack}")


def _drawn_on() -> str:
    return "cuda" if gpu_is_here() else "cpu"


class Source:
    """Draws the inputs of one problem. The first set is drawn once for all dtypes and devices."""

    def __init__(self, problem: Problem, seed: int) -> None:
        """Draws the first set. Raises MemoryError, or torch's error, if there is not enough memory."""
        lack = lacking(problem.input_bytes, _drawn_on())
        if lack:
            raise MemoryError(f"inputs need {lack}")
        self._problem = problem
        self._seed = seed
        self._made: dict[tuple[str, str], Inputs] = {}
        self._master = self._draw()

    def inputs(self, dtype: str, device: str) -> Inputs:
        key = dtype, device
        if key not in self._made:
            self._made[key] = Inputs(self._sets(dtype, device), dtype, device)
        return self._made[key]

    def _draw(self) -> tuple[Any, ...]:
        torch = torch_or_none()
        if torch is None:
            import numpy as np

            rng = np.random.default_rng(self._seed)
            return tuple(rng.standard_normal(self._problem.shape, dtype=np.float32) for _ in range(4))
        device = _drawn_on()
        generator = torch.Generator(device).manual_seed(self._seed)
        return tuple(torch.randn(self._problem.shape, generator=generator, device=device) for _ in range(4))

    def _sets(self, dtype: str, device: str) -> list[tuple[Any, Any, Any, Any]]:
        torch = torch_or_none()
        if torch is None:
            q, k, v, dout = (x.astype(numpy_dtype(dtype)) for x in self._master)
            return [(q, k, v, dout)]
        q, k, v, dout = (x.to(device=device, dtype=torch_dtype(dtype)) for x in self._master)
        sets = [(q, k, v, dout)]
        if device == "cuda":
            cache_bytes = torch.cuda.get_device_properties(0).L2_cache_size
            set_bytes = 4 * q.numel() * DTYPE_BYTES[dtype]
            for _ in range(min(MOST_SETS, 2 * cache_bytes // set_bytes + 1) - 1):
                drawn = [torch.randn(q.shape, device=device).to(q.dtype) for _ in range(4)]
                sets.append((drawn[0], drawn[1], drawn[2], drawn[3]))
        return sets
