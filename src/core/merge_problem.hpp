// A checked merge call: all defaults are resolved and all sizes are verified. Holds no memory of its own and does not
// depend on hardware.
#pragma once

#include <optional>
#include <span>

#include "attend/serving.hpp"
#include "core/problem.hpp"

namespace attend::core {

struct MergeProblem {
  std::span<const PartialState> states;
  Tensor o;
  std::optional<Tensor> lse = {};
  std::optional<Tensor> sinks = {};  ///< (batch, num_heads_q, 1, 1), broadcast dimensions expanded
  bool lse_base2 = false;
};

/// Checks the arguments of attend::merge. Throws Error naming the first invalid argument.
[[nodiscard]] MergeProblem make_merge_problem(std::span<const PartialState> states, const Tensor& o, const Tensor* lse,
                                              const MergeParams& params);

}  // namespace attend::core
