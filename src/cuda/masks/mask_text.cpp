#include "cuda/masks/mask_text.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cuda/launch/custom_score_text.hpp"

namespace attend::cuda {
namespace {

constexpr const char* kIncludes =
    "#include \"attention/captured.cuh\"\n#include \"attention/score_math.cuh\"\n#include \"masks/mask_bounds.cuh\"\n";

constexpr const char* kText = R"(#pragma once
#define ATTEND_LONG_SEQUENCES
{}
namespace attend {{

{}
struct MaskCode {{
  using Tensors = Captures<{}>;
  static __device__ __forceinline__ double number(int capture, const void* data, int64 at) {{
    switch (capture) {{
{}    }}
    return 0;
  }}
}};

}}  // namespace attend
)";

}  // namespace

std::string mask_text(std::string_view source, const std::vector<core::MaskCapture>& captures) {
  std::vector<std::string> types;
  std::string numbers;
  for (const core::MaskCapture& capture : captures) {
    const char* const element = element_of_capture(capture.tensor.dtype);
    numbers += fmt::format("      case {0}:\n        return {1}::number(static_cast<const {1}::Storage*>(data)[at]);\n",
                           types.size(), element);
    types.push_back(captured_type(capture.tensor, capture.rank));
  }
  return fmt::format(kText, kIncludes, source, fmt::join(types, ", "), numbers);
}

}  // namespace attend::cuda
