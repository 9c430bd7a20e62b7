"""The exceptions of attend. Each message is one line with the argument, the value found, and the allowed values."""


class Error(Exception):
    """The base class of all errors that functions of attend raise. A function that raises one has not written any
    result.
    """


class ArgumentError(Error, ValueError):
    """An argument has a shape, stride, dtype or value that is not valid."""


class UnsupportedError(Error, NotImplementedError):
    """The call is valid, but attend or the selected backend does not support it."""


class RunError(Error, RuntimeError):
    """A device, driver or compiler is missing or has failed."""
