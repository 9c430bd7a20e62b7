// The functions that create the kernel families. families.cpp calls them to fill its list.
#pragma once

#include <memory>

#include "cuda/launch/family.hpp"
#include "cuda/launch/rung.hpp"

namespace attend::cuda {

/// Returns the family of one rung of the ladder, a series of tutorial kernels. Defined in rung_family.cpp.
[[nodiscard]] std::unique_ptr<const Family> rung_family(const Rung& rung);
/// Returns the family that runs on CUDA cores and supports all options. Defined in simt.cpp.
[[nodiscard]] std::unique_ptr<const Family> simt_family();
/// Returns the forward family for tensor cores since Ampere. It supports all options. Defined in sm80_forward.cpp.
[[nodiscard]] std::unique_ptr<const Family> sm80_forward_family();
/// Returns the backward family for tensor cores since Ampere. It supports all options. Defined in sm80_backward.cpp.
[[nodiscard]] std::unique_ptr<const Family> sm80_backward_family();
/// Returns the backward family for Hopper's tensor cores. Defined in sm90_backward.cpp.
[[nodiscard]] std::unique_ptr<const Family> sm90_backward_family();
/// Returns the backward family for Hopper's tensor cores and head dimensions above 256. Defined in
/// sm90_backward_panels.cpp.
[[nodiscard]] std::unique_ptr<const Family> sm90_backward_panels_family();
/// Returns the forward family for Hopper's tensor cores. It supports all options. Defined in sm90_forward.cpp.
[[nodiscard]] std::unique_ptr<const Family> sm90_forward_family();
/// Returns the float32 forward family for Hopper's tensor cores. Defined in sm90_f32_forward.cpp.
[[nodiscard]] std::unique_ptr<const Family> sm90_f32_forward_family();
/// Returns the forward family for 8-bit floats on Hopper's tensor cores. Defined in sm90_fp8_forward.cpp.
[[nodiscard]] std::unique_ptr<const Family> sm90_fp8_forward_family();

}  // namespace attend::cuda
