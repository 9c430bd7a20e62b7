"""Code that is shared by the functions which replace those of other packages."""

from __future__ import annotations

from typing import Any, NoReturn

from attend._errors import Error, UnsupportedError

# Map attend's argument names to those of other packages.
TORCH_NAMES = {"q": "query", "k": "key", "v": "value", "bias": "attn_mask", "mask": "attn_mask", "causal": "is_causal"}
FLASH_NAMES = {"scale": "softmax_scale", "window": "window_size"}


def renamed(error: Error, names: dict[str, str]) -> Error:
    """Returns the error with the argument name at its beginning replaced by the caller's name."""
    name, colon, rest = str(error).partition(": ")
    return type(error)(names[name] + colon + rest) if name in names else error


def refuse_unless(value: Any, allowed: tuple[Any, ...], name: str) -> None:
    """Raises an error if the value is not in `allowed`, so that no option is silently ignored."""
    for x in allowed:
        if value is x or (type(value) is type(x) and value == x):
            return
    shown = type(value).__name__ if hasattr(value, "shape") else repr(value)
    raise UnsupportedError(f"{name}: {shown}, attend supports {' or '.join(map(repr, allowed))} only")


class StandIn:
    """Stands for a function of another package that attend does not implement yet. The function can be imported, but
    raises an error when it is called.
    """

    def __init__(self, name: str, instead: str = "") -> None:
        self.__name__ = self.__qualname__ = name
        self._instead = instead

    def __call__(self, *arguments: object, **options: object) -> NoReturn:
        """Raises NotImplementedError with the name."""
        raise UnsupportedError(f"{self.__name__}: attend does not have it yet{self._instead and f'; {self._instead}'}")

    apply = __call__  # callers may use it like a torch.autograd.Function

    def __repr__(self) -> str:
        return f"<{self.__name__}, which attend does not have yet>"


def dropout_seed(dropout_p: float) -> Any:
    """Returns a seed from torch's default generator, so that torch.manual_seed makes runs repeatable, or 0 without
    dropout.

    The seed is a number, except under torch.compile, and on the GPU while a CUDA graph is captured. In these two cases
    the seed is a tensor, which is drawn again in every run.
    """
    if dropout_p == 0.0:
        return 0
    import torch

    if torch.compiler.is_compiling():
        return torch.randint(2**62, ())
    if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
        return torch.randint(2**62, (), device="cuda")
    return int(torch.randint(2**62, ()))


def top_left(q: Any, k: Any, v: Any) -> tuple[Any, Any, tuple[int, int]]:
    """Returns k, v and a window with which a mask aligned bottom right keeps j <= i. q, k and v are (batch, heads,
    seqlen, head_dim).
    """
    seqlen_q, seqlen_k = q.shape[2], k.shape[2]
    if seqlen_k > seqlen_q:  # no row sees a key whose index is larger than that of the last row
        return k[:, :, :seqlen_q], v[:, :, :seqlen_q], (-1, 0)
    return k, v, (-1, seqlen_q - seqlen_k)
