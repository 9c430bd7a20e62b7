// CPU backends of decode, append and merge, called by src/dispatch/serving.cpp and append.cpp.
#pragma once

#include "core/append_problem.hpp"
#include "core/decode_problem.hpp"
#include "core/merge_problem.hpp"

namespace attend::cpu {

/// Backend `cpu`, defined in decode.cpp. Uses SIMD and threads. If there are few heads, several threads share the keys
/// of a head. Supports f32, f16 and bf16.
void decode(const core::DecodeProblem& p);

/// Backend `reference`, defined in decode_reference.cpp. Evaluates the formula in float64 on one thread. Also supports
/// f64.
void decode_reference(const core::DecodeProblem& p);

/// Writes new rows to the cache, and query rows to q_out. Defined in append.cpp.
void append(const core::AppendProblem& p);

/// Merges partial states. Defined in merge.cpp.
void merge(const core::MergeProblem& p);

}  // namespace attend::cpu
