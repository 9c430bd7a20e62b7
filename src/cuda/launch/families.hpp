// The constructors of the families, for the list in families.cpp.
#pragma once

#include <memory>

#include "cuda/launch/family.hpp"
#include "cuda/launch/rung.hpp"

namespace attend::cuda {

/// A rung of the ladder: rung_family.cpp.
[[nodiscard]] std::unique_ptr<const Family> rung_family(const Rung& rung);
/// CUDA cores, all options: simt.cpp.
[[nodiscard]] std::unique_ptr<const Family> simt_family();
/// Tensor cores since Ampere, forward, all options: sm80_forward.cpp.
[[nodiscard]] std::unique_ptr<const Family> sm80_forward_family();
/// Tensor cores since Ampere, backward, all options: sm80_backward.cpp.
[[nodiscard]] std::unique_ptr<const Family> sm80_backward_family();
/// Hopper's tensor cores: sm90_backward.cpp, and sm90_forward.cpp with all options.
[[nodiscard]] std::unique_ptr<const Family> sm90_backward_family();
[[nodiscard]] std::unique_ptr<const Family> sm90_forward_family();
/// Hopper's tensor cores, float32 forward: sm90_f32_forward.cpp.
[[nodiscard]] std::unique_ptr<const Family> sm90_f32_forward_family();

}  // namespace attend::cuda
