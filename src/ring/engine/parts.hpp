// Makes the problems that a backend runs for the pieces of a call, and computes the layout of blocks of keys.
#pragma once

#include "ring/engine/block.hpp"
#include "ring/plan/call.hpp"

namespace attend::ring {

/// Makes the problem for each piece of a call.
class Parts {
 public:
  explicit Parts(const Call& call) : call_(call) {}

  /// Returns the problem of the piece: attention of the piece's rows to the piece's keys. `k` and `v` hold all keys and
  /// values of an owner. The caller must set the outputs (o and lse, or dq, dk and dv). The problem is valid until the
  /// next call of this function, because this object stores the copy of a bias that is not contiguous.
  [[nodiscard]] core::Problem problem(const Piece& piece, const Tensor& k, const Tensor& v);

  /// Returns the problem of a piece. This function requires that all tensors of the call, including outputs, have the
  /// rows and keys of all ranks.
  [[nodiscard]] core::Problem whole_problem(const Piece& piece);

 private:
  const Call& call_;
  Block bias_, mask_;
};

/// Return the layout, without memory, of the keys and values of `owner` in their dtypes, or of their gradients in
/// partial_dtype.
[[nodiscard]] Pair key_pair(const Call& call, int owner);
[[nodiscard]] Pair gradient_pair(const Call& call, int owner);

}  // namespace attend::ring
