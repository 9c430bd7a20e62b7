"""Score and mask functions inside the graphs of torch.compile and torch.export.

A compiler traces the caller's function, including all tensors that the function uses. The score and the positions are
passed as `Symbol`s: tensors without elements, which record the operators that are applied to them as expressions. This
part of the graph runs, and records, only while the compiler generates code. `_scored` translates the recorded
expressions into a text, and calls an operator with this text and the tensors that the text reads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Optional

import torch
from torch.nn.attention import flex_attention as torchs
from torch.utils._python_dispatch import _disable_current_modes, is_traceable_wrapper_subclass
from torch.utils._pytree import tree_flatten, tree_map_only

from attend._errors import ArgumentError, UnsupportedError
from attend._flex.block_masks import NO_BLOCKS, BlockMask, check_lengths, of_lists, refuse_gradients, table_of_blocks
from attend._flex.functions import dtype_of_scores, sizes_of, text_and_captures
from attend._flex.lanes import Lanes
from attend._flex.subscripts import SubscriptMode
from attend._flex.trace import VARIABLES, Recorder
from attend._flex.traced import Traced
from attend.torch import _flex_operators, _score


class Symbol(torch.Tensor):
    """A tensor whose elements are expressions of `recorder`. `token` is the inner tensor with which compilers represent
    the Symbol.
    """

    recorder: GraphRecorder
    token: torch.Tensor

    @staticmethod
    def __new__(cls, shape: Any, dtype: torch.dtype, recorder: GraphRecorder, token: torch.Tensor) -> Symbol:  # noqa: PYI034
        make: Any = torch.Tensor._make_wrapper_subclass
        made: Symbol = make(cls, shape, dtype=dtype, device=token.device)
        return made

    def __init__(self, shape: Any, dtype: torch.dtype, recorder: GraphRecorder, token: torch.Tensor) -> None:
        self.recorder = recorder
        self.token = token

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        symbol = next(x for x in tree_flatten((args, kwargs))[0] if isinstance(x, Symbol))
        return symbol.recorder.__torch_dispatch__(func, types, args, kwargs)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"Symbol({tuple(self.shape)}, {self.dtype})"  # torch's __repr__ would read the elements

    def __tensor_flatten__(self) -> Any:
        return ["token"], (tuple(self.shape), self.dtype, self.recorder)

    @staticmethod
    def __tensor_unflatten__(inner: Any, meta: Any, outer_size: Any, outer_stride: Any) -> Symbol:
        shape, dtype, recorder = meta
        return Symbol(shape, dtype, recorder, inner["token"])


class GraphRecorder(Recorder):
    """Records the operators that are applied to Symbols. Operators on ordinary tensors stay in the graph."""

    def __init__(self, argument: str, token: torch.Tensor) -> None:
        super().__init__(argument, ())
        self.token = token
        self.asks_for_gradients = torch.is_grad_enabled()

    def symbol(self, elements: Lanes) -> Symbol:
        made = Symbol(elements.shape, elements.dtype, self, self.token)
        self.keep(made, elements)
        return made

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # This detach comes from autograd, which saves tensors. A detach in the user's function becomes `_detached`.
        if func is torch.ops.aten.detach.default:
            return self.symbol(self._lanes_of(args[0]))
        if self.asks_for_gradients and not torch.is_grad_enabled():
            self.stop_gradients()
        return super().__torch_dispatch__(func, types, args, kwargs)

    def _stand_in(self, found: Lanes, tensors: list[torch.Tensor], kwargs: Any, func: Any) -> Any:
        made = self.symbol(found)
        if func._schema.name == "aten::log_sigmoid_forward":
            return made, self.symbol(Lanes((0,), found.dtype, found.at))
        return made

    def _made(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Returns the Symbol of a factory such as ones_like, all of whose elements are one number."""
        plain = lambda x: torch.empty((), dtype=x.dtype)
        with _disable_current_modes():
            shape = self._on_meta(func, args, kwargs).shape
            here = {**kwargs, "device": torch.device("cpu")}
            x = func(*tree_map_only(Symbol, plain, args), **here)
            number = self.builder.of(x.reshape(-1)[0].item() if x.numel() else 0)
        return self.symbol(Lanes(shape, x.dtype, lambda _: number))

    def _on_meta(self, func: Any, args: Any, kwargs: Any) -> Any:
        with _disable_current_modes():  # otherwise active modes would add the operator to the graph
            return super()._on_meta(func, args, kwargs)

    def forget(self) -> None:
        """Breaks the reference cycle between Symbols and their recorder, and releases the captured tensors."""
        self._alive, self._lanes, self._views, self.captures = [], {}, {}, []

    def stopped(self, x: Symbol) -> Symbol:
        return self.symbol(self._detached(self._lanes_of(x)))


def can_follow() -> bool:
    """Returns whether calls can be part of the graph.

    Calls cannot be part of the graph under torch.export, which runs the function's operators above autograd, where
    tensor subclasses are not supported. Neither can they be part of it under transforms of torch.func, for which the
    operators have no derivative.
    """
    return not is_exporting() and not _score.has_transforms()


def is_exporting() -> bool:
    return bool(getattr(torch.compiler, "is_exporting", lambda: False)())


def computed(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, score_mod: Optional[Callable[..., Any]],
    block_mask: Any, scale: Optional[float],
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Returns (o, lse). At least one of score_mod and block_mask is given."""
    mask, tiles = None, None
    if type(block_mask) is BlockMask and block_mask._unlisted:
        refuse_gradients(block_mask._asks_for_gradients)
        mask = block_mask._token
    elif block_mask is not None and tuple(block_mask.BLOCK_SIZE) != (NO_BLOCKS, NO_BLOCKS):
        tiles = _tiles_inside(block_mask, query, key)
    if score_mod is None:
        return _masked(query, key, value, mask, tiles, scale)
    variables = _variables("score_mod", query)
    result = _followed(score_mod, variables)
    return _scored(query, key, value, mask, tiles, scale, variables[0], result)


def _tiles_inside(block_mask: Any, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """Makes attend's tiles of a torch mask, inside the graph. The mask may have been made in the same graph."""
    check_lengths(block_mask, query.shape[2], key.shape[2])
    table = table_of_blocks(block_mask)
    variables = _variables("mask_mod", query)
    result = _followed(of_lists(table, block_mask), variables)
    return _tiled(query, key, variables[0], result)


def _followed(function: Callable[..., Any], variables: tuple[Symbol, ...]) -> Any:
    with SubscriptMode(detach=_detached):
        return function(*variables)


def make_block_mask(mask_mod: Callable[..., Any], shape: Any, block_size: Any, device: torch.device) -> Any:
    """Makes a torch mask inside a graph. All blocks are listed as partial, so mask_mod alone decides which pairs are
    seen.
    """
    batch, heads, rows, keys = shape
    num_rows, num_keys = -(-rows // block_size[0]), -(-keys // block_size[1])
    count = torch.full((batch, heads, num_rows), num_keys, dtype=torch.int32, device=device)
    order = torch.arange(num_keys, dtype=torch.int32, device=device).expand(batch, heads, num_rows, -1).contiguous()
    return torchs.BlockMask.from_kv_blocks(
        count, order, BLOCK_SIZE=block_size, mask_mod=mask_mod, seq_lengths=(rows, keys)
    )


# Functions that compilers call without tracing them. A call of such a function is one node of Dynamo's graph.


def _variables(argument: str, query: torch.Tensor) -> tuple[Symbol, ...]:
    recorder = GraphRecorder(argument, torch.empty((), device=query.device))
    made = []
    for name in VARIABLES[argument]:
        dtype = dtype_of_scores(query) if name == "score" else torch.int32
        variable = recorder.builder.variable(name)
        made.append(recorder.symbol(Lanes((), dtype, lambda _, variable=variable: variable)))  # type: ignore[misc]
    return tuple(made)


def _detached(x: torch.Tensor) -> torch.Tensor:
    return x.recorder.stopped(x) if isinstance(x, Symbol) else x.detach()


def _noted(variable: Symbol, result: Any) -> Traced:
    recorder = variable.recorder
    function = recorder.traced(recorder.result(result))
    recorder.forget()
    return function


def _refuse_subclasses(*tensors: torch.Tensor) -> None:
    for x in tensors:
        if is_traceable_wrapper_subclass(x):
            raise UnsupportedError(
                f"flex_attention: given with a {type(x).__name__}, allowed with ordinary tensors only"
            )


def _tiled(query: torch.Tensor, key: torch.Tensor, position: Symbol, result: Any) -> torch.Tensor:
    function = _noted(position, result)
    sizes = sizes_of(query, key)
    try:
        function.check_extents("mask_mod", sizes)
    except ArgumentError as error:
        raise UnsupportedError(str(error)) from None
    captures = list(function.captures((), torch.device("cpu")).values())
    refuse_gradients(any(x.requires_grad for x in captures))
    batch = sizes["b"] if "b" in function.variables else 1
    heads = sizes["h"] if "h" in function.variables else 1
    made: torch.Tensor = _flex_operators.make_tiles(
        captures, function.text_for(sizes), batch, heads, sizes["q"], sizes["k"]
    )
    return made


def _scored(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Optional[torch.Tensor],
    tiles: Optional[torch.Tensor], scale: Optional[float], score: Symbol, result: Any,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    function = _noted(score, result)
    try:
        text, captures = text_and_captures(function, (), query, key)
    except ArgumentError as error:  # Dynamo breaks the graph here only for a NotImplementedError
        raise UnsupportedError(str(error)) from None
    _refuse_subclasses(query, key, value, *captures.values())
    o, lse, _ = _flex_operators.forward(query, key, value, list(captures.values()), text, mask, tiles, scale)
    return o, lse


def _masked(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Optional[torch.Tensor],
    tiles: Optional[torch.Tensor], scale: Optional[float],
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    _refuse_subclasses(query, key, value)
    o, lse, _ = _flex_operators.forward(query, key, value, [], None, mask, tiles, scale)
    return o, lse


def substitute(function: Callable[..., Any], inside: Callable[..., Any]) -> None:
    """Makes compilers trace `inside` instead of `function`. Must be called before a compiler looks up `function`."""
    if function not in _substituted:
        _substituted.add(function)
        for node in (_variables, _detached, _tiled, _scored, _masked):
            torch.compiler.allow_in_graph(node)
        torch.compiler.substitute_in_graph(function, skip_signature_check=True)(inside)


_substituted: set[Callable[..., Any]] = set()

# With this attribute a compiler calls these functions instead of tracing them. torch.compiler.assume_constant_result
# sets the same attribute, but imports the compiler, which takes seconds.
can_follow._dynamo_marked_constant = True  # type: ignore[attr-defined]
is_exporting._dynamo_marked_constant = True  # type: ignore[attr-defined]
