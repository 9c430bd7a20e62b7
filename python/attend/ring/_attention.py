"""Exact attention of one sequence whose rows and keys are distributed over several ranks: the public functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, Optional, Union, overload

from attend import _core
from attend._errors import ArgumentError, UnsupportedError
from attend._frameworks import is_torch
from attend._resolve import NO_OFFSET, resolve
from attend._settings import NEEDS_NONE, ROW_OPTIONS, Extras, Settings
from attend.ring._contexts import door_of_comm, door_of_group, group_name, of_comm
from attend.ring._seed import draw_seed
from attend.ring._telling import begins, told

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from attend._types import ArrayT, RingOptions
    from attend.ring._contexts import Group


@overload
def ring_attention(
    q: ArrayT, k: ArrayT, v: ArrayT, *, group: Optional[Group] = None, return_lse: Literal[False] = False,
    **options: Unpack[RingOptions],
) -> ArrayT: ...  # fmt: skip
@overload
def ring_attention(
    q: ArrayT, k: ArrayT, v: ArrayT, *, group: Optional[Group] = None, return_lse: Literal[True],
    **options: Unpack[RingOptions],
) -> tuple[ArrayT, ArrayT]: ...  # fmt: skip
@overload
def ring_attention(
    q: ArrayT, k: ArrayT, v: ArrayT, *, group: Optional[Group] = None, return_lse: bool,
    **options: Unpack[RingOptions],
) -> Union[ArrayT, tuple[ArrayT, ArrayT]]: ...  # fmt: skip
@told(door_of_group, "group", traceable=True)
def ring_attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    group: Optional[Group] = None,
    sharding: str = "zigzag",
    algorithm: str = "automatic",
    layout: Optional[str] = None,
    causal: bool = False,
    window: Sequence[Optional[int]] = (-1, -1),
    scale: Optional[float] = None,
    softcap: float = 0.0,
    bias: Any = None,
    mask: Any = None,
    alibi_slopes: Any = None,
    sinks: Any = None,
    dropout_p: float = 0.0,
    seed: Any = None,
    offset: Any = NO_OFFSET,
    cu_seqlens_q: Any = None,
    cu_seqlens_k: Any = None,
    max_seqlen_q: Optional[int] = None,
    max_seqlen_k: Optional[int] = None,
    return_lse: bool = False,
    deterministic: bool = False,
    compute: str = "auto",
) -> Any:
    """`attend.attention` of a sequence that is distributed over the ranks of a torch.distributed group.

    Every rank passes its own rows, as `attend.ring.shard` selects them, and receives its rows of the result. Keys and
    values are sent between ranks; queries stay. The result equals that of one device on the entire sequence, because
    masks, windows, ALiBi and dropout are functions of global positions. Partial results are merged in float32 or better
    and rounded once.

    Arguments:
        q: f32, f16, bf16 or f64 (batch, heads_q, rows, head_dim), with layout="bshd" (batch, rows, heads_q, head_dim),
            packed (rows, heads_q, head_dim). q is a torch tensor on the CPU or on the rank's GPU. `rows` is the number
            of the sequence's rows on this rank. It differs by one or two between ranks if the number of ranks does not
            divide the length.
        k: like q, (batch, heads_k, rows, head_dim).
        v: like k, with head_dim_v columns.
        group: a torch.distributed process group, its name, a device mesh of one dimension, or None for the default
            group. CPU tensors are sent over gloo and GPU tensors over NCCL, whatever the group's backend is. attend
            uses separate connections, which the first call makes (see `attend.ring.connect`).
        sharding: "zigzag", "contiguous" or "striped", see `attend.ring.shard`. The same for queries and keys.
        algorithm: how data is exchanged, the same on every rank. "exchange": keys and values are passed around the ring
            during the computation. "all_gather": each rank first receives all keys and values that its rows see.
            "all_to_all": each rank receives all rows of its share of the heads; the number of ranks must divide the
            numbers of heads. "two_level": heads are distributed within groups of ranks, and keys and values are passed
            around between the groups. "automatic": the algorithm with the lowest estimated time, chosen for forward and
            backward separately.
        layout: "bhsd" or "bshd". None means "bhsd". Not allowed with packed sequences.
        causal, window, scale, softcap, dropout_p, deterministic: as in `attend.attention`, for the entire sequence, and
            the same on every rank.
        seed, offset: as in `attend.attention`, the same on every rank. With None, each call with dropout uses a new
            seed, which rank 0 draws from torch's default generator. The other ranks also draw a seed, so that the
            generators of all ranks stay in the same state, but they use the seed of rank 0. No extra message is needed
            to send the seed.
        bias, mask: as in `attend.attention`, with this rank's rows (or 1 row) and all keys in their original order. The
            bias receives no gradient. Not supported on a GPU with striped tokens.
        alibi_slopes: f32 (heads_q) or (batch, heads_q).
        sinks: must be None, because rings do not support sinks.
        cu_seqlens_q, cu_seqlens_k: i32 (sequences + 1), on the device of q: the offsets of packed sequences before they
            are distributed. Each rank holds a part of every sequence, and its q, k and v contain these parts one after
            another. Not allowed with bias or mask.
        max_seqlen_q, max_seqlen_k: upper bounds of the lengths of the undistributed sequences. None means that they are
            computed from the offsets.
        return_lse: return (o, lse).
        compute: on a CPU "auto", "cpu" or "reference"; on a GPU "auto" or "simt".

    Returns:
        o: like q, with head_dim_v columns. With return_lse the result is (o, lse).
        lse: f32 (f64 if q is) (batch, heads_q, rows), packed (heads_q, rows).

    Differentiable (o, and lse if it is returned), and traceable by torch.compile: the operators are
    attend::ring_forward and attend::ring_backward. Every rank of the group must make the same calls, and run their
    backward passes, in the same order. A call waits for the other ranks before anything is sent. Results are
    deterministic for a given number of ranks. On a GPU, gradients are deterministic only with deterministic=True.

    A rank that refuses its arguments notifies the other ranks, which raise the same error. Two kinds of errors are not
    sent: errors that make `group` itself unusable, and errors that torch.compile raises while it traces.

    Raises:
        attend.Error as `attend.attention` does, and if shapes or options differ between ranks. It names the argument
        and is the same on every rank. Nothing has been sent in that case. TypeError on a rank that passes an unknown
        option; the other ranks raise attend.ArgumentError. attend.RunError if another rank has failed, was interrupted,
        or has not started the call within the time limit (5 minutes, see `attend.ring.connect`). KeyboardInterrupt on
        Ctrl-C.

    Source: Liu, Zaharia, Abbeel, Ring Attention with Blockwise Transformers (2023); docs/ring.md.
    """
    if not is_torch(q):
        raise ArgumentError(
            f"q: {type(q).__name__}, allowed a torch.Tensor (attend.ring.attention supports other arrays)"
        )
    options = dict(
        layout=layout, causal=causal, window=window, scale=scale, softcap=softcap, bias=bias, mask=mask,
        alibi_slopes=alibi_slopes, sinks=sinks, dropout_p=dropout_p, seed=seed, offset=offset,
        cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k, max_seqlen_q=max_seqlen_q, max_seqlen_k=max_seqlen_k,
        deterministic=deterministic, compute=compute,
    )  # fmt: skip
    extras, settings, seed_of_rank_0 = _resolved("ring_attention", q, options)
    spread = (group_name(group), sharding, algorithm, seed_of_rank_0)
    o, lse = _ring_forward(q, k, v, extras, settings, spread)
    return (o, lse) if return_lse else o


def _ring_forward(
    q: Any, k: Any, v: Any, extras: Extras, settings: Settings, spread: tuple[str, str, str, bool]
) -> tuple[Any, Any]:
    import torch

    from attend.ring._operators import refuse_gradients  # the import defines the operators
    from attend.torch._draw import refuse_vmap
    from attend.torch._front import check_tensors, refuse_tangents

    check_tensors(q, k, v, extras)
    if not torch.compiler.is_compiling():
        refuse_tangents(q, k, v, *(x for x in extras if x is not None))
        if settings.dropout_p:
            refuse_vmap()
    if q.is_meta:
        raise UnsupportedError("q: on meta, attend.ring runs on cpu and cuda")
    if torch.is_grad_enabled():  # the operator's autograd also refuses, but only after the other ranks have continued
        refuse_gradients([x is not None and x.requires_grad for x in extras])
    o, lse = torch.ops.attend.ring_forward(q, k, v, *extras, *settings, *spread)
    return o, lse


@overload
def attention(
    q: ArrayT, k: ArrayT, v: ArrayT, *, comm: object, return_lse: Literal[False] = False, **options: Unpack[RingOptions]
) -> ArrayT: ...
@overload
def attention(
    q: ArrayT, k: ArrayT, v: ArrayT, *, comm: object, return_lse: Literal[True], **options: Unpack[RingOptions]
) -> tuple[ArrayT, ArrayT]: ...
@overload
def attention(
    q: ArrayT, k: ArrayT, v: ArrayT, *, comm: object, return_lse: bool, **options: Unpack[RingOptions]
) -> Union[ArrayT, tuple[ArrayT, ArrayT]]: ...
@told(door_of_comm, "comm")
def attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    comm: Any,
    sharding: str = "zigzag",
    algorithm: str = "automatic",
    return_lse: bool = False,
    **options: Any,
) -> Any:
    """`ring_attention` of NumPy arrays on the ranks of an mpi4py communicator. `backward` computes the gradients,
    because NumPy has no autograd.

    Arguments:
        q, k, v: as in `ring_attention`, but NumPy arrays, other CPU arrays that support DLPack, or CuPy arrays. CuPy
            arrays are sent over NCCL, whose connections are set up over `comm`.
        comm: an mpi4py communicator. attend duplicates the communicator in the first call, and frees the duplicate when
            the communicator is freed.
        sharding, algorithm, return_lse: as in `ring_attention`.
        options: as in `ring_attention`: layout, causal, window, scale, softcap, bias, mask, alibi_slopes, dropout_p,
            seed, offset, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k (required with cu_seqlens_q),
            deterministic, compute. With dropout, pass a seed if you call `backward`. Otherwise this call draws a seed
            that `backward` cannot repeat.

    Returns:
        o, or (o, lse), as from `ring_attention`, in the framework of q.

    Raises:
        As `ring_attention`. If this rank is interrupted, it raises KeyboardInterrupt, and the other ranks raise
        attend.RunError. A rank that fails in another way after the ranks have met, for example because memory is
        exhausted, ends the program by MPI_Abort. A rank that has waited for another rank for 5 minutes also ends the
        program.
    """
    from attend import _arrays

    extras, settings, seed_of_rank_0 = _resolved("attention", q, options)

    def call(q_in: Any, *rest: Any) -> None:
        context = of_comm(comm, q_in.cuda_index)
        begins()
        _core.ring_forward(context, (sharding, algorithm, seed_of_rank_0), q_in, *rest)

    o, lse = _arrays.forward(q, k, v, extras, settings, return_lse, call)
    return (o, lse) if return_lse else o


@told(door_of_comm, "comm")
def backward(
    dout: ArrayT,
    q: ArrayT,
    k: ArrayT,
    v: ArrayT,
    o: ArrayT,
    lse: ArrayT,
    *,
    comm: object,
    sharding: str = "zigzag",
    algorithm: str = "automatic",
    dlse: Optional[ArrayT] = None,
    **options: Any,
) -> tuple[ArrayT, ArrayT, ArrayT]:
    """Returns this rank's rows of the gradients (dq, dk, dv) of `attention`.

    Arguments:
        dout: dL/do, dtype and shape of o.
        dlse: dL/dlse, shape of lse. None means zero. Either all ranks pass dlse, or none does.
        q, k, v, o, lse, comm, sharding, options: the inputs and results of `attention`. With dropout the options must
            include a seed.
        algorithm: as in `attention`. The algorithm may differ from that of the forward call.

    Returns:
        dq, dk, dv: dtype and shape of q, k, v.
    """
    from attend import _arrays

    if options.get("seed") is None and options.get("dropout_p"):
        raise ArgumentError("seed: None with dropout_p > 0, allowed the seed of the forward call")
    extras, settings, _ = _resolved("backward", q, options)

    def call(q_in: Any, *rest: Any) -> None:
        context = of_comm(comm, q_in.cuda_index)
        begins()
        _core.ring_backward(context, (sharding, algorithm, False), q_in, *rest)

    dq, dk, dv = _arrays.backward(dout, q, k, v, o, lse, dlse, NEEDS_NONE, extras, settings, call)
    return dq, dk, dv


def _resolved(function: str, q: Any, options: dict[str, Any]) -> tuple[Extras, Settings, bool]:
    """Resolves the options. The last result is True if this function drew the seed. All ranks then use the seed of rank
    0.
    """
    for name in ROW_OPTIONS:
        if options.get(name) is not None:
            raise UnsupportedError(f"{name}: given, allowed none with {function}")
    defaulted = ("layout", "max_seqlen_q", "max_seqlen_k", "seed")
    given = {name: x for name, x in options.items() if x is not None or name not in defaulted}
    if "seed" in given:
        return (*resolve(function, q, given), False)
    if given.get("offset", NO_OFFSET) is not NO_OFFSET:
        raise ArgumentError("offset: given without seed, allowed with it only")
    dropout_p = given.get("dropout_p")
    if not dropout_p:
        return (*resolve(function, q, given), False)
    return (*resolve(function, q, given | {"seed": draw_seed(q, dropout_p)}), True)
