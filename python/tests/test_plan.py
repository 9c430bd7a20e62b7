"""attend.explain and attend.prepare: the library's own choice, from sizes alone."""

import math

import attend
import pytest


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
    candidates = attend.explain(
        2, 8, 100, 64, dtype="f16", heads_kv=2, seqlen_k=130, head_dim_v=40, layout=layout, window=(10, 3), scale=-1.0,
        softcap=2.0, bias=True, mask=True, alibi=True, dropout_p=0.1, deterministic=True, backward=backward,
        device="cpu",
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


@pytest.mark.skipif(not attend.gpus(), reason="no GPU")
@pytest.mark.parametrize("backward", [False, True])
def test_on_a_gpu_kernels_are_told_and_made(backward):
    candidates = attend.explain(2, 8, 512, 64, backward=backward, device="cuda")
    (chosen,) = [c for c in candidates if c["chosen"]]
    assert chosen["steps"] and chosen["variant"] and chosen["why"]
    assert math.isfinite(chosen["estimated_us"])
    attend.prepare(2, 8, 512, 64, backward=backward, device="cuda")
