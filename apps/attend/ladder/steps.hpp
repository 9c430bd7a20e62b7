// The steps of the ladder: the rungs, and after them the product kernels for half precision.
#pragma once

#include <string_view>
#include <vector>

#include "core/lack.hpp"
#include "cuda/launch/family.hpp"

namespace attend::cli {

/// A rung or a product. All products have the same number, which is the last.
struct LadderStep {
  int number = 0;
  const cuda::Family* family = nullptr;
};

/// Returns all rungs in order, including those whose instructions the architecture does not have. Then, for each pass,
/// the product that supports this architecture and the fewest others. A product for both passes appears once.
[[nodiscard]] std::vector<LadderStep> ladder_steps(const cuda::Arch& arch);

/// Returns the names of all rungs and of all products, for any architecture.
[[nodiscard]] std::vector<std::string_view> ladder_names();

}  // namespace attend::cli
