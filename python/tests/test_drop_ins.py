"""Tests of functions with the interfaces of other packages: order of positional arguments, conventions, and
refusals.
"""

import importlib
import inspect

import pytest

pytest.importorskip("numpy")
pytest.importorskip(
    "torch", reason=f"the tests of {__name__} need torch: `make py-test ATTEND_TEST_TORCH=1` installs it"
)

import attend
from attend import flash_attn, flash_attn_3, vllm_flash_attn

OPTIONS_2 = "dropout_p softmax_scale causal window_size softcap alibi_slopes deterministic return_attn_probs"
OFFSETS = "cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k"
OPTIONS_3 = (
    "softmax_scale causal qv q_descale k_descale v_descale window_size attention_chunk softcap num_splits pack_gqa "
    "deterministic sm_margin return_attn_probs"
)
PASS_OPTIONS = "dropout_p softmax_scale causal window_size_left window_size_right softcap alibi_slopes"
METADATA = (
    "batch_size max_seqlen_q max_seqlen_k num_heads_q num_heads_kv headdim cache_seqlens qkv_dtype headdim_v "
    "cu_seqlens_q cu_seqlens_k_new cache_leftpad page_size max_seqlen_k_new causal window_size"
)
METADATA_REST = "has_softcap num_splits pack_gqa sm_margin"
ORDERS = {
    flash_attn.flash_attn_func: f"q k v {OPTIONS_2}",
    flash_attn.flash_attn_qkvpacked_func: f"qkv {OPTIONS_2}",
    flash_attn.flash_attn_kvpacked_func: f"q kv {OPTIONS_2}",
    flash_attn.flash_attn_varlen_func: f"q k v {OFFSETS} {OPTIONS_2} block_table",
    flash_attn.flash_attn_varlen_qkvpacked_func: f"qkv cu_seqlens max_seqlen {OPTIONS_2}",
    flash_attn.flash_attn_varlen_kvpacked_func: f"q kv {OFFSETS} {OPTIONS_2}",
    flash_attn.flash_attn_with_kvcache: (
        "q k_cache v_cache k v rotary_cos rotary_sin cache_seqlens cache_batch_idx cache_leftpad block_table "
        "softmax_scale causal window_size softcap rotary_interleaved alibi_slopes num_splits return_softmax_lse"
    ),
    flash_attn_3.flash_attn_with_kvcache: (
        "q k_cache v_cache k v qv rotary_cos rotary_sin cache_seqlens cache_batch_idx cache_leftpad page_table "
        "cu_seqlens_q cu_seqlens_k_new max_seqlen_q rotary_seqlens q_descale k_descale v_descale softmax_scale causal "
        "window_size attention_chunk softcap rotary_interleaved scheduler_metadata num_splits pack_gqa sm_margin "
        "return_softmax_lse"
    ),
    flash_attn_3.flash_attn_func: f"q k v {OPTIONS_3}",
    flash_attn_3.flash_attn_varlen_func: f"q k v {OFFSETS} seqused_q seqused_k {OPTIONS_3}",
    flash_attn_3.flash_attn_qkvpacked_func: (
        "qkv softmax_scale causal q_descale k_descale v_descale window_size attention_chunk softcap deterministic "
        "num_heads_q sm_margin return_attn_probs"
    ),
    flash_attn_3.flash_attn_combine: "out_partial lse_partial out out_dtype return_lse",
    flash_attn._flash_attn_forward: f"q k v {PASS_OPTIONS} return_softmax",
    flash_attn._flash_attn_varlen_forward: (
        f"q k v {OFFSETS} {PASS_OPTIONS} return_softmax block_table leftpad_k seqused_k zero_tensors"
    ),
    flash_attn._flash_attn_backward: f"dout q k v out softmax_lse dq dk dv {PASS_OPTIONS} deterministic rng_state",
    flash_attn._flash_attn_varlen_backward: (
        f"dout q k v out softmax_lse dq dk dv {OFFSETS} {PASS_OPTIONS} deterministic rng_state zero_tensors"
    ),
    flash_attn_3.get_scheduler_metadata: f"{METADATA} attention_chunk {METADATA_REST}",
    vllm_flash_attn.get_scheduler_metadata: f"{METADATA} {METADATA_REST}",
    vllm_flash_attn.flash_attn_varlen_func: (
        "q k v max_seqlen_q cu_seqlens_q max_seqlen_k cu_seqlens_k seqused_k q_v dropout_p softmax_scale causal "
        "window_size softcap alibi_slopes deterministic return_attn_probs block_table return_softmax_lse out "
        "scheduler_metadata q_descale k_descale v_descale num_splits output_scale fa_version s_aux cp_world_size "
        "cp_rank cp_tot_seqused_k mask_mod block_sparse_tensors aux_tensors aux_tensor_leading_dims dynamic_causal"
    ),
    vllm_flash_attn.reshape_and_cache_flash: (
        "key value key_cache value_cache slot_mapping kv_cache_dtype k_scale v_scale"
    ),
    vllm_flash_attn.merge_attn_states: (
        "output prefix_output prefix_lse suffix_output suffix_lse output_lse prefill_tokens_with_context output_scale"
    ),
    attend.sdpa: "query key value attn_mask dropout_p is_causal scale enable_gqa",
}


@pytest.mark.parametrize("function", ORDERS)
def test_positional_orders(function):
    parameters = inspect.signature(function).parameters.values()
    by_name = [x.name for x in parameters if x.kind is x.KEYWORD_ONLY]
    assert [x.name for x in parameters if x.kind is not x.KEYWORD_ONLY] == ORDERS[function].split()
    # The sinks have the names of flash-attn 3 and 4, and the page table those of flash-attn 4 and vLLM.
    sinks = ["s_aux", "learnable_sink"]
    assert by_name in ([], sinks, [*sinks, "page_table", "block_table", "scheduler_metadata"])


def normal(torch, device, *shape, requires_grad=True):
    return torch.randn(*shape, device=device, requires_grad=requires_grad)


def test_flash_attn_by_position(torch, device):
    q, k, v = normal(torch, device, 2, 9, 4, 8), normal(torch, device, 2, 12, 2, 8), normal(torch, device, 2, 12, 2, 8)
    slopes = torch.rand(4, device=device)
    out, lse, pattern = flash_attn.flash_attn_func(q, k, v, 0.0, 0.2, True, (5, 0), 3.0, slopes, True, True)
    options = {"layout": "bshd", "scale": 0.2, "causal": True, "window": (5, 0), "softcap": 3.0, "alibi_slopes": slopes}
    want, want_lse = attend.attention(q, k, v, return_lse=True, **options)
    assert torch.equal(out, want) and torch.equal(lse, want_lse) and pattern is None
    kv = torch.stack([k, v], dim=2)
    assert torch.equal(flash_attn.flash_attn_kvpacked_func(q, kv, 0.0, 0.2, True, (5, 0), 3.0, slopes), want)
    three = flash_attn_3.flash_attn_func(q, k, v, 0.2, True, None, None, None, None, (5, 0), 0, 3.0)
    assert torch.equal(three, attend.attention(q, k, v, **options | {"alibi_slopes": None}))


def test_packed_forms_and_their_gradients(torch, device):
    qkv = normal(torch, device, 2, 9, 3, 4, 8)
    out = flash_attn.flash_attn_qkvpacked_func(qkv, causal=True)
    want = attend.attention(*qkv.unbind(2), layout="bshd", causal=True)
    assert torch.equal(out, want)
    found, wanted = (torch.autograd.grad(x.square().sum(), qkv)[0] for x in (out, want))
    assert torch.equal(found, wanted) and found.abs().sum() > 0


def test_varlen_forms(torch, device):
    cu = torch.tensor([0, 4, 9], dtype=torch.int32, device=device)
    q, k, v = (normal(torch, device, 9, 2, 8) for _ in range(3))
    want, want_lse = attend.attention_varlen(q, k, v, cu, cu, 5, 5, causal=True, return_lse=True)
    two = flash_attn.flash_attn_varlen_func(q, k, v, cu, cu, 5, 5, 0.0, None, True, return_attn_probs=True)
    three = flash_attn_3.flash_attn_varlen_func(q, k, v, cu, cu, 5, 5, None, None, None, True, return_attn_probs=True)
    for out, lse in (two[:2], three):
        assert torch.equal(out, want) and torch.equal(lse, want_lse)
    qkv, kv = torch.stack([q, k, v], dim=1), torch.stack([k, v], dim=1)
    assert torch.equal(flash_attn.flash_attn_varlen_qkvpacked_func(qkv, cu, 5, causal=True), want)
    assert torch.equal(flash_attn.flash_attn_varlen_kvpacked_func(q, kv, cu, cu, 5, 5, causal=True), want)


@pytest.mark.parametrize(
    "name, value",
    [
        ("q_descale", "tensor"),
        ("attention_chunk", 4),
    ],
)
def test_flash_attn_3_refuses_by_name(torch, device, name, value):
    q, k, v = (normal(torch, device, 1, 9, 2, 8) for _ in range(3))
    with pytest.raises(NotImplementedError, match=f"^{name}: "):
        flash_attn_3.flash_attn_func(q, k, v, **{name: torch.ones(1, device=device) if value == "tensor" else value})


def test_flash_attn_2_refuses_by_name(torch, device):
    cu = torch.tensor([0, 9], dtype=torch.int32, device=device)
    q, k, v = (normal(torch, device, 9, 2, 8) for _ in range(3))
    with pytest.raises(NotImplementedError, match="^block_table: "):
        flash_attn._flash_attn_varlen_forward(q, k, v, cu, cu, 9, 9, 0.0, None, False, block_table=cu)
    with pytest.raises(NotImplementedError, match="^return_attn_probs with dropout_p > 0: "):
        flash_attn.flash_attn_func(q[None], k[None], v[None], 0.1, return_attn_probs=True)
    with pytest.raises(ValueError, match="^qkv: shape"):
        flash_attn.flash_attn_qkvpacked_func(q[None])


def test_flash_attn_3_ignores_how_the_work_is_divided(torch, device):
    q, k, v = (normal(torch, device, 1, 9, 2, 8) for _ in range(3))
    want = flash_attn_3.flash_attn_func(q, k, v)
    assert torch.equal(flash_attn_3.flash_attn_func(q, k, v, num_splits=3, pack_gqa=True, sm_margin=8), want)


def test_flash_attn_3_packed(torch, device):
    qkv = normal(torch, device, 2, 9, 3, 4, 8)
    want = flash_attn_3.flash_attn_func(*qkv.unbind(2), causal=True)
    assert torch.equal(flash_attn_3.flash_attn_qkvpacked_func(qkv, causal=True), want)
    grouped = normal(torch, device, 2, 9, 8, 8)
    want = flash_attn_3.flash_attn_func(grouped[:, :, :4], grouped[:, :, 4:6], grouped[:, :, 6:])
    assert torch.equal(flash_attn_3.flash_attn_qkvpacked_func(grouped, num_heads_q=4), want)
    with pytest.raises(ValueError, match="^qkv: shape"):
        flash_attn_3.flash_attn_qkvpacked_func(grouped, num_heads_q=5)


def test_parts_of_the_keys_combine_to_all_of_them(torch, device):
    q, k, v = (normal(torch, device, 2, 9, 4, 8, requires_grad=False) for _ in range(3))
    parts = [
        flash_attn_3.flash_attn_func(q, k[:, a:b], v[:, a:b], return_attn_probs=True)
        for a, b in ((0, 2), (2, 9), (9, 9))
    ]
    outs, lses = torch.stack([out for out, _ in parts]), torch.stack([lse.transpose(1, 2) for _, lse in parts])
    want, want_lse = flash_attn_3.flash_attn_func(q, k, v, return_attn_probs=True)
    found, lse = flash_attn_3.flash_attn_combine(outs, lses)
    torch.testing.assert_close(found, want, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(lse, want_lse.transpose(1, 2), atol=1e-6, rtol=1e-5)
    empty, lse = flash_attn_3.flash_attn_combine(outs[2:], lses[2:])
    assert not empty.any() and (lse == float("-inf")).all()
    place = torch.empty_like(q)
    assert flash_attn_3.flash_attn_combine(outs, lses, place, return_lse=False) is place and torch.equal(place, found)


@pytest.mark.parametrize("dropout_p", [0.0, 0.3])
@pytest.mark.parametrize("packed", [False, True])
def test_the_passes_by_their_private_names(torch, device, packed, dropout_p):
    shape = (9, 4, 8) if packed else (2, 9, 4, 8)
    q, k, v, dout = (normal(torch, device, *shape, requires_grad=False) for _ in range(4))
    cu = torch.tensor([0, 4, 9], dtype=torch.int32, device=device)
    offsets = (cu, cu, 5, 5) if packed else ()
    run_forward = flash_attn._flash_attn_varlen_forward if packed else flash_attn._flash_attn_forward
    run_backward = flash_attn._flash_attn_varlen_backward if packed else flash_attn._flash_attn_backward
    torch.manual_seed(3)
    out, lse, pattern, state = run_forward(q, k, v, *offsets, dropout_p, 0.2, True)
    results = [torch.full_like(q, float("nan")) for _ in range(3)]
    sums = run_backward(dout, q, k, v, out, lse, *results, *offsets, dropout_p, 0.2, True, rng_state=state)
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    torch.manual_seed(3)
    whole = flash_attn.flash_attn_varlen_func if packed else flash_attn.flash_attn_func
    want = whole(*leaves, *offsets, dropout_p, 0.2, True)
    assert torch.equal(out, want) and pattern is None and sums.shape == lse.shape
    for a, b in zip(results, torch.autograd.grad(want, leaves, dout)):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-5)


def test_dropout_follows_manual_seed(torch, device):
    q, k, v = (normal(torch, device, 1, 9, 2, 8) for _ in range(3))
    run = lambda seed: torch.manual_seed(seed) and flash_attn.flash_attn_func(q, k, v, 0.5)
    assert torch.equal(run(1), run(1)) and not torch.equal(run(1), run(2))


# The functions of the package flash_attn and its flash_attn_interface, of flash-attn 3's flash_attn_interface, and of
# the package ring_flash_attn with its adapters.
FUNCTIONS_2 = "func kvpacked_func qkvpacked_func varlen_func varlen_kvpacked_func varlen_qkvpacked_func with_kvcache"
CLASSES_2 = "Func KVPackedFunc QKVPackedFunc VarlenFunc VarlenKVPackedFunc VarlenQKVPackedFunc"
NAMES = {
    "flash_attn": [
        *(f"flash_attn_{name}" for name in FUNCTIONS_2.split()),
        *(f"FlashAttn{name}" for name in CLASSES_2.split()),
        *(f"_flash_attn_{name}" for name in ("forward", "backward", "varlen_forward", "varlen_backward")),
    ],
    "flash_attn_3": [
        *(f"flash_attn_{n}" for n in ("func", "varlen_func", "qkvpacked_func", "combine", "with_kvcache")),
        *(f"FlashAttn{name}" for name in ("Func", "VarlenFunc", "QKVPackedFunc")),
        *("get_scheduler_metadata", "_flash_attn_forward", "_flash_attn_backward"),
    ],
    "vllm_flash_attn": [
        *("fa_version_unsupported_reason", "flash_attn_varlen_func", "get_scheduler_metadata"),
        *("is_fa_version_supported", "merge_attn_states", "reshape_and_cache_flash"),
    ],
    "ring_flash_attn": [
        *(
            f"{prefix}_flash_attn_{varlen}{form}func"
            for prefix in ("ring", "zigzag_ring", "stripe")
            for varlen in ("", "varlen_")
            for form in ("", "kvpacked_", "qkvpacked_")
        ),
        *(f"llama3_flash_attn_varlen_{form}func" for form in ("", "kvpacked_", "qkvpacked_")),
        *("llama3_flash_attn_prepare_cu_seqlens", "substitute_hf_flash_attn", "update_ring_flash_attn_params"),
        "use_ring_attn",
    ],
}
NOT_YET = {
    "flash_attn": ["FlashAttnFunc", "FlashAttnVarlenKVPackedFunc"],
    "flash_attn_3": ["_flash_attn_backward", "_flash_attn_forward", "FlashAttnFunc"],
    "ring_flash_attn": ["substitute_hf_flash_attn", "update_ring_flash_attn_params", "use_ring_attn"],
}


@pytest.mark.parametrize("module", NAMES)
def test_every_public_name_can_be_imported(module):
    door = importlib.import_module(f"attend.{module}")
    for name in NAMES[module]:
        assert callable(getattr(door, name)) and name in door.__all__, name
    assert sorted(door.__all__) == sorted(NAMES[module])


@pytest.mark.parametrize("module", NOT_YET)
def test_what_is_not_there_yet_says_so_when_it_is_called(module):
    door = importlib.import_module(f"attend.{module}")
    for name in NOT_YET[module]:
        found = getattr(door, name)
        with pytest.raises(NotImplementedError, match=f"^{name}: attend does not have it yet"):
            found(1, 2, 3)
        if name.startswith("Flash"):
            with pytest.raises(
                NotImplementedError, match=f"^{name}: attend does not have it yet; flash_attn_.*func is there$"
            ):
                found.apply(1, 2)


@pytest.mark.parametrize("varlen", [False, True])
def test_the_gradients_of_a_call_that_dropped_need_its_rng_state(torch, varlen):
    x = torch.ones(1, 4, 2, 8)
    x = x[0] if varlen else x
    cu = torch.tensor([0, 4], dtype=torch.int32)
    offsets = (cu, cu, 4, 4) if varlen else ()
    forward = flash_attn._flash_attn_varlen_forward if varlen else flash_attn._flash_attn_forward
    backward = flash_attn._flash_attn_varlen_backward if varlen else flash_attn._flash_attn_backward
    out, lse, _, state = forward(x, x, x, *offsets, 0.5, None, False)
    results = [torch.empty_like(x) for _ in range(3)]
    run = lambda p, state: backward(x, x, x, x, out, lse, *results, *offsets, p, None, False, rng_state=state)
    for wrong, shown in ((None, "None"), (3, "int"), (state[:1], "Tensor (1,)"), (state.float(), "Tensor (2,)")):
        with pytest.raises(attend.ArgumentError) as caught:
            run(0.5, wrong)
        assert str(caught.value).startswith(f"rng_state: {shown} with dropout_p > 0, allowed the int64 (2,)")
    run(0.5, state)
    run(0.0, None)


def test_refusals_name_the_arguments_of_the_function_that_was_called(torch):
    x, nan = torch.ones(1, 2, 4, 8), float("nan")
    cu, p = torch.tensor([0, 4], dtype=torch.int32), torch.ones(4, 2, 8)
    two, three = flash_attn, flash_attn_3
    qkv, packed = torch.stack([x] * 3, 2), (p, p, p, cu, cu, 4, 4)
    cases = [
        ("attn_mask: shape", lambda: attend.sdpa(x, x, x, torch.ones(3, 3))),
        ("attn_mask: shape", lambda: attend.sdpa(x, x, x, torch.ones(3, 3) > 0)),
        ("attn_mask: dtype i32", lambda: attend.sdpa(x, x, x, torch.ones(4, 4, dtype=torch.int32))),
        ("key: shape", lambda: attend.sdpa(x, x[..., :4], x)),
        ("value: shape", lambda: attend.sdpa(x, x, x[:, :, :3])),
        ("query, key, value: leading", lambda: attend.sdpa(x.expand(3, 2, 4, 8), *[x.expand(2, 2, 4, 8)] * 2)),
        ("softmax_scale: nan", lambda: two.flash_attn_func(x, x, x, softmax_scale=nan)),
        ("window_size: 5", lambda: two.flash_attn_func(x, x, x, window_size=5)),
        ("window_size: left -5", lambda: two.flash_attn_qkvpacked_func(qkv, window_size=(-5, 0))),
        ("softmax_scale: nan", lambda: two.flash_attn_varlen_func(*packed, softmax_scale=nan)),
        ("softmax_scale: nan", lambda: two._flash_attn_forward(x, x, x, 0.0, nan, False)),
        ("window_size: left -5", lambda: three.flash_attn_func(x, x, x, window_size=(-5, 0))),
        ("softmax_scale: nan", lambda: three.flash_attn_qkvpacked_func(qkv, softmax_scale=nan)),
        ("softmax_scale: nan", lambda: three.flash_attn_varlen_func(*packed, softmax_scale=nan)),
    ]
    for line, call in cases:
        with pytest.raises(attend.ArgumentError) as caught:
            call()
        assert str(caught.value).startswith(line) and "\n" not in str(caught.value)
