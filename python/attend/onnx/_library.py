"""Where the code is that ONNX Runtime loads."""

from attend import _core


def library_path() -> str:
    """The file for `SessionOptions.register_custom_ops_library`: attend's operator for ONNX Runtime 1.24 and later.

    It is the package's extension module, which holds the library once for both. Programs without Python take
    libattend_ort.so, which CMake builds.
    """
    return str(_core.__file__)
