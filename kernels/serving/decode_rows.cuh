// Query rows of an item: q in shared memory, and which keys each row sees.
#pragma once

#include "../common/numbers.cuh"
#include "../isa/cp_async.cuh"
#include "../isa/wgmma.cuh"
#include "decode_config.cuh"
#include "decode_piece.cuh"

namespace attend {

// State of one row of the tile. A row behind the last existing row sees no key.
struct DecodeRow {
  uint64 tree;      // bit j is set if the row sees key first_drawn + j. All bits are set if there is no tree mask
  int low, high;    // the row sees only keys in [low, high), because of the lengths and the window
  int position;     // position of the row among the keys: row + seqlen_k - seqlen_q
  int first_drawn;  // first key that the tree mask covers
  float slope;      // ALiBi slope
  float unit;       // factor by which the row's scores are multiplied if kConvertsQueries is set
};
static_assert(sizeof(DecodeRow) == kDecodeRowBytes);

// Returns a mask whose bits [begin, end) are set. Each bit stands for one of a step's 64 keys.
[[nodiscard]] __device__ __forceinline__ uint64 bits_between(int begin, int end) {
  const int first = max(begin, 0), behind = min(end, kStepKeys);
  if (first >= behind) return 0;
  return ~uint64{0} >> (kStepKeys - behind) & ~uint64{0} << first;
}
static_assert(kStepKeys == 64);

[[nodiscard]] __device__ __forceinline__ bool sees(const DecodeRow& row, int key) {
  const bool drawn = key < row.first_drawn || (row.tree >> min(key - row.first_drawn, 63) & 1) != 0;
  return key >= row.low && key < row.high && drawn;
}

// Returns one bit for each key of the step that starts at first_key: whether the row sees the key.
[[nodiscard]] __device__ __forceinline__ uint64 seen_keys(const DecodeRow& row, int first_key) {
  const int drawn_from = row.first_drawn - first_key;
  // The arithmetic shift repeats the tree's last bit for all later keys
  uint64 drawn = static_cast<uint64>(static_cast<int64>(row.tree) >> min(max(-drawn_from, 0), 63));
  if (drawn_from > 0)
    drawn = drawn_from < kStepKeys ? drawn << drawn_from | ((uint64{1} << drawn_from) - 1) : ~uint64{0};
  return drawn & bits_between(row.low - first_key, row.high - first_key);
}

// Returns a score plus its ALiBi bias. Every kernel rounds the result only once.
[[nodiscard]] __device__ __forceinline__ float with_slope(float score, const DecodeRow& row, int key) {
  return multiply_add(-(row.slope * kLog2E), fabsf(static_cast<float>(row.position - key)), score);
}

// A packed row of a piece. Packed rows are the rows of all query heads that share a key head.
struct QueryRow {
  int64 index;  // index among the sequence's rows
  int64 head;   // head of q

  [[nodiscard]] static __device__ __forceinline__ QueryRow of(const DecodeArgs& args, const DecodePiece& piece,
                                                              int row) {
    const int64 first_head = piece.head * static_cast<int64>(args.group), packed = piece.row + row;
    if (packed < args.group) return {0, first_head + packed};
    const Division d = divide(packed, args.group);
    return {d.quotient, first_head + d.rest};
  }
};

// Range [low, high) of keys that all rows of the tile see.
struct KeysOfAll {
  int low, high;

  // Returns one bit for each key of the step that starts at first_key.
  [[nodiscard]] __device__ __forceinline__ uint64 of_step(int first_key) const {
    return bits_between(low - first_key, high - first_key);
  }
};

template <class Config>
[[nodiscard]] __device__ __forceinline__ KeysOfAll keys_of_all(const DecodeRow* rows, const DecodePiece& piece) {
  const DecodeRow &first = rows[0], &last = rows[piece.num_rows - 1];
  return {last.low, min(first.high, first.first_drawn)};
}

// Returns the state of a row. A row at or behind piece.num_rows does not exist, and sees no key.
[[nodiscard]] __device__ __forceinline__ DecodeRow row_of(const DecodeArgs& args, const DecodeSpan& span,
                                                          const DecodePiece& piece, int number) {
  constexpr int kMostKeys = 0x7fffffff;
  DecodeRow row = {};
  if (number >= piece.num_rows) return row;
  const QueryRow at = QueryRow::of(args, piece, number);
  row.low = span.begin_key;
  row.high = span.end_key;
  if (span.seqlen_q > 1) {
    const KeyRange keys = span.window(args).row(at.index);
    row.low = static_cast<int>(keys.begin > span.first_key ? keys.begin : span.first_key);
    row.high = static_cast<int>(keys.end);
  }
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
  return row;
}

// Loads q and the states of the piece's rows. All computing threads call it between two compute_barrier() calls, and
// call wait_for_rows() before the second.
template <class Config>
__device__ __forceinline__ void load_rows(const DecodeArgs& args, const DecodeSpan& span, const DecodePiece& piece,
                                          char* q_rows, DecodeRow* rows) {
  using Sizes = DecodeSizes<Config>;
  // Elements of a chunk, and chunks of a row including the zero padding
  constexpr int kElements = Config::kAligned ? kChunkBytes / Sizes::kQBytes : 1;
  constexpr int kChunks = round_up(Config::kHeadDim, 32) / kElements;
  const int thread = static_cast<int>(threadIdx.x);
#pragma unroll 1
  for (int chunk = thread; chunk < Sizes::kTileRows * kChunks; chunk += Sizes::kComputeThreads) {
    const int row = chunk / kChunks, column = chunk % kChunks * kElements;
    const bool exists = row < piece.num_rows && column < Config::kHeadDim;
    const QueryRow at = QueryRow::of(args, piece, exists ? row : 0);
    const int64 from = args.q_stride.offset(span.batch, at.head, span.q_begin + at.index) + column;
    const int byte = column * Sizes::kQBytes;
    char* to =
        q_rows + (Config::kByWarpgroup ? static_cast<int>(swizzled_offset(Config::kRows, row, byte / kChunkBytes))
                                       : row * Sizes::kQRow + byte);
    if constexpr (Config::kAligned) {
      cp_async_16(smem_address(to), static_cast<const char*>(args.q) + (exists ? from * Sizes::kQBytes : 0), exists);
    } else {
      using Storage = StorageOf<Sizes::kQBytes>;
      *reinterpret_cast<Storage*>(to) = exists ? static_cast<const Storage*>(args.q)[from] : Storage{};
    }
  }
  if constexpr (Config::kAligned) cp_async_commit();
  // The last threads compute the states, because they copy the fewest chunks of a small tile
  const int row = Sizes::kComputeThreads - 1 - thread;
  if (row < Sizes::kTileRows) rows[row] = row_of(args, span, piece, row);
}
template <class Config>
__device__ __forceinline__ void wait_for_rows() {
  if constexpr (Config::kAligned) cp_async_wait<0>();
  if constexpr (Config::kByWarpgroup) fence_smem_for_async();  // wgmma reads q
}

}  // namespace attend
