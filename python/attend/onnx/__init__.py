"""attend for ONNX: the standard's operator Attention, opset 23 and later.

`attention` is the operator of NumPy arrays. docs/onnx.md has the rest.
"""

from attend.onnx._operator import attention

__all__ = ["attention"]
