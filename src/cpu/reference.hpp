// The float64 definition of attention, one head at a time.
//
// The `reference` backend loops over it; the `cpu` backend falls back to it for a head whose inputs hold NaN or inf
// beside masked entries, where a tile product would spread them to rows that do not depend on them (0 * NaN = NaN).
//
// All ask after some rows whether the call is to end, and throw Interrupted then (parallel.hpp).
#pragma once

#include "core/problem.hpp"
#include "core/score_options.hpp"

namespace attend::cpu {

/// o and lse of rows [row_begin, row_end) of one query head of one sequence.
void reference_forward_rows(const core::Problem& p, const core::Sequence& s, std::int64_t head, std::int64_t row_begin,
                            std::int64_t row_end);

/// dk and dv of one key head, and dq of the query heads that read it.
void reference_backward_group(const core::Problem& p, const core::Sequence& s, std::int64_t key_head);

/// dbias, for every sequence and head. The tensor is written whole.
void reference_dbias(const core::Problem& p);

/// The gradient of an option that the problem asks for, for every sequence and head. The tensor is written whole.
void reference_option_gradient(const core::Problem& p, const core::ScoreTensor& row);

/// Those of all options that the problem asks for.
void reference_option_gradients(const core::Problem& p);

/// The gradients of tensors that the score function reads. They are written whole.
void reference_captured_gradients(const core::Problem& p);

}  // namespace attend::cpu
