"""Tests that imports between the package's modules, including imports in functions, form no cycle."""

import ast
import pathlib

import attend

FOLDER = pathlib.Path(attend.__file__).parent


def modules_of(folder: pathlib.Path) -> dict[str, pathlib.Path]:
    """Returns every module below `folder` by its full name. A package name refers to its __init__ file, and a compiled
    module to its stub.
    """
    found = {}
    for path in (path for path in folder.rglob("*.py*") if path.suffix in (".py", ".pyi")):
        parts = (folder.name, *path.relative_to(folder).with_suffix("").parts)
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports_of(path: pathlib.Path, known: set[str]) -> set[str]:
    """Returns the modules in `known` that the import statements of the file name."""
    named = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            named |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import, which this walk does not follow"
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            named |= inner & known or {node.module}
    return named & known


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Returns the cycles of the graph. Each begins with its first module in alphabetical order."""
    found, done = [], set()

    def walk(name: str, way: list[str]) -> None:
        if name in way:
            found.append([*way[way.index(name) :], name])
        elif name not in done:
            for other in sorted(graph[name]):
                walk(other, [*way, name])
            done.add(name)

    for name in sorted(graph):
        walk(name, [])
    return found


def test_no_module_imports_itself_by_a_detour():
    modules = modules_of(FOLDER)
    graph = {name: imports_of(path, set(modules)) for name, path in modules.items()}
    assert graph["attend"] >= {"attend._api", "attend._sdpa"} and len(graph) > 40
    assert circles(graph) == []


def test_the_walk_finds_a_circle(tmp_path):
    folder = tmp_path / "some"
    (folder / "inner").mkdir(parents=True)
    (folder / "__init__.py").write_text("from some import first\n")
    (folder / "first.py").write_text("def f():\n    from some.inner import second\n")
    (folder / "inner" / "__init__.py").write_text("")
    (folder / "inner" / "second.py").write_text("import some.first\n")
    modules = modules_of(folder)
    graph = {name: imports_of(path, set(modules)) for name, path in modules.items()}
    assert circles(graph) == [["some.first", "some.inner.second", "some.first"]]
