// Sizes of sm90_f32_forward on which host and device must agree: tile sizes, bytes of shared memory and the layout of
// the pieces.
#pragma once

#include "sm90_forward_shape.cuh"

namespace attend {

// A float32 is represented by the sum of two float16 numbers (pieces), times a power of two that a block of rows
// shares.
constexpr int kPieces = 2;
enum Piece { kHighPiece, kLowPiece };

constexpr int kF32SplitThreads = 256;
constexpr int kF32LeastHeadDim = 8;  // in a shorter row, all numbers may be small by chance. The row maxima would then
                                     // differ by more than F32Block::kMostSpread allows
constexpr int kF32LargestHeadDim = 128;

// Tile sizes and pipeline settings of a Config. The comment on each field names the Config constant with the same
// value.
struct Sm90F32Tile {
  int consumers;           // kConsumers: warpgroups of 64 query rows each; kBlockM = 64 * consumers
  int block_n;             // kBlockN: number of keys of a tile
  int stages;              // kStages: number of buffers of k, and of v
  int producer_registers;  // kProducerRegisters: registers per thread of warpgroup 0
  int consumer_registers;  // kConsumerRegisters: registers per thread of a consumer
  int takes_turns;         // kPingPong: 1 if consumers issue their products in turn
  Schedule schedule;       // kSchedule

  [[nodiscard]] ATTEND_HOST_DEVICE constexpr int block_m() const { return consumers * kSm90ConsumerRows; }
  [[nodiscard]] ATTEND_HOST_DEVICE constexpr int threads() const { return (1 + consumers) * kSm90WarpgroupThreads; }
  [[nodiscard]] ATTEND_HOST_DEVICE constexpr int smem_bytes(int head_dim, int head_dim_v) const {
    const int panels_v = sm90_panels(sm90_columns_v(head_dim_v));
    const int q = sm90_panels(head_dim) * block_m() * kSwizzleBytes;
    const int k_and_v = (sm90_panels(head_dim) + panels_v) * block_n * kSwizzleBytes;
    const int barriers = 8 * (2 + 4 * stages + 2 * kSm90WorkSlots);
    const int bytes = kPieces * (q + stages * k_and_v) + kSm90WorkSlots * kSm90WorkBytes + barriers;
    return (bytes + kSwizzleAtom - 1) / kSwizzleAtom * kSwizzleAtom;
  }
};

// Returns the number of columns of a row of pieces in memory. TMA requires rows of a multiple of 16 bytes.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int f32_piece_pitch(int head_dim) {
  return (head_dim + 7) / 8 * 8;
}

// Number of rows that the pieces of a tensor have for each head. The rows form blocks, and each block belongs to one
// sequence. So the rows of packed sequences start at multiples of the block size.
struct F32PieceRows {
  int64 rows;    // rows of a head in memory
  int64 blocks;  // blocks of the longest sequence

  // `length` is the number of tokens in the tensor, `longest` that of the longest sequence, and `block` the rows of a
  // block.
  [[nodiscard]] static ATTEND_HOST_DEVICE constexpr F32PieceRows of(int64 length, int64 longest, bool is_packed,
                                                                    int64 sequences, int block) {
    const int64 rows = is_packed ? length + sequences * block : length;
    return {num_tiles(rows, block) * block, num_tiles(longest, block)};
  }
  // Returns the row of pieces at which a packed sequence starts. `begin` is the sequence's first token. Blocks of
  // different sequences do not overlap.
  [[nodiscard]] static ATTEND_HOST_DEVICE constexpr int64 first(int64 begin, uint32 sequence, int block) {
    return (begin + static_cast<int64>(sequence) * block) / block * block;
  }
};

// Sizes derived from a Config.
template <class Config>
struct Sm90F32Shape {
  static constexpr int kConsumers = Config::kConsumers;
  static constexpr int kBlockM = kConsumers * kSm90ConsumerRows;
  static constexpr int kThreads = (1 + kConsumers) * kSm90WarpgroupThreads;
  static constexpr int kQkSteps = (Config::kHeadDim + 15) / 16;  // number of products of depth 16 in q k^T
  static constexpr int kColumnsV = sm90_columns_v(Config::kHeadDimV);
  static constexpr int kPanelsQk = sm90_panels(Config::kHeadDim);
  static constexpr int kPanelsV = sm90_panels(kColumnsV);
  static constexpr int kPanelBytesQ = kBlockM * kSwizzleBytes;
  static constexpr int kPanelBytesK = Config::kBlockN * kSwizzleBytes;
  // Bytes of one piece of a tile.
  static constexpr int kQBytes = kPanelsQk * kPanelBytesQ;
  static constexpr int kKBytes = kPanelsQk * kPanelBytesK;
  static constexpr int kVBytes = kPanelsV * kPanelBytesK;
  // Numbers of values that each thread holds.
  static constexpr int kScores = Config::kBlockN / 2;
  static constexpr int kPairs = Config::kBlockN / 4;
  static constexpr int kOutputs = kColumnsV / 2;
};

}  // namespace attend
