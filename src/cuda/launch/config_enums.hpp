// The enumerations that a Config may name (kernels/common/config_enums.cuh), as constants of one.
#pragma once

#include "cuda/jit/kernel_spec.hpp"
#include "kernels/common/config_enums.cuh"

namespace attend::cuda {

/// The type and the name of an enumerator: ElementType, kBF16.
/// @throws Error (kInternal) for a number that is no enumerator.
[[nodiscard]] EnumConstant enum_constant(ElementType element);
[[nodiscard]] EnumConstant enum_constant(MaskKind mask);
[[nodiscard]] EnumConstant enum_constant(Sm80Gradient gradient);
[[nodiscard]] EnumConstant enum_constant(Sm90Schedule schedule);

}  // namespace attend::cuda
