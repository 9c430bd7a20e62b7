// Sizes of sm90_fp8_forward on which host and device must agree: tile sizes, bytes of shared memory and the layout of
// the transposed v.
#pragma once

#include "sm90_f32_shape.cuh"

namespace attend {

constexpr int kFp8TransposeThreads = 256;
constexpr int kFp8BlockKeys = 128;            // number of keys that share a descale, if descales differ between keys
constexpr int kFp8SumColumns = 8;             // additional columns of p v, in which v is 1. They are sums of p
constexpr int kFp8PanelKeys = kSwizzleBytes;  // keys in a row of the transposed v

// Tile sizes and pipeline settings of a Config. The comment on each field names the Config constant with the same
// value.
struct Sm90Fp8Tile {
  int consumers;           // kConsumers: warpgroups of 64 query rows each; kBlockM = 64 * consumers
  int block_n;             // kBlockN: number of keys of a tile, a multiple of 32 up to 128
  int stages;              // kStages: number of buffers of k, and of v
  int producer_registers;  // kProducerRegisters: registers per thread of warpgroup 0
  int consumer_registers;  // kConsumerRegisters: registers per thread of a consumer
  int takes_turns;         // kPingPong: 1 if consumers issue their products in turn
  int speculates;          // kSpeculate: 1 if p is computed before the row maximum is known
  Schedule schedule;       // kSchedule

  [[nodiscard]] ATTEND_HOST_DEVICE constexpr int block_m() const { return consumers * kSm90ConsumerRows; }
  [[nodiscard]] ATTEND_HOST_DEVICE constexpr int threads() const { return (1 + consumers) * kSm90WarpgroupThreads; }
  [[nodiscard]] ATTEND_HOST_DEVICE constexpr int smem_bytes(int head_dim_v) const {
    // A row of q or k has at most 128 bytes, and takes 128 bytes in any case.
    const int rows = block_m() + stages * (block_n + head_dim_v + kFp8SumColumns);
    const int barriers = 8 * (2 + 4 * stages + 2 * kSm90WorkSlots);
    const int bytes = rows * kSwizzleBytes + kSm90WorkSlots * kSm90WorkBytes + barriers;
    return (bytes + kSwizzleAtom - 1) / kSwizzleAtom * kSwizzleAtom;
  }
};

// Sizes derived from a Config.
template <class Config>
struct Sm90Fp8Shape {
  static constexpr int kConsumers = Config::kConsumers;
  static constexpr int kBlockM = kConsumers * kSm90ConsumerRows;
  static constexpr int kThreads = (1 + kConsumers) * kSm90WarpgroupThreads;
  static constexpr int kColumns = Config::kHeadDimV + kFp8SumColumns;  // columns of the product p v
  static constexpr int kQBytes = kBlockM * kSwizzleBytes;
  static constexpr int kKBytes = Config::kBlockN * kSwizzleBytes;
  static constexpr int kVBytes = Config::kHeadDimV * kSwizzleBytes;  // without the columns of ones
  // Numbers of values that each thread holds.
  static constexpr int kScores = Config::kBlockN / 2;
  static constexpr int kFours = Config::kBlockN / 8;  // groups of four values of p
  static constexpr int kOutputs = Config::kHeadDimV / 2;
  static constexpr int kSums = kColumns / 2;  // outputs, and four sums of p: two equal ones of each row
};

}  // namespace attend
