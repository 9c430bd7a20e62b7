"""The result of tracing a function: a text in the language of docs/custom_scores.md and the tensors that it reads."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_flatten, tree_map

from attend._errors import ArgumentError
from attend._flex.bounds import are_never_negative
from attend._flex.expressions import Expression, reachable, text_of

_MOST_CAPTURES = 8  # ScoreFunction::kMostCaptures
_MOST_SIZES = 64
_NARROW = (torch.int8, torch.uint8, torch.int16)


class Source(NamedTuple):
    """The origin of a tensor that the text reads."""

    kind: str  # "capture", "step" or "constant"
    number: int  # index in the list of captured tensors, of steps, or of constants
    output: int = 0  # index among the step's outputs


class Step(NamedTuple):
    run: Any
    args: Any  # the arguments of the step, with a Source in place of each tensor
    kwargs: Any


# (shape of a tensor, a dimension, the variable that is the subscript of this dimension).
Extent = tuple[tuple[int, ...], int, str]


class Traced:
    """A traced function: a text, and the steps that compute the tensors of the text from the captured tensors."""

    def __init__(
        self, root: Expression, steps: list[Step], constants: list[torch.Tensor], extra: list[torch.Tensor],
        shapes: dict[Source, tuple[int, ...]], extents: list[Extent], is_lasting: bool,
    ) -> None:  # fmt: skip
        nodes = reachable(root)
        loads = {x.value: x for x in nodes if x.kind == "load"}
        names, self._sources = _names_of(loads)
        self.text = text_of(root, names)
        self._wrapped = [x.args[0] for x in nodes if x.kind == "wrap"]
        self._text_without_wraps = text_of(root, names, keeps_wraps=False)
        self._are_needed: dict[tuple[int, ...], bool] = {}
        self.variables = frozenset(x.value for x in nodes if x.kind == "variable")
        self.extents = [*extents, *_extents(nodes, shapes)]
        self.is_lasting = is_lasting
        self.extra = extra  # captured tensors that are not part of the cache key
        self._steps = _needed(list(loads), steps)
        read = {x for x in loads if x.kind == "constant"} | {x for x in _reads(self._steps) if x.kind == "constant"}
        self._constants = {x.number: constants[x.number] for x in read}

    def text_for(self, sizes: dict[str, int]) -> str:
        """Returns the text for these sizes. If no subscript can be negative at these sizes, the function returns a text
        that is faster to evaluate.
        """
        if not self._wrapped or any(type(n) is not int for n in sizes.values()):  # a compiler's symbolic sizes
            return self.text
        key = tuple(sizes.values())
        if key not in self._are_needed:
            if len(self._are_needed) >= _MOST_SIZES:
                self._are_needed.clear()
            self._are_needed[key] = not are_never_negative(self._wrapped, sizes)
        return self.text if self._are_needed[key] else self._text_without_wraps

    def captures(self, given: Sequence[torch.Tensor], device: torch.device) -> dict[str, torch.Tensor]:
        """Runs the steps and returns the tensors that the text reads. `given` contains the captured tensors in the
        order of the trace. Tensors without dimensions are copied to the device.
        """
        tensors: dict[Source, torch.Tensor] = {}
        for n, x in enumerate((*given, *self.extra)):
            tensors[Source("capture", n)] = x
        for n, x in self._constants.items():
            tensors[Source("constant", n)] = x
        look_up = lambda x: tensors[x] if isinstance(x, Source) else x
        is_source = lambda x: isinstance(x, Source)
        for n, step in self._steps.items():
            result = step.run(
                *tree_map(look_up, step.args, is_leaf=is_source), **tree_map(look_up, step.kwargs, is_leaf=is_source)
            )
            for output, x in enumerate(result if isinstance(result, (tuple, list)) else (result,)):
                tensors[Source("step", n, output)] = x
        found = {}
        for name, sources in self._sources.items():
            readable = [_readable(tensors[source], source, device) for source in sources]
            found[name] = readable[0] if len(readable) == 1 else _row(readable)
        return found

    def check_extents(self, argument: str, sizes: dict[str, int]) -> None:
        """Raises an error if a subscript b, h, q_idx or kv_idx can exceed the dimension of its tensor, as torch
        does.
        """
        for shape, dim, variable in self.extents:
            if sizes[variable] > shape[dim]:
                raise ArgumentError(
                    f"{argument}: a captured tensor of shape {shape} has {shape[dim]} elements in dimension {dim}, "
                    f"allowed {sizes[variable]}, the number of {_CALLED[variable]}"
                )


_CALLED = {"b": "sequences", "h": "query heads", "q": "rows", "k": "keys"}


def _names_of(loads: dict[Source, Expression]) -> tuple[dict[Source, str], dict[str, list[Source]]]:
    """Returns the name of each source, and the sources of each capture. Several tensors without dimensions may share a
    capture, because a text can have only few captures.
    """
    numbers: dict[str, list[Source]] = {}
    for source, x in loads.items():
        if len(loads) > _MOST_CAPTURES and not x.args:
            numbers.setdefault(x.type, []).append(source)
    rows = [row for row in numbers.values() if len(row) > 1]
    shared = {source for row in rows for source in row}
    sources = {f"t{n}": [x] for n, x in enumerate(x for x in loads if x not in shared)}
    names = {x: name for name, (x,) in sources.items()}
    for row in rows:
        name = f"t{len(sources)}"
        sources[name] = row
        names |= {x: f"{name}[{n}]" for n, x in enumerate(row)}
    return names, sources


def _row(numbers: list[torch.Tensor]) -> torch.Tensor:
    dtype = functools.reduce(torch.promote_types, [x.dtype for x in numbers])
    return torch.stack([x.to(dtype) for x in numbers])


def _readable(x: torch.Tensor, source: Source, device: torch.device) -> torch.Tensor:
    x = x.to(torch.int32) if x.dtype in _NARROW else x
    return x.to(device) if x.dim() == 0 or source.kind == "constant" else x


def _extents(nodes: list[Expression], shapes: dict[Source, tuple[int, ...]]) -> list[Extent]:
    found = {}  # the keys do not contain the shape, which may contain a compiler's symbols
    for x in nodes:
        for dim, subscript in enumerate(x.args if x.kind == "load" else ()):
            if subscript.kind == "variable":
                found[x.value, dim, subscript.value] = (shapes[x.value], dim, subscript.value)
    return list(found.values())


def _reads(steps: dict[int, Step]) -> list[Source]:
    leaves, _ = tree_flatten([(x.args, x.kwargs) for x in steps.values()], is_leaf=lambda x: isinstance(x, Source))
    return [x for x in leaves if isinstance(x, Source)]


def _needed(sources: list[Source], steps: list[Step]) -> dict[int, Step]:
    wanted = {source.number for source in sources if source.kind == "step"}
    for n in reversed(range(len(steps))):
        if n in wanted:
            leaves, _ = tree_flatten((steps[n].args, steps[n].kwargs), is_leaf=lambda x: isinstance(x, Source))
            wanted |= {x.number for x in leaves if isinstance(x, Source) and x.kind == "step"}
    return {n: steps[n] for n in sorted(wanted)}
