"""Converts the options of a call into the named tuples of attend._settings."""

from __future__ import annotations

from typing import Any

from attend._errors import ArgumentError
from attend._frameworks import is_torch
from attend._random import drawn_seed
from attend._settings import NO_EXTRAS, Extras, Settings, as_int64, dense_layout, drops, window_of

# The module attend.torch after its first use. The module is cached, because even a repeated import statement costs
# time.
_front_of_torch: Any = None
# Default values. Arguments are compared with them by identity, which is fast and does not read the value of a tensor or
# symbol.
NO_OFFSET, OPEN, NO_SOFTCAP = 0, (-1, -1), 0.0
_TENSORS = tuple(name for name in Extras._fields if name != "philox_state")
# The options of `forward` whose value becomes a field of Settings unchanged.
_OPTIONS = frozenset(Settings._fields) - {"window_left", "window_right", "seed", "offset"}


def resolve(function: str, q: Any, options: dict[str, Any]) -> tuple[Extras, Settings]:
    """Resolves the options of `function`, which is `forward`, `backward` or a function with the same options."""
    rest = dict(options)
    seed, dropout_p = rest.pop("seed", None), rest.get("dropout_p", 0.0)
    if seed is None and drops(dropout_p):
        raise ArgumentError(f"seed: None with dropout_p {dropout_p}, allowed a number: backward needs the same")
    seed, offset, state = random_numbers(q, seed, rest.pop("offset", NO_OFFSET), dropout_p)
    passed = {name: rest.pop(name) for name in _TENSORS if name in rest}
    given = {name: x for name, x in passed.items() if x is not None}
    extras = Extras(**given, philox_state=state) if given or state is not None else NO_EXTRAS
    if extras.cu_seqlens_q is not None:
        if "layout" in rest:
            raise ArgumentError(
                "layout: given with cu_seqlens_q, allowed without it only: packed tensors have one layout"
            )
        rest["layout"] = "thd"
    elif extras.cu_seqlens_k is not None:
        raise ArgumentError("cu_seqlens_k: given without cu_seqlens_q, allowed with it only")
    else:
        rest["layout"] = dense_layout(rest.get("layout", "bhsd"))
    for name in ("scale", "softcap"):
        if name in rest:
            rest[name] = number(name, rest[name])
    left, right = window_of(rest.pop("window", OPEN))
    try:
        return extras, Settings(**rest, window_left=left, window_right=right, seed=seed, offset=offset)
    except TypeError:
        wrong = next(name for name in rest if name not in _OPTIONS)
        raise TypeError(f"{function}() got an unexpected keyword argument {wrong!r}") from None


def number(name: str, x: Any) -> Any:
    """Returns the value of a tensor with one element. Returns all other arguments unchanged."""
    if x is None or isinstance(x, (int, float)) or not is_torch(x):
        return x
    return torch_front().number_of(name, x)


def random_numbers(q: Any, seed: Any, offset: Any, dropout_p: Any) -> tuple[int, int, Any]:
    """Returns seed, offset and None. If the host must not read the values, returns 0, 0 and a tensor with seed and
    offset.
    """
    if seed is None:
        if offset is not NO_OFFSET:
            raise ArgumentError("offset: given without seed, allowed with it only")
        if not drops(dropout_p):
            return 0, 0, None
        if not is_torch(q):
            return drawn_seed(), 0, None
        drawn: tuple[int, int, Any] = torch_front().drawn_numbers(q)
        return drawn
    if is_torch(q):
        given: tuple[int, int, Any] = torch_front().random_numbers(q, seed, offset)
        return given
    return as_int64("seed", seed), as_int64("offset", offset), None


def torch_front() -> Any:
    """Returns the module attend.torch."""
    global _front_of_torch
    import torch

    # Dynamo guards the globals that it reads, so _front_of_torch must not change.
    if torch.compiler.is_dynamo_compiling():
        from attend import torch as front

        return front
    if _front_of_torch is None:
        from attend import torch as front

        _front_of_torch = front
    return _front_of_torch
