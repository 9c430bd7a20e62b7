// Kernel parameters of a problem: fills the structs of kernels/common/args.cuh.
#pragma once

#include "core/problem.hpp"
#include "cuda/driver/driver_types.hpp"
#include "kernels/common/args.cuh"

namespace attend::cuda {

/// @param folds_scale  the kernel requires a scale > 0; see Facts::negate_scores
[[nodiscard]] ForwardArgs forward_args(const core::Problem& p, void* workspace, bool folds_scale = false);
[[nodiscard]] BackwardArgs backward_args(const core::Problem& p, void* workspace, bool folds_scale = false);

/// Returns the arguments with tensor maps whose boxes have block_m rows of q and block_n keys.
[[nodiscard]] ForwardTmaArgs forward_tma_args(const core::Problem& p, int block_m, int block_n,
                                              const ForwardArgs& base);

/// Returns the factor by which to multiply the scale if tensor cores compute the scores. The factor compensates for
/// truncation. For each 16 products added to a score, tensor cores cut off everything below the last place of the
/// largest product. If all terms have the same sign, which is typical for large scores, the loss is up to twice the
/// correction. Otherwise the loss is far smaller than the rounding error of the sum. Products of bfloat16 have fewer
/// digits to lose. The backward pass needs the same factor, because its p uses the lse of the forward pass. Measured:
/// docs/hopper_forward.md.
[[nodiscard]] double made_up_for_cut_off(const core::Problem& p);
/// Returns the scale of ForwardArgs and BackwardArgs times made_up_for_cut_off(), rounded once. A product of two floats
/// would have an error as large as the correction.
[[nodiscard]] float made_up_scale(const core::Problem& p, bool folds_scale);

/// Returns Sm90ForwardArgs::scale_log2. The value is large enough that a masked score of -inf times the value is not
/// NaN.
[[nodiscard]] float sm90_folded_scale(const core::Problem& p);

/// Returns the arguments of a tensor that a custom score function reads. Extents above the largest int are clamped to
/// it.
[[nodiscard]] CapturedTensor captured_tensor(const Tensor& t);

[[nodiscard]] OptionArgs option_args_of(const core::Problem& p);
[[nodiscard]] BackwardOptionArgs backward_option_args(const BackwardArgs& base, const core::Problem& p);

}  // namespace attend::cuda
