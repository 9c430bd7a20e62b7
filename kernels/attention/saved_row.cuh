// Data of a query row, which is computed before the main backward kernel runs.
#pragma once

#include "../common/args.cuh"
#include "sequence.cuh"

namespace attend {

struct SavedRow {
  float lse;       // +inf if the row sees no key
  float delta;     // rowsum(dout * o) - dlse
  float log2_sum;  // lse_log2_sum() if kHasLseRounding is set, otherwise 0
};

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)

// Returns the saved rows of one head of one sequence. The workspace holds SavedRow (batch, num_heads_q, total_rows).
[[nodiscard]] __device__ __forceinline__ SavedRow* saved_rows(const BackwardOptionArgs& args, const SequenceSpan& span,
                                                              uint32 head) {
  return static_cast<SavedRow*>(args.base.workspace) +
         (int64{span.batch} * args.base.num_heads_q + head) * args.total_rows + span.q_begin;
}

#endif

}  // namespace attend
