// A call of the ring that all ranks have agreed on: plain data, of which nothing is checked again.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/backend.hpp"
#include "ring/plan/plan.hpp"

namespace attend::ring {

/// Which share of the whole's heads a call's tensors have, for dropout, which asks for a head's number in the whole.
struct HeadShare {
  int count = 1, index = 0;
  std::int64_t first_sequence = 0;  ///< of the tensors, in the whole
};

struct Call {
  core::Problem problem;  ///< with the rank's tensors; cu_seqlens in the host's memory
  Plan plan;
  RingAlgorithm algorithm = RingAlgorithm::kExchange;  ///< never kAutomatic
  Plan heads_plan;                                     ///< of kAllToAll: one rank that holds everything
  Groups groups;                                       ///< of kTwoLevel,
  Plan group_plan;                                     ///< and a ring of them
  HeadShare heads;
  const core::Backend* backend = nullptr;  ///< of all pieces; null on a GPU, where each has the best one for it
  std::string compute;                     ///< as the caller said
  DType partial_dtype = {};                ///< of parts of results: f32, or f64 for the backend that computes in it
  std::vector<std::int32_t> cu_seqlens_q, cu_seqlens_k;  ///< where those of the caller are on a GPU
  std::optional<Varlen> varlen_of_caller;                ///< likewise: these
};

}  // namespace attend::ring
