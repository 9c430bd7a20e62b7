"""The names of torch.nn.attention.flex_attention. To compute with attend, replace the name of torch's module in an
import by this module.

from attend.torch.flex_attention import BlockMask, create_block_mask, flex_attention
"""

from attend._flex.block_masks import BlockMask
from attend._flex.results import AuxOutput, AuxRequest, FlexKernelOptions
from attend._flex_attention import and_masks, create_block_mask, create_mask, flex_attention, noop_mask, or_masks

__all__ = [
    "AuxOutput",
    "AuxRequest",
    "BlockMask",
    "FlexKernelOptions",
    "and_masks",
    "create_block_mask",
    "create_mask",
    "flex_attention",
    "noop_mask",
    "or_masks",
]
