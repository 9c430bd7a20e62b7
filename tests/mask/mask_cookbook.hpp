// The masks of docs/custom_scores.md, each with a C++ version of it.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "attend/block_mask.hpp"
#include "score/score_case.hpp"

namespace attend::test {

struct MaskSizes {
  BlockMaskShape shape;
  std::vector<std::int64_t> doc;  ///< one per token of the longer length, sorted
};

struct MaskRecipe {
  std::string name;
  std::string text;
  std::function<std::vector<CaptureBuffer>(const MaskSizes& sizes)> captures;
  std::function<bool(const MaskSizes& sizes, std::int64_t b, std::int64_t h, std::int64_t q, std::int64_t k)> sees;
};

[[nodiscard]] MaskSizes mask_sizes(const BlockMaskShape& shape);

/// Returns the masks in the order of the page.
[[nodiscard]] const std::vector<MaskRecipe>& mask_cookbook();

[[nodiscard]] MaskFunction function_of(const MaskRecipe& recipe, const std::vector<CaptureBuffer>& captures);

}  // namespace attend::test
