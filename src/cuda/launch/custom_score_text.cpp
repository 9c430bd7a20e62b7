#include "cuda/launch/custom_score_text.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "attend/error.hpp"

namespace attend::cuda {
namespace {

constexpr const char* kIncludes = "#include \"attention/captured.cuh\"\n#include \"attention/score_math.cuh\"\n";

constexpr const char* kText = R"(#pragma once
{}{}{}
namespace attend {{

{}
struct CustomScoreCode {{
  static constexpr bool kHasSlope = {}, kMayBeLowest = {};
  using Tensors = Captures<{}>;
  static __device__ __forceinline__ float value(const ScorePoint<float>& at, const CapturedTensor* captured) {{
    float value;
    ScoreValueCode::evaluate(at, Tensors{{captured}}, value);
    return value;
  }}
  static __device__ __forceinline__ float value_and_slope(const ScorePoint<float>& at, const CapturedTensor* captured,
                                                          float& slope) {{
    float value;
    ScoreFunctionCode::evaluate(at, Tensors{{captured}}, value, slope);
    return value;
  }}
{}{}}};

}}  // namespace attend
)";

/// Returns whether the Config of `spec` contains the bool constant `name` with the value true.
bool is_on(const KernelSpec& spec, std::string_view name) {
  return std::any_of(spec.config.begin(), spec.config.end(), [name](const Constant& constant) {
    return constant.name == name && std::get<bool>(constant.value);
  });
}

bool has_narrow_elements(const KernelSpec& spec) {
  return std::any_of(spec.config.begin(), spec.config.end(), [](const Constant& constant) {
    const auto* element = std::get_if<EnumConstant>(&constant.value);
    return constant.name == "kElement" && element != nullptr && element->value != "kF32";
  });
}

}  // namespace

const char* element_of_capture(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "CapturedF32";
    case DType::kF16:
      return "CapturedF16";
    case DType::kBF16:
      return "CapturedBF16";
    case DType::kF64:
      return "CapturedF64";
    case DType::kI32:
      return "CapturedI32";
    case DType::kI64:
      return "CapturedI64";
    case DType::kBool:
      return "CapturedBool";
    case DType::kF8E4M3:
    case DType::kI8:
      break;
  }
  throw Error(ErrorCode::kInternal, "score function: a capture with an unsupported dtype");
}

std::string captured_type(const Tensor& captured, std::size_t rank) {
  const core::CaptureForm form = core::form_of(captured, rank);
  return fmt::format("Captured<{}, {}, {}>", element_of_capture(captured.dtype), form.is_near, form.is_unit);
}

void set_custom_score(KernelSpec& spec, const core::CustomScore& score) {
  if (!is_on(spec, "kHasCustomScore")) return;
  spec.custom_score =
      custom_score_text(score, {.is_fast = has_narrow_elements(spec), .is_long = is_on(spec, "kHasLongSequences")});
}

std::string custom_score_text(const core::CustomScore& score, CustomScoreForm how) {
  std::vector<std::string> types;
  for (std::size_t n = 0; n < score.captured.size(); ++n) {
    types.push_back(captured_type(score.captured[n], score.ranks[n]));
  }
  const char* const math = how.is_fast ? "#define ATTEND_FAST_SCORE_MATH\n" : "";
  const char* const lengths = how.is_long ? "#define ATTEND_LONG_SEQUENCES\n" : "";
  return fmt::format(kText, math, lengths, kIncludes, score.source, score.traits.transforms, score.may_be_huge,
                     fmt::join(types, ", "), score.gradients, score.held);
}

}  // namespace attend::cuda
