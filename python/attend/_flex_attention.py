"""The functions of torch.nn.attention.flex_attention with torch's names and conventions, computed by attend."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, Optional, Union, overload

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn.attention.flex_attention import AuxOutput, AuxRequest, BlockMask

    from attend._types import Device

Mod = Callable[..., "Tensor"]  # a score_mod or mask_mod; its arguments are tensors without dimensions


@overload
def flex_attention(
    query: Tensor, key: Tensor, value: Tensor, score_mod: Optional[Mod] = None, block_mask: Optional[BlockMask] = None,
    scale: Optional[float] = None, enable_gqa: bool = False, return_lse: Literal[False] = False,
    kernel_options: Optional[Mapping[str, object]] = None, *, return_aux: None = None,
) -> Tensor: ...  # fmt: skip
@overload
def flex_attention(
    query: Tensor, key: Tensor, value: Tensor, score_mod: Optional[Mod] = None, block_mask: Optional[BlockMask] = None,
    scale: Optional[float] = None, enable_gqa: bool = False, *, return_lse: Literal[True],
    kernel_options: Optional[Mapping[str, object]] = None, return_aux: None = None,
) -> tuple[Tensor, Tensor]: ...  # fmt: skip
@overload
def flex_attention(
    query: Tensor, key: Tensor, value: Tensor, score_mod: Optional[Mod] = None, block_mask: Optional[BlockMask] = None,
    scale: Optional[float] = None, enable_gqa: bool = False, return_lse: bool = False,
    kernel_options: Optional[Mapping[str, object]] = None, *, return_aux: AuxRequest,
) -> tuple[Tensor, AuxOutput]: ...  # fmt: skip
@overload
def flex_attention(
    query: Tensor, key: Tensor, value: Tensor, score_mod: Optional[Mod] = None, block_mask: Optional[BlockMask] = None,
    scale: Optional[float] = None, enable_gqa: bool = False, return_lse: bool = False,
    kernel_options: Optional[Mapping[str, object]] = None, *, return_aux: Optional[AuxRequest] = None,
) -> Union[Tensor, tuple[Tensor, Tensor], tuple[Tensor, AuxOutput]]: ...  # fmt: skip
def flex_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: Optional[Mod] = None,
    block_mask: Optional[BlockMask] = None,
    scale: Optional[float] = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    kernel_options: Optional[Mapping[str, object]] = None,
    *,
    return_aux: Optional[AuxRequest] = None,
) -> Any:
    """``torch.nn.attention.flex_attention.flex_attention`` with the same arguments.

        def alibi(score, b, h, q_idx, kv_idx):
            return score - slopes[h] * (q_idx - kv_idx)

        mask = attend.create_block_mask(lambda b, h, q_idx, kv_idx: q_idx >= kv_idx, None, None, 1024, 1024)
        o = attend.flex_attention(q, k, v, score_mod=alibi, block_mask=mask)

    Arguments:
        query: torch tensor (B, heads_q, seqlen_q, head_dim), f32, f64, f16 or bf16, on a CPU or an NVIDIA GPU.
        key, value: (B, heads_k, seqlen_k, head_dim) and (B, heads_k, seqlen_k, head_dim_v). Their B may be 1 if that of
            query is larger.
        score_mod: a function of the score, b, h, q_idx and kv_idx that returns the new score. The score is a float
            tensor without dimensions. The other arguments are 32-bit integer tensors without dimensions, which count
            from 0. h is the head of query. The function is traced. docs/custom_scores.md lists the supported operations
            and states when the function is traced again. Captured tensors are arguments of each call, and they receive
            gradients within the limits given there.
        block_mask: a result of attend's or torch's `create_block_mask` for the lengths of query and key. It is applied
            after score_mod.
        scale: None means 1 / sqrt(head_dim).
        enable_gqa: allows fewer heads in key and value than in query.
        return_lse: return (o, lse).
        kernel_options: torch's options are accepted and have no effect. Unknown names are refused.
        return_aux: an AuxRequest, with which the result is (o, AuxOutput). A request for max_scores is refused.

    Returns:
        o: (B, heads_q, seqlen_q, head_dim_v).
        lse: f32 (f64 if query is) (B, heads_q, seqlen_q): the natural logarithm of the sum of exp(score),
            differentiable. A row that sees no key gives o = 0, lse = -inf and zero gradients.

    torch.compile keeps the call in its graph (see docs/custom_scores.md). Second derivatives are refused.

    Raises:
        attend.Error naming the argument. For a function that attend cannot translate, it names the operator, the file
        and the line.

    Source: Dong et al., Flex Attention, 2024.
    """
    from attend._flex import calls

    return calls.flex_attention(
        query, key, value, score_mod, block_mask, scale, enable_gqa, return_lse, kernel_options, return_aux
    )


def create_block_mask(
    mask_mod: Mod,
    B: Optional[int],  # noqa: N803
    H: Optional[int],  # noqa: N803
    Q_LEN: int,  # noqa: N803
    KV_LEN: int,  # noqa: N803
    device: Optional[Device] = None,
    BLOCK_SIZE: Union[int, tuple[int, int]] = 128,  # noqa: N803
    _compile: bool = False,
    separate_full_blocks: bool = True,
    compute_dq_write_order: bool = False,
    dq_kv_order: bool = True,
) -> BlockMask:
    """``torch.nn.attention.flex_attention.create_block_mask`` with the same arguments.

    Arguments:
        mask_mod: a function of b, h, q_idx and kv_idx, integer tensors without dimensions. It returns True if row q_idx
            sees key kv_idx. This call traces the function and reads the tensors that it captures. The mask never
            changes afterwards.
        B, H: numbers of sequences and query heads. None means 1: the mask is the same for all sequences, or for all
            heads.
        Q_LEN, KV_LEN: the lengths of query and key.
        device: the device of the mask's lists of blocks, which are computed when they are first read. None means the
            accelerator if there is one.
        BLOCK_SIZE: the size of the listed blocks: one number for rows and keys, or (rows, keys). attend's tiles are
            always 64 x 64.
        separate_full_blocks: False lists full blocks together with the partial ones.
        _compile, compute_dq_write_order, dq_kv_order: have no effect.

    Returns:
        attend.torch.flex_attention.BlockMask, a subclass of torch's BlockMask. attend never stores a mask of all pairs
        of a row and a key. If the bounds of the condition decide a tile, attend evaluates none of its pairs (see
        make_block_mask). A mask of at least 2^24 pairs is made on the GPU if its captured tensors are there. The lists
        of blocks are computed by evaluating every pair. In a compiled function the result has torch's class, and its
        lists contain all blocks.

    Raises:
        attend.Error naming the argument. For a function that attend cannot translate, it names the operator, the file
        and the line.
    """
    from attend._flex import calls

    made: BlockMask = calls.create_block_mask(mask_mod, (B, H, Q_LEN, KV_LEN), device, BLOCK_SIZE, separate_full_blocks)
    return made


def create_mask(
    mod_fn: Mod,
    B: Optional[int],  # noqa: N803
    H: Optional[int],  # noqa: N803
    Q_LEN: int,  # noqa: N803
    KV_LEN: int,  # noqa: N803
    device: Optional[Device] = None,
) -> Tensor:
    """Returns bool (B, H, Q_LEN, KV_LEN): True for each pair that a mask_mod keeps, or whose score a score_mod leaves
    above -inf.

    Arguments:
        mod_fn: a mask_mod (four arguments) or a score_mod (five). torch.vmap evaluates it, so it may use any operator.
        B, H: None means 1.
        Q_LEN, KV_LEN: numbers of rows and keys.
        device: None means the accelerator if there is one.
    """
    from attend._flex import calls

    return calls.create_mask(mod_fn, (B, H, Q_LEN, KV_LEN), device)


def and_masks(*mask_mods: Mod) -> Mod:
    """Returns a mask_mod that keeps the pairs that all `mask_mods` keep. Without arguments it keeps every pair."""
    _check_functions(mask_mods)

    def kept_by_all(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        kept = noop_mask(b, h, q_idx, kv_idx)
        for mask_mod in mask_mods:
            kept = kept & mask_mod(b, h, q_idx, kv_idx)
        return kept

    return kept_by_all


def or_masks(*mask_mods: Mod) -> Mod:
    """Returns a mask_mod that keeps the pairs that at least one of `mask_mods` keeps. Without arguments it keeps no
    pair.
    """
    _check_functions(mask_mods)

    def kept_by_one(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        kept = ~noop_mask(b, h, q_idx, kv_idx)
        for mask_mod in mask_mods:
            kept = kept | mask_mod(b, h, q_idx, kv_idx)
        return kept

    return kept_by_one


def noop_mask(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
    """A mask_mod that keeps every pair."""
    import torch

    return b.new_ones((), dtype=torch.bool)


def _check_functions(mask_mods: tuple[Any, ...]) -> None:
    from attend._errors import ArgumentError

    for mask_mod in mask_mods:
        if not callable(mask_mod):
            raise ArgumentError(f"mask_mods: {type(mask_mod).__name__}, allowed functions (b, h, q_idx, kv_idx)")
