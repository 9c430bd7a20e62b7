// The standard algorithm in the precision of the inputs. It computes S = Q K^T and P = softmax(S) in float32. It rounds
// P and dS to the inputs' type before the products that read them, and sums in float32. Its error is that of a careful
// straightforward implementation. It is therefore the measure for all 16-bit backends.
#pragma once

#include <functional>

#include "core/problem.hpp"

namespace attend::cli {

/// Computes o and lse of one query head of one sequence.
void standard_forward_head(const core::Problem& p, const core::Sequence& s, std::int64_t head);

/// Computes dk and dv of one key head, and dq of the query heads that read it. Reads p.o and p.lse.
void standard_backward_group(const core::Problem& p, const core::Sequence& s, std::int64_t key_head);

/// Computes the possible effect of rounding on o of one query head, and stores it in p.o. The error of a score is
/// proportional to the magnitudes of its products. Let a_ij = 8 * 2^-24 |scale| sum_c |q_ic k_jc|, but at most 1. This
/// is the possible error of s_ij and of lse. Let e_ij = exp(a_ij) - 1. The result is sum_j p_ij e_ij |v_j - o_i|. Reads
/// the inputs, p.o and p.lse.
void output_noise_head(const core::Problem& p, const core::Sequence& s, std::int64_t head);

/// Computes the possible effect of rounding on the gradients, and stores it in dq, dk and dv. ds_ij = p_ij (<dout_i,
/// v_j> - <dout_i, o_i>) has the error of its terms, even if they cancel. Let r_ij = 4 * 2^-24 + (1 - p_ij) e_ij +
/// sum_(l != j) p_il e_il, which is a relative error. Let n_ij be p_ij times the sum of two errors. The first is r_ij
/// times the sum of the magnitudes of all terms. The second is the effect on <dout_i, o_i> of rounding o to its type.
/// The result for dq_i is |scale| sum_j n_ij |k_j|, and dk has the corresponding sum. The result for dv_j is sum_i r_ij
/// p_ij |dout_i|. To each result is added the effect of rounding ds_ij and p_ij to the type of o, as kernels on matrix
/// units do: the root of the sum of squares. Reads the inputs, p.o and p.lse.
void gradient_noise_group(const core::Problem& p, const core::Sequence& s, std::int64_t key_head);

/// Calls visit(i, j, n_ij) for each visible entry of a query head. n_ij is the noise of the gradient with respect to
/// the score after the score function. The gradients of the tensors that the function reads are sums of these entries.
void score_gradient_noise(const core::Problem& p, const core::Sequence& s, std::int64_t head,
                          const std::function<void(std::int64_t i, std::int64_t j, float noise)>& visit);

/// Computes the noise of the gradients of options, for every sequence and head. The gradient tensors must be
/// contiguous.
void option_noise(const core::Problem& p);

}  // namespace attend::cli
