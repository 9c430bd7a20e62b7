"""Tests that _core.pyi matches the extension module: names, parameters, defaults, optional arguments, and builtin
types.
"""

import ast
import pathlib
import re

import attend
import pytest
from attend import _core

STUB = ast.parse(pathlib.Path(attend.__file__).with_name("_core.pyi").read_text())
PLAIN = {"bool", "bytes", "dict", "float", "int", "list", "str", "tuple"}
ASKED_FOR = {"__copy__", "__deepcopy__"}  # special methods that the stub must contain; every class has the others


def functions_of(body: list[ast.stmt]) -> dict[str, ast.FunctionDef]:
    return {node.name: node for node in body if isinstance(node, ast.FunctionDef)}


def signature_of(function: object) -> ast.FunctionDef:
    """Returns nanobind's signature of a function without overloads."""
    ((text, *_),) = function.__nb_signature__
    text = text.replace("\\0", "...")  # "\\0" stands for a default value
    (node,) = ast.parse(f"{text}: ...").body
    assert isinstance(node, ast.FunctionDef)
    return node


def parameters(node: ast.FunctionDef, is_method: bool) -> list[tuple[str, ast.expr, bool, bool]]:
    """Returns (name, annotation, has a default, is positional only) for each parameter."""
    both = [*node.args.posonlyargs, *node.args.args]
    first_default = len(both) - len(node.args.defaults)
    found = [
        (arg.arg, arg.annotation, i >= first_default, i < len(node.args.posonlyargs)) for i, arg in enumerate(both)
    ]
    return found[is_method:]


def takes_none(annotation: ast.expr) -> bool:
    return bool(re.search(r"\bNone\b|\bOptional\b|\bAny\b", ast.unparse(annotation)))


def plain_type(annotation: ast.expr) -> str:
    """Returns the builtin type of an annotation, such as "dict" for dict[str, int]. Returns "" for a type whose name
    differs in the interpreter.
    """
    head = re.match(r"\w*", ast.unparse(annotation))[0]
    return head if head in PLAIN and "|" not in ast.unparse(annotation) else ""


def compare(name: str, stub: ast.FunctionDef, real: ast.FunctionDef, is_method: bool = False) -> None:
    said, there = parameters(stub, is_method), parameters(real, is_method)
    assert len(said) == len(there), f"{name}: {ast.unparse(real.args)}"
    assert (stub.args.vararg is None) == (real.args.vararg is None), name
    for (its_name, annotation, has_default, by_position), (real_name, real_type, real_default, only) in zip(
        said, there
    ):
        what = f"{name}: {its_name}"
        assert by_position or (its_name == real_name and not only), f"{what} is {real_name}, by position only: {only}"
        assert has_default == real_default, f"{what}: a default"
        assert takes_none(real_type) or "Optional" not in ast.unparse(annotation), f"{what}: is never None"
        of_stub, of_module = plain_type(annotation), plain_type(real_type)
        assert not (of_stub and of_module) or of_stub == of_module, f"{what}: {of_module}"
    result, real_result = plain_type(stub.returns), plain_type(real.returns)
    assert not (result and real_result) or result == real_result, f"{name} gives {real_result}"


def test_the_stub_has_the_names_of_the_module():
    values = {node.target.id for node in STUB.body if isinstance(node, ast.AnnAssign)} - {
        node.target.id
        for node in STUB.body
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.annotation) == "TypeAlias"
    }
    classes = {node.name for node in STUB.body if isinstance(node, ast.ClassDef) and not node.bases}
    said = values | classes | set(functions_of(STUB.body))
    assert said - {"__version__"} == {name for name in dir(_core) if not name.startswith("__")}
    assert isinstance(_core.__version__, str)


@pytest.mark.parametrize("name", sorted(functions_of(STUB.body)))
def test_the_stub_has_the_signature_of(name):
    compare(name, functions_of(STUB.body)[name], signature_of(getattr(_core, name)))


@pytest.mark.parametrize("name", [x.name for x in STUB.body if isinstance(x, ast.ClassDef) and not x.bases])
def test_the_stub_has_the_members_of(name):
    (node,) = (x for x in STUB.body if isinstance(x, ast.ClassDef) and x.name == name)
    said, real = functions_of(node.body), vars(getattr(_core, name))
    assert set(said) - {"__init__"} == {x for x in real if not x.startswith("__") or x in ASKED_FOR}
    for member, stub in said.items():
        decorators = {ast.unparse(x) for x in stub.decorator_list}
        is_property = isinstance(real[member], property)
        assert ("property" in decorators) == is_property, member
        if not is_property:
            compare(member, stub, signature_of(real[member]), "staticmethod" not in decorators)
