// A call of the ring on whose arguments all ranks have agreed. The members are already checked.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/backend.hpp"
#include "ring/plan/plan.hpp"

namespace attend::ring {

/// Describes which of all heads a call's tensors hold: share number `index` of `count` equal shares. The dropout
/// pattern depends on the number of a head among all heads, and that number is computed from these fields.
struct HeadShare {
  int count = 1, index = 0;
  /// Number of the tensors' first sequence, counted in the caller's tensors.
  std::int64_t first_sequence = 0;
};

struct Call {
  core::Problem problem;  ///< the problem with the rank's tensors; cu_seqlens are in host memory
  Plan plan;
  RingAlgorithm algorithm = RingAlgorithm::kExchange;  ///< never kAutomatic
  /// Used only by kAllToAll: the plan of a ring with a single rank, which holds all rows and keys.
  Plan heads_plan;
  Groups groups;    ///< only for kTwoLevel
  Plan group_plan;  ///< only for kTwoLevel: the plan of the ring of groups
  HeadShare heads;
  /// The backend that computes all pieces. It is null on a GPU, where the best backend is chosen separately for each
  /// piece.
  const core::Backend* backend = nullptr;
  std::string compute;       ///< the caller's argument `compute`
  DType partial_dtype = {};  ///< dtype of partial results: f32, or f64 if the backend computes in f64
  /// Copies of the caller's offsets if the offsets are on a GPU; otherwise empty.
  std::vector<std::int32_t> cu_seqlens_q, cu_seqlens_k;
  /// The caller's varlen if the offsets are on a GPU; otherwise unset.
  std::optional<Varlen> varlen_of_caller;
};

}  // namespace attend::ring
