// The SIMD side of the `cpu` backend as the host side calls it: each function runs the code of the best target here.
// The arguments are trusted; everything was checked when the Problem was made.
#pragma once

#include "core/problem.hpp"
#include "cpu/scratch.hpp"

namespace attend::cpu {

/// Rows [row_begin, row_end) of one head: at most kForwardBlockM of them, row_begin a multiple of kForwardBlockM.
struct ForwardTask {
  core::Sequence sequence;
  std::int64_t head;
  std::int64_t row_begin;
  std::int64_t row_end;
};

/// Writes o and lse of the task's rows and returns true; or finds NaN or infinities on the way, and returns false with
/// the rows undefined: the reference must redo them.
bool forward_rows(const core::Problem& p, const ForwardTask& task, Scratch& scratch);

/// Name of the SIMD target that runs, as Highway calls it: "AVX3" is AVX-512.
const char* simd_target_name();

}  // namespace attend::cpu
