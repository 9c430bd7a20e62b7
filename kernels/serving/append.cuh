// Writes every new row of k and v to its place in the cache, and every query row to q_out.
//
//   k: x / sqrt(mean(x^2) + eps) * weight is rotated by the angles of the row's position, and converted to the cache's
//      type. An 8-bit cache stores x / descale.
//   v: x is converted to the cache's type.
//   q: x is normalised and rotated like k, and keeps its type.
//
// Shapes:   see AppendArgs. Types, strides and sizes are arbitrary. The kernel reads lengths, tables, slots and
//           offsets.
// Grid:     (tokens, groups of heads). A warp handles one token at a time, for a few heads of k, of v, or of q.
// Rounding: Each product and each sum is rounded separately, and squares are added in a fixed order, as in the CPU's
//           append.
// Called:   by src/cuda/serving/append.cpp.
#pragma once

#include "../isa/grid_dependency.cuh"
#include "append_args.cuh"
#include "append_row.cuh"
#include "cache.cuh"

namespace attend {

// A token, which is a row of a sequence, and the place of this row in a tensor.
struct AppendToken {
  int64 s, i;  // row i of sequence s
  int64 batch, row;
};

// Finds the sequence and row of a token. Returns false if the token is a packed row that belongs to no sequence.
[[nodiscard]] __device__ __forceinline__ bool find_token(const SequenceRowsArgs& rows, int64 token, AppendToken& at) {
  if (rows.offsets == nullptr) {
    const Division d = divide(token, rows.seqlen);
    at = {d.quotient, d.rest, d.quotient, d.rest};
    return true;
  }
  const int64 s = sequence_of_row(rows.offsets, rows.num_sequences, token);
  if (s >= rows.num_sequences) return false;
  at = {s, token - rows.offsets[s], 0, token};
  return at.i >= 0;
}

[[nodiscard]] __device__ __forceinline__ int64 rows_of(const SequenceRowsArgs& rows, int64 s) {
  return rows.offsets != nullptr ? static_cast<int64>(rows.offsets[s + 1]) - rows.offsets[s] : rows.seqlen;
}

// Returns the sequence's state in the cache. With a slot mapping, cache_row is unused and is not read.
[[nodiscard]] __device__ __forceinline__ CachedSequence sequence_in_cache(const AppendArgs& args, int64 s) {
  if (args.slot_mapping == nullptr) return cached(args.cache, s);
  const int64 length = args.cache.seqlens_k != nullptr ? args.cache.seqlens_k[s] : 0;
  return {0, length, length < 0};
}

// Returns the place in the cache of new row i of a live sequence.
[[nodiscard]] __device__ __forceinline__ CachePlace destination(const AppendArgs& args, const CachedSequence& in_cache,
                                                                int64 i, int64 token) {
  const CacheArgs& cache = args.cache;
  if (args.slot_mapping != nullptr) {
    const int64 slot = args.slot_mapping[token];
    if (slot < 0 || slot >= cache.num_blocks * cache.block_size) return {-1, 0};
    return split_by_blocks(cache, slot);
  }
  const int64 key = in_cache.length + i;
  return key < cache.capacity ? place(cache, in_cache.cache_row, key) : CachePlace{-1, 0};
}

// Returns the row of cos and sin for new row i of a live sequence. For a query, i may lie outside the new rows of the
// sequence.
[[nodiscard]] __device__ __forceinline__ int64 table_row(const AppendArgs& args, const CachedSequence& in_cache,
                                                         int64 s, int64 i) {
  int64 position;
  if (args.positions != nullptr) {
    const SequenceRowsArgs& rows = args.parts[kAppendKeys].rows;
    const int64 begin = rows.offsets != nullptr ? rows.offsets[s] : s * rows.seqlen;
    const int64 token = min(max(begin + i, int64{0}), rows.num_tokens - 1);
    position = token >= 0 ? args.positions[token] : 0;
  } else {
    position = (args.rotary_seqlens != nullptr ? args.rotary_seqlens[s] : in_cache.length) + i;
  }
  return min(max(position, int64{0}), args.max_positions - 1);
}

// Returns the number of the new row that has the same position as query row i of the sequence.
[[nodiscard]] __device__ __forceinline__ int64 new_row_of_query(const AppendArgs& args, int64 s, int64 i) {
  if (args.query_positions == kQueriesLast) {
    return i + rows_of(args.parts[kAppendKeys].rows, s) - rows_of(args.parts[kAppendQueries].rows, s);
  }
  return args.query_positions == kQueriesFirst ? i : 0;
}

// Handles one token of k, of v or of q (`kind`), for the heads of this warp.
template <class Config>
__device__ __forceinline__ void append_token(const AppendArgs& args, int kind, uint32 first_head, int64 token,
                                             AppendRow<Config>& math) {
  const AppendPart& part = args.parts[kind];
  const bool is_query = kind == kAppendQueries;
  AppendToken at;
  if (!find_token(part.rows, token, at)) return;
  // Overlaps loading the row with the dependent reads of lengths, pages and tables.
  prefetch_row(part.from, row_address(part.from, at.batch, first_head, at.row), static_cast<int>(part.cols));
  const CachedSequence in_cache = sequence_in_cache(args, at.s);
  if (in_cache.dead) return;
  const CachePlace to = is_query ? CachePlace{at.batch, at.row} : destination(args, in_cache, at.i, token);
  if (!to.exists()) return;
  if (math.rotates()) {
    math.set_position(table_row(args, in_cache, at.s, is_query ? new_row_of_query(args, at.s, at.i) : at.i));
  }
  const uint32 end = min(first_head + args.heads_of_warp, part.num_heads);
#pragma unroll 1
  for (uint32 head = first_head; head < end; ++head) {
    math.write(row_address(part.to, to.block, head, to.row), row_address(part.from, at.batch, head, at.row),
               factor(part.descale, at.s, head, to));
  }
}

// Appends all tokens. Config: kThreads, and kColumns, which is at least head_dim and head_dim_v.
template <class Config>
__device__ void append(const AppendArgs& args) {
  static_assert(Config::kThreads == kAppendThreads);
  constexpr int kWarps = kAppendThreads / kWarpThreads;
  int kind = kAppendKeys;
  uint32 group = blockIdx.y;
  for (; group >= args.parts[kind].groups; ++kind) group -= args.parts[kind].groups;
  wait_for_kernels_before();
  let_next_kernel_start();
  AppendRow<Config> math(args, args.parts[kind]);
  const int64 first = static_cast<int64>(blockIdx.x) * kWarps + threadIdx.x / kWarpThreads;
  const int64 step = static_cast<int64>(gridDim.x) * kWarps, end = args.parts[kind].rows.num_tokens;
  for (int64 token = first; token < end; token += step) {
    append_token(args, kind, group * args.heads_of_warp, token, math);
  }
}

}  // namespace attend
