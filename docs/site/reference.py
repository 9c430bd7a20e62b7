"""Generates the reference pages: every public name of the Python package, and every public header via doxygen.py."""

from __future__ import annotations

import importlib
import inspect
import itertools
import re
import textwrap
import zlib
from pathlib import Path
from typing import Any

import sources
from headers import group_of
from sphinx.ext.autodoc.mock import mock
from stage import ROOT, Stage

# Packages that attend's modules import. Autodoc mocks them even if they are installed.
ABSENT = ["torch", "jax", "jaxlib", "transformers", "onnx", "onnxruntime", "mpi4py"]
# Modules that use these packages when they are imported. Their source code is parsed instead.
FROM_SOURCES = ("attend.torch", "attend.jax", "attend.xformers", "attend.xformers.attn_bias")
# The public modules and the titles of their pages. Each module has one page.
MODULES = {
    "attend": "Python: attend",
    "attend.torch": "Python: attend.torch",
    "attend.jax": "Python: attend.jax",
    "attend.onnx": "Python: attend.onnx",
    "attend.ring": "Python: attend.ring",
    "attend.transformers": "Python: attend.transformers",
    "attend.flash_attn": "Python: attend.flash_attn",
    "attend.flash_attn_3": "Python: attend.flash_attn_3",
    "attend.vllm_flash_attn": "Python: attend.vllm_flash_attn",
    "attend.ring_flash_attn": "Python: attend.ring_flash_attn",
    "attend.xformers": "Python: attend.xformers",
    "attend.xformers.attn_bias": "Python: attend.xformers.attn_bias",
}
CPP_HEADERS = (
    "attention.hpp", "tensor.hpp", "error.hpp", "score_function.hpp", "block_mask.hpp", "serving.hpp", "ring.hpp",
    "ring_mpi.hpp", "ring_nccl.hpp", "version.hpp",
)  # fmt: skip
C_HEADERS = ("attend.h", "c/types.h", "c/attention.h", "c/serving.h", "c/ring.h")


def public_names(module: str) -> list[str]:
    """Returns the names in a module's __all__ in alphabetical order, without modules and without private names."""
    names = sources.all_of(module) if module in FROM_SOURCES else imported(module).__all__
    public = (name for name in names if not name.startswith("_") and not sources.is_module(f"{module}.{name}"))
    return sorted(public, key=str.lower)


def imported(module: str) -> Any:
    with mock(ABSENT):
        return importlib.import_module(module)


def python_page(module: str) -> str:
    if module in FROM_SOURCES:
        described = sources.description_of(module)
        entries = {name: sources.directive(module, name) for name in public_names(module)}
    else:
        described = f".. automodule:: {module}\n   :no-members:"
        entries = {name: automatic(module, name) for name in public_names(module)}
    parts = [f"# {MODULES[module]}", f"```{{eval-rst}}\n{described}\n```"]
    parts += [f"## {name}\n\n```{{eval-rst}}\n{entry}\n```" for name, entry in entries.items()]
    return "\n\n".join(parts) + "\n"


def automatic(module: str, name: str) -> str:
    """Returns the autodoc directive for one name."""
    found = getattr(imported(module), name)
    if not (found.__doc__ or "").strip():
        raise SystemExit(f"{module}.{name} has no docstring")
    if isinstance(found, type):
        return f".. autoclass:: {module}.{name}\n   :members:"
    if not inspect.isroutine(found):  # a name of another package that attend does not implement
        return f".. py:data:: {name}\n   :module: {module}\n\n   {repr(found)[1:-1]}."
    return f".. autofunction:: {module}.{name}"


def missing(inventory: Path) -> list[str]:
    """Returns the public names that are not in `inventory`, Sphinx's list of described names."""
    with inventory.open("rb") as file:
        for _ in range(4):  # skips the four text lines before the compressed data
            file.readline()
        lines = zlib.decompress(file.read()).decode().splitlines()
    known = {re.split(r" (?:py|cpp|c):", line)[0] for line in lines}
    names = [f"{module}.{name}" for module in MODULES for name in public_names(module)] + exported()
    return [f"{name}: not in the reference" for name in names if name not in known]


def exported() -> list[str]:
    """Returns the names that the site uses for the exported functions and classes of the headers."""
    names = []
    for header in CPP_HEADERS + C_HEADERS:
        text = re.sub(r"//.*", "", (ROOT / "include/attend" / header).read_text())
        scope = "" if header.endswith(".h") else "attend::"
        found = re.findall(r"class ATTEND_API (\w+)|ATTEND_API [^;{(]*?(\w+)\(", text)
        names += [scope + (kind or function) for kind, function in found]
    if len(names) < 60:
        raise SystemExit(f"only {len(names)} exported names were found in the headers")
    return names


def opening_of(text: str) -> str:
    """Returns a header's opening comment as Markdown. Its indented lines become a code block."""
    comment = "\n".join(line[3:] for line in itertools.takewhile(lambda line: line.startswith("//"), text.splitlines()))
    # Matches indented lines only after an empty line, because without one they continue a list item.
    block = re.compile(r"(?<=\n\n)(?=  (?! *-))(?:^  .*\n?|^\n(?=  ))+", re.MULTILINE)
    return block.sub(lambda match: f"```cpp\n{textwrap.dedent(match[0]).strip()}\n```\n", comment + "\n").strip()


def header_page(title: str, headers: tuple[str, ...]) -> str:
    """Returns a page with one section for each header. The sections have Doxygen's labels, so that header names become
    links.
    """
    parts = [f"# {title}"]
    for header in headers:
        label = Path(header).name.replace("_", "__").replace(".", "_8")
        opening = opening_of((ROOT / "include/attend" / header).read_text())
        scope = "" if header.endswith(".h") else "```{cpp:namespace} attend\n```\n\n"
        group = f"```{{doxygengroup}} {group_of(header)}\n:content-only:\n:members:\n:undoc-members:\n```"
        parts.append(f"({label})=\n\n## attend/{header}\n\n{opening}\n\n{scope}{group}")
    return "\n\n".join(parts) + "\n"


def write(stage: Stage) -> None:
    stage.write("reference/cpp.md", header_page("C++", CPP_HEADERS))
    stage.write("reference/c.md", header_page("C", C_HEADERS))
    for module in MODULES:
        stage.write(f"reference/{module.replace('.', '_')}.md", python_page(module))
