// The plain algorithm in the inputs' own precision: S = Q K^T and P = softmax(S) in float32, P and dS rounded to the
// inputs' type before the products that follow, sums in float32. Its error is what a careful implementation without any
// trick has, and so the measure for all others in half precision.
#pragma once

#include "core/problem.hpp"

namespace attend::cli {

/// o and lse of one query head of one sequence.
void standard_forward_head(const core::Problem& p, const core::Sequence& s, std::int64_t head);

/// dk and dv of one key head, and dq of the query heads that read it; from p.o and p.lse.
void standard_backward_group(const core::Problem& p, const core::Sequence& s, std::int64_t key_head);

}  // namespace attend::cli
