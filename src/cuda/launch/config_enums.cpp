#include "cuda/launch/config_enums.hpp"

#include <fmt/format.h>

#include "attend/error.hpp"

namespace attend::cuda {
namespace {

[[noreturn]] void refuse(const char* type, int value) {
  throw Error(ErrorCode::kInternal, fmt::format("Config: {} is no {}", value, type));
}

}  // namespace

EnumConstant enum_constant(ElementType element) {
  constexpr const char* kType = "ElementType";
  switch (element) {
    case ElementType::kF32:
      return {kType, "kF32"};
    case ElementType::kF16:
      return {kType, "kF16"};
    case ElementType::kBF16:
      return {kType, "kBF16"};
  }
  refuse(kType, static_cast<int>(element));
}

EnumConstant enum_constant(MaskKind mask) {
  constexpr const char* kType = "MaskKind";
  switch (mask) {
    case MaskKind::kFull:
      return {kType, "kFull"};
    case MaskKind::kCausal:
      return {kType, "kCausal"};
    case MaskKind::kWindow:
      return {kType, "kWindow"};
  }
  refuse(kType, static_cast<int>(mask));
}

EnumConstant enum_constant(Sm80Gradient gradient) {
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
  refuse(kType, static_cast<int>(gradient));
}

EnumConstant enum_constant(Sm90Schedule schedule) {
  constexpr const char* kType = "Sm90Schedule";
  switch (schedule) {
    case Sm90Schedule::kStatic:
      return {kType, "kStatic"};
    case Sm90Schedule::kDynamic:
      return {kType, "kDynamic"};
  }
  refuse(kType, static_cast<int>(schedule));
}

}  // namespace attend::cuda
