"""Defines the variables that the code blocks of the documentation use, see test_document_blocks.py."""

from __future__ import annotations

import contextlib
import importlib
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any, Optional

import attend
import numpy as np
import pytest

Names = dict[str, Any]


def _normal(*shape: int) -> Any:
    return np.random.default_rng(0).standard_normal(shape, dtype=np.float32)


@contextlib.contextmanager
def arrays() -> Iterator[Names]:
    """Arrays (batch, heads, seqlen, head_dim), as in README.md, and packed arrays."""
    q, k, v = (_normal(2, heads, 64, 32) for heads in (8, 2, 2))
    offsets = np.array([0, 20, 53], np.int32)
    yield {
        "q": q, "k": k, "v": v, "dout": q, "bias": _normal(8, 64, 64), "sinks": _normal(8),
        "qkv": _normal(2, 64, 3, 8, 32), "packed_q": _normal(53, 8, 32), "packed_k": _normal(53, 2, 32),
        "packed_v": _normal(53, 2, 32), "cu_seqlens_q": offsets, "cu_seqlens_k": offsets, "max_seqlen_q": 33,
        "max_seqlen_k": 33,
    }  # fmt: skip


@contextlib.contextmanager
def caches() -> Iterator[Names]:
    """Two sequences of 5 and 9 tokens, each in two pages of 16 keys."""
    part = _normal(2, 8, 1, 32)
    yield {
        "attend": attend, "q": part, "k": _normal(2, 2, 1, 32), "v": _normal(2, 2, 1, 32),
        "k_cache": _normal(2, 2, 16, 32), "v_cache": _normal(2, 2, 16, 32), "lengths": np.array([5, 9], np.int32),
        "pages": np.array([[1], [0]], np.int32), "cos": _normal(64, 16), "sin": _normal(64, 16), "o_a": part,
        "lse_a": _normal(2, 8, 1), "o_b": part, "lse_b": _normal(2, 8, 1),
    }  # fmt: skip


@contextlib.contextmanager
def jax_arrays() -> Iterator[Names]:
    """Arrays (batch, seqlen, heads, head_dim) under JAX's names. JAX's settings are restored at the end."""
    import attend.jax

    q, k, v = (_normal(2, 64, heads, 32) for heads in (8, 2, 2))
    with arrays() as names:
        yield names | {"q": q, "k": k, "v": v, "query": q, "key": k, "value": v}
    attend.jax.restore()


@contextlib.contextmanager
def jax_mesh() -> Iterator[Names]:
    """Arrays (batch, heads, seqlen, head_dim), and a mesh of one device."""
    import functools

    import attend.jax
    import jax

    q, k, v = (_normal(2, heads, 64, 32) for heads in (8, 2, 2))
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("data", "seq"))
    yield {
        "attend": attend, "jax": jax, "functools": functools, "PartitionSpec": jax.sharding.PartitionSpec, "mesh": mesh,
        "seqlen": 64, "q": q, "k": k, "v": v,
    }  # fmt: skip


@contextlib.contextmanager
def torch_sequences() -> Iterator[Names]:
    """Tensors (batch, seqlen, heads, head_dim) of torch, and two such sequences."""
    import torch

    q, k, v = (torch.from_numpy(_normal(2, 64, 8, 32)) for _ in range(3))
    yield {"q": q, "k": k, "v": v, "sequences": [q[:1], k[:1, :20]]}


@contextlib.contextmanager
def scores() -> Iterator[Names]:
    """Tensors that custom scores read as captures."""
    q, k, v = (_normal(1, 2, 256, 8) for _ in range(3))
    table, cap = _normal(2, 256), np.array(5.0, np.float32)
    yield {"attend": attend, "q": q, "k": k, "v": v, "do": q, "table": table, "cap": cap}


@contextlib.contextmanager
def documents() -> Iterator[Names]:
    """One head of 8192 rows, in documents of 1000 rows."""
    q, k, v = (_normal(1, 1, 8192, 8) for _ in range(3))
    yield {"attend": attend, "q": q, "k": k, "v": v, "doc": np.arange(8192, dtype=np.int32) // 1000}


@contextlib.contextmanager
def nothing() -> Iterator[Names]:
    """No names, for a block that does not continue the block before it."""
    yield {}


@contextlib.contextmanager
def one_rank() -> Iterator[Names]:
    """torch.distributed with one rank, and a model with one attention."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:  # mpi4py can be installed without an MPI library
        pytest.skip(f"no MPI: {error}")

    with tempfile.NamedTemporaryFile() as file:
        dist.init_process_group("gloo", rank=0, world_size=1, store=dist.FileStore(file.name, 1))
        mesh = init_device_mesh("cpu", (1,))
        tokens, positions = (torch.from_numpy(_normal(64, 8)) for _ in range(2))

        def model(tokens: Any, positions: Any) -> Any:
            x = (tokens + positions)[None, None]
            return torch.nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)

        q, k, v = (torch.from_numpy(_normal(1, 2, 64, 8)) for _ in range(3))
        try:
            yield {
                "attend": attend, "q": q, "k": k, "v": v, "mesh": mesh, "tokens": tokens, "positions": positions,
                "model": model, "MPI": MPI, "q_rows": q.numpy(), "k_rows": k.numpy(), "v_rows": v.numpy(),
            }  # fmt: skip
        finally:
            dist.destroy_process_group()


@contextlib.contextmanager
def torch_model() -> Iterator[Names]:
    """Tensors of torch, and a model of transformers with random weights. torch's settings are restored at the end."""
    import torch
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, bos_token_id=1, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).eval()
    generation = transformers.GenerationConfig(max_new_tokens=2, do_sample=False, use_cache=True, eos_token_id=None)
    model.generation_config = generation
    q, k, v = (torch.from_numpy(_normal(2, 8, 64, 32)) for _ in range(3))
    try:
        yield {
            "attend": attend, "torch": torch, "q": q, "k": k, "v": v, "model": model, "prompts": [[1, 2, 3], [4, 5]],
            "generation_config": generation,
        }  # fmt: skip
    finally:
        attend.restore()


@contextlib.contextmanager
def onnx_model() -> Iterator[Names]:
    """model.onnx with one Attention in the test's folder, and a torch module that calls attend."""
    import onnx
    import torch
    from onnx import TensorProto, helper

    kinds = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 2, 16, 8]) for name in "qkvo"}
    graph = helper.make_graph(
        [helper.make_node("Attention", ["q", "k", "v"], ["o"])], "one", [kinds[name] for name in "qkv"], [kinds["o"]]
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11), "model.onnx")

    class Model(torch.nn.Module):
        def forward(self, q: Any, k: Any, v: Any) -> Any:
            return attend.attention(q, k, v, causal=True)

    yield {
        "torch": torch,
        "model": Model().eval(),
        "inputs": tuple(torch.from_numpy(_normal(1, 2, 16, 8)) for _ in range(3)),
    }


@contextlib.contextmanager
def two_processes() -> Iterator[Names]:
    """No names, because the block is a separate program that runs on two ranks."""
    yield {}


def _by_torchrun(code: str) -> None:
    importlib.import_module("torch")  # torchrun requires torch
    path = pathlib.Path("program.py")
    path.write_text(code)
    line = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(path)]
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


_ALL = (
    arrays,
    caches,
    jax_arrays,
    jax_mesh,
    torch_sequences,
    scores,
    documents,
    nothing,
    one_rank,
    torch_model,
    onnx_model,
    two_processes,
)
SETUPS = {setup.__name__: setup for setup in _ALL}


@contextlib.contextmanager
def begin(name: str) -> Iterator[tuple[Names, Optional[Callable[[str], None]]]]:
    """Yields the names of a setup (no names for ""), and a function that runs its blocks, or None if this process runs
    them.
    """
    with contextlib.ExitStack() as stack:
        names = stack.enter_context(SETUPS[name]()) if name else {}
        yield names, _by_torchrun if name == "two_processes" else None


# A C++ program that defines the names which the fragments of the documentation use. The first {} is replaced by the
# fragments' includes, the second by the fragments.
CPP_NAMES = """\
#include <attend/attention.hpp>
#include <attend/ring.hpp>
#include <attend/serving.hpp>
{}
using attend::DeviceType, attend::DType, attend::Stream;

void page(const attend::Tensor& q, const attend::Tensor& k, const attend::Tensor& v, const attend::Tensor& o,
          const attend::Tensor& lse, const attend::Tensor& dout, const attend::Tensor& dq, const attend::Tensor& dk,
          const attend::Tensor& dv, float* q_data, float* k_data, float* v_data, float* o_data, float* lse_data,
          float* table, float* dtable, std::int32_t* doc, std::int64_t num_heads, Stream stream, int r) {{
  {}
}}
"""
