"""attend for ONNX: the standard's operator Attention, opset 23 and later.

    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(attend.onnx.library_path())  # attend computes Attention of any model

`attention` computes the operator on NumPy arrays. `translation_table` exports torch programs. See docs/onnx.md.
"""

from attend.onnx._export import translation_table
from attend.onnx._library import library_path
from attend.onnx._operator import attention

__all__ = ["attention", "library_path", "translation_table"]
