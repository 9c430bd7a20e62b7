// The enumerations that a Config may name (kernels/common/config_enums.cuh), as constants of one.
#pragma once

#include <string>
#include <vector>

#include "cuda/jit/kernel_spec.hpp"
#include "kernels/common/config_enums.cuh"

namespace attend::cuda {

/// The type and the name of an enumerator: ElementType, kBF16. The name is empty for a number that is no enumerator.
[[nodiscard]] EnumConstant find_enum_constant(ElementType element);
[[nodiscard]] EnumConstant find_enum_constant(CacheElement element);
[[nodiscard]] EnumConstant find_enum_constant(MaskKind mask);
[[nodiscard]] EnumConstant find_enum_constant(Sm80Gradient gradient);
[[nodiscard]] EnumConstant find_enum_constant(Schedule schedule);

/// @throws Error (kInternal): the number is no enumerator of the type.
[[noreturn]] void refuse_number(const EnumConstant& none, int number);

/// The same of a number that has to be an enumerator. @throws Error (kInternal) if it is none.
template <class Enum>
[[nodiscard]] EnumConstant enum_constant(Enum value) {
  const EnumConstant found = find_enum_constant(value);
  if (found.value.empty()) refuse_number(found, static_cast<int>(value));
  return found;
}

/// The names of all enumerators of a type, which are numbered from 0 on.
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
