// The pieces of a call as problems for a backend, and the blocks of keys that hold them.
#pragma once

#include "ring/engine/block.hpp"
#include "ring/plan/call.hpp"

namespace attend::ring {

/// Makes problems of pieces of a call.
class Parts {
 public:
  explicit Parts(const Call& call) : call_(call) {}

  /// The rank's rows of the piece against its keys, in a block of keys and values that starts with the owner's key 0.
  /// Outputs (o and lse, or dq, dk and dv) are for the caller to set. Valid until the next call: a gathered bias lives
  /// here.
  [[nodiscard]] core::Problem problem(const Piece& piece, const Tensor& k, const Tensor& v);

  /// The same of a call whose tensors hold all rows and keys, outputs too.
  [[nodiscard]] core::Problem whole_problem(const Piece& piece);

 private:
  const Call& call_;
  Block bias_, mask_;
};

/// The keys and values that `owner` owns, in their dtypes; and their gradients, in partial_dtype. Without memory.
[[nodiscard]] Pair key_pair(const Call& call, int owner);
[[nodiscard]] Pair gradient_pair(const Call& call, int owner);

}  // namespace attend::ring
