"""Implements custom scores in graphs, by operators whose arguments include the text and the tensors that it reads.

    attend::score_forward(q, k, v, extras, settings, captures, names, text) -> (o, lse)
    attend::score_backward(q, k, v, o, lse, dout, dlse?, needs, extras, settings, captures, names, text, needs_captures)
        -> (dq, dk, dv, gradients of options, gradients of captures)

`names` contains the names of `captures` in the text. All other arguments are as in attend.torch._operators. The
gradient of a capture that is not requested is an empty tensor of shape (0).
"""

from __future__ import annotations

from typing import Any

import torch

from attend._score import Own
from attend._settings import GRADIENT_POSITIONS, OPTION_GRADIENTS, Extras, Settings
from attend.torch import _meta, _operators, _score
from attend.torch._autograd import refuse_double_backward, refuse_lacking_gradients
from attend.torch._operators import EXTRAS_SCHEMA, NEEDS_SCHEMA, RESULTS_SCHEMA, SETTINGS_SCHEMA, TAGS, library

_TENSORS = "Tensor q, Tensor k, Tensor v"
_OPTIONS = f"{EXTRAS_SCHEMA}, {SETTINGS_SCHEMA}, Tensor[] captures, str[] names, str text"
library.define(f"score_forward({_TENSORS}, {_OPTIONS}) -> (Tensor o, Tensor lse)", tags=TAGS)
library.define(
    f"score_backward({_TENSORS}, Tensor o, Tensor lse, Tensor dout, Tensor? dlse, {NEEDS_SCHEMA}, {_OPTIONS}, "
    f"bool[] needs_captures) -> ({RESULTS_SCHEMA}, Tensor[] of_captures)",
    tags=TAGS,
)
_NUM_EXTRAS, _NUM_SETTINGS, _NUM_NEEDS = len(Extras._fields), len(Settings._fields), len(OPTION_GRADIENTS)


def _split(rest: tuple[Any, ...]) -> tuple[Extras, Settings, Own]:
    """Converts the arguments of attend::score_forward after v to extras, settings and an Own (the score with its
    captures).
    """
    *options, captures, names, text = rest
    return *_operators.split(tuple(options)), Own(text, dict(zip(names, captures)))


def _forward(q: Any, k: Any, v: Any, *rest: Any) -> tuple[torch.Tensor, torch.Tensor]:
    extras, settings, score = _split(rest)
    return _score.run_forward(score, q, k, v, extras, settings, score.captures)


def _forward_fake(q: Any, k: Any, v: Any, *rest: Any) -> tuple[torch.Tensor, torch.Tensor]:
    extras, settings, score = _split(rest)
    o, lse = _operators.empty_results(q, v, settings.layout)
    _meta.check(q, k, v, o, lse, None, extras, settings)
    _meta.check_score(score)
    return o, lse


def _backward(q: Any, k: Any, v: Any, o: Any, lse: Any, dout: Any, dlse: Any, *rest: Any) -> tuple[Any, ...]:
    *others, needs_captures = rest
    needs, (extras, settings, score) = tuple(others[:_NUM_NEEDS]), _split(tuple(others[_NUM_NEEDS:]))
    *found, of_captures = _score.gradients(
        score, dout, q, k, v, o, lse, dlse, needs, extras, settings, needs_captures, score.captures
    )
    empty = [x.new_empty(0) if y is None else y for x, y in zip(score.captures, of_captures)]
    return *_operators.without_none(q, tuple(found)), empty


def _backward_fake(q: Any, k: Any, v: Any, o: Any, lse: Any, dout: Any, dlse: Any, *rest: Any) -> tuple[Any, ...]:
    *others, captures, _, _, needs_captures = rest
    of_captures = [
        x.new_empty(x.shape if is_needed and x.is_floating_point() else 0)
        for x, is_needed in zip(captures, needs_captures)
    ]
    return *_operators.backward_fake(q, k, v, o, lse, dout, dlse, *others), of_captures


for _key in ("CPU", "CUDA"):
    library.impl("score_forward", _forward, _key)
    library.impl("score_backward", _backward, _key)
torch.library.register_fake("attend::score_forward", _forward_fake, lib=library)
torch.library.register_fake("attend::score_backward", _backward_fake, lib=library)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
    *options, captures, ctx.names, ctx.text = inputs
    refuse_lacking_gradients(ctx.needs_input_grad[3 : 3 + _NUM_EXTRAS])
    ctx.save_for_backward(*options[: 3 + _NUM_EXTRAS], *output, *captures)
    ctx.settings = options[3 + _NUM_EXTRAS :]
    ctx.set_materialize_grads(False)


def _gradients(ctx: Any, dout: Any, dlse: Any) -> tuple[Any, ...]:
    q, k, v, *rest = ctx.saved_tensors
    extras, (o, lse, *captures) = rest[:_NUM_EXTRAS], rest[_NUM_EXTRAS:]
    needs = tuple(ctx.needs_input_grad[3 + i] for i in GRADIENT_POSITIONS)
    wanted = ctx.needs_input_grad[3 + _NUM_EXTRAS + _NUM_SETTINGS]
    needs_captures = [bool(x) for x in wanted] if isinstance(wanted, (list, tuple)) else [bool(wanted)] * len(captures)
    dout = torch.zeros_like(o) if dout is None else dout
    dq, dk, dv, *of_options, of_captures = torch.ops.attend.score_backward(
        q, k, v, o, lse, dout, dlse, *needs, *extras, *ctx.settings, captures, ctx.names, ctx.text, needs_captures
    )
    of_extras: list[Any] = [None] * _NUM_EXTRAS
    for i, gradient, is_needed in zip(GRADIENT_POSITIONS, of_options, needs):
        of_extras[i] = gradient if is_needed else None
    asked = [
        y if is_needed and x.is_floating_point() else None
        for x, y, is_needed in zip(captures, of_captures, needs_captures)
    ]
    return dq, dk, dv, *of_extras, *[None] * _NUM_SETTINGS, asked, None, None


def _remember_nothing(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    pass


torch.library.register_autograd("attend::score_forward", _gradients, setup_context=_setup_context, lib=library)
torch.library.register_autograd(
    "attend::score_backward", refuse_double_backward, setup_context=_remember_nothing, lib=library
)
