// The source text that replaces kernels/attention/custom_score.cuh when a kernel is compiled with a custom score.
#pragma once

#include <string>

#include "core/custom_score.hpp"
#include "cuda/jit/kernel_spec.hpp"

namespace attend::cuda {

struct CustomScoreForm {
  /// Use fast math functions, for 16-bit q, k and v: ATTEND_FAST_SCORE_MATH.
  bool is_fast = false;
  /// Support indices of 2^21 and above: ATTEND_LONG_SEQUENCES.
  bool is_long = false;
};

/// Sets the text if the Config of the kernel has a custom score.
void set_custom_score(KernelSpec& spec, const core::CustomScore& score);

/// Returns the text for a score function and its captures. The function must have a program. The include paths in the
/// text are relative to the root of the kernels.
[[nodiscard]] std::string custom_score_text(const core::CustomScore& score, CustomScoreForm how);

/// Type names from kernels/attention/captured.cuh. element_of_capture() returns the storage type of an element, e.g.
/// "CapturedI32". captured_type() returns the type of a tensor with `rank` subscripts, e.g. "Captured<CapturedI32,
/// true, false>".
[[nodiscard]] const char* element_of_capture(DType dtype);
[[nodiscard]] std::string captured_type(const Tensor& captured, std::size_t rank);

}  // namespace attend::cuda
