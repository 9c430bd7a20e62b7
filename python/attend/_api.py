"""The public functions. They resolve the options and call the front end of the tensors' framework."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Optional, Union, overload

from attend import _core
from attend._errors import ArgumentError
from attend._frameworks import is_torch
from attend._packed import parts
from attend._resolve import NO_OFFSET, NO_SOFTCAP, OPEN, number, random_numbers, resolve, torch_front
from attend._score import attention_with_own, taken_from
from attend._settings import NO_EXTRAS, Extras, Settings, dense_layout, needs_of, window_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from attend._types import Array, ArrayT, AttentionOptions, Captures, Number, PassOptions, VarlenOptions, Window


@overload
def attention(
    q: ArrayT, k: ArrayT, v: ArrayT, *, return_lse: Literal[False] = False, **options: Unpack[AttentionOptions]
) -> ArrayT: ...
@overload
def attention(
    q: ArrayT, k: ArrayT, v: ArrayT, *, return_lse: Literal[True], **options: Unpack[AttentionOptions]
) -> tuple[ArrayT, ArrayT]: ...
@overload
def attention(
    q: ArrayT, k: ArrayT, v: ArrayT, *, return_lse: bool, **options: Unpack[AttentionOptions]
) -> Union[ArrayT, tuple[ArrayT, ArrayT]]: ...
def attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    layout: str = "bhsd",
    causal: bool = False,
    window: Window = OPEN,
    scale: Optional[Number] = None,
    softcap: Number = NO_SOFTCAP,
    bias: Any = None,
    mask: Any = None,
    alibi_slopes: Any = None,
    sinks: Any = None,
    dropout_p: float = 0.0,
    seed: Any = None,
    offset: Any = NO_OFFSET,
    return_lse: bool = False,
    deterministic: bool = False,
    compute: str = "auto",
    score: Optional[str] = None,
    captures: Any = None,
    block_mask: Any = None,
) -> Any:
    """Computes exact attention, ``o = softmax(scale * q k^T + bias) v``, in one pass and without a seqlen_q x seqlen_k
    buffer.

    With ``off = seqlen_k - seqlen_q``, the score s of query row i and key j, and row i of o, are computed as follows.
    An option at its default has no effect::

        s = scale * <q[i], k[j]>
        s = softcap * tanh(s / softcap)
        s = s + bias[i, j] - alibi_slope * |i + off - j|
        s = -inf where masked
        o[i] = sum_j dropout(softmax(s)[j]) * v[j]

    Masks align bottom right. With seqlen_q = 2 and seqlen_k = 5 (1 = kept)::

        causal:  1 1 1 1 0    window=(1, 0):  0 0 1 1 0
                 1 1 1 1 1                    0 0 0 1 1

    Arguments:
        q: f32, f16, bf16 or f64 (batch, heads_q, seqlen_q, head_dim); with layout="bshd" the shape is (batch, seqlen_q,
            heads_q, head_dim). q is a NumPy array, a torch tensor, or any array with ``__dlpack__`` (CuPy or JAX, for
            example), on the CPU or on a CUDA GPU. All arrays of a call belong to one framework. head_dim is 1 to 512.
            Only the `reference` backend on the CPU supports f64. bf16 in NumPy requires ml_dtypes.
        k: like q, (batch, heads_k, seqlen_k, head_dim). heads_q is a multiple of heads_k, and query head h reads key
            head h // (heads_q // heads_k). seqlen_q and seqlen_k may differ, and each may be 0.
        v: like k, (batch, heads_k, seqlen_k, head_dim_v).
        layout: "bhsd" or "bshd": the order of the dimensions of q, k, v and o.
        causal: keeps the keys j <= i + off.
        window: (left, right): keeps the keys i + off - left <= j <= i + off + right. -1 or None leaves a side open.
        scale: any finite number. None means 1 / sqrt(head_dim). Not differentiable.
        softcap: >= 0. 0 disables it.
        bias: float (1 or batch, 1 or heads_q, 1 or seqlen_q, 1 or seqlen_k). Leading dimensions may be missing.
            Differentiable. A bias whose last dimension is 1 is not expanded over the keys, so it needs memory for its
            rows only.
        mask: bool, broadcasts like bias. True keeps a score, False sets it to -inf.
        alibi_slopes: f32 (heads_q) or (batch, heads_q). Not differentiable.
        sinks: float (heads_q) or (batch, heads_q): one extra score per row that belongs to no key. The sink adds
            exp(sink) once to the softmax sum of the row, and nothing to o. Scale, softcap, masks and dropout do not
            apply to sinks. Differentiable. gpt-oss has one sink for each head. Cannot be combined with a bias or mask
            whose last dimension is 1.
        dropout_p: probability of dropping a softmax entry, 0 <= dropout_p < 1. Kept entries are scaled by 1 / (1 -
            dropout_p).
        seed: a number from 0 to 2^64 - 1, a tensor of one element, or None. With a seed, the dropped entries are a pure
            function of seed, offset and (batch, head, i, j). The dropped entries are therefore the same on every
            device, in forward and in backward. If the seed is a tensor on the GPU of q, the kernels read it when they
            run. The call does not wait for the tensor, and each replay of a CUDA graph uses the tensor's current value.
            With None, each call with dropout draws a new seed. For torch tensors the seed comes from torch's default
            generator of their device; under torch.compile and in a CUDA graph, each run draws a new seed. For other
            arrays it comes from the generator of `attend.manual_seed`.
        offset: a number or tensor like seed, allowed only with a seed. Selects another dropout pattern of the same
            seed. Default 0.
        return_lse: return (o, lse).
        deterministic: True makes results bit-equal from run to run on a GPU. On a CPU they always are.
        compute: the name of a backend (see `attend.backends()`), or "auto": the best backend for the tensors' device.
        score: a function of the score as text, applied after bias and before masks: "score - rate * abs(q - k)". With
            dropout_p it requires a seed. docs/custom_scores.md describes the language.
        captures: {"rate": array, ...}: the numbers and arrays (0 to 4 dimensions) that `score` reads, by their names in
            the text. Float captures are differentiable.
        block_mask: a result of `make_block_mask`. A score is kept if this mask and all other masks keep it.
            torch.compile leaves a call with a block_mask out of its graph. With dropout_p a block_mask requires a seed.

    Returns:
        o: like q, (batch, heads_q, seqlen_q, head_dim_v) in the order of `layout`, in the framework of q. With
            return_lse the result is (o, lse).
        lse: f32 (f64 if q is) (batch, heads_q, seqlen_q): the natural logarithm of sum_j exp(s), which includes
            exp(sink) if there are sinks. Dropout does not change lse.
        A row that sees no key gives o = 0, lse = -inf (or its sink) and zero gradients, never NaN.

    Inputs are read in place if their last stride is 1; the other strides are arbitrary, but not negative in NumPy.
    Other inputs are copied first. On torch tensors the function is differentiable (o, and lse if it is returned) and
    traceable by torch.compile and torch.export. For JAX's transformations there is `attend.jax.attention`. Calls on GPU
    tensors of torch and CuPy are asynchronous and run in the framework's current stream. On the CPU, and for other
    frameworks, the results are complete when the call returns. The call releases the GIL. Thread-safe.

    Raises:
        attend.Error, whose message names the argument, the value found and the allowed values. It is also a ValueError
        if an argument is wrong, a NotImplementedError if attend does not support the call, and otherwise a
        RuntimeError.
        KeyboardInterrupt soon after Ctrl-C during a call on the CPU from the main thread. Its outputs are then
        undefined.

    Sources: Dao, FlashAttention-2 (2023), Algorithms 1 and 2. Milakov & Gimelshein, Online normalizer calculation for
    softmax (2018).
    """
    if score is not None or captures is not None or block_mask is not None:
        return attention_with_own(resolve, **locals())  # `locals()` holds exactly the arguments of this function
    module = type(q).__module__
    if module == "torch" or module.startswith("torch."):
        import torch  # do not look torch up in sys.modules: tracers iterate over it while other threads may import

        if not torch.compiler.is_dynamo_compiling():  # Dynamo cannot trace the extension module
            options = (
                layout, causal, window, scale, softcap, bias, mask, alibi_slopes, sinks, dropout_p, seed, offset,
                deterministic, compute,
            )  # fmt: skip
            results = _core.attention_of_options(q, k, v, options, return_lse)
            if results is not None:
                return results
    left, right = window_of(window)
    scale, softcap = number("scale", scale), number("softcap", softcap)
    seed, offset, state = random_numbers(q, seed, offset, dropout_p)
    has_extras = bias is not None or mask is not None or alibi_slopes is not None
    has_extras = has_extras or sinks is not None or state is not None
    extras = Extras(bias, mask, alibi_slopes, sinks, philox_state=state) if has_extras else NO_EXTRAS
    settings = Settings(
        0, 0, dense_layout(layout), scale, causal, left, right, softcap, dropout_p, seed, offset, deterministic,
        compute,
    )  # fmt: skip
    o, lse = _forward(q, k, v, extras, settings, return_lse)
    return (o, lse) if return_lse else o


_core.learn_defaults(attention.__kwdefaults__ or {})


@overload
def attention_qkvpacked(
    qkv: ArrayT, *, return_lse: Literal[False] = False, **options: Unpack[VarlenOptions]
) -> ArrayT: ...
@overload
def attention_qkvpacked(
    qkv: ArrayT, *, return_lse: Literal[True], **options: Unpack[VarlenOptions]
) -> tuple[ArrayT, ArrayT]: ...
@overload
def attention_qkvpacked(
    qkv: ArrayT, *, return_lse: bool, **options: Unpack[VarlenOptions]
) -> Union[ArrayT, tuple[ArrayT, ArrayT]]: ...
def attention_qkvpacked(
    qkv: Any,
    *,
    causal: bool = False,
    window: Window = OPEN,
    scale: Optional[Number] = None,
    softcap: Number = NO_SOFTCAP,
    alibi_slopes: Any = None,
    sinks: Any = None,
    dropout_p: float = 0.0,
    seed: Any = None,
    offset: Any = NO_OFFSET,
    return_lse: bool = False,
    deterministic: bool = False,
    compute: str = "auto",
) -> Any:
    """`attention` of q, k and v packed in one tensor, as one projection of a transformer produces them.

    For torch tensors, the kernels write dq, dk and dv directly into one gradient tensor. With three separate tensors,
    autograd would concatenate the gradients. On an H200 this costs a seventh of backward's time at 1024 tokens and a
    twentieth at 8192. Autograd still concatenates the gradients in four cases: for f64; if the last dimension of qkv or
    of the gradient of o is not dense; with alibi_slopes, sinks or a seed on the GPU; and if a compiler or another torch
    tool traces the call.

    Arguments:
        qkv: (batch, seqlen, 3, heads, head_dim): q, k and v along the third dimension. dtype and framework as in
            `attention`.
        alibi_slopes: f32 (heads) or (batch, heads).
        sinks: float (heads) or (batch, heads).
        All other arguments are as in `attention` with layout="bshd". bias and mask are not available.

    Returns:
        o: (batch, seqlen, heads, head_dim), or (o, lse) with lse f32 (f64 if qkv is) (batch, heads, seqlen).

    Errors, determinism, streams and ownership are as in `attention`. Error messages call the three parts of qkv q, k
    and v.
    """
    module = type(qkv).__module__
    if module == "torch" or module.startswith("torch."):
        import torch  # as in `attention`

        if not torch.compiler.is_dynamo_compiling():
            options = (
                "bshd", causal, window, scale, softcap, None, None, alibi_slopes, sinks, dropout_p, seed, offset,
                deterministic, compute,
            )  # fmt: skip
            results = _core.attention_qkvpacked_of_options(qkv, options, return_lse)
            if results is not None:
                return results
    left, right = window_of(window)
    scale, softcap = number("scale", scale), number("softcap", softcap)
    seed, offset, state = random_numbers(qkv, seed, offset, dropout_p)
    has_extras = alibi_slopes is not None or sinks is not None or state is not None
    extras = Extras(alibi_slopes=alibi_slopes, sinks=sinks, philox_state=state) if has_extras else NO_EXTRAS
    settings = Settings(
        0, 0, "bshd", scale, causal, left, right, softcap, dropout_p, seed, offset, deterministic, compute
    )  # fmt: skip
    if is_torch(qkv):
        return torch_front().attention_qkvpacked(qkv, extras, settings, return_lse)
    q, k, v = parts(qkv, 2, 3, "qkv")
    o, lse = _forward(q, k, v, extras, settings, return_lse)
    return (o, lse) if return_lse else o


@overload
def attention_varlen(
    q: ArrayT, k: ArrayT, v: ArrayT, cu_seqlens_q: Array, cu_seqlens_k: Array, max_seqlen_q: int, max_seqlen_k: int, *,
    return_lse: Literal[False] = False, **options: Unpack[VarlenOptions],
) -> ArrayT: ...  # fmt: skip
@overload
def attention_varlen(
    q: ArrayT, k: ArrayT, v: ArrayT, cu_seqlens_q: Array, cu_seqlens_k: Array, max_seqlen_q: int, max_seqlen_k: int, *,
    return_lse: Literal[True], **options: Unpack[VarlenOptions],
) -> tuple[ArrayT, ArrayT]: ...  # fmt: skip
@overload
def attention_varlen(
    q: ArrayT, k: ArrayT, v: ArrayT, cu_seqlens_q: Array, cu_seqlens_k: Array, max_seqlen_q: int, max_seqlen_k: int, *,
    return_lse: bool, **options: Unpack[VarlenOptions],
) -> Union[ArrayT, tuple[ArrayT, ArrayT]]: ...  # fmt: skip
def attention_varlen(
    q: Any,
    k: Any,
    v: Any,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any,
    max_seqlen_q: int,
    max_seqlen_k: int,
    *,
    causal: bool = False,
    window: Window = (-1, -1),
    scale: Optional[Number] = None,
    softcap: Number = 0.0,
    alibi_slopes: Any = None,
    sinks: Any = None,
    dropout_p: float = 0.0,
    seed: Any = None,
    offset: Any = NO_OFFSET,
    return_lse: bool = False,
    deterministic: bool = False,
    compute: str = "auto",
) -> Any:
    """`attention` of sequences of different lengths, packed one after another.

    Sequence s has the query rows cu_seqlens_q[s] to cu_seqlens_q[s + 1] and the keys cu_seqlens_k[s] to cu_seqlens_k[s
    + 1]. A row sees only keys of its own sequence. Masks align bottom right in each sequence.

    Arguments:
        q: (total_q, heads_q, head_dim).
        k: (total_k, heads_k, head_dim).
        v: (total_k, heads_k, head_dim_v).
        cu_seqlens_q, cu_seqlens_k: i32 (sequences + 1), on the device of q. They start at 0, never decrease, and end at
            the total number of tokens.
        max_seqlen_q, max_seqlen_k: upper bounds of the sequence lengths.
        alibi_slopes: f32 (heads_q) or (sequences, heads_q).
        sinks: float (heads_q) or (sequences, heads_q).
        All other arguments are as in `attention`. bias and mask are not available.

    Returns:
        o: (total_q, heads_q, head_dim_v), or (o, lse) with lse f32 (f64 if q is) (heads_q, total_q).

    Errors, determinism, streams and ownership are as in `attention`.
    """
    left, right = window_of(window)
    if cu_seqlens_q is None:
        raise ArgumentError("cu_seqlens_q: None, allowed an array i32 (sequences + 1)")
    scale, softcap = number("scale", scale), number("softcap", softcap)
    seed, offset, state = random_numbers(q, seed, offset, dropout_p)
    extras = Extras(
        alibi_slopes=alibi_slopes, sinks=sinks, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k,
        philox_state=state,
    )  # fmt: skip
    settings = Settings(
        max_seqlen_q, max_seqlen_k, "thd", scale, causal, left, right, softcap, dropout_p, seed, offset, deterministic,
        compute,
    )  # fmt: skip
    o, lse = _forward(q, k, v, extras, settings, return_lse)
    return (o, lse) if return_lse else o


@overload
def forward(q: ArrayT, k: ArrayT, v: ArrayT, **options: Unpack[PassOptions]) -> tuple[ArrayT, ArrayT]: ...
@overload
def forward(
    q: ArrayT, k: ArrayT, v: ArrayT, *, score: str, captures: Optional[Captures] = None, **options: Unpack[PassOptions]
) -> tuple[ArrayT, ArrayT]: ...
def forward(q: Any, k: Any, v: Any, **options: Any) -> tuple[Any, Any]:
    """Computes (o, lse) of `attention`, or of `attention_varlen` if `cu_seqlens_q` is given, without autograd.

    The options are those of `attention` except return_lse. For packed sequences, cu_seqlens_q, cu_seqlens_k,
    max_seqlen_q and max_seqlen_k replace layout, bias and mask. dropout_p > 0 requires a seed, because `backward` needs
    the same one.

    Raises:
        attend.Error as `attention` does; TypeError for an unknown option.
    """
    own, options = taken_from(options)
    extras, settings = resolve("forward", q, options)
    if own is not None:
        return own.forward(q, k, v, extras, settings, with_autograd=False)
    if is_torch(q):
        both: tuple[Any, Any] = torch_front().forward(q, k, v, extras, settings)
        return both
    from attend import _arrays

    return _arrays.forward(q, k, v, extras, settings)


@overload
def backward(
    dout: ArrayT, q: ArrayT, k: ArrayT, v: ArrayT, o: ArrayT, lse: ArrayT, *, dlse: Optional[ArrayT] = None,
    needs_dbias: bool = True, **options: Unpack[PassOptions],
) -> tuple[ArrayT, ...]: ...  # fmt: skip
@overload
def backward(
    dout: ArrayT, q: ArrayT, k: ArrayT, v: ArrayT, o: ArrayT, lse: ArrayT, *, dlse: Optional[ArrayT] = None,
    needs_dbias: bool = True, score: str, captures: Optional[Captures] = None, **options: Unpack[PassOptions],
) -> tuple[Union[ArrayT, dict[str, ArrayT]], ...]: ...  # fmt: skip
def backward(
    dout: Any, q: Any, k: Any, v: Any, o: Any, lse: Any, *, dlse: Any = None, needs_dbias: bool = True, **options: Any
) -> tuple[Any, ...]:
    """Computes the gradients of `forward`: (dq, dk, dv), then dbias if a bias is given and `needs_dbias` is True, then
    dsinks if sinks are given.

    Arguments:
        dout: dL/do, dtype and shape of o.
        q, k, v, o, lse: the inputs and results of `forward`.
        dlse: dL/dlse, shape of lse. None means zero.
        needs_dbias: False skips dbias. Computing dbias costs a pass over all scores.
        options: as given to `forward`.

    Returns:
        dq, dk, dv, dbias, dsinks: each has the dtype and shape of its input q, k, v, bias or sinks. dk and dv are
            summed over the query heads that share a key head. A row that sees no key contributes only to dsinks, by its
            dlse. If `score` is given, the last result is a dictionary of the gradients of its float captures, f32 (f64
            if q is). For torch tensors on a GPU, the dictionary contains only captures with requires_grad.

    The softmax is recomputed from lse tile by tile. Errors are as in `forward`.
    Source: Dao, FlashAttention-2 (2023), Algorithm 2.
    """
    own, options = taken_from(options)
    extras, settings = resolve("backward", q, options)
    needs = needs_of(extras, dbias=needs_dbias)
    if own is not None:
        return own.backward(dout, q, k, v, o, lse, dlse, needs, extras, settings)
    if is_torch(q):
        gradients: tuple[Any, ...] = torch_front().backward(
            dout, q, k, v, o, lse, dlse, needs, extras, settings
        )  # fmt: skip
        return gradients
    from attend import _arrays

    return _arrays.backward(dout, q, k, v, o, lse, dlse, needs, extras, settings)


def _forward(q: Any, k: Any, v: Any, extras: Extras, settings: Settings, return_lse: bool) -> tuple[Any, Any]:
    """Returns o and lse. If `return_lse` is False, lse may be None."""
    if is_torch(q):
        both: tuple[Any, Any] = torch_front().attention(q, k, v, extras, settings, return_lse)
        return both
    from attend import _arrays

    return _arrays.forward(q, k, v, extras, settings, return_lse)
