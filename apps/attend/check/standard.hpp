// The standard algorithm in the precision of the inputs. It computes S = Q K^T and P = softmax(S) in float32. It rounds
// P and dS to the inputs' type before the products that read them, and sums in float32. Its error is that of a careful
// straightforward implementation. The check therefore derives the tolerances of all 16-bit backends from this error.
#pragma once

#include <functional>

#include "core/problem.hpp"

namespace attend::cli {

/// Computes o and lse of one query head of one sequence.
void standard_forward_head(const core::Problem& p, const core::Sequence& s, std::int64_t head);

/// Computes dk and dv of one key head, and dq of the query heads that read it. Reads p.o and p.lse.
void standard_backward_group(const core::Problem& p, const core::Sequence& s, std::int64_t key_head);

/// Computes how much rounding can change o of one query head, and stores the result in p.o. Reads the inputs, p.o and
/// p.lse. Let a_ij be 8 * 2^-24 |scale| sum_c |q_ic k_jc|, but at most 1. The number a_ij bounds the rounding error of
/// s_ij - lse_i. Let e_ij = exp(a_ij) - 1. This is the relative error of p_ij. The result for o_i is sum_j p_ij e_ij
/// |v_j - o_i|.
void output_noise_head(const core::Problem& p, const core::Sequence& s, std::int64_t head);

/// Computes how much rounding can change the gradients, and stores the results in dq, dk and dv. Reads the inputs, p.o
/// and p.lse. Let e_ij be as in output_noise_head(). The relative error of p_ij is r_ij = 4 * 2^-24 + (1 - p_ij) e_ij +
/// sum_(l != j) p_il e_il. The gradient of a score is ds_ij = p_ij (<dout_i, v_j> - <dout_i, o_i>). The error n_ij of
/// ds_ij is p_ij times the sum of two errors. The first error is r_ij times the sum of the magnitudes of all products
/// in the two dot products. The second error is the change of <dout_i, o_i> if o is rounded to its type. The result for
/// dq_i is |scale| sum_j n_ij |k_j|. The result for dk_j is |scale| sum_i n_ij |q_i|. The result for dv_j is sum_i r_ij
/// p_ij |dout_i|. Kernels on tensor cores also round ds_ij and p_ij to the type of o. Each result therefore also
/// includes the root of the sum of the squares of these rounding errors.
void gradient_noise_group(const core::Problem& p, const core::Sequence& s, std::int64_t key_head);

/// Calls visit(i, j, n_ij) for each visible entry of a query head. n_ij is the noise (possible rounding error) of the
/// gradient with respect to the score that the score function returns. The gradients of the tensors that the function
/// reads are sums over such entries.
void score_gradient_noise(const core::Problem& p, const core::Sequence& s, std::int64_t head,
                          const std::function<void(std::int64_t i, std::int64_t j, float noise)>& visit);

/// Computes the noise of the gradients of option tensors, such as dbias, for every sequence and head. The gradient
/// tensors must be contiguous.
void option_noise(const core::Problem& p);

}  // namespace attend::cli
