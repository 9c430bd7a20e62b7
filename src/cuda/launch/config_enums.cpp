#include "cuda/launch/config_enums.hpp"

#include <fmt/format.h>

#include "attend/error.hpp"

namespace attend::cuda {

void refuse_number(const EnumConstant& none, int number) {
  throw Error(ErrorCode::kInternal, fmt::format("Config: {} is no {}", number, none.type));
}

EnumConstant find_enum_constant(ElementType element) {
  constexpr const char* kType = "ElementType";
  switch (element) {
    case ElementType::kF32:
      return {kType, "kF32"};
    case ElementType::kF16:
      return {kType, "kF16"};
    case ElementType::kBF16:
      return {kType, "kBF16"};
  }
  return {kType, ""};
}

EnumConstant find_enum_constant(CacheElement element) {
  constexpr const char* kType = "CacheElement";
  switch (element) {
    case CacheElement::kSame:
      return {kType, "kSame"};
    case CacheElement::kF8E4M3:
      return {kType, "kF8E4M3"};
    case CacheElement::kI8:
      return {kType, "kI8"};
  }
  return {kType, ""};
}

EnumConstant find_enum_constant(MaskKind mask) {
  constexpr const char* kType = "MaskKind";
  switch (mask) {
    case MaskKind::kFull:
      return {kType, "kFull"};
    case MaskKind::kCausal:
      return {kType, "kCausal"};
    case MaskKind::kWindow:
      return {kType, "kWindow"};
  }
  return {kType, ""};
}

EnumConstant find_enum_constant(Sm80Gradient gradient) {
  constexpr const char* kType = "Sm80Gradient";
  switch (gradient) {
    case Sm80Gradient::kKeysValues:
      return {kType, "kKeysValues"};
    case Sm80Gradient::kKeys:
      return {kType, "kKeys"};
    case Sm80Gradient::kValues:
      return {kType, "kValues"};
    case Sm80Gradient::kQueries:
      return {kType, "kQueries"};
    case Sm80Gradient::kTerms:
      return {kType, "kTerms"};
  }
  return {kType, ""};
}

EnumConstant find_enum_constant(Schedule schedule) {
  constexpr const char* kType = "Schedule";
  switch (schedule) {
    case Schedule::kStatic:
      return {kType, "kStatic"};
    case Schedule::kDynamic:
      return {kType, "kDynamic"};
  }
  return {kType, ""};
}

}  // namespace attend::cuda
