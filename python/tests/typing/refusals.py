"""Calls that the type checkers must refuse. If a call is not refused, its `type: ignore` is unused, which is itself an
error.
"""

# pyright: reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

import attend
import numpy as np
from attend import flash_attn
from numpy.typing import NDArray


def wrong(q: NDArray[np.float32]) -> None:
    attend.attention([1.0], q, q)  # type: ignore[call-overload]
    attend.attention(q, q, q, causl=True)  # type: ignore[call-overload]
    attend.attention(q, q, q, layout="hbsd")  # type: ignore[call-overload]
    attend.attention(q, q, q, window=256)  # type: ignore[call-overload]
    attend.attention_qkvpacked(q, bias=q)  # type: ignore[call-overload]
    attend.backward(q, q, q, q)  # type: ignore[call-overload]
    attend.decode(q)  # type: ignore[call-overload]
    attend.make_block_mask("k <= q", 8)  # type: ignore[call-arg]
    flash_attn.flash_attn_func(q, q, q, window=(8, 0))  # type: ignore[call-overload]
    flash_attn.flash_attn_varlen_func(q, q, q)  # type: ignore[call-overload]
