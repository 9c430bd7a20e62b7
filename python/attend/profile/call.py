"""Makes one attention call between the start and stop of the profiler. `collect` runs this program under Nsight
Compute.

    python -m attend.profile.call '{"compute": "auto", "mode": "forward", ...}'

The first call compiles and loads the kernels. The second call is profiled. A failure prints one line that starts with
FAILURE, and the exit status is 2.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

FAILURE = "attend.profile: "


def main() -> int:
    problem = json.loads(sys.argv[1])
    try:
        import torch
    except ImportError:
        return _fail("torch is not installed, but the profiled call allocates its GPU memory with torch")
    if not torch.cuda.is_available():
        return _fail("torch finds no GPU (a build for the CPU only, or no driver)")
    import attend

    try:
        run = make_call(torch, problem)
        run()
    except attend.Error as error:
        return _fail(str(error))
    except torch.cuda.OutOfMemoryError as error:
        return _fail(str(error).splitlines()[0])
    torch.cuda.synchronize()
    torch.cuda.profiler.start()
    run()
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()
    return 0


def make_call(torch: Any, problem: dict[str, Any], device: str = "cuda") -> Callable[[], Any]:
    """Returns a function that makes the call. Its inputs are normally distributed with a fixed seed, and have been
    allocated before.
    """
    import attend

    dtype = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}[problem["dtype"]]
    shape = [problem[name] for name in ("batch_size", "num_heads", "seq_len", "head_dim")]
    generator = torch.Generator(device).manual_seed(0)
    q, k, v, dout = (torch.randn(shape, generator=generator, device=device).to(dtype) for _ in range(4))
    options = {"causal": problem["causal"], "compute": problem["compute"]}
    if problem["mode"] == "forward":
        return lambda: attend.forward(q, k, v, **options)
    # For backward, o and lse come from the default backend, because some backends with a backward pass have no forward
    # pass.
    o, lse = attend.forward(q, k, v, causal=problem["causal"])
    return lambda: attend.backward(dout, q, k, v, o, lse, **options)


def _fail(message: str) -> int:
    print(FAILURE + message, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
