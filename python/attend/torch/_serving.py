"""Computes decode, append and merge of torch tensors, by direct calls of the library or by operators of torch's
dispatcher.

`_core.decode_of_options` and `_core.append_of_options` handle most calls of decode and append. The functions of this
module handle all other calls.

    attend::decode(tensors, numbers)          writes out and lse
    attend::append_decode(tensors, numbers)   writes k_cache and v_cache before
    attend::append(tensors, numbers)          writes k_cache, v_cache and out
    attend::merge(o[], lse[], sinks?, out, out_lse?, layout, lse_base2)

`tensors` and `numbers` are expanded into the fields of attend._serving, in their order. The operators return nothing:
they write to `out`, whether the caller passed it or this module allocated it. The operators have no gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Optional

import torch
from torch.autograd import forward_ad

from attend import _core
from attend._errors import ArgumentError, UnsupportedError
from attend._serving import (
    CACHES,
    DENSE,
    IN_PLACE,
    NAMES,
    Numbers,
    Tensors,
    check_out,
    layout_of_q,
    layout_of_state,
    result_shapes,
    sequences_of,
    whole_number,
)
from attend._settings import output_shapes
from attend.torch import _dtensor, _meta, _transforms
from attend.torch._front import check_tensor
from attend.torch._operators import TAGS, empty_like, library, raw_stream, view_in_place, view_of_rows

_TYPES = {
    "layout": "str", "max_seqlen_q": "SymInt", "scale": "float?", "causal": "bool", "window_left": "SymInt",
    "window_right": "SymInt", "lse_base2": "bool", "max_seqlen_new": "SymInt", "rotary_interleaved": "bool",
    "rotary_first_column": "SymInt", "query_positions": "str", "compute": "str",
}  # fmt: skip
_NUMBERS_SCHEMA = ", ".join(f"{_TYPES.get(name, 'float')} {name}" for name in Numbers._fields)
# For each operator: the tensors that are always given, and the tensors that it writes.
_OPERATORS = {
    "decode": (("q", "k_cache", "out"), ("out", "lse")),
    "append_decode": (("q", "k_cache", "out", "k"), (*CACHES, "out", "lse")),
    "append": (("k", "k_cache"), (*CACHES, "out")),
}
_OWNERS = {"decode": "q", "append": "k", "merge": "states[0].o"}  # all other tensors must have the device of this one
_READ_IN_PLACE = (*IN_PLACE, "q_out")
_BEHIND_LENGTHS = Tensors._fields.index("seqlens_k") + 1
_MERGE = (
    "merge(Tensor[] o, Tensor[] lse, Tensor? sinks, Tensor(a!) out, Tensor(b!)? out_lse, str layout, bool lse_base2) "
    "-> ()"
)


def decode(
    tensors: Tensors, numbers: Numbers, head_dim_v: Optional[int], return_lse: bool
) -> tuple[torch.Tensor, Optional[torch.Tensor]]:
    """Returns o, and lse or None."""
    q, k_cache, v_cache, out = tensors[:4]
    lengths = _lengths(tensors.seqlens_k, q, tensors.cu_seqlens_q)
    rest = (lengths, *tensors[_BEHIND_LENGTHS:])
    is_direct = _examine("decode", q, (q, k_cache, v_cache, out, None, *rest))
    v_shape = None if v_cache is None else v_cache.shape
    o_shape, lse_shape = result_shapes(q.shape, k_cache.shape, v_shape, head_dim_v, layout_of_q(tensors, numbers))
    o = _result("out", out, q, o_shape)
    lse = q.new_empty(lse_shape, dtype=torch.float32) if return_lse else None
    given = (q, k_cache, v_cache, o, lse, *rest)
    if is_direct:
        _fill(_core.decode, q, given, numbers)
    else:
        _by_an_operator("decode" if tensors.k is None else "append_decode", given, numbers)
    _count_writes(out, *(() if tensors.k is None else (k_cache, v_cache)))
    return o, lse


def append(tensors: Tensors, numbers: Numbers) -> Optional[torch.Tensor]:
    """Returns q_out, or None without q."""
    q, k_cache, v_cache, out = tensors[:4]
    lengths = _lengths(tensors.seqlens_k, tensors.k, tensors.cu_seqlens_new)
    rest = (None, lengths, *tensors[_BEHIND_LENGTHS:])
    is_direct = _examine("append", tensors.k, (q, k_cache, v_cache, out, *rest))
    q_out = None if q is None else _result("q_out", out, q, q.shape)
    given = (q, k_cache, v_cache, q_out, *rest)
    if is_direct:
        _fill(_core.append, tensors.k, given, numbers)
    else:
        _by_an_operator("append", given, numbers)
    _count_writes(out, k_cache, v_cache)
    return q_out


def merge(
    states: list[tuple[Any, Any]], sinks: Any, out: Any, layout: str, lse_base2: bool, return_lse: bool
) -> tuple[torch.Tensor, Optional[torch.Tensor]]:
    """Returns o, and lse or None."""
    first = states[0][0]
    named = {f"states[{n}].{part}": x for n, state in enumerate(states) for part, x in zip(("o", "lse"), state)}
    named |= {name: x for name, x in (("sinks", sinks), ("out", out)) if x is not None}
    is_direct = _is_direct("merge", named.values(), lambda: named)
    if not is_direct:
        _check("merge", first, named)
    order = layout_of_state(first, layout)
    o_shape, lse_shape = output_shapes(first.shape, first.shape, order)
    o = _result("out", out, first, o_shape)
    lse = first.new_empty(lse_shape, dtype=torch.float32) if return_lse else None
    call = ([x for x, _ in states], [x for _, x in states], sinks, o, lse, order, lse_base2)
    if is_direct:
        _merge(*call)
    else:
        _named(lambda: torch.ops.attend.merge(*call), lambda: _meta.check_merge(*call))
    _count_writes(out)
    return o, lse


def _examine(call: str, owner: torch.Tensor, tensors: tuple[Any, ...]) -> bool:
    """Refuses unsupported tensors. Returns True if the library may be called without torch's dispatcher."""

    def named() -> dict[str, Any]:
        out = {"out": "q_out"} if call == "append" else {}
        return {out.get(name, name): x for name, x in zip(NAMES, tensors) if x is not None}

    is_direct = _is_direct(call, [x for x in tensors if x is not None], named)
    if not is_direct:
        _check(call, owner, named())
    return is_direct


def _is_direct(call: str, given: Iterable[Any], named: Callable[[], dict[str, Any]]) -> bool:
    """Returns whether the direct route supports the tensors, as python/src/torch_route.hpp defines it."""
    if torch.compiler.is_compiling():
        return False
    is_direct, needs_gradients, _ = _core.route_of(tuple(given), ())
    if is_direct and needs_gradients:
        _refuse_gradients(call, named())
    return is_direct


def _check(call: str, owner: torch.Tensor, named: dict[str, Any]) -> None:
    """Refuses inputs that the operators cannot process, and inputs whose derivatives would be lost silently."""
    if _transforms.are_active() or (not torch.compiler.is_compiling() and _transforms.functionalizes()):
        raise UnsupportedError(f"{call}: under a transform of torch.func, allowed outside of one")
    for name, x in named.items():
        if _dtensor.is_dtensor(x):
            raise UnsupportedError(f"{name}: a DTensor, {call} supports tensors of one device only; use to_local()")
        check_tensor(name, x, _OWNERS[call])
        if x.device != owner.device:
            raise ArgumentError(f"{name}: on {x.device}, allowed the device of the call, {owner.device}")
        if torch.compiler.is_compiling():
            continue
        if forward_ad.unpack_dual(x).tangent is not None:
            raise UnsupportedError(f"{name}: has a tangent, {call} has no derivatives")
        if name in _READ_IN_PLACE and x.is_neg():
            raise UnsupportedError(f"{name}: a negated view, {call} works on it in place; resolve_neg() copies it")
    if torch.is_grad_enabled():
        _refuse_gradients(call, named)


def _refuse_gradients(call: str, named: dict[str, Any]) -> None:
    for name, x in named.items():
        if x.requires_grad:
            raise UnsupportedError(f"{name}: requires grad, {call} gives no gradients: call it under torch.no_grad()")


def _lengths(lengths: Any, rows: torch.Tensor, offsets: Any) -> Any:
    """Converts a number, the common length of all sequences, to a tensor with one entry for each sequence."""
    if lengths is None or isinstance(lengths, torch.Tensor):
        return lengths
    number = whole_number("seqlens_k", lengths)
    if number is None:
        return lengths  # a later check refuses it by name, like every argument that is not a tensor
    count = sequences_of(rows.shape, getattr(offsets, "shape", None))
    return rows.new_full((count,), number, dtype=torch.int32)


def _result(name: str, out: Optional[torch.Tensor], like: torch.Tensor, shape: Any) -> torch.Tensor:
    if out is not None:
        check_out(name, out, shape)
        return out
    # The library refuses a tensor without dimensions later.
    has_the_shape = like.dim() == 0 or like.shape[-1] == shape[-1]
    return empty_like(like) if has_the_shape else like.new_empty(shape)


def _count_writes(*tensors: Optional[torch.Tensor]) -> None:
    """Increments the autograd version of the caller's tensors that a call has written, because autograd may have saved
    them.

    torch's dispatcher does this only for torch's own operators, and compilers do it only in compiled code.
    """
    if torch.compiler.is_compiling():
        return
    for x in tensors:
        if x is not None and not x.is_inference():
            torch.autograd.graph.increment_version(x)


def _view_of_dense(x: Optional[torch.Tensor]) -> Any:
    return None if x is None else view_in_place(x.contiguous())


# The function that makes the view of each field of Tensors. Caches and results are viewed in place. Other tensors are
# copied if their last dimension is not dense.
_VIEWS = tuple(
    view_in_place if name in IN_PLACE else _view_of_dense if name in DENSE else view_of_rows for name in Tensors._fields
)


def _fill(function: Callable[..., None], owner: torch.Tensor, tensors: tuple[Any, ...], numbers: Numbers) -> None:
    """Calls `function`, the library's decode or append, with views of the tensors."""
    views = tuple([None if x is None else of(x) for of, x in zip(_VIEWS, tensors)])
    function(views, numbers, _stream(owner))


def _merge(o: Any, lse: Any, sinks: Any, out: Any, out_lse: Any, layout: str, lse_base2: bool) -> None:
    states = [(view_of_rows(x), view_of_rows(y)) for x, y in zip(o, lse)]
    results = view_in_place(out), view_in_place(out_lse)
    _core.merge(states, *results, view_of_rows(sinks), layout, lse_base2, _stream(out))


def _by_an_operator(name: str, given: tuple[Any, ...], numbers: Numbers) -> None:
    operator = getattr(torch.ops.attend, name)
    _named(lambda: operator(*given, *numbers), lambda: _meta.check_serving(name, Tensors(*given), numbers))


def _named(run: Callable[[], None], check: Callable[[], None]) -> None:
    """Runs an operator. If a number has a wrong type, the error names the argument. torch's error would contain the
    full schema.
    """
    if torch.compiler.is_compiling():
        run()
        return
    try:
        run()
    except RuntimeError:
        check()
        raise


def _stream(x: torch.Tensor) -> int:
    return raw_stream(x.get_device()) if x.is_cuda else 0


def _schema(name: str, required: tuple[str, ...], written: tuple[str, ...]) -> str:
    marks = {field: f"({mark}!)" for field, mark in zip(written, "abcd")}
    optional = {field: "" if field in required else "?" for field in Tensors._fields}
    fields = ", ".join(f"Tensor{marks.get(field, '')}{optional[field]} {field}" for field in Tensors._fields)
    return f"{name}({fields}, {_NUMBERS_SCHEMA}) -> ()"


def _operator(name: str) -> Callable[..., None]:
    owner = Tensors._fields.index("k" if name == "append" else "q")
    count = len(Tensors._fields)

    def run(*arguments: Any) -> None:
        function = _core.append if name == "append" else _core.decode
        _fill(function, arguments[owner], arguments[:count], Numbers(*arguments[count:]))

    return run


def _fake(name: str) -> Callable[..., None]:
    """Returns the fake implementation, for tensors without memory. The fake implementation only checks the arguments,
    because the caller has allocated all results.
    """
    count = len(Tensors._fields)

    def check(*arguments: Any) -> None:
        _meta.check_serving(name, Tensors(*arguments[:count]), Numbers(*arguments[count:]))

    return check


def _define(name: str, schema: str, function: Any, fake: Any) -> None:
    library.define(schema, tags=TAGS)
    for key in ("CPU", "CUDA"):
        library.impl(name, function, key)
    torch.library.register_fake(f"attend::{name}", fake, lib=library)


for _name, (_required, _written) in _OPERATORS.items():
    _define(_name, _schema(_name, _required, _written), _operator(_name), _fake(_name))
_define("merge", _MERGE, _merge, _meta.check_merge)
