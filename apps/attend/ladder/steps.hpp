// What stands on the ladder: the rungs, and where they lead, the products for half precision.
#pragma once

#include <string_view>
#include <vector>

#include "core/lack.hpp"
#include "cuda/launch/family.hpp"

namespace attend::cli {

/// A rung, or a product: those share one number, the last.
struct LadderStep {
  int number = 0;
  const cuda::Family* family = nullptr;
};

/// The rungs in their order, also those that the architecture has no instructions for; then, for each pass, the product
/// that is made for it and for the fewest others, once where it does both.
[[nodiscard]] std::vector<LadderStep> ladder_steps(const cuda::Arch& arch);

/// The names of all rungs and products, of any architecture.
[[nodiscard]] std::vector<std::string_view> ladder_names();

}  // namespace attend::cli
