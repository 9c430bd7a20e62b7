// The steps of the ladder. The first steps are the rungs, which are teaching kernels. They are followed by the
// production families, which are groups of 16-bit kernels that `auto` may choose.
#pragma once

#include <string_view>
#include <vector>

#include "core/lack.hpp"
#include "cuda/launch/family.hpp"

namespace attend::cli {

/// A rung or a production family. All production families have the same step number, which is one more than that of the
/// last rung.
struct LadderStep {
  int number = 0;
  const cuda::Family* family = nullptr;
};

/// Returns all rungs in order, including rungs that the architecture does not support. They are followed by a
/// production family for forward and one for backward. Among the families that support `arch` and the pass, the
/// function chooses the family that supports the fewest architectures. A family that is chosen for both passes appears
/// once.
[[nodiscard]] std::vector<LadderStep> ladder_steps(const cuda::Arch& arch);

/// Returns the names of all rungs and of all production families, for all architectures.
[[nodiscard]] std::vector<std::string_view> ladder_names();

}  // namespace attend::cli
