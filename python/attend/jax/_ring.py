"""Attention of one sequence whose rows and keys are distributed over a mesh axis, inside shard_map."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple, Optional

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name

from attend import _core
from attend._errors import ArgumentError
from attend._settings import Settings, dense_layout
from attend.jax import _api, _autodiff, _versions
from attend.jax._call import Call

SHARDINGS = ("zigzag", "contiguous", "striped")


def ring_attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    axis_name: Any,
    sharding: str = "zigzag",
    layout: str = "bhsd",
    causal: bool = False,
    scale: Optional[float] = None,
    softcap: float = 0.0,
    return_lse: bool = False,
    deterministic: bool = False,
    compute: str = "auto",
) -> Any:
    """`attend.jax.attention` of a sequence that is split over the devices of an axis, inside jax.shard_map.

    lax.ppermute passes keys and values around the ring, while each device computes with the keys and values that it
    holds. Partial results are merged by their log-sum-exp. A second ring computes the gradients. No device gathers all
    keys.

    Arguments:
        q: the device's rows of the sequence, (batch, heads_q, rows, head_dim), with layout="bshd" (batch, rows,
            heads_q, head_dim). f32, f16 or bf16; on a CPU also f64.
        k, v: same dtype, (batch, heads_k, rows, head_dim) and (batch, heads_k, rows, head_dim_v). Without `causal` the
            number of keys on a device may differ from the number of rows.
        axis_name: the axis of the mesh along which shard_map splits the rows.
        sharding: with `causal`, the rows that a device holds: see `ring_positions`. "zigzag" and "striped" give every
            device the same amount of work, and "contiguous" does not. "zigzag" requires an even number of rows.
        causal, scale, softcap, deterministic, compute: as in `attend.attention`, for the entire sequence.
        return_lse: return (o, lse).

    Returns:
        o, the device's rows, in the dtype of q, or (o, lse) with lse f32 (f64 if q is) (batch, heads_q, rows). Both are
        differentiable once with respect to q, k and v. Partial results are computed in the dtype of q and merged in
        float32 (float64 if q is).

    Raises:
        attend.Error as `attend.jax.attention`, when the function is traced.

    Source: Liu, Zaharia, Abbeel, Ring Attention with Blockwise Transformers (2023); docs/ring.md.
    """
    if sharding not in SHARDINGS:
        raise ArgumentError(f"sharding: {sharding!r}, allowed {', '.join(map(repr, SHARDINGS))}")
    settings = Settings(
        layout=dense_layout(layout), scale=scale, softcap=softcap, deterministic=deterministic, compute=compute
    )  # fmt: skip
    tensors = {name: _api.array(name, x) for name, x in (("q", q), ("k", k), ("v", v))}
    settings = _api.constant(settings)
    call = Call((), settings)
    _api.check(call, tuple((name, x.shape, str(x.dtype)) for name, x in tensors.items()))
    axis = settings.layout.index("s")
    rows, keys = tensors["q"].shape[axis], tensors["k"].shape[axis]
    if causal and rows != keys:
        raise ArgumentError(f"k: {keys} rows, allowed {rows} as q with causal")
    if causal and sharding == "zigzag" and rows % 2:
        raise ArgumentError(f"q: {rows} rows, allowed an even number with sharding='zigzag'")
    ring = _Ring(axis_name, _size(axis_name), sharding if causal else "", settings, rows, keys)
    axes = axis_name if isinstance(axis_name, tuple) else (axis_name,)
    operands = _versions.alike(tensors, *axes)
    results = _function(ring, bool(return_lse))(*operands.values())
    return tuple(results) if return_lse else results[0]


def ring_positions(seqlen: int, size: int, sharding: str = "zigzag") -> np.ndarray:
    """Returns i64 (seqlen): the order of rows in which shard_map splits a sequence for `ring_attention`.

    Shard `x[positions]` along the axis of `size` devices. Indexing with `np.argsort(positions)` restores the original
    order. Example of 12 rows on 3 devices; in zigzag order, device r has chunks r and 2 * size - 1 - r::

        contiguous    0 1 2 3        4 5 6 7       8 9 10 11
        zigzag        0 1 10 11      2 3 8 9       4 5 6 7       chunks r and 2 * size - 1 - r of 2 * size
        striped       0 3 6 9        1 4 7 10      2 5 8 11
    """
    if sharding not in SHARDINGS:
        raise ArgumentError(f"sharding: {sharding!r}, allowed {', '.join(map(repr, SHARDINGS))}")
    parts = 2 * size if sharding == "zigzag" else size
    if size < 1 or seqlen % parts:
        raise ArgumentError(f"seqlen: {seqlen}, allowed a multiple of {parts} with {sharding!r} on {size} devices")
    held = [_core.shard_positions(sharding, seqlen, rank, size, []) for rank in range(size)]
    return np.concatenate([np.frombuffer(rows, np.int64) for rows in held])


class _Piece(NamedTuple):
    """The part of one ring step that a device computes: the ranges (first, last + 1) of its rows and of the keys."""

    rows: tuple[int, int]
    keys: tuple[int, int]
    is_causal: bool


class _Ring(NamedTuple):
    """The parameters of a ring call, without its arrays."""

    axis_name: Any
    size: int
    sharding: str  # "" if every row sees every key
    settings: Any
    num_rows: int
    num_keys: int

    @property
    def axis(self) -> int:
        """The dimension of the rows."""
        return int(self.settings.layout.index("s"))

    def pieces(self, step: int) -> tuple[Optional[_Piece], Optional[_Piece]]:
        """Returns what a device computes in a step if its present keys come from an earlier device, and if they come
        from a later device. None means nothing.
        """
        rows, keys = (0, self.num_rows), (0, self.num_keys)
        if not self.sharding:
            everything = _Piece(rows, keys, False)
            return everything, everything
        if step == 0:  # in step 0 a device holds its own keys, which have the same order as its rows
            diagonal = _Piece(rows, keys, True)
            return diagonal, diagonal
        if self.sharding == "contiguous":
            return _Piece(rows, keys, False), None
        if self.sharding == "zigzag":
            middle = self.num_rows // 2
            return _Piece(rows, (0, middle), False), _Piece((middle, self.num_rows), keys, False)
        later = _Piece((1, self.num_rows), (0, self.num_keys - 1), True)
        return _Piece(rows, keys, True), later if self.num_rows > 1 else None

    def call(self, piece: _Piece) -> Call:
        return Call((), self.settings._replace(causal=piece.is_causal))

    def passed_on(self, *tensors: Any) -> Any:
        """Passes the tensors to the next device and returns those of the previous device."""
        places = [(i, (i + 1) % self.size) for i in range(self.size)]
        return tuple(jax.lax.ppermute(x, self.axis_name, places) for x in tensors)

    def at_step(self, step: int, compute: Any, state: Any, *tensors: Any) -> Any:
        """Returns `compute(piece, state, *tensors)` for this device's piece, or the state if there is none."""
        before, after = self.pieces(step)

        def run(piece: Optional[_Piece]) -> Any:
            return (lambda x, *rest: x) if piece is None else functools.partial(compute, piece)

        if before == after:
            return run(before)(state, *tensors)
        is_before = jax.lax.axis_index(self.axis_name) >= step
        return jax.lax.cond(is_before, run(before), run(after), state, *tensors)


@functools.lru_cache(maxsize=1024)
def _function(ring: _Ring, wants_lse: bool) -> Any:
    """Returns the function of q, k and v that computes (o,), or (o, lse), with its gradients."""

    @jax.custom_vjp
    def attend_ring_attention(q: Any, k: Any, v: Any) -> Any:  # profilers show this name
        return _forward(ring, q, k, v)[: 2 if wants_lse else 1]

    def forward(q: Any, k: Any, v: Any) -> tuple[Any, Any]:
        o, lse = _forward(ring, q, k, v)
        o, lse = checkpoint_name(o, "attend_o"), checkpoint_name(lse, "attend_lse")
        return (o, lse)[: 2 if wants_lse else 1], (q, k, v, o, lse)

    def backward(kept: Any, cotangents: Any) -> Any:
        return _backward(ring, *kept, *cotangents)

    attend_ring_attention.defvjp(forward, backward)
    return jax.jit(attend_ring_attention)


def _forward(ring: _Ring, q: Any, k: Any, v: Any) -> tuple[Any, Any]:
    axis, wide = ring.axis, _wide(q)

    def part(piece: _Piece, q: Any, k: Any, v: Any) -> tuple[Any, Any]:
        inputs = (_cut(q, piece.rows, axis), _cut(k, piece.keys, axis), _cut(v, piece.keys, axis))
        o, lse = _autodiff.forward_of(ring.call(piece), ("o", "lse"))(*inputs)
        return o.astype(wide), lse

    def merge(piece: _Piece, state: Any, q: Any, k: Any, v: Any) -> Any:
        (o, lse), (o_part, lse_part) = state, part(piece, q, k, v)
        o_rows, lse_rows = _merged(_cut(o, piece.rows, axis), _cut(lse, piece.rows, 2), o_part, lse_part, axis)
        return _put(o, o_rows, piece.rows, axis), _put(lse, lse_rows, piece.rows, 2)

    state: Any = None
    for step in range(ring.size):
        # The keys are sent before the computation, so that the keys of the next step arrive during it.
        after = ring.passed_on(k, v) if step + 1 < ring.size else (k, v)
        if state is None:
            piece, _ = ring.pieces(step)
            assert piece is not None
            state = part(piece, q, k, v)
        else:
            state = ring.at_step(step, merge, state, q, k, v)
        k, v = after
    o, lse = state
    return o.astype(q.dtype), lse


def _backward(
    ring: _Ring, q: Any, k: Any, v: Any, o: Any, lse: Any, dout: Any, dlse: Any = None
) -> tuple[Any, Any, Any]:
    """Computes the gradients. dq stays on its device. dk and dv are passed around with their keys and are back on the
    keys' device after the last step.
    """
    axis, wide = ring.axis, _wide(q)
    of_rows = {"q": q, "o": o, "lse": lse, "dout": dout} | ({} if dlse is None else {"dlse": dlse})

    def add(piece: _Piece, state: Any, of_rows: Any, k: Any, v: Any) -> Any:
        tensors = {name: _cut(x, piece.rows, 2 if "lse" in name else axis) for name, x in of_rows.items()}
        tensors |= {"k": _cut(k, piece.keys, axis), "v": _cut(v, piece.keys, axis)}
        operands = ("q", "k", "v", *(name for name in of_rows if name != "q"))
        function = _autodiff.backward_of(ring.call(piece), operands, ("dq", "dk", "dv"))
        found = function(*(tensors[name] for name in operands))
        places = (piece.rows, piece.keys, piece.keys)
        return tuple(_put(x, _cut(x, at, axis) + y.astype(wide), at, axis) for x, y, at in zip(state, found, places))

    state = tuple(jnp.zeros_like(x, dtype=wide) for x in (q, k, v))
    for step in range(ring.size):
        after = ring.passed_on(k, v) if step + 1 < ring.size else (k, v)
        state = ring.at_step(step, add, state, of_rows, k, v)
        dq, dk, dv = state
        state = (dq, *ring.passed_on(dk, dv))
        k, v = after
    return tuple(x.astype(like.dtype) for x, like in zip(state, (q, k, v)))  # type: ignore[return-value]


def _merged(o: Any, lse: Any, o_part: Any, lse_part: Any, axis: int) -> tuple[Any, Any]:
    """Merges two results of the same rows over different keys. A result whose rows see no key has lse = -inf and weight
    0.
    """
    total = jnp.logaddexp(lse, lse_part)
    finite = jnp.where(jnp.isneginf(total), 0, total)
    first, second = (jnp.exp(x - finite) for x in (lse, lse_part))
    if axis == 1:
        first, second = first.swapaxes(1, 2), second.swapaxes(1, 2)
    return o * first[..., None] + o_part * second[..., None], total


def _cut(x: Any, bounds: tuple[int, int], axis: int) -> Any:
    return jax.lax.slice_in_dim(x, *bounds, axis=axis)


def _put(x: Any, part: Any, bounds: tuple[int, int], axis: int) -> Any:
    """Returns `x` with the range `bounds` along `axis` replaced by `part`."""
    if bounds == (0, x.shape[axis]):
        return part
    return jax.lax.dynamic_update_slice_in_dim(x, part, bounds[0], axis)


def _wide(x: Any) -> Any:
    return jnp.float64 if str(x.dtype) == "float64" else jnp.float32


def _size(axis_name: Any) -> int:
    try:
        return int(jax.lax.psum(1, axis_name))  # a constant when the function is traced
    except NameError:
        raise ArgumentError(
            f"axis_name: {axis_name!r}, allowed an axis of the mesh of a surrounding shard_map"
        ) from None
