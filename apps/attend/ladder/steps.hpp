// The steps of the ladder. They are the rungs, followed by the product families: 16-bit kernels that `auto` may choose.
#pragma once

#include <string_view>
#include <vector>

#include "core/lack.hpp"
#include "cuda/launch/family.hpp"

namespace attend::cli {

/// A rung or a product family. All product families have the same number, which is the last.
struct LadderStep {
  int number = 0;
  const cuda::Family* family = nullptr;
};

/// Returns all rungs in order, including those whose instructions the architecture does not have. Then, for each pass,
/// returns one product family that supports this architecture. It is the one that supports the fewest architectures. A
/// family that is chosen for both passes appears once.
[[nodiscard]] std::vector<LadderStep> ladder_steps(const cuda::Arch& arch);

/// Returns the names of all rungs and of all product families, independent of the architecture.
[[nodiscard]] std::vector<std::string_view> ladder_names();

}  // namespace attend::cli
