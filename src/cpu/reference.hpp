// The float64 definition of attention, one head at a time.
//
// The `reference` backend loops over these functions. The `cpu` backend calls them for a head whose inputs contain NaN
// or infinities. In the tile products of `cpu`, such inputs would reach rows that do not depend on them, because 0 *
// NaN is NaN.
//
// All functions check for an interrupt after some rows, and throw Interrupted (parallel.hpp).
#pragma once

#include "core/problem.hpp"
#include "core/score_options.hpp"

namespace attend::cpu {

/// Computes o and lse of rows [row_begin, row_end) of one query head of one sequence.
void reference_forward_rows(const core::Problem& p, const core::Sequence& s, std::int64_t head, std::int64_t row_begin,
                            std::int64_t row_end);

/// Computes dk and dv of one key head, and dq of the query heads that read it.
void reference_backward_group(const core::Problem& p, const core::Sequence& s, std::int64_t key_head);

/// Computes dbias for all sequences and heads, and writes the entire tensor.
void reference_dbias(const core::Problem& p);

/// Computes the gradient of one option that is a tensor, for example the sinks. Handles all sequences and heads, and
/// writes the entire gradient.
void reference_option_gradient(const core::Problem& p, const core::ScoreTensor& row);

/// Computes the gradients of all options that the problem requests.
void reference_option_gradients(const core::Problem& p);

/// Computes the gradients of tensors that the score function reads, and writes the entire tensors.
void reference_captured_gradients(const core::Problem& p);

}  // namespace attend::cpu
