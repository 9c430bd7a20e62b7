#include "cuda/launch/custom_score_text.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <vector>

#include "attend/error.hpp"

namespace attend::cuda {
namespace {

/// Of kernels/attention/captured.cuh.
const char* captured_type(DType dtype) {
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
  throw Error(ErrorCode::kInternal, "score function: a capture of a dtype that was to be refused");
}

constexpr const char* kText = R"(#pragma once

#include "attention/captured.cuh"
#include "attention/score_math.cuh"

namespace attend {{

{}
struct CustomScoreCode {{
  static constexpr bool kHasSlope = {}, kMayBeLowest = {};
  using Captured = Captures<{}>;
  static __device__ __forceinline__ float value(const ScorePoint<float>& at, const CapturedTensor* captured) {{
    float value;
    ScoreValueCode::evaluate(at, Captured{{captured}}, value);
    return value;
  }}
  static __device__ __forceinline__ float value_and_slope(const ScorePoint<float>& at, const CapturedTensor* captured,
                                                          float& slope) {{
    float value;
    ScoreFunctionCode::evaluate(at, Captured{{captured}}, value, slope);
    return value;
  }}
}};

}}  // namespace attend
)";

}  // namespace

std::string custom_score_text(const core::CustomScore& score) {
  std::vector<const char*> types;
  for (const Tensor& t : score.captured) types.push_back(captured_type(t.dtype));
  return fmt::format(kText, score.source, score.traits.transforms, score.may_be_lowest, fmt::join(types, ", "));
}

}  // namespace attend::cuda
