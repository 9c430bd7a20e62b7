// Rung 02 from the host's side: kernels/ladder/02_naive.cuh.
#pragma once

#include <vector>

#include "cuda/driver/arch.hpp"
#include "cuda/jit/kernel_spec.hpp"
#include "kernels/common/config_enums.cuh"

namespace attend::cuda {

/// What a variant of the rung is compiled for.
struct NaiveConfig {
  int head_dim = 64;
  int head_dim_v = 64;
  MaskKind mask = MaskKind::kFull;
};

/// The variant of `config` for an architecture.
[[nodiscard]] KernelSpec naive_spec(const NaiveConfig& config, const Arch& arch);

/// head_dim 64 and 128, full and causal.
[[nodiscard]] std::vector<KernelSpec> naive_variants(const Arch& arch);

}  // namespace attend::cuda
