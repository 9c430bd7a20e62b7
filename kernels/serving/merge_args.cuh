// Arguments of merge.cuh. They hold core::MergeProblem as plain structs, which host and device share.
#pragma once

#include "rows_args.cuh"

namespace attend {

constexpr int kMergeThreads = 128;        // threads of a block. A warp merges a row
constexpr int kMostMergeColumns = 512;    // largest number of columns of o
constexpr int kMergeStatesOfLaunch = 32;  // number of states that fit into kernel parameters

struct MergeState {
  RowsArgs o;        // f32, f16 or bf16 (batch, num_heads, seqlen, head_dim_v)
  const float* lse;  // (batch, num_heads, seqlen)
  TensorStrides lse_stride;
};
static_assert(sizeof(MergeState) == sizeof(RowsArgs) + 8 + 24);

struct MergeArgs {
  static constexpr const char* kTypeName = "MergeArgs";
  const MergeState* in_memory;  // all states, if there are more than kMergeStatesOfLaunch; otherwise null
  RowsArgs o;
  float* lse;         // may be null
  const void* sinks;  // null if there are no sinks
  TensorStrides lse_stride;
  int64 sink_batch_stride;  // in elements
  int64 sink_head_stride;
  int64 num_rows;  // number of rows over all heads and batch entries
  int64 seqlen;
  uint32 num_heads;
  uint32 num_states;
  uint32 head_dim_v;
  uint32 sink_element;  // value of a StoredElement
  uint32 lse_base2;
  uint32 unused;
  MergeState states[kMergeStatesOfLaunch];
};
static_assert(sizeof(MergeArgs) ==
              8 + sizeof(RowsArgs) + 2 * 8 + 24 + 4 * 8 + 6 * 4 + kMergeStatesOfLaunch * sizeof(MergeState));
static_assert(sizeof(MergeArgs) <= 4096, "what parameters of a kernel may take");

// Arguments of the kernel that copies states into memory, for a merge of many states.
struct StoreStatesArgs {
  static constexpr const char* kTypeName = "StoreStatesArgs";
  MergeState* to;
  uint32 num_states;
  uint32 unused;
  MergeState states[kMergeStatesOfLaunch];
};
static_assert(sizeof(StoreStatesArgs) == 8 + 2 * 4 + kMergeStatesOfLaunch * sizeof(MergeState));

}  // namespace attend
