// The last two kernels of a backward pass that computes the gradient of sinks. All families share these kernels.
#pragma once

#include <vector>

#include "cuda/driver/arch.hpp"
#include "cuda/launch/config_enums.hpp"
#include "cuda/launch/facts.hpp"
#include "cuda/launch/family.hpp"
#include "kernels/attention/work.cuh"
#include "kernels/common/args.cuh"

namespace attend::cuda {

constexpr std::int32_t kRowLogit = option::bits_with(&ScoreModTraits::adds_to_sum);
constexpr std::size_t kRowLogitSteps = 2;
constexpr int kRowLogitRows = 64;  // query rows per block of the first kernel

/// Returns whether the kernels of a variant end with these two kernels.
[[nodiscard]] inline bool has_row_logit_steps(const Facts& facts) {
  return facts.is_backward != 0 && facts.has(kRowLogit);
}

/// Appends the specs of these two kernels to the kernel specs of a family.
inline void add_row_logit_specs(const Facts& facts, const Arch& arch, std::vector<KernelSpec>& specs) {
  constexpr int kThreads = 256;
  if (!has_row_logit_steps(facts)) return;
  for (const char* function : {"row_logit_parts", "row_logit_gradient"}) {
    specs.push_back({.name = function,
                     .source = "attention/row_logit_gradient.cuh",
                     .function = function,
                     .args = BackwardOptionArgs::kTypeName,
                     .config = {{"kThreads", kThreads},
                                {"kBlockM", kRowLogitRows},
                                {"kElement", enum_constant(facts.element)},
                                {"kHeadDimV", facts.head_dim_v},
                                {"kAligned", facts.aligned != 0},
                                {"kIsVarlen", facts.has(option::kVarlen)}},
                     .arch = arch.target});
  }
}

/// Appends the grids of these two kernels to the grids of a family. Does nothing if dsinks is not requested.
inline void add_row_logit_steps(const core::Problem& p, Choice& choice) {
  if (!p.dsinks) return;
  choice.add_step({.blocks = num_tiles(p.max_seqlen_q, kRowLogitRows) * p.num_heads_q * p.num_sequences});
  choice.add_step({.blocks = p.dsinks->shape[0] * p.dsinks->shape[1]});
}

/// Adds the scratch memory of these two kernels to the workspace, as its last region.
inline void add_row_logit_region(const core::Problem& p, Workspace& workspace) {
  if (!p.dsinks) return;
  const std::int64_t parts = num_tiles(p.max_seqlen_q, kRowLogitRows) * p.num_heads_q * p.num_sequences;
  workspace.add({"parts of dsinks", parts * std::int64_t{sizeof(float)}});
}

/// Sets the argument that only these two kernels read.
inline void set_row_logit_parts(BackwardOptionArgs& args, const Launch& launch) {
  if (launch.problem.dsinks) args.dlogits_parts = launch.region<float>(launch.workspace.regions().size() - 1);
}

/// Returns the number of kernels of the launch that precede these two kernels.
[[nodiscard]] inline std::size_t steps_before_row_logit(const Launch& launch) {
  return launch.choice.num_steps - (launch.problem.dsinks ? kRowLogitSteps : 0);
}

}  // namespace attend::cuda
