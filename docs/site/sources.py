"""Describes functions and classes from the source of modules that cannot be imported without torch or JAX."""

from __future__ import annotations

import ast
import inspect
import textwrap

from docstrings import with_prose
from sphinx.ext.napoleon import Config, GoogleDocstring
from stage import ROOT


def _parsed(module: str) -> ast.Module:
    path = ROOT / "python" / module.replace(".", "/")
    return ast.parse((path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text())


def all_of(module: str) -> list[str]:
    """Returns the module's __all__, which must be a literal list."""
    for node in _parsed(module).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    raise SystemExit(f"{module} has no __all__")


def description_of(module: str) -> str:
    return "\n".join(with_prose((ast.get_docstring(_parsed(module)) or "").splitlines()))


def is_module(name: str) -> bool:
    path = ROOT / "python" / name.replace(".", "/")
    return path.is_dir() or path.with_suffix(".py").exists()


def _defined(module: str, name: str) -> list[ast.FunctionDef | ast.ClassDef]:
    """Returns the overloads of a name and then its definition, in this module or in the module from which it is
    imported.
    """
    body = _parsed(module).body
    found = [node for node in body if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name == name]
    if found:
        return found
    for node in body:
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    return _defined(node.module, alias.name)
    raise SystemExit(f"{module}.{name}: no function or class in the sources")


def _described(name: str, node: ast.FunctionDef | ast.ClassDef) -> str:
    lines = inspect.cleandoc(ast.get_docstring(node) or "").splitlines()
    if not lines:
        raise SystemExit(f"{name} has no docstring")
    return textwrap.indent(str(GoogleDocstring(with_prose(lines), Config(napoleon_use_rtype=False))), "   ")


def _signature(function: ast.FunctionDef, leaves_out_first: bool = False) -> str:
    arguments = ast.parse(f"def f({ast.unparse(function.args)}): ...").body[0].args
    if leaves_out_first:
        del arguments.args[0]
    returns = f" -> {ast.unparse(function.returns)}" if function.returns and function.name != "__init__" else ""
    return f"({ast.unparse(arguments)}){returns}"


def directive(module: str, name: str) -> str:
    """Returns reStructuredText that describes a function or a class in the form of autodoc.

    A function with overloads is described by their signatures. A class is followed by its public methods that have a
    docstring.
    """
    *overloads, node = _defined(module, name)
    if isinstance(node, ast.FunctionDef):
        signatures = [f"{module}.{name}{_signature(x)}" for x in overloads or [node] if isinstance(x, ast.FunctionDef)]
        head = ".. py:function:: "
        lines = f"\n{' ' * len(head)}".join(signatures)
        return f"{head}{lines}\n\n{_described(f'{module}.{name}', node)}"
    methods = [x for x in node.body if isinstance(x, ast.FunctionDef)]
    made_by = next((_signature(x, True) for x in methods if x.name == "__init__"), "")
    parts = [f".. py:class:: {module}.{name}{made_by}\n\n{_described(f'{module}.{name}', node)}"]
    for method in methods:
        if not method.name.startswith("_") and ast.get_docstring(method):
            of_class = any(ast.unparse(x) == "classmethod" for x in method.decorator_list)
            option = "\n   :classmethod:" if of_class else ""
            head = f".. py:method:: {method.name}{_signature(method, True)}{option}"
            parts.append(textwrap.indent(f"{head}\n\n{_described(method.name, method)}", "   "))
    return "\n\n".join(parts)
