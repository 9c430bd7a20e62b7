"""Returns the path of the library that ONNX Runtime loads."""

from attend import _core


def library_path() -> str:
    """Returns the file for `SessionOptions.register_custom_ops_library`: attend's operator for ONNX Runtime 1.24 and
    later.

    The file is the package's extension module, so Python and ONNX Runtime use the same copy of the library. Programs
    without Python load libattend_ort.so, which CMake builds.
    """
    return str(_core.__file__)
