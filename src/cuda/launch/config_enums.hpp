// Conversion of the enumerations in a Config (kernels/common/config_enums.cuh) to constants.
#pragma once

#include <string>
#include <vector>

#include "cuda/jit/kernel_spec.hpp"
#include "kernels/common/config_enums.cuh"

namespace attend::cuda {

/// Returns the type and the name of an enumerator, e.g. {ElementType, kBF16}. The name is empty if the number is not an
/// enumerator.
[[nodiscard]] EnumConstant find_enum_constant(ElementType element);
[[nodiscard]] EnumConstant find_enum_constant(CacheElement element);
[[nodiscard]] EnumConstant find_enum_constant(MaskKind mask);
[[nodiscard]] EnumConstant find_enum_constant(Sm80Gradient gradient);
[[nodiscard]] EnumConstant find_enum_constant(Schedule schedule);

/// @throws Error (kInternal) always: the number is not an enumerator of the type.
[[noreturn]] void refuse_number(const EnumConstant& none, int number);

/// Returns the type and the name of an enumerator. @throws Error (kInternal) if the value is not an enumerator.
template <class Enum>
[[nodiscard]] EnumConstant enum_constant(Enum value) {
  const EnumConstant found = find_enum_constant(value);
  if (found.value.empty()) refuse_number(found, static_cast<int>(value));
  return found;
}

/// Returns the names of all enumerators of a type whose enumerators are numbered from 0.
template <class Enum>
[[nodiscard]] std::vector<std::string> enumerators() {
  std::vector<std::string> names;
  for (int i = 0;; ++i) {
    const EnumConstant found = find_enum_constant(static_cast<Enum>(i));
    if (found.value.empty()) return names;
    names.push_back(found.value);
  }
}

}  // namespace attend::cuda
