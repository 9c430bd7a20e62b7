"""The path of the code that ONNX Runtime loads."""

from attend import _core


def library_path() -> str:
    """Returns the file for `SessionOptions.register_custom_ops_library`: attend's operator for ONNX Runtime 1.24 and
    later.

    The file is the package's extension module, so the library is loaded once for Python and ONNX Runtime. Programs
    without Python load libattend_ort.so, which CMake builds.
    """
    return str(_core.__file__)
