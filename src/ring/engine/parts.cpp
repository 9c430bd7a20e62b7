#include "ring/engine/parts.hpp"

#include <algorithm>

#include "core/elements.hpp"

namespace attend::ring {
namespace {

/// Returns the piece's rows and columns of a bias or mask, which has one column for each key. If the piece's columns
/// are not contiguous, the result is a copy in `gathered`. In the copy, a broadcast row is stored once.
Tensor columns(const Tensor& t, const Piece& piece, Block& gathered) {
  Tensor view = rows_of(t, piece.rows.local_begin, piece.rows.length);
  view.data = static_cast<std::byte*>(view.data) + piece.keys.position * dtype_bytes(t.dtype);
  view.shape[3] = piece.keys.length;
  if (piece.keys.step == 1) return view;
  Shape shape = view.shape;
  for (std::size_t d = 0; d < 3; ++d) shape[d] = view.stride[d] == 0 ? std::min<std::int64_t>(shape[d], 1) : shape[d];
  gathered = Block(t.dtype, shape);
  Tensor copy = gathered.first();
  for (std::int64_t b = 0; b < shape[0]; ++b) {
    for (std::int64_t h = 0; h < shape[1]; ++h) {
      for (std::int64_t row = 0; row < shape[2]; ++row) {
        for (std::int64_t c = 0; c < shape[3]; ++c) {
          core::store(copy, b, h, row, c, core::load(view, b, h, row, c * piece.keys.step));
        }
      }
    }
  }
  for (std::size_t d = 0; d < 3; ++d) {
    if (view.stride[d] == 0) copy.stride[d] = 0;
  }
  copy.shape = view.shape;
  return copy;
}

}  // namespace

core::Problem Parts::whole_problem(const Piece& piece) {
  core::Problem part = problem(piece, call_.problem.k, call_.problem.v);
  const auto rows = [&](const Tensor& t) { return rows_of(t, piece.rows.local_begin, piece.rows.length); };
  if (const Tensor* delta = call_.problem.delta()) part.part->delta = rows(*delta);
  if (call_.problem.dlse) part.dlse = rows(*call_.problem.dlse);
  if (!part.is_backward) return part;
  part.dq = rows(part.dq);
  for (Tensor* t : {&part.dk, &part.dv}) *t = rows_of(*t, piece.keys.local_begin, piece.keys.length);
  return part;
}

Pair key_pair(const Call& call, int owner) {
  Shape k = call.problem.k.shape;
  Shape v = call.problem.v.shape;
  k[2] = v[2] = call.plan.num_keys(owner);
  return Pair::of(call.problem.k.dtype, k, call.problem.v.dtype, v);
}

Pair gradient_pair(const Call& call, int owner) {
  const Pair keys = key_pair(call, owner);
  return Pair::of(call.partial_dtype, keys.first.shape, call.partial_dtype, keys.second.shape);
}

core::Problem Parts::problem(const Piece& piece, const Tensor& k, const Tensor& v) {
  const auto rows = [&](Tensor& t) { t = rows_of(t, piece.rows.local_begin, piece.rows.length); };
  core::Problem part = call_.problem;
  core::Placement& at = part.as_part().placement.emplace(piece.placement);
  // The dropout pattern depends on a head's number among all heads. If the heads are split into heads.count shares, the
  // number of the sequence is therefore changed so that each head has the same number as in the complete problem.
  if (call_.heads.count > 1) {
    std::int64_t& sequence = at.sequence_begin;
    sequence = (sequence + call_.heads.first_sequence) * call_.heads.count + call_.heads.index;
  }
  for (Tensor* t : {&part.q, &part.o, &part.dout}) rows(*t);
  part.k = rows_of(k, piece.keys.local_begin, piece.keys.length);
  part.v = rows_of(v, piece.keys.local_begin, piece.keys.length);
  part.max_seqlen_q = piece.rows.length;
  part.max_seqlen_k = piece.keys.length;
  if (part.lse) rows(*part.lse);
  part.dlse.reset();
  if (part.bias) part.bias = columns(*part.bias, piece, bias_);
  if (part.mask) part.mask = columns(*part.mask, piece, mask_);
  if (part.varlen) {  // a piece belongs to one sequence
    part.varlen.reset();
    part.num_sequences = 1;
    if (part.alibi_slopes) {
      Tensor& slopes = *part.alibi_slopes;
      slopes.data = core::element(slopes, piece.rows.sequence, 0, 0);
      slopes.shape[0] = 1;
    }
  }
  return part;
}

}  // namespace attend::ring
