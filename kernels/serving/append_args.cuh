// What append.cuh is told: core::AppendProblem as a plain struct, declared once for both sides.
#pragma once

#include "cache_args.cuh"
#include "rows_args.cuh"

namespace attend {

constexpr int kAppendThreads = 128;  // of a block; a warp has a token of a few heads

// Columns that a row may have in shared memory: each width is a variant.
constexpr int kNarrowAppendRow = 256, kWideAppendRow = 1024;

// core::SequenceRows: which sequence has which rows of a tensor. A token is a row, of all batch entries.
struct SequenceRowsArgs {
  const int* offsets;  // (num_sequences + 1) of packed rows, else null
  int64 num_sequences;
  int64 seqlen;      // of dense rows
  int64 num_tokens;  // that the tensor has: packed ones behind the last sequence's too
};
static_assert(sizeof(SequenceRowsArgs) == 4 * 8);

// cos and sin, (max_positions, rotary_dim / 2), and weights of a norm, (head_dim).
struct TableArgs {
  const void* data;  // null: there is none
  int64 row_stride;  // elements
  uint32 element;    // a StoredElement: f32, f16, bf16 or f64
  uint32 unused;
};
static_assert(sizeof(TableArgs) == 2 * 8 + 2 * 4);

// Where the rows of k, of v, or of q come from, where they go, and what becomes of them.
struct AppendPart {
  RowsArgs from;          // f32, f16 or bf16 (batch, heads, seqlen, cols)
  RowsArgs to;            // k, v: any type (blocks, heads, block_size, cols). q: of from's type and shape, or itself
  SequenceRowsArgs rows;  // of `from`
  DescaleArgs descale;    // of `to`; q: none
  TableArgs norm;         // its weights; v: none
  uint32 cols;
  uint32 num_heads;
  uint32 groups;  // of heads_of_warp heads each: blockIdx.y counts those of k, of v, of q
  uint32 rotates;
};
static_assert(sizeof(AppendPart) ==
              2 * sizeof(RowsArgs) + sizeof(SequenceRowsArgs) + sizeof(DescaleArgs) + sizeof(TableArgs) + 4 * 4);

constexpr int kAppendKeys = 0, kAppendValues = 1, kAppendQueries = 2, kAppendParts = 3;

struct AppendArgs {
  static constexpr const char* kTypeName = "AppendArgs";
  AppendPart parts[kAppendParts];  // of those that the call does not have all is 0
  CacheArgs cache;
  const int64* slot_mapping;  // (tokens of k); may be null
  const int* positions;       // (tokens of k); may be null
  const int* rotary_seqlens;  // (num_sequences); may be null
  TableArgs cos;
  TableArgs sin;
  int64 max_positions;
  uint32 heads_of_warp;    // that a warp goes through
  uint32 first_column;     // of the rotated ones
  uint32 rotary_dim;       // columns that are rotated
  uint32 is_interleaved;   // pairs (2c, 2c + 1), not (c, c + rotary_dim / 2)
  uint32 query_positions;  // a QueryPositions of include/attend/serving.hpp
  float norm_eps;
};
static_assert(sizeof(AppendArgs) ==
              kAppendParts * sizeof(AppendPart) + sizeof(CacheArgs) + 3 * 8 + 2 * sizeof(TableArgs) + 8 + 6 * 4);

// The numbers of QueryPositions.
constexpr uint32 kQueriesLast = 0, kQueriesFirst = 1;

}  // namespace attend
