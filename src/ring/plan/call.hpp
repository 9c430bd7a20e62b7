// A call of the ring that all ranks have agreed on. Plain data, already checked.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/backend.hpp"
#include "ring/plan/plan.hpp"

namespace attend::ring {

/// The share of all heads that a call's tensors hold. Dropout needs the number of a head among all heads.
struct HeadShare {
  int count = 1, index = 0;
  std::int64_t first_sequence = 0;  ///< first sequence of the tensors among all sequences
};

struct Call {
  core::Problem problem;  ///< the problem with the rank's tensors; cu_seqlens are in host memory
  Plan plan;
  RingAlgorithm algorithm = RingAlgorithm::kExchange;  ///< never kAutomatic
  Plan heads_plan;                                     ///< for kAllToAll: a single rank that holds everything
  Groups groups;                                       ///< for kTwoLevel
  Plan group_plan;                                     ///< for kTwoLevel: the ring of groups
  HeadShare heads;
  /// backend of all pieces; null on a GPU, where each piece uses the best backend
  const core::Backend* backend = nullptr;
  std::string compute;       ///< as passed by the caller
  DType partial_dtype = {};  ///< dtype of partial results: f32, or f64 if the backend computes in f64
  std::vector<std::int32_t> cu_seqlens_q, cu_seqlens_k;  ///< copies, if the caller's arrays are on a GPU
  std::optional<Varlen> varlen_of_caller;                ///< the caller's varlen, if its arrays are on a GPU
};

}  // namespace attend::ring
