// The plain algorithm in the inputs' own precision: S = Q K^T and P = softmax(S) in float32, P and dS rounded to the
// inputs' type before the products that follow, sums in float32. Its error is what a careful implementation without any
// trick has, and so the measure for all others in half precision.
#pragma once

#include <functional>

#include "core/problem.hpp"

namespace attend::cli {

/// o and lse of one query head of one sequence.
void standard_forward_head(const core::Problem& p, const core::Sequence& s, std::int64_t head);

/// dk and dv of one key head, and dq of the query heads that read it; from p.o and p.lse.
void standard_backward_group(const core::Problem& p, const core::Sequence& s, std::int64_t key_head);

/// How far rounding alone may take o of one query head from the truth, in the place of p.o. A score is as exact as
/// the sum of its products, however large that is: with a_ij = 8 * 2^-24 |scale| sum_c |q_ic k_jc|, at most 1, for
/// what s_ij and lse may be off by, and e_ij = exp(a_ij) - 1, it is sum_j p_ij e_ij |v_j - o_i|. From the inputs,
/// p.o and p.lse.
void output_noise_head(const core::Problem& p, const core::Sequence& s, std::int64_t head);

/// The same of the gradients. ds_ij = p_ij (<dout_i, v_j> - <dout_i, o_i>) is as exact as its factors, however
/// little is left of the difference. With r_ij = 4 * 2^-24 + (1 - p_ij) e_ij + sum_(l != j) p_il e_il, relative:
/// n_ij = p_ij (r_ij of the sum of all terms' magnitudes, and what the rounding of o to its type does to <dout_i,
/// o_i>). In the places of dq, dk and dv, from the inputs, p.o and p.lse: dq_i: |scale| sum_j n_ij |k_j|, dk
/// likewise, dv_j: sum_i r_ij p_ij |dout_i|. To each is added what roundings of ds_ij and p_ij to the type of o do, as
/// kernels on matrix units round them: the root of the sum of their squares.
void gradient_noise_group(const core::Problem& p, const core::Sequence& s, std::int64_t key_head);

/// n_ij of each entry that a query head sees, where a score function has been applied: what the gradients of the
/// tensors that it reads are sums of.
void score_gradient_noise(const core::Problem& p, const core::Sequence& s, std::int64_t head,
                          const std::function<void(std::int64_t i, std::int64_t j, float noise)>& visit);

/// The same of the gradients of options, which are contiguous, for every sequence and head.
void option_noise(const core::Problem& p);

}  // namespace attend::cli
