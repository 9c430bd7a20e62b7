"""The exceptions of attend. Their message is one line: the argument, the value found, what is allowed."""


class Error(Exception):
    """What every function of attend raises when it refuses or fails. No result has been written then."""


class ArgumentError(Error, ValueError):
    """A shape, stride, dtype or parameter that attention does not define."""


class UnsupportedError(Error, NotImplementedError):
    """Well defined, but attend, or the backend asked for, does not do it."""


class RunError(Error, RuntimeError):
    """A device, driver or compiler is missing or failed."""
