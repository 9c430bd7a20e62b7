// The parameters of kernels from a problem: fills the structs of kernels/common/args.cuh.
#pragma once

#include "core/problem.hpp"
#include "cuda/driver/driver_types.hpp"
#include "kernels/common/args.cuh"

namespace attend::cuda {

/// @param folds_scale  the kernel wants a scale > 0: see Facts::negate_scores
[[nodiscard]] ForwardArgs forward_args(const core::Problem& p, void* workspace, bool folds_scale = false);
[[nodiscard]] BackwardArgs backward_args(const core::Problem& p, void* workspace, bool folds_scale = false);

/// With maps whose boxes have block_m rows of q and block_n keys.
[[nodiscard]] ForwardTmaArgs forward_tma_args(const core::Problem& p, int block_m, int block_n,
                                              const ForwardArgs& base);

/// What a scale is multiplied with where scores come from tensor cores, in the forward and in the backward, whose p
/// takes the forward's lse. Of each 16 products that are added to a score they cut off what lies below the last place
/// of the largest: of terms of one sign, which large scores are sums of, up to twice this; of others less, far below
/// what their sum is rounded by. Products of bfloat16 have fewer digits to lose. Measured: docs/hopper_forward.md.
[[nodiscard]] double made_up_for_cut_off(const core::Problem& p);
/// The scale of ForwardArgs and BackwardArgs with that, rounded once: a product of two floats would be off by as much.
[[nodiscard]] float made_up_scale(const core::Problem& p, bool folds_scale);

/// Sm90ForwardArgs::scale_log2: never so small that a masked score's -inf times it is NaN.
[[nodiscard]] float sm90_folded_scale(const core::Problem& p);

/// A tensor that a function of the caller's reads. Larger extents than an int's count as the largest int.
[[nodiscard]] CapturedTensor captured_tensor(const Tensor& t);

[[nodiscard]] OptionArgs option_args_of(const core::Problem& p);
[[nodiscard]] BackwardOptionArgs backward_option_args(const BackwardArgs& base, const core::Problem& p);

}  // namespace attend::cuda
