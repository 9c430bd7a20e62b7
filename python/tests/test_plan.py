"""Tests of attend.explain and attend.prepare, which report the library's choice from sizes, without tensors."""

import math
import os
import subprocess
import sys

import attend
import pytest
from attend import _core, _info


def test_explain_says_who_takes_a_call_on_a_cpu():
    candidates = attend.explain(2, 8, 512, 64, dtype="f32", causal=True, device="cpu")
    assert [c["compute"] for c in candidates if c["chosen"]] == ["cpu"]
    assert {c["compute"] for c in candidates} == {b["name"] for b in attend.backends() if b["device"] == "cpu"}


def test_explain_names_what_is_lacking():
    candidates = {c["compute"]: c for c in attend.explain(1, 2, 8, 4, dtype="bf16", device="cpu", softcap=3.0)}
    assert candidates["cpu_naive"]["lack"] == "softcap: 3, compute 'cpu_naive' allows 0"
    assert candidates["reference"]["lack"] == ""


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_every_option_may_be_asked_for(backward, layout):
    flags = {row["flag"].removeprefix("--"): True for row in _core.TENSOR_OPTIONS}
    assert {"bias", "mask", "alibi"} <= flags.keys()
    candidates = attend.explain(
        2, 8, 100, 64, dtype="f16", heads_kv=2, seqlen_k=130, head_dim_v=40, layout=layout, window=(10, 3), scale=-1.0,
        softcap=2.0, dropout_p=0.1, deterministic=True, backward=backward, device="cpu", **flags,
    )  # fmt: skip
    assert [c["compute"] for c in candidates if c["chosen"]] == ["cpu"]


def test_prepare_has_nothing_to_do_on_a_cpu():
    assert attend.prepare(1, 2, 16, 8, dtype="f32", device="cpu", backward=True) is None


def test_refusals_name_the_argument():
    with pytest.raises(attend.ArgumentError, match="k: num_heads_k 3"):
        attend.explain(1, 8, 16, 8, heads_kv=3, device="cpu")
    with pytest.raises(attend.ArgumentError, match="device: 'gpu'"):
        attend.prepare(1, 8, 16, 8, device="gpu")
    with pytest.raises(attend.ArgumentError, match="layout: 'sbhd'"):
        attend.explain(1, 8, 16, 8, layout="sbhd", device="cpu")


def test_a_gpu_that_cannot_be_used_is_shown_and_not_planned_for(monkeypatch):
    lack = "device: compute capability 6.1, allowed those of sm_70, sm_75"
    gpu = {"name": "Old", "compute_capability": "6.1", "multiprocessors": 10, "memory_bytes": 1 << 32, "lack": lack}
    monkeypatch.setattr("attend._core.gpus", lambda: [gpu])
    assert f"     unsupported: {lack}" in _info.text().splitlines()
    assert {c["compute"] for c in attend.explain(1, 2, 8, 4)} == {"cpu", "reference", "cpu_naive"}


@pytest.mark.parametrize("device", ["cpu", "cuda:", "cuda:x", "gpu", None])
def test_memory_is_of_gpus(device):
    with pytest.raises(attend.ArgumentError, match=f"device: {device!r}, allowed 'cuda', 'cuda:N'"):
        attend.memory(device)


def test_memory_without_a_driver_is_one_line():
    code = "import attend\ntry: attend.memory()\nexcept attend.RunError as error: print(error)"
    environment = {**os.environ, "ATTEND_LIBCUDA_PATH": "/nowhere/libcuda.so.1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert "libcuda" in done.stdout and done.stdout.count("\n") == 1, done.stdout + done.stderr


@pytest.mark.skipif(not attend.gpus(), reason="no GPU")
def test_memory_counts_a_calls_scratch_and_its_return():
    before = attend.memory(reset_peak=True)
    array = attend._core.cuda_empty([1000], "f32", 4000, 0, 0, None)
    during = attend.memory()
    assert during["used"] - before["used"] >= 4000 and during["peak"] >= during["used"]
    assert during["reserved"] >= during["used"]
    del array
    attend._core.synchronize(0, 0)
    after = attend.memory(reset_peak=True)
    assert after["used"] == before["used"] and after["peak"] == during["peak"]
    assert attend.memory()["peak"] == before["used"]


@pytest.mark.skipif(not attend.gpus(), reason="no GPU")
@pytest.mark.parametrize("backward", [False, True])
def test_on_a_gpu_kernels_are_told_and_made(backward):
    candidates = attend.explain(2, 8, 512, 64, backward=backward, device="cuda")
    (chosen,) = [c for c in candidates if c["chosen"]]
    assert chosen["steps"] and chosen["variant"] and chosen["why"]
    assert math.isfinite(chosen["estimated_us"])
    attend.prepare(2, 8, 512, 64, backward=backward, device="cuda")


@pytest.mark.parametrize(
    "sizes, options, message",
    [
        ((2, -8, 16, 64), {}, "heads: -8, allowed 0 to 2147483647"),
        ((2, 8, 16.5, 64), {}, "seqlen: 16.5, allowed a whole number"),
        (("2", 8, 16, 64), {}, "batch: '2', allowed a whole number"),
        ((2, 8, 16, 2**40), {}, "head_dim: 1099511627776, allowed 0 to"),
        ((2, 8, 16, 64), {"seqlen_k": -1}, "seqlen_k: -1, allowed"),
        ((2, 8, 16, 64), {"heads_kv": None, "device": 3}, "device: 3, allowed None, 'cpu'"),
        ((2**31 - 1, 2**31 - 1, 2**31 - 1, 64), {}, "q: shape .* spans more than 2\\^62 bytes"),
    ],
)
def test_sizes_are_refused_by_their_own_names(sizes, options, message):
    for call in (attend.explain, attend.prepare):
        with pytest.raises(attend.ArgumentError, match=f"^{message}"):
            call(*sizes, **{"device": "cpu", **options})


def test_no_keys_are_a_number_of_keys():
    assert any(candidate["chosen"] for candidate in attend.explain(1, 2, 16, 64, seqlen_k=0, device="cpu"))
