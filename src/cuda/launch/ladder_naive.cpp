#include "cuda/launch/ladder_naive.hpp"

namespace attend::cuda {
namespace {

constexpr int kThreads = 128;  // rows of a block; four warps give the scheduler something to choose from

}  // namespace

KernelSpec naive_spec(const NaiveConfig& config, const Arch& arch) {
  return {.name = "naive",
          .source = "ladder/02_naive.cuh",
          .function = "naive_forward",
          .args = "ForwardArgs",
          .config = {{"kHeadDim", std::int64_t{config.head_dim}},
                     {"kHeadDimV", std::int64_t{config.head_dim_v}},
                     {"kMask", EnumConstant{"MaskKind", config.mask == MaskKind::kCausal ? "kCausal" : "kFull"}},
                     {"kThreads", std::int64_t{kThreads}}},
          .arch = arch.target};
}

std::vector<KernelSpec> naive_variants(const Arch& arch) {
  std::vector<KernelSpec> specs;
  for (const int head_dim : {64, 128}) {
    for (const MaskKind mask : {MaskKind::kFull, MaskKind::kCausal}) {
      specs.push_back(naive_spec({head_dim, head_dim, mask}, arch));
    }
  }
  return specs;
}

}  // namespace attend::cuda
