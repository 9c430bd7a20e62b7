"""attend for torch: the operators `attend::forward` and `attend::backward`, with autograd, fake tensors, autocast and
vmap.

The operators for serving are `attend::decode`, `attend::append_decode`, `attend::append` and `attend::merge`.

The first `attend.attention` call with a torch tensor imports this module. This module needs torch 2.6 or later.
"""

from attend.torch import _direct as _direct
from attend.torch import _flops as _flops
from attend.torch import _score_operators as _score_operators
from attend.torch import _serving as _serving
from attend.torch._draw import drawn_numbers
from attend.torch._front import attention, attention_qkvpacked, backward, forward, number_of, random_numbers

__all__ = [
    "attention",
    "attention_qkvpacked",
    "backward",
    "drawn_numbers",
    "forward",
    "number_of",
    "random_numbers",
]
