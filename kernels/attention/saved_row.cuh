// Data of a query row that is computed before the main backward kernel.
#pragma once

#include "../common/args.cuh"
#include "sequence.cuh"

namespace attend {

struct SavedRow {
  float lse;       // +inf for rows that see no key
  float delta;     // rowsum(dout * o) - dlse
  float log2_sum;  // kHasLseRounding: lse_log2_sum(), otherwise 0
};

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)

// Returns the saved rows of one head of one sequence. Workspace: SavedRow (batch, num_heads_q, total_rows).
[[nodiscard]] __device__ __forceinline__ SavedRow* saved_rows(const BackwardOptionArgs& args, const SequenceSpan& span,
                                                              uint32 head) {
  return static_cast<SavedRow*>(args.base.workspace) +
         (int64{span.batch} * args.base.num_heads_q + head) * args.total_rows + span.q_begin;
}

#endif

}  // namespace attend
