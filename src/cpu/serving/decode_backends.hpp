// CPU backends of decode, append and merge, called by src/dispatch/serving.cpp and append.cpp.
#pragma once

#include "core/append_problem.hpp"
#include "core/decode_problem.hpp"
#include "core/merge_problem.hpp"

namespace attend::cpu {

/// Backend `cpu`: SIMD and threads; splits keys over threads if there are few heads. Supports f32, f16, bf16. Defined
/// in decode.cpp.
void decode(const core::DecodeProblem& p);

/// Backend `reference`: float64, one thread, follows the formula; also supports f64. Defined in decode_reference.cpp.
void decode_reference(const core::DecodeProblem& p);

/// Writes new rows to the cache, and query rows to q_out. Defined in append.cpp.
void append(const core::AppendProblem& p);

/// Merges partial states. Defined in merge.cpp.
void merge(const core::MergeProblem& p);

}  // namespace attend::cpu
