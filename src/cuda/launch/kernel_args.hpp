// Fills the argument structs of kernels (kernels/common/args.cuh) from a problem.
#pragma once

#include "core/problem.hpp"
#include "cuda/driver/driver_types.hpp"
#include "kernels/common/args.cuh"

namespace attend::cuda {

/// Returns the arguments that all kernels of a pass share.
/// @param folds_scale  whether the kernel folds the scale into the exponent, which requires a scale > 0; see
///         Facts::negate_scores
[[nodiscard]] ForwardArgs forward_args(const core::Problem& p, void* workspace, bool folds_scale = false);
[[nodiscard]] BackwardArgs backward_args(const core::Problem& p, void* workspace, bool folds_scale = false);

/// Returns `base` with tensor maps. One TMA copy loads block_m rows of q or block_n keys.
[[nodiscard]] ForwardTmaArgs forward_tma_args(const core::Problem& p, int block_m, int block_n,
                                              const ForwardArgs& base);

/// Returns the factor by which kernels multiply the softmax scale if tensor cores compute the scores. It compensates
/// for a truncation in hardware. A tensor core adds 16 products at a time to a score. It cuts off all digits of a
/// product below the last place of the largest product. If all products have the same sign, which is typical of large
/// scores, the loss is up to twice this correction. In all other cases the loss is far below the rounding error of the
/// sum. Products of bfloat16 numbers have fewer digits, so fewer digits can be cut off. The backward pass uses the same
/// factor, because it computes p from the lse of the forward pass. Measured: docs/hopper_forward.md.
[[nodiscard]] double made_up_for_cut_off(const core::Problem& p);
/// Returns the scale for ForwardArgs and BackwardArgs, multiplied by made_up_for_cut_off(). The product is computed in
/// double and rounded once, because the rounding error of a float product would be as large as the correction.
[[nodiscard]] float made_up_scale(const core::Problem& p, bool folds_scale);

/// Returns Sm90ForwardArgs::scale_log2. The value is never so small that its product with a masked score of -inf is
/// NaN.
[[nodiscard]] float sm90_folded_scale(const core::Problem& p);
/// Returns scale_log2 of the backward families for Hopper: the softmax scale times log2(e). The result is never 0,
/// because the kernels multiply infinite scores by it.
[[nodiscard]] float sm90_backward_folded_scale(const core::Problem& p);

/// Returns the kernel arguments for a tensor that a custom score function reads. Extents above the largest int are
/// clamped to the largest int.
[[nodiscard]] CapturedTensor captured_tensor(const Tensor& t);

[[nodiscard]] OptionArgs option_args_of(const core::Problem& p);
[[nodiscard]] BackwardOptionArgs backward_option_args(const BackwardArgs& base, const core::Problem& p);

}  // namespace attend::cuda
