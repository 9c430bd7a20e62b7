// The constructors of the families, for the list in families.cpp.
#pragma once

#include <memory>

#include "cuda/launch/family.hpp"
#include "cuda/launch/rung.hpp"

namespace attend::cuda {

/// A lesson of the ladder: rung_family.cpp.
[[nodiscard]] std::unique_ptr<const Family> rung_family(const Rung& rung);
/// CUDA cores, every option of the interface: simt.cpp.
[[nodiscard]] std::unique_ptr<const Family> simt_family();
/// Tensor cores since Ampere, forward with every option: sm80_forward.cpp.
[[nodiscard]] std::unique_ptr<const Family> sm80_forward_family();
/// Their gradients, likewise: sm80_backward.cpp.
[[nodiscard]] std::unique_ptr<const Family> sm80_backward_family();
/// Hopper's tensor cores: sm90_backward.cpp; forward with every option, sm90_forward.cpp.
[[nodiscard]] std::unique_ptr<const Family> sm90_backward_family();
[[nodiscard]] std::unique_ptr<const Family> sm90_forward_family();
/// Likewise, forward for float32: sm90_f32_forward.cpp.
[[nodiscard]] std::unique_ptr<const Family> sm90_f32_forward_family();

}  // namespace attend::cuda
