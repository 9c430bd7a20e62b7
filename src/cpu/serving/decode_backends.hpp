// The CPU's backends of decode, append and merge, for src/dispatch/serving.cpp and append.cpp.
#pragma once

#include "core/append_problem.hpp"
#include "core/decode_problem.hpp"
#include "core/merge_problem.hpp"

namespace attend::cpu {

/// `cpu`: SIMD, threads, keys split over threads where heads are few. f32, f16, bf16. decode.cpp
void decode(const core::DecodeProblem& p);

/// `reference`: float64, one thread, reads like the formula; takes f64 too. decode_reference.cpp
void decode_reference(const core::DecodeProblem& p);

/// New rows into the cache, and query rows into q_out. append.cpp
void append(const core::AppendProblem& p);

/// merge.cpp
void merge(const core::MergeProblem& p);

}  // namespace attend::cpu
