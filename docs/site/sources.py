"""Describes functions from the source of modules that cannot be imported without torch or JAX."""

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
    return ast.get_docstring(_parsed(module)) or ""


def _defined(module: str, name: str) -> ast.FunctionDef:
    """Returns the definition of the function, from this module or from the module that this one imports it from."""
    for node in _parsed(module).body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return node
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    return _defined(node.module, alias.name)
    raise SystemExit(f"{module}.{name}: no function in the sources")


def directive(module: str, name: str) -> str:
    """Returns reStructuredText that describes a function in the form of autodoc."""
    function = _defined(module, name)
    lines = inspect.cleandoc(ast.get_docstring(function) or "").splitlines()
    if not lines:
        raise SystemExit(f"{module}.{name} has no docstring")
    returns = f" -> {ast.unparse(function.returns)}" if function.returns else ""
    text = str(GoogleDocstring(with_prose(lines), Config(napoleon_use_rtype=False)))
    return f".. py:function:: {module}.{name}({ast.unparse(function.args)}){returns}\n\n{textwrap.indent(text, '   ')}"
