// The source text that replaces kernels/attention/custom_score.cuh when a kernel is compiled with a custom score.
#pragma once

#include <string>

#include "core/custom_score.hpp"
#include "cuda/jit/kernel_spec.hpp"

namespace attend::cuda {

struct CustomScoreForm {
  /// Whether to use fast math functions, which suffice if q, k and v have 16 bits. Defines ATTEND_FAST_SCORE_MATH.
  bool is_fast = false;
  /// Whether to support row and key indices of 2^21 and above. Defines ATTEND_LONG_SEQUENCES.
  bool is_long = false;
};

/// Sets KernelSpec::custom_score if the kernel's Config states that it evaluates a custom score function.
void set_custom_score(KernelSpec& spec, const core::CustomScore& score);

/// Returns the source text for a score function and the tensors that it reads (its captures). The score function must
/// have a program, the compiled form of its code. Include paths in the text are relative to kernels/.
[[nodiscard]] std::string custom_score_text(const core::CustomScore& score, CustomScoreForm how);

/// Returns the type with which kernels read elements of a captured tensor, e.g. "CapturedI32"
/// (kernels/attention/captured.cuh).
[[nodiscard]] const char* element_of_capture(DType dtype);
/// Returns the type of a captured tensor with `rank` subscripts, e.g. "Captured<CapturedI32, true, false>".
[[nodiscard]] std::string captured_type(const Tensor& captured, std::size_t rank);

}  // namespace attend::cuda
