// The query rows of an item: q in shared memory, and which keys each row sees.
#pragma once

#include "decode_config.cuh"
#include "decode_piece.cuh"

namespace attend {

// Of one row of the tile. A row behind the last one sees nothing.
struct DecodeRow {
  uint64 tree;      // bit j: sees key diagonal + j. All ones without a tree
  int low, high;    // the keys [low, high), as far as lengths and the window go
  int position;     // of the row among the keys: i + seqlen_k - seqlen_q
  int first_drawn;  // the tree is asked about keys from here on
  float slope;      // ALiBi
  int padding;
};
static_assert(sizeof(DecodeRow) == kDecodeRowBytes);

[[nodiscard]] __device__ __forceinline__ bool sees(const DecodeRow& row, int key) {
  const bool drawn = key < row.first_drawn || (row.tree >> min(key - row.first_drawn, 63) & 1) != 0;
  return key >= row.low && key < row.high && drawn;
}

// A packed row of a piece.
struct QueryRow {
  int64 index;  // of the sequence's rows
  int64 head;   // of q

  [[nodiscard]] static __device__ __forceinline__ QueryRow of(const DecodeArgs& args, const DecodePiece& piece,
                                                              int row) {
    const Division d = divide(piece.row + row, args.group);
    return {d.quotient, piece.head * static_cast<int64>(args.group) + d.rest};
  }
};

// Keys that all rows of the tile see: [low, high).
struct KeysOfAll {
  int low, high;
};

template <class Config>
[[nodiscard]] __device__ __forceinline__ KeysOfAll keys_of_all(const DecodeRow* rows, const DecodePiece& piece) {
  const DecodeRow &first = rows[0], &last = rows[piece.num_rows - 1];
  return {last.low, min(first.high, first.first_drawn)};
}

// By all threads, between two barriers of the block.
template <class Config>
__device__ __forceinline__ void load_rows(const DecodeArgs& args, const DecodeSpan& span, const DecodePiece& piece,
                                          char* q_rows, DecodeRow* rows) {
  using Sizes = DecodeSizes<Config>;
  constexpr int kQRow = decode_row_bytes(Config::kHeadDim, Sizes::kQBytes, 32);
  constexpr int kMostKeys = 0x7fffffff;
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < Sizes::kTileRows) {
    DecodeRow row = {};
    if (thread < piece.num_rows) {
      const QueryRow at = QueryRow::of(args, piece, thread);
      const KeyRange keys = span.window(args).row(at.index);
      row.low = static_cast<int>(keys.begin > span.first_key ? keys.begin : span.first_key);
      row.high = static_cast<int>(keys.end);
      row.position = static_cast<int>(at.index + span.seqlen_k - span.seqlen_q);
      row.tree = ~uint64{0};
      row.first_drawn = kMostKeys;
      if (args.tree_mask != nullptr) {
        row.tree = args.tree_mask[span.batch * args.max_seqlen_q + span.q_begin + at.index];
        row.first_drawn = static_cast<int>(span.seqlen_k - span.seqlen_q);
      }
      if (args.alibi_slopes != nullptr) {
        row.slope = args.alibi_slopes[span.index * args.alibi_sequence_stride + at.head * args.alibi_head_stride];
      }
    }
    rows[thread] = row;
  }
  if constexpr (Config::kAligned) {
    constexpr int kBytes = Config::kHeadDim * Sizes::kQBytes;
    constexpr int kChunks = ceil_div(round_up(Config::kHeadDim, 32) * Sizes::kQBytes, kChunkBytes);
    for (int chunk = thread; chunk < Sizes::kTileRows * kChunks; chunk += Config::kThreads) {
      const int row = chunk / kChunks, column = chunk % kChunks;
      uint4 bits = {};
      if (row < piece.num_rows && column * kChunkBytes < kBytes) {
        const QueryRow at = QueryRow::of(args, piece, row);
        const char* source = static_cast<const char*>(args.q) +
                             args.q_stride.offset(span.batch, at.head, span.q_begin + at.index) * Sizes::kQBytes;
        bits = reinterpret_cast<const uint4*>(source)[column];
      }
      *reinterpret_cast<uint4*>(q_rows + row * kQRow + column * kChunkBytes) = bits;
    }
  } else {
    using Storage = StorageOf<Sizes::kQBytes>;
    constexpr int kColumns = round_up(Config::kHeadDim, 32);
    for (int at_tile = thread; at_tile < Sizes::kTileRows * kColumns; at_tile += Config::kThreads) {
      const int row = at_tile / kColumns, column = at_tile % kColumns;
      Storage bits = {};
      if (row < piece.num_rows && column < Config::kHeadDim) {
        const QueryRow at = QueryRow::of(args, piece, row);
        bits = static_cast<const Storage*>(
            args.q)[args.q_stride.offset(span.batch, at.head, span.q_begin + at.index) + column];
      }
      reinterpret_cast<Storage*>(q_rows + row * kQRow)[column] = bits;
    }
  }
}

}  // namespace attend
