// Arguments of append.cuh. They hold core::AppendProblem as a plain struct, which host and device share.
#pragma once

#include "cache_args.cuh"
#include "rows_args.cuh"

namespace attend {

constexpr int kAppendThreads = 128;  // threads of a block. A warp handles one token of a few heads

// Largest numbers of columns of a row in shared memory. There is one kernel variant for each of the two widths.
constexpr int kNarrowAppendRow = 256, kWideAppendRow = 1024;

// Maps the rows of a tensor to sequences, as core::SequenceRows does. A token is a row. Tokens are numbered across all
// batch entries.
struct SequenceRowsArgs {
  const int* offsets;  // (num_sequences + 1) offsets if the rows are packed, otherwise null
  int64 num_sequences;
  int64 seqlen;      // number of rows of each batch entry if the rows are not packed
  int64 num_tokens;  // number of rows of the tensor, including packed rows that lie behind the last sequence
};
static_assert(sizeof(SequenceRowsArgs) == 4 * 8);

// A table of cos or sin with the shape (max_positions, rotary_dim / 2), or the weights of a norm with the shape
// (head_dim).
struct TableArgs {
  const void* data;  // null if there is no table
  int64 row_stride;  // in elements
  uint32 element;    // a StoredElement: f32, f16, bf16 or f64
  uint32 unused;
};
static_assert(sizeof(TableArgs) == 2 * 8 + 2 * 4);

// Source and destination of the rows of k, of v, or of q, and the operations on them.
struct AppendPart {
  RowsArgs from;          // f32, f16 or bf16 (batch, heads, seqlen, cols)
  RowsArgs to;            // For k and v, any type (blocks, heads, block_size, cols). For q, `to` has the type and shape
                          // of `from`, and may be `from` itself
  SequenceRowsArgs rows;  // sequences to which the rows of `from` belong
  DescaleArgs descale;    // descale factors of `to`. Unused for q
  TableArgs norm;         // weights of the norm. Unused for v
  uint32 cols;
  uint32 num_heads;
  uint32 groups;  // number of groups of heads_of_warp heads. blockIdx.y numbers the groups of k first, then those of v,
                  // then those of q
  uint32 rotates;
};
static_assert(sizeof(AppendPart) ==
              2 * sizeof(RowsArgs) + sizeof(SequenceRowsArgs) + sizeof(DescaleArgs) + sizeof(TableArgs) + 4 * 4);

constexpr int kAppendKeys = 0, kAppendValues = 1, kAppendQueries = 2, kAppendParts = 3;

struct AppendArgs {
  static constexpr const char* kTypeName = "AppendArgs";
  AppendPart parts[kAppendParts];  // the parts of k, v and q. A part that the call does not have is all zeros
  CacheArgs cache;
  const int64* slot_mapping;  // (number of tokens of k); may be null
  const int* positions;       // (number of tokens of k); may be null
  const int* rotary_seqlens;  // (num_sequences); may be null
  TableArgs cos;
  TableArgs sin;
  int64 max_positions;
  uint32 heads_of_warp;    // number of heads that a warp handles
  uint32 first_column;     // first rotated column
  uint32 rotary_dim;       // number of rotated columns
  uint32 is_interleaved;   // 1 if column pairs are (2c, 2c + 1), 0 if they are (c, c + rotary_dim / 2)
  uint32 query_positions;  // value of a QueryPositions (include/attend/serving.hpp)
  float norm_eps;
};
static_assert(sizeof(AppendArgs) ==
              kAppendParts * sizeof(AppendPart) + sizeof(CacheArgs) + 3 * 8 + 2 * sizeof(TableArgs) + 8 + 6 * 4);

// Values of QueryPositions.
constexpr uint32 kQueriesLast = 0, kQueriesFirst = 1;

}  // namespace attend
