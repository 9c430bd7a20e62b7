"""Translates a torch function (a score_mod or mask_mod) into the language of docs/custom_scores.md.

The function runs once on tensors without dimensions. A dispatch mode intercepts every operator. An operator that
depends on the score or the positions becomes an expression and is never computed. An operator that depends only on
captured tensors is run and recorded in a list of steps. A later call runs the steps again, with autograd, on the
tensors captured at that time.
"""

from __future__ import annotations

import math
import operator
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Optional

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map_only

import attend._flex.activations  # noqa: F401  (the import registers the module's operators)
from attend._errors import UnsupportedError
from attend._flex import lanes, reductions
from attend._flex.expressions import FLOAT, Builder, Expression, NotSaidError, reachable
from attend._flex.lanes import Lanes, Subscripts, type_of
from attend._flex.operators import ELEMENTWISE
from attend._flex.subscripts import SubscriptMode
from attend._flex.traced import Extent, Source, Step, Traced

VARIABLES = {"score_mod": ("score", "b", "h", "q", "k"), "mask_mod": ("b", "h", "q", "k")}

_LIBRARIES = tuple(f"{Path(file).parent}{os.sep}" for file in (torch.__file__, Path(__file__).parent))
_GYMS_TANH = "approx::tanh"  # attention-gym's fast tanh for GPUs
_FACTORIES = {"new_ones", "new_zeros", "new_full", "ones_like", "zeros_like", "full_like"}
_READS = {"_local_scalar_dense", "is_nonzero", "item", "equal", "allclose"}
_MOST_DIMENSIONS = 4
_MOST_BLOCKS = 1 << 20  # most elements of a tensor for which the library computes bounds by block
_TILE = 64
_REDUCTIONS = {*reductions.COMBINE, "dot", "mv", "mm", "bmm", "linalg_vector_norm", "norm"}
_CHEAP_VIEWS = {"select", "slice", "unsqueeze", "squeeze", "expand", "permute", "transpose", "t"}


def trace(
    argument: str, function: Callable[..., Any], given: Sequence[torch.Tensor], device: torch.device, dtype: torch.dtype
) -> Traced:
    """Traces a function. `argument` is a key of VARIABLES. `given` contains the captured tensors that are already
    known.
    """
    recorder = Recorder(argument, given)
    arguments = []
    for name in VARIABLES[argument]:
        x = torch.empty((), dtype=dtype if name == "score" else torch.int32, device=device)
        variable = recorder.builder.variable(name)
        recorder.keep(x, Lanes((), x.dtype, lambda _, variable=variable: variable))  # type: ignore[misc]
        arguments.append(x)
    recorder.asks_for_gradients = torch.is_grad_enabled()
    # The steps are recorded without autocast, because later calls also run them without it.
    with (
        torch.autocast(device.type, enabled=False),
        torch.no_grad(),
        recorder,
        SubscriptMode(recorder.read_out, recorder.stop_gradients),
    ):
        result = function(*arguments)
    root = recorder.result(result)
    try:
        return recorder.traced(root)
    except NotSaidError as error:
        raise UnsupportedError(f"{argument}: {error}") from None


class Recorder(TorchDispatchMode):
    def __init__(self, argument: str, given: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self.builder = Builder()
        self.captures = list(given)
        self.num_given = len(given)
        self.constants: list[torch.Tensor] = []
        self.steps: list[Step] = []
        self.shapes: dict[Source, tuple[int, ...]] = {}
        self.extents: list[Extent] = []
        self._views: dict[Source, tuple[str, Any, Any]] = {}
        self._reshapes: dict[tuple[Source, tuple[int, ...]], Source] = {}
        self.is_lasting = True  # False if the text depends on values that are not part of the cache key
        self.asks_for_gradients = False
        self._argument = argument
        self._lanes: dict[int, Lanes] = {}
        self._sources: dict[int, Source] = {}
        # References to tensors that are known by id(), so that their ids stay unique.
        self._alive: list[torch.Tensor] = []
        for n, x in enumerate(given):
            self._sources.setdefault(id(x), Source("capture", n))

    # Tensors

    def keep(self, x: torch.Tensor, elements: Lanes) -> None:
        self._alive.append(x)
        self._lanes[id(x)] = elements

    def _name(self, x: torch.Tensor, source: Source) -> None:
        self._alive.append(x)
        self._sources[id(x)] = source

    def _add_constant(self, x: torch.Tensor) -> None:
        self._name(x, Source("constant", len(self.constants)))
        self.constants.append(x)

    def _source(self, x: torch.Tensor) -> Source:
        if id(x) not in self._sources:  # a tensor that is not part of the cache key
            self.is_lasting = False
            self._name(x, Source("capture", len(self.captures)))
            self.captures.append(x)
        return self._sources[id(x)]

    def _lanes_of(self, x: torch.Tensor) -> Lanes:
        if id(x) in self._lanes:
            return self._lanes[id(x)]
        b, source = self.builder, self._source(x)
        if source.kind == "constant" and x.dim() == 0:
            type_of(x.dtype)
            number = b.of(x.item())
            return Lanes((), x.dtype, lambda _: number)
        if source in self._views:  # a text may read only few tensors, so it reads a view through the original tensor
            name, args, kwargs = self._views[source]
            return lanes.VIEWS[name](b, self._lanes_of(args[0]), *args[1:], **kwargs)
        if x.dim() > _MOST_DIMENSIONS:
            rest = x.shape[1 - _MOST_DIMENSIONS :]
            first = math.prod(x.shape[: 1 - _MOST_DIMENSIONS])
            # Stands for the result of the reshape step.
            flat = torch.empty((first, *rest), dtype=x.dtype, device="meta")
            self._name(flat, self._reshaped(source, tuple(flat.shape)))
            return lanes.reshaped(b, self._lanes_of(flat), x.shape)
        type_of(x.dtype)
        self.shapes[source] = tuple(x.shape)
        return Lanes(x.shape, x.dtype, lambda i: self._load(x, source, i))

    def _load(self, x: torch.Tensor, source: Source, i: Subscripts) -> Expression:
        b = self.builder
        if self._argument == "mask_mod" and _is_block(i) and x.numel() <= _MOST_BLOCKS:
            # While it makes a mask, the library computes bounds for a load whose subscripts are constant within a tile.
            # In the last dimension its bounds cover 64 elements together. A new last dimension of size 1 makes the
            # bounds of single elements exact.
            shape = (*x.shape, 1)
            if len(shape) > _MOST_DIMENSIONS:
                self.extents += [(tuple(x.shape), dim, i[dim].value) for dim in (0, 1) if i[dim].kind == "variable"]
                shape = (x.shape[0] * x.shape[1], *shape[2:])
                i = (b.add(b.multiply(i[0], x.shape[1]), i[1]), *i[2:])
            source, i = self._reshaped(source, shape), (*i, b.of(0))
        return b.load(source, i, type_of(x.dtype))

    def _reshaped(self, source: Source, shape: tuple[int, ...]) -> Source:
        """Returns the source that a recorded reshape of `source` to `shape` produces. Records the step if it is new."""
        key = (source, tuple(map(operator.index, shape)))
        if key not in self._reshapes:
            self._reshapes[key] = Source("step", len(self.steps))
            self.steps.append(Step(torch.reshape, key, {}))
            self.shapes[self._reshapes[key]] = shape
        return self._reshapes[key]

    def result(self, x: Any) -> Expression:
        if not isinstance(x, torch.Tensor):
            raise UnsupportedError(f"{self._argument}: it returned {type(x).__name__}, allowed a tensor")
        if x.dim() != 0:
            raise UnsupportedError(
                f"{self._argument}: it returned shape {tuple(x.shape)}, allowed a tensor without dimensions"
            )
        if self._argument == "mask_mod" and x.dtype != torch.bool:
            raise UnsupportedError(f"mask_mod: it returned {x.dtype}, allowed torch.bool")
        try:
            found = self._lanes_of(x).at(())
        except NotSaidError as error:
            raise UnsupportedError(f"{self._argument}: it returned {error}") from None
        return self.builder.as_bool(found) if self._argument == "mask_mod" else self.builder.as_float(found)

    def traced(self, root: Expression) -> Traced:
        extra = self.captures[self.num_given :]
        return Traced(root, self.steps, self.constants, extra, self.shapes, self.extents, self.is_lasting)

    # Operators

    def read_out(self, x: torch.Tensor) -> None:
        if id(x) in self._lanes:
            raise UnsupportedError(f"{self._argument}: {_line()}{_VALUE}")
        self.is_lasting = False

    def stop_gradients(self) -> None:
        if self._argument == "score_mod" and self.asks_for_gradients:
            raise UnsupportedError(
                f"score_mod: {_line()}torch.no_grad() or similar inside, allowed .detach() of captured tensors"
            )

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, torch.Tensor)]
        name = func._schema.name.split("::")[1]
        if torch.Tag.nondeterministic_seeded in func.tags:
            raise self._refusal(func, "random numbers, allowed none")
        if func._schema.is_mutable:
            raise self._refusal(func, "it changes a tensor in place, allowed a new tensor: score = score + x")
        if not any(id(x) in self._lanes for x in tensors):
            return self._run(func, name, args, kwargs, tensors)
        if name in _READS:
            raise UnsupportedError(f"{self._argument}: {_line()}{_VALUE}")
        if name in _FACTORIES:
            return self._made(func, args, kwargs)
        try:
            if name == "unbind":  # a score_mod may contain: x, y = table[q_idx]
                parts = lanes.unbound(self.builder, self._lanes_of(args[0]), *args[1:])
                return [self._stand_in(part, tensors, kwargs, func) for part in parts]
            found = self._expressed(func, name, args, kwargs)
        except NotSaidError as error:
            raise self._refusal(func, str(error)) from None
        return self._stand_in(found, tensors, kwargs, func)

    def _made(self, func: Any, args: Any, kwargs: Any) -> torch.Tensor:
        made: torch.Tensor = func(*args, **kwargs)
        self._add_constant(made)
        return made

    def _refusal(self, func: Any, why: str) -> UnsupportedError:
        return UnsupportedError(f"{self._argument}: {_line()}{func}: {why}")

    def _run(self, func: Any, name: str, args: Any, kwargs: Any, tensors: list[torch.Tensor]) -> Any:
        """Runs and records an operator that depends on no score and no position."""
        result = func(*args, **kwargs)
        if name in ("lift_fresh", "lift_fresh_copy") and id(tensors[0]) not in self._sources:
            self._add_constant(result)  # a constant of the function, such as torch.tensor(1.5)
            return result
        sources = [self._source(x) for x in tensors]
        outputs = list(result) if isinstance(result, (tuple, list)) else [result]
        if all(source.kind == "constant" for source in sources):
            for x in outputs:
                if isinstance(x, torch.Tensor):
                    self._add_constant(x)
            return result
        is_shaped_by_values = torch.Tag.dynamic_output_shape in func.tags and not _is_plain_index(name, args)
        if torch.Tag.data_dependent_output in func.tags or is_shaped_by_values or name in _READS:
            self.is_lasting = False
        to_source = lambda x: self._source(x)
        step = Step(func, *tree_map_only(torch.Tensor, to_source, (args, kwargs)))
        self.steps.append(step)
        for n, x in enumerate(outputs):
            if isinstance(x, torch.Tensor):
                self._name(x, Source("step", len(self.steps) - 1, n))
        if name in _CHEAP_VIEWS:
            self._views[Source("step", len(self.steps) - 1)] = (name, args, kwargs)
        return result

    def _expressed(self, func: Any, name: str, args: Any, kwargs: Any) -> Lanes:
        b = self.builder
        if func.namespace != "aten":
            if func._schema.name != _GYMS_TANH:
                raise NotSaidError("an operator that attend cannot translate")
            return self._computed(func, name, args, kwargs)
        if name in lanes.VIEWS:
            # For a wrong dimension, _on_meta raises torch's own error.
            if self._on_meta(func, args, kwargs).dtype != args[0].dtype:
                raise NotSaidError("a view of another dtype")
            return lanes.VIEWS[name](b, self._lanes_of(args[0]), *args[1:], **kwargs)
        if name == "index":
            return lanes.indexed(
                b, self._lanes_of(args[0]), [None if x is None else self._lanes_of(x) for x in args[1]]
            )
        if name in ("index_select", "gather"):
            run = lanes.index_select if name == "index_select" else lanes.gather
            return run(b, self._lanes_of(args[0]), args[1], self._lanes_of(args[2]))
        if name == "take":
            row = lanes.reshaped(b, self._lanes_of(args[0]), (-1,))
            return lanes.indexed(b, row, [self._lanes_of(args[1])])
        if name == "embedding":
            return lanes.embedding(b, self._lanes_of(args[0]), self._lanes_of(args[1]))
        if name in ("stack", "cat"):
            join = lanes.stacked if name == "stack" else lanes.concatenated
            return join(b, [self._lanes_of(x) for x in args[0]], args[1] if len(args) > 1 else 0)
        if name == "isin":
            return lanes.among(b, self._lanes_of(args[0]), self._lanes_of(args[1]), **kwargs)
        if name in ("bucketize", "searchsorted"):
            edges, x = (args[1], args[0]) if name == "bucketize" else (args[0], args[1])
            return lanes.bucket(b, self._lanes_of(edges), self._lanes_of(x), **kwargs)
        if name == "detach":
            return self._detached(self._lanes_of(args[0]))
        return self._computed(func, name, args, kwargs)

    def _computed(self, func: Any, name: str, args: Any, kwargs: Any) -> Lanes:
        b = self.builder
        handler = ELEMENTWISE.get(name)
        if handler is None and name not in _REDUCTIONS:
            raise NotSaidError("an operator that attend cannot translate")
        found = self._on_meta(func, args, kwargs)
        first = found[0] if isinstance(found, (tuple, list)) else found
        type_of(first.dtype)
        if handler is None:
            return self._reduced(name, args, kwargs, first)
        operands = [*args, *kwargs.values()]
        operands = [self._lanes_of(x) if isinstance(x, torch.Tensor) else x for x in operands]
        named = list(kwargs)

        def compute(*elements: Any) -> Expression:
            return handler(b, *elements[: len(args)], **dict(zip(named, elements[len(args) :])))

        return lanes.elementwise(b, first.shape, first.dtype, compute, operands)

    def _on_meta(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Returns the operator's result on the meta device, which has shapes and dtypes but no elements."""
        bare = lambda x: torch.empty(x.shape, dtype=x.dtype, device="meta")
        args, kwargs = tree_map_only(torch.Tensor, bare, (args, kwargs))
        if kwargs.get("device") is not None:
            kwargs = {**kwargs, "device": torch.device("meta")}
        return func(*args, **kwargs)

    def _reduced(self, name: str, args: Any, kwargs: Any, result: torch.Tensor) -> Lanes:
        b, x = self.builder, self._lanes_of(args[0])
        kwargs = {key: value for key, value in kwargs.items() if key != "dtype"}
        if name in ("linalg_vector_norm", "norm"):
            return reductions.norm(b, x, result.dtype, *args[1:4], **kwargs)
        if name not in reductions.COMBINE:
            return reductions.product(b, x, self._lanes_of(args[1]), result.dtype, result.shape)
        if name in ("max", "min") and len(args) > 1:
            raise NotSaidError("a maximum with its index, allowed torch.amax and torch.amin")
        return reductions.reduced(b, name, x, result.dtype, *args[1:3], **kwargs)

    def _detached(self, x: Lanes) -> Lanes:
        if type_of(x.dtype) != FLOAT:
            return x
        root = x.at(tuple(self.builder.of(0) for _ in x.shape))
        is_asked = any(y.requires_grad for y in self.captures)
        for node in reachable(root):
            if node.value == "score" or (is_asked and node.kind == "load" and node.type == FLOAT):
                raise NotSaidError("a gradient that stops at this operator, allowed .detach() of captured tensors")
        return x

    def _stand_in(self, found: Lanes, tensors: list[torch.Tensor], kwargs: Any, func: Any) -> Any:
        """Returns a tensor with the result's shape, dtype and device, one element of memory, and no value."""
        others = [x.device for x in tensors if x.device.type != "cpu"]
        device = kwargs.get("device") or (others[0] if others else torch.device("cpu"))
        x = torch.empty((), dtype=found.dtype, device=device)
        if found.shape:
            x = x.expand(found.shape)
        self.keep(x, found)
        if func._schema.name == "aten::log_sigmoid_forward":
            return x, torch.empty(0, dtype=found.dtype, device=device)
        return x


def _is_block(i: Subscripts) -> bool:
    """Returns whether the last subscript is the index of a block that consists of entire tiles, such as kv_idx //
    128.
    """
    last = i[-1] if len(i) > 1 else None
    if last is None or last.kind != "operation" or last.value != "({} // {})":
        return False
    return last.args[1].is_constant and last.args[1].value % _TILE == 0


def _is_plain_index(name: str, args: Any) -> bool:
    return name == "index" and all(x is None or x.dtype not in (torch.bool, torch.uint8) for x in args[1])


_VALUE = (
    "the value of a tensor that depends on the score or a position (an 'if', 'while', int() or .item() of it), "
    "allowed torch.where"
)


def _line() -> str:
    """Returns the file and line of the user's code that is being traced, or an empty text."""
    for name, line in _places():
        if not name.startswith(_LIBRARIES) and not name.startswith("<frozen"):
            return f"{Path(name).name}:{line}: "
    return ""


def _places() -> Iterator[tuple[str, int]]:
    frame: Optional[Any] = sys._getframe(1)
    while frame is not None:
        yield frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back
