// The masks of docs/custom_scores.md. Each has a C++ version that computes the same mask.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "attend/block_mask.hpp"
#include "score/score_case.hpp"

namespace attend::test {

struct MaskSizes {
  BlockMaskShape shape;
  std::vector<std::int64_t> doc;  ///< document of each token, sorted; has as many entries as the longer sequence
};

struct MaskRecipe {
  std::string name;
  std::string text;
  std::function<std::vector<CaptureBuffer>(const MaskSizes& sizes)> captures;
  std::function<bool(const MaskSizes& sizes, std::int64_t b, std::int64_t h, std::int64_t q, std::int64_t k)> sees;
};

[[nodiscard]] MaskSizes mask_sizes(const BlockMaskShape& shape);

/// Returns the masks in the order in which the page lists them.
[[nodiscard]] const std::vector<MaskRecipe>& mask_cookbook();

[[nodiscard]] MaskFunction function_of(const MaskRecipe& recipe, const std::vector<CaptureBuffer>& captures);

}  // namespace attend::test
