"""The problems of bench/h200_vs_peers.py and their sides: attend and its peers.

A side computes a case with one library. It is a function of the case's leaves, which are q, k and v as (batch, seqlen,
heads, head_dim). It returns o in the same order of dimensions. Peers that expect (batch, heads, seqlen, head_dim) get
transposed views, without a copy.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any, Optional

import attend
import torch
import torch.nn.functional as F
from attend._measure import decode_sides
from torch.nn.attention import SDPBackend, sdpa_kernel

SDP = {
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "fa2": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}
TORCH_DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
SOFTCAP, DROPOUT = 30.0, 0.1

Side = Callable[..., Any]


@dataclasses.dataclass
class Case:
    """One problem. `row` contains the first fields of its lines in the result file. `flops` is the number of forward
    operations on visible pairs.

    `bytes_moved` is set if memory bandwidth bounds the problem. The speed is then reported in GB/s. `sides` maps the
    name of a side to a function that computes o from `leaves`. `comparable` is False if each side draws a different
    dropout mask.
    """

    row: dict[str, Any]
    leaves: tuple[Any, ...]
    sides: dict[str, Side]
    flops: float
    bytes_moved: Optional[float] = None
    modes: tuple[str, ...] = ("fwd", "bwd")
    comparable: bool = True
    computes: tuple[str, ...] = ()  # additional backends of attend to time; only for cases without options


@dataclasses.dataclass(frozen=True)
class Masked:
    """The sizes of the problem on which all masks and options are measured."""

    batch: int = 2
    heads: int = 16
    seqlen: int = 8192
    head_dim: int = 128
    window: int = 1024
    document: int = 1024
    gqa_heads: tuple[int, int] = (32, 4)


@functools.cache
def flash_attention_3() -> Any:
    """Returns FlashAttention-3's module, or None."""
    return decode_sides.importable(decode_sides.FA3_MODULES, "flash_attn_func")


@functools.cache
def flash_attention_4() -> Any:
    """Returns FlashAttention-4's module, or None."""
    return decode_sides.importable(("flash_attn.cute",), "flash_attn_func")


def flash_attention_modules() -> dict[str, Any]:
    """Returns the installed modules of FlashAttention-3 and -4 by the names of their sides."""
    found = {"fa3": flash_attention_3(), "fa4": flash_attention_4()}
    return {name: module for name, module in found.items() if module is not None}


def draw(dtype: str, device: str, *shape: int) -> Any:
    return torch.randn(shape, device=device).to(TORCH_DTYPES[dtype]).requires_grad_()


def sdpa(backend: str, **options: Any) -> Side:
    """Returns the side of a backend of torch: one of SDP, or "math", the unfused path."""

    def side(q: Any, k: Any, v: Any, *mask: Any) -> Any:
        named = dict(zip(("attn_mask",), mask), **options)
        with sdpa_kernel([SDP.get(backend, SDPBackend.MATH)]):
            o = F.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v)), **named)
        return o.transpose(1, 2)

    return side


@functools.cache
def compiled_flex(device: str) -> Any:
    """Returns flex_attention, compiled because only torch.compile fuses it. Without a GPU, returns the eager form."""
    from torch.nn.attention.flex_attention import flex_attention

    # Each mask, dtype and pass compiles flex_attention again. After more compilations than this limit, torch would run
    # it unfused.
    torch._dynamo.config.cache_size_limit = 128
    return torch.compile(flex_attention, dynamic=False) if device == "cuda" else flex_attention


def flex(device: str, **options: Any) -> Side:
    def side(q: Any, k: Any, v: Any, *_: Any) -> Any:
        return compiled_flex(device)(*(x.transpose(1, 2) for x in (q, k, v)), **options).transpose(1, 2)

    return side


def ours(**options: Any) -> Side:
    return functools.partial(attend.attention, layout="bshd", **options)


def fa3_and_fa4(**options: Any) -> dict[str, Side]:
    """Returns a side for each of FlashAttention-3 and -4 that is installed. Some versions return (o, lse), others only
    o.
    """

    def side_of(module: Any) -> Side:
        def side(q: Any, k: Any, v: Any) -> Any:
            found = module.flash_attn_func(q, k, v, **options)
            return found[0] if isinstance(found, tuple) else found

        return side

    return {name: side_of(module) for name, module in flash_attention_modules().items()}


def fa4(**options: Any) -> dict[str, Side]:
    """Returns the side of FlashAttention-4."""
    return {name: side for name, side in fa3_and_fa4(**options).items() if name == "fa4"}


def paper_shapes(tokens: int = 16384, channels: int = 2048, first: int = 512) -> Iterator[tuple[Any, ...]]:
    """Yields (batch, heads, seqlen, head_dim, causal) as in the FlashAttention papers: the same number of tokens and
    channels for every length and head_dim."""
    for head_dim in (64, 128, 256):
        for causal in (False, True):
            seqlen = first
            while seqlen <= tokens:
                yield tokens // seqlen, channels // head_dim, seqlen, head_dim, causal
                seqlen *= 2


def paper(dtype: str, device: str, computes: tuple[str, ...] = (), **sizes: int) -> Iterator[Case]:
    """Yields cases without a mask and with a causal mask. `sizes` are the arguments of paper_shapes."""
    for batch, heads, seqlen, head_dim, causal in paper_shapes(**sizes):
        yield Case(
            {"what": "paper", "dtype": dtype, "D": head_dim, "S": seqlen, "B": batch, "H": heads, "causal": causal},
            tuple(draw(dtype, device, batch, seqlen, heads, head_dim) for _ in range(3)),
            {
                "attend": ours(causal=causal),
                **{name: sdpa(name, is_causal=causal) for name in SDP},
                **fa3_and_fa4(causal=causal),
            },
            4.0 * batch * heads * seqlen**2 * head_dim * (0.5 if causal else 1.0),
            computes=computes,
        )


def masks(dtype: str, device: str, sizes: Masked = Masked()) -> Iterator[Case]:
    """Yields a case for every mask and option, all on one problem. The number of operations includes only visible
    pairs.
    """
    b, h, s, d = sizes.batch, sizes.heads, sizes.seqlen, sizes.head_dim
    full = 4.0 * b * h * s * s * d

    def case(mask: str, sides: dict[str, Side], share: float, leaves: Any = None, **more: Any) -> Case:
        row = {"what": "mask", "dtype": dtype, "D": d, "S": s, "B": b, "H": h, "mask": mask}
        leaves = leaves or tuple(draw(dtype, device, b, s, h, d) for _ in range(3))
        return Case(row | more.pop("row", {}), leaves, sides, full * share, **more)

    shown = _block_masks(sizes, device)
    past = {"window": (sizes.window - 1, 0)}
    yield case(
        f"window{sizes.window}",
        {
            "attend": ours(**past),
            "flex": flex(device, block_mask=shown["window"]),
            **fa3_and_fa4(causal=True, window_size=past["window"]),
        },
        sizes.window / s,
    )
    yield case(
        f"documents{sizes.document}-causal", _packed_sides(sizes, device, shown["documents"]), 0.5 * sizes.document / s
    )
    slopes = torch.exp2(-8.0 * torch.arange(1, h + 1, device=device, dtype=torch.float32) / h)
    rule = {
        "alibi": lambda s, b, h, i, j: s - slopes[h] * (i - j).abs(),
        "softcap": lambda s, b, h, i, j: SOFTCAP * torch.tanh(s / SOFTCAP),
    }
    for name, options in (("alibi", {"alibi_slopes": slopes}), ("softcap", {"softcap": SOFTCAP})):
        sides = {
            "attend": ours(causal=True, **options),
            "flex": flex(device, block_mask=shown["causal"], score_mod=rule[name]),
        }
        if name == "softcap":  # FlashAttention-3's backward pass has no softcap
            sides |= fa4(causal=True, **options)
        yield case(f"{name}-causal", sides, 0.5)
    yield case(
        "dropout-causal",
        {"attend": ours(causal=True, dropout_p=DROPOUT), "fa2": sdpa("fa2", is_causal=True, dropout_p=DROPOUT)},
        0.5,
        comparable=False,
    )
    yield from _biased(sizes, dtype, device, case)
    heads, heads_kv = sizes.gqa_heads
    leaves = tuple(draw(dtype, device, b, s, n, d) for n in (heads, heads_kv, heads_kv))
    sides = {name: sdpa(name, is_causal=True, enable_gqa=True) for name in ("cudnn", "fa2")}
    yield case(
        f"gqa{heads}:{heads_kv}-causal",
        {"attend": ours(causal=True), **sides, **fa3_and_fa4(causal=True)},
        0.5 * heads / h,
        leaves,
        row={"H": heads, "Hkv": heads_kv},
    )


def _block_masks(sizes: Masked, device: str) -> dict[str, Any]:
    """Returns FlexAttention's lists of visible blocks for each mask. All masks are causal."""
    from torch.nn.attention.flex_attention import create_block_mask

    document = torch.arange(sizes.seqlen, device=device) // sizes.document
    rules = {
        "causal": lambda b, h, i, j: i >= j,
        "window": lambda b, h, i, j: (i >= j) & (i - j < sizes.window),
        "documents": lambda b, h, i, j: (document[i] == document[j]) & (i >= j),
    }
    s = sizes.seqlen
    return {name: create_block_mask(rule, None, None, s, s, device=device) for name, rule in rules.items()}


def _packed_sides(sizes: Masked, device: str, block_mask: Any) -> dict[str, Side]:
    """Returns sides for documents of equal length. attend and FlashAttention get packed sequences, FlexAttention gets a
    mask.
    """
    b, s, one = sizes.batch, sizes.seqlen, sizes.document
    cu_seqlens = torch.arange(0, b * s + 1, one, device=device, dtype=torch.int32)
    lengths = {"cu_seqlens_q": cu_seqlens, "cu_seqlens_k": cu_seqlens, "max_seqlen_q": one, "max_seqlen_k": one}

    def packed(function: Any) -> Side:
        def side(q: Any, k: Any, v: Any) -> Any:
            found = function(*(x.flatten(0, 1) for x in (q, k, v)), **lengths, causal=True)
            return (found[0] if isinstance(found, tuple) else found).view(q.shape)

        return side

    theirs = {name: packed(module.flash_attn_varlen_func) for name, module in flash_attention_modules().items()}
    return {"attend": packed(attend.attention_varlen), "flex": flex(device, block_mask=block_mask), **theirs}


def _biased(sizes: Masked, dtype: str, device: str, case: Callable[..., Case]) -> Iterator[Case]:
    """Yields a case with a bias for each head, shared by the batch, and one with the gradient of the bias."""
    for mask, wants_gradient in (("bias", False), ("dbias", True)):
        bias = draw(dtype, device, 1, sizes.heads, sizes.seqlen, sizes.seqlen).detach()

        def add(s: Any, b: Any, h: Any, i: Any, j: Any, bias: Any = bias) -> Any:
            return s + bias[0, h, i, j]

        qkv = tuple(draw(dtype, device, sizes.batch, sizes.seqlen, sizes.heads, sizes.head_dim) for _ in range(3))
        leaves = (*qkv, bias.requires_grad_(wants_gradient))
        sides = {
            "attend": lambda q, k, v, bias: attend.attention(q, k, v, layout="bshd", bias=bias),
            "cudnn": sdpa("cudnn"),
            "efficient": sdpa("efficient"),
            "flex": flex(device, score_mod=add),
        }
        yield case(mask, sides, 1.0, leaves, modes=("bwd",) if wants_gradient else ("fwd", "bwd"))
        del bias, add, qkv, leaves, sides  # frees them, because they are as large as all other tensors together


def decode(
    dtype: str, device: str, shapes: tuple[tuple[int, int], ...] = ((1, 131072), (16, 8192), (64, 4096), (128, 1024))
) -> Iterator[Case]:
    """Yields cases with one query row over a cache, with 32 query heads and 8 key heads. Memory bandwidth bounds
    them.
    """
    heads, heads_kv, head_dim = 32, 8, 128
    for batch, seqlen in shapes:
        q = draw(dtype, device, batch, 1, heads, head_dim).detach()
        k, v = (draw(dtype, device, batch, seqlen, heads_kv, head_dim).detach() for _ in range(2))
        sides = {"attend": ours(), **{name: sdpa(name, enable_gqa=True) for name in ("cudnn", "fa2")}, **fa3_and_fa4()}
        module = flash_attention_3()
        if hasattr(module, "flash_attn_with_kvcache"):
            lengths = torch.full((batch,), seqlen, device=device, dtype=torch.int32)
            sides["fa3_kvcache"] = functools.partial(module.flash_attn_with_kvcache, cache_seqlens=lengths)
        yield Case(
            {
                "what": "decode",
                "dtype": dtype,
                "D": head_dim,
                "S": seqlen,
                "B": batch,
                "H": heads,
                "Hkv": heads_kv,
                "causal": False,
            },
            (q, k, v),
            sides,
            4.0 * batch * heads * seqlen * head_dim,
            2.0 * batch * seqlen * heads_kv * head_dim * q.element_size(),
            ("fwd",),
        )


GRIDS = {"paper": paper, "masks": masks, "decode": decode}
