"""The types AuxRequest and AuxOutput of flex_attention. If this version of torch has these types, torch's types are
used.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from torch.nn.attention import flex_attention as _torchs


class _AuxRequest(NamedTuple):
    lse: bool = False
    max_scores: bool = False


class _AuxOutput(NamedTuple):
    lse: Any = None
    max_scores: Any = None


AuxRequest: Any = getattr(_torchs, "AuxRequest", _AuxRequest)
AuxOutput: Any = getattr(_torchs, "AuxOutput", _AuxOutput)
FlexKernelOptions: Any = getattr(_torchs, "FlexKernelOptions", dict)
