// Turns the pieces of a call into problems for a backend, and lays out blocks of keys.
#pragma once

#include "ring/engine/block.hpp"
#include "ring/plan/call.hpp"

namespace attend::ring {

/// Makes problems of pieces of a call.
class Parts {
 public:
  explicit Parts(const Call& call) : call_(call) {}

  /// Returns the problem of the piece: the rank's rows against the piece's keys, in a block of keys and values that
  /// starts with the owner's key 0. The caller sets the outputs (o and lse, or dq, dk and dv). Valid until the next
  /// call, because a gathered bias is stored in this object.
  [[nodiscard]] core::Problem problem(const Piece& piece, const Tensor& k, const Tensor& v);

  /// Returns the problem of a piece of a call whose tensors, including outputs, hold all rows and keys.
  [[nodiscard]] core::Problem whole_problem(const Piece& piece);

 private:
  const Call& call_;
  Block bias_, mask_;
};

/// Lay out the keys and values of `owner` in their dtypes, and their gradients in partial_dtype. Without memory.
[[nodiscard]] Pair key_pair(const Call& call, int owner);
[[nodiscard]] Pair gradient_pair(const Call& call, int owner);

}  // namespace attend::ring
