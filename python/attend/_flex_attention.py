"""torch.nn.attention.flex_attention's functions by torch's names and conventions, computed by attend."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, Optional, Union, overload

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn.attention.flex_attention import AuxOutput, AuxRequest, BlockMask

    from attend._types import Device

Mod = Callable[..., "Tensor"]  # a score_mod or mask_mod; what it gets are tensors without dimensions


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
        key, value: (B, heads_k, seqlen_k, head_dim) and (B, heads_k, seqlen_k, head_dim_v); B of 1 serves all of query.
        score_mod: a function of the score, a float without dimensions, and of b, h, q_idx and kv_idx, integers of 32
            bits without dimensions, which count from 0; gives the new score. h is the head of query. It is traced: see
            docs/custom_scores.md for what it may do, and when it is traced again. Tensors that it captures are
            arguments of each call, and on a CPU they get gradients.
        block_mask: of `create_block_mask`, attend's or torch's, for these lengths. It hides pairs after score_mod.
        scale: None: 1 / sqrt(head_dim).
        enable_gqa: allows fewer heads in key and value than in query.
        return_lse: give (o, lse).
        kernel_options: torch's options are taken and have no effect; unknown names are refused.
        return_aux: an AuxRequest: give (o, AuxOutput). max_scores is refused.

    Returns:
        o: (B, heads_q, seqlen_q, head_dim_v). lse: f32 (f64 if query is) (B, heads_q, seqlen_q): natural log of the sum
        of exp(score), differentiable. A row that sees no key gives o = 0, lse = -inf and zero gradients.

    Under torch.compile a call is a part of the graph: see docs/custom_scores.md. A second derivative is refused.

    Raises:
        attend.Error naming the argument; for a function that attend cannot say, the operator, the file and the line.

    Source: Dong et al., Flex Attention (2024).
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
        mask_mod: a function of b, h, q_idx and kv_idx, integers without dimensions; gives a bool: the row sees the key.
            It is traced here, and the tensors that it captures are read here; a mask never changes.
        B, H: numbers of sequences and query heads. None: 1, for masks that are alike for all.
        Q_LEN, KV_LEN: the lengths of query and key.
        device: of the mask's lists, when they are asked for. None: the accelerator if there is one.
        BLOCK_SIZE: of those lists: rows and keys of a block, or (rows, keys). attend's tiles are 64 x 64 in any case.
        separate_full_blocks: False: the lists count full blocks among the partial ones.
        _compile, compute_dq_write_order, dq_kv_order: have no effect.

    Returns:
        attend.torch.flex_attention.BlockMask, a subclass of torch's. No mask of all pairs is made, and where bounds
        decide a tile none of its pairs is evaluated: see make_block_mask. That is done on the GPU where the captured
        tensors are, for masks of 2^24 pairs and more. Its lists are evaluated pair by pair. In what
        torch.compile compiles it is of torch's class, and its lists have all blocks.

    Raises:
        attend.Error naming the argument; for a function that attend cannot say, the operator, the file and the line.
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
    """The pairs that a mask_mod keeps, or that a score_mod leaves above -inf: bool (B, H, Q_LEN, KV_LEN).

    Arguments:
        mod_fn: a mask_mod (four arguments) or a score_mod (five), evaluated by torch.vmap, with any of its operators.
        B, H: None: 1.
        Q_LEN, KV_LEN: numbers of rows and keys.
        device: None: the accelerator if there is one.
    """
    from attend._flex import calls

    return calls.create_mask(mod_fn, (B, H, Q_LEN, KV_LEN), device)


def and_masks(*mask_mods: Mod) -> Mod:
    """The mask_mod of the pairs that all of them keep; of none, of every pair."""
    _check_functions(mask_mods)

    def kept_by_all(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        kept = noop_mask(b, h, q_idx, kv_idx)
        for mask_mod in mask_mods:
            kept = kept & mask_mod(b, h, q_idx, kv_idx)
        return kept

    return kept_by_all


def or_masks(*mask_mods: Mod) -> Mod:
    """The mask_mod of the pairs that one of them keeps; of none, of no pair."""
    _check_functions(mask_mods)

    def kept_by_one(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        kept = ~noop_mask(b, h, q_idx, kv_idx)
        for mask_mod in mask_mods:
            kept = kept | mask_mod(b, h, q_idx, kv_idx)
        return kept

    return kept_by_one


def noop_mask(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
    """The mask_mod of every pair."""
    import torch

    return b.new_ones((), dtype=torch.bool)


def _check_functions(mask_mods: tuple[Any, ...]) -> None:
    from attend._errors import ArgumentError

    for mask_mod in mask_mods:
        if not callable(mask_mod):
            raise ArgumentError(f"mask_mods: {type(mask_mod).__name__}, allowed functions (b, h, q_idx, kv_idx)")
