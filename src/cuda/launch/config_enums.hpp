// Names of the enumerators that a Config contains (kernels/common/config_enums.cuh). A Config is the struct of
// compile-time constants with which a kernel template is instantiated.
#pragma once

#include <string>
#include <vector>

#include "cuda/jit/kernel_spec.hpp"
#include "kernels/common/config_enums.cuh"

namespace attend::cuda {

/// Returns the names of the enumeration and of the enumerator, e.g. {ElementType, kBF16}. The enumerator's name is
/// empty if the value is not an enumerator.
[[nodiscard]] EnumConstant find_enum_constant(ElementType element);
[[nodiscard]] EnumConstant find_enum_constant(CacheElement element);
[[nodiscard]] EnumConstant find_enum_constant(MaskKind mask);
[[nodiscard]] EnumConstant find_enum_constant(Sm80Gradient gradient);
[[nodiscard]] EnumConstant find_enum_constant(Schedule schedule);

/// Throws an Error (kInternal) which states that `number` is not an enumerator. `none` contains the name of the
/// enumeration.
[[noreturn]] void refuse_number(const EnumConstant& none, int number);

/// Returns the names of the enumeration and of the enumerator. @throws Error (kInternal) if the value is not an
/// enumerator.
template <class Enum>
[[nodiscard]] EnumConstant enum_constant(Enum value) {
  const EnumConstant found = find_enum_constant(value);
  if (found.value.empty()) refuse_number(found, static_cast<int>(value));
  return found;
}

/// Returns the names of all enumerators of an enumeration whose values are numbered from 0.
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
