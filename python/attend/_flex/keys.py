"""Determines when a function must be traced again.

A function is traced again if its key is new. The key contains everything that a trace can depend on: the code of the
function and of the functions that it uses, and the values of their cells, defaults and globals. Numbers, texts and
containers of them are compared by value. Tensors are compared by dtype, shape, strides and device, not by identity,
because a later call has other tensors. If a function uses anything else, such as an object with attributes, there is no
key, and the function is traced in each call.
"""

from __future__ import annotations

import builtins
import dis
import functools
import inspect
import types
import weakref
from typing import Any, NamedTuple, Optional

import torch

_LASTING_MODULES = ("torch", "math", "operator", "functools", "itertools")
_PLAIN_BUILTINS = {
    "abs", "all", "any", "bool", "divmod", "enumerate", "float", "int", "isinstance", "len", "list", "max", "min",
    "pow", "range", "reversed", "round", "slice", "sorted", "str", "sum", "tuple", "zip", "map", "filter", "dict",
    "set", "frozenset", "AssertionError", "ValueError", "NotImplementedError", "RuntimeError", "TypeError",
}  # fmt: skip
_UNSET = object()


class _CannotTellError(Exception):
    pass


class Names(NamedTuple):
    """The global names and attributes that a code object reads, in addition to its arguments, cells and constants."""

    globals: tuple[str, ...]
    is_open: bool  # True if the list may be incomplete, because the code imports, changes an object, or makes a class


_names_of: weakref.WeakKeyDictionary[types.CodeType, Names] = weakref.WeakKeyDictionary()


def key_of(function: Any) -> tuple[Optional[Any], list[torch.Tensor]]:
    """Returns a key or None, and the tensors that the function uses, in an order that the key determines."""
    walk = _Walk()
    try:
        key = walk.value(function)
    except (_CannotTellError, RecursionError):  # a list that contains itself causes a RecursionError
        return None, []
    return (key, torch.get_default_dtype(), torch.is_grad_enabled()), walk.tensors


class _Walk:
    def __init__(self) -> None:
        self.tensors: list[torch.Tensor] = []
        self._places: dict[int, int] = {}
        self._functions: dict[int, int] = {}

    def value(self, x: Any) -> Any:
        kind = type(x)
        if x is None or kind in (bool, int, str, bytes, torch.dtype, torch.device, torch.Size, type(Ellipsis)):
            return kind, x
        if kind is float:
            return kind, x.hex()
        if kind in (torch.Tensor, torch.nn.Parameter):
            return self._tensor(x)
        if kind is types.FunctionType:
            return self._function(x)
        if kind in (tuple, list):
            return kind, tuple(self.value(y) for y in x)
        if kind is dict:
            return kind, tuple((self.value(name), self.value(y)) for name, y in x.items())
        if kind is functools.partial:
            if x.__dict__:
                raise _CannotTellError
            return kind, self.value(x.func), self.value(x.args), self.value(x.keywords)
        if kind is types.ModuleType and x.__name__.partition(".")[0] in _LASTING_MODULES:
            return kind, x.__name__
        if kind is types.BuiltinFunctionType and type(x.__self__) in (types.ModuleType, type, type(None)):
            return kind, x
        if kind is type and x.__module__ == "builtins" and x.__name__ in _PLAIN_BUILTINS:
            return kind, x
        raise _CannotTellError

    def _tensor(self, x: torch.Tensor) -> Any:
        if id(x) in self._places:
            return "again", self._places[id(x)]
        if x.layout != torch.strided:
            raise _CannotTellError
        self._places[id(x)] = len(self.tensors)
        self.tensors.append(x)
        attributes = self.value(x.__dict__) if x.__dict__ else None
        return torch.Tensor, x.dtype, x.shape, x.stride(), x.device, x.requires_grad, attributes

    def _function(self, x: types.FunctionType) -> Any:
        if id(x) in self._functions:
            return "again", self._functions[id(x)]
        self._functions[id(x)] = len(self._functions)
        module = x.__module__ or ""
        # Functions of these modules never change, such as torch.nn.functional.softplus.
        if module.partition(".")[0] in _LASTING_MODULES and x.__closure__ is None:
            return types.FunctionType, x
        if x.__dict__:
            raise _CannotTellError
        names = _names(x.__code__)
        if names.is_open:
            raise _CannotTellError
        cells = tuple(self._cell(cell) for cell in x.__closure__ or ())
        outer = tuple((name, self._global(x, name)) for name in names.globals)
        return x.__code__, cells, outer, self.value(x.__defaults__), self.value(x.__kwdefaults__)

    def _cell(self, cell: types.CellType) -> Any:
        try:
            return self.value(cell.cell_contents)
        except ValueError:
            return _UNSET

    def _global(self, function: types.FunctionType, name: str) -> Any:
        found = function.__globals__.get(name, _UNSET)
        if found is not _UNSET:
            return self.value(found)
        if name in _PLAIN_BUILTINS and hasattr(builtins, name):
            return "builtin"
        raise _CannotTellError


def _names(code: types.CodeType) -> Names:
    found = _names_of.get(code)
    if found is None:
        names: list[str] = []
        is_open = False
        for instruction in dis.get_instructions(code):
            operation, argument = instruction.opname, instruction.argval
            if operation in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"):
                names.append(argument)
            elif operation == "IMPORT_NAME":
                is_open |= str(argument).partition(".")[0] not in _LASTING_MODULES
            elif operation in ("STORE_GLOBAL", "STORE_ATTR", "LOAD_BUILD_CLASS"):
                is_open = True
        for inner in code.co_consts:
            if inspect.iscode(inner):
                of_inner = _names(inner)
                names.extend(of_inner.globals)
                is_open |= of_inner.is_open
        found = _names_of[code] = Names(tuple(dict.fromkeys(names)), is_open)
    return found
