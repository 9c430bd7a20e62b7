// Arguments of append.cuh: core::AppendProblem as a plain struct, declared once for host and device.
#pragma once

#include "cache_args.cuh"
#include "rows_args.cuh"

namespace attend {

constexpr int kAppendThreads = 128;  // threads of a block; a warp handles a token of a few heads

// Most columns of a row in shared memory: each width is a variant.
constexpr int kNarrowAppendRow = 256, kWideAppendRow = 1024;

// core::SequenceRows: maps the rows of a tensor to sequences. A token is a row; tokens count over all batch entries.
struct SequenceRowsArgs {
  const int* offsets;  // (num_sequences + 1) offsets of packed rows, otherwise null
  int64 num_sequences;
  int64 seqlen;      // rows of each batch entry, if dense
  int64 num_tokens;  // rows of the tensor, including packed rows after the last sequence
};
static_assert(sizeof(SequenceRowsArgs) == 4 * 8);

// cos and sin, (max_positions, rotary_dim / 2), and weights of a norm, (head_dim).
struct TableArgs {
  const void* data;  // null: none
  int64 row_stride;  // elements
  uint32 element;    // a StoredElement: f32, f16, bf16 or f64
  uint32 unused;
};
static_assert(sizeof(TableArgs) == 2 * 8 + 2 * 4);

// Source, destination and treatment of the rows of k, of v, or of q.
struct AppendPart {
  RowsArgs from;          // f32, f16 or bf16 (batch, heads, seqlen, cols)
  RowsArgs to;            // k, v: any type (blocks, heads, block_size, cols). q: type and shape of `from`, or `from`
                          // itself
  SequenceRowsArgs rows;  // the sequences of the rows of `from`
  DescaleArgs descale;    // factors of `to`; q: none
  TableArgs norm;         // weights; v: none
  uint32 cols;
  uint32 num_heads;
  uint32 groups;  // groups of heads_of_warp heads; blockIdx.y counts those of k, then v, then q
  uint32 rotates;
};
static_assert(sizeof(AppendPart) ==
              2 * sizeof(RowsArgs) + sizeof(SequenceRowsArgs) + sizeof(DescaleArgs) + sizeof(TableArgs) + 4 * 4);

constexpr int kAppendKeys = 0, kAppendValues = 1, kAppendQueries = 2, kAppendParts = 3;

struct AppendArgs {
  static constexpr const char* kTypeName = "AppendArgs";
  AppendPart parts[kAppendParts];  // a part that the call does not have is all zeros
  CacheArgs cache;
  const int64* slot_mapping;  // (tokens of k); may be null
  const int* positions;       // (tokens of k); may be null
  const int* rotary_seqlens;  // (num_sequences); may be null
  TableArgs cos;
  TableArgs sin;
  int64 max_positions;
  uint32 heads_of_warp;    // heads that a warp handles
  uint32 first_column;     // first rotated column
  uint32 rotary_dim;       // number of rotated columns
  uint32 is_interleaved;   // pairs (2c, 2c + 1), not (c, c + rotary_dim / 2)
  uint32 query_positions;  // a QueryPositions of include/attend/serving.hpp
  float norm_eps;
};
static_assert(sizeof(AppendArgs) ==
              kAppendParts * sizeof(AppendPart) + sizeof(CacheArgs) + 3 * 8 + 2 * sizeof(TableArgs) + 8 + 6 * 4);

// Values of QueryPositions.
constexpr uint32 kQueriesLast = 0, kQueriesFirst = 1;

}  // namespace attend
