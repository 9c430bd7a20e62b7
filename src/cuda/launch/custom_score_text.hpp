// What kernels are compiled with in the place of kernels/attention/custom_score.cuh.
#pragma once

#include <string>

#include "core/custom_score.hpp"
#include "cuda/jit/kernel_spec.hpp"

namespace attend::cuda {

struct CustomScoreForm {
  bool is_fast = false;  ///< with the functions of q, k and v of 16 bits: ATTEND_FAST_SCORE_MATH
  bool is_long = false;  ///< for indices from 2^21 on: ATTEND_LONG_SEQUENCES
};

/// The text for a kernel, if it is one that evaluates the function: its Config says how.
void set_custom_score(KernelSpec& spec, const core::CustomScore& score);

/// The function, which has a program, and how it reads its captures. It names headers from the kernels' root on.
[[nodiscard]] std::string custom_score_text(const core::CustomScore& score, CustomScoreForm how);

/// Of kernels/attention/captured.cuh: "CapturedI32", how an element of the type lies in memory; and
/// "Captured<CapturedI32, true, false>", how the elements of a tensor of so many subscripts do.
[[nodiscard]] const char* element_of_capture(DType dtype);
[[nodiscard]] std::string captured_type(const Tensor& captured, std::size_t rank);

}  // namespace attend::cuda
