#include "cuda/launch/merge_step.hpp"

#include <algorithm>
#include <limits>

#include "kernels/attention/work.cuh"

namespace attend::cuda {

KernelSpec merge_step_spec(const char* arch) {
  return {.name = "merge",
          .source = "serving/merge.cuh",
          .function = "merge",
          .args = MergeArgs::kTypeName,
          .config = {{"kThreads", kMergeThreads}},
          .arch = arch};
}

std::int64_t merge_step_blocks(std::int64_t num_rows) {
  constexpr std::int64_t kMostBlocks = std::numeric_limits<std::int32_t>::max();
  constexpr int kRowsOfBlock = kMergeThreads / 32;
  return std::min(kMostBlocks, num_tiles(num_rows, kRowsOfBlock));
}

}  // namespace attend::cuda
