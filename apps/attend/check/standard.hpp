// The standard algorithm in the inputs' own precision: S = Q K^T and P = softmax(S) in float32, P and dS rounded to the
// inputs' type before the products that follow, sums in float32. Its error is that of a careful straightforward
// implementation, and therefore the measure for all half-precision backends.
#pragma once

#include <functional>

#include "core/problem.hpp"

namespace attend::cli {

/// Computes o and lse of one query head of one sequence.
void standard_forward_head(const core::Problem& p, const core::Sequence& s, std::int64_t head);

/// Computes dk and dv of one key head, and dq of the query heads that read it, from p.o and p.lse.
void standard_backward_group(const core::Problem& p, const core::Sequence& s, std::int64_t key_head);

/// Computes the possible effect of rounding on o of one query head, and stores it in p.o. The error of a score is
/// proportional to the magnitudes of its products. Let a_ij = 8 * 2^-24 |scale| sum_c |q_ic k_jc|, at most 1, be the
/// possible error of s_ij and lse, and e_ij = exp(a_ij) - 1. The result is sum_j p_ij e_ij |v_j - o_i|. Reads the
/// inputs, p.o and p.lse.
void output_noise_head(const core::Problem& p, const core::Sequence& s, std::int64_t head);

/// Computes the possible effect of rounding on the gradients, and stores it in dq, dk and dv. ds_ij = p_ij (<dout_i,
/// v_j> - <dout_i, o_i>) has the error of its terms, even if they cancel. Let r_ij = 4 * 2^-24 + (1 - p_ij) e_ij +
/// sum_(l != j) p_il e_il, a relative error. Then n_ij is p_ij times the sum of two errors: r_ij times the sum of all
/// terms' magnitudes, and the effect of rounding o to its type on <dout_i, o_i>. The result is |scale| sum_j n_ij |k_j|
/// for dq_i, the corresponding sum for dk, and sum_i r_ij p_ij |dout_i| for dv_j. To each is added the effect of
/// rounding ds_ij and p_ij to the type of o, as in kernels on matrix units: the root of the sum of squares. Reads the
/// inputs, p.o and p.lse.
void gradient_noise_group(const core::Problem& p, const core::Sequence& s, std::int64_t key_head);

/// Calls visit with n_ij of each visible entry of a query head, for the gradient after the score function. The
/// gradients of the tensors that the function reads are sums of these entries.
void score_gradient_noise(const core::Problem& p, const core::Sequence& s, std::int64_t head,
                          const std::function<void(std::int64_t i, std::int64_t j, float noise)>& visit);

/// Computes the noise of the gradients of options, which are contiguous, for every sequence and head.
void option_noise(const core::Problem& p);

}  // namespace attend::cli
