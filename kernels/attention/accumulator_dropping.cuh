// Dropout on a tile of accumulators. Decides which values are kept.
//
//   uint32 kept[kKeptWords<kCount>];
//   kept_bits<kCount>(tile, kept, thread);
//   drop(p, kept);
//
// accumulator_scores.cuh describes the layouts, and the functions whose names end in _transposed.
#pragma once

#include "../common/portable.cuh"
#include "../tiles/accumulator_mask.cuh"
#include "philox.cuh"

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
#include "../common/warp_reduce.cuh"
#include "score_rules.cuh"
#endif

namespace attend {

// Number of words of kept bits. Bit i % 32 of word i / 32 states whether value i is kept. The four bits of one j, the
// values 4 j to 4 j + 3, are called a nibble.
template <int kCount>
constexpr int kKeptWords = (kCount + 31) / 32;

// Returns the lane's kept bits in the usual layout. A Philox block decides four neighbouring keys of a row. Two
// neighbouring lanes hold these four keys, two keys each, for the same two rows h = 0 and 1. So each lane computes the
// blocks of the row h = lane % 2, and the lanes exchange the bits of each other's keys. `computed` has a nibble for
// each j, which covers the four keys. `partners` is `computed` of the other lane.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr uint32 kept_of_pair(uint32 computed, uint32 partners, int lane) {
  constexpr uint32 kLow = 0x33333333u;  // the first two keys of a block, or in the result the two values of h = 0
  const bool is_odd = lane % 2 != 0;
  return is_odd ? (computed & ~kLow) | (partners >> 2 & kLow) : (computed & kLow) | (partners << 2 & ~kLow);
}

// Returns some of the lane's kept bits in the transposed layout. There, four lanes whose numbers differ by multiples of
// 4 hold the four keys of a Philox block. A lane has four values for each j, numbered 2 h + b. Lane l computes the
// Philox blocks of value l / 4 % 4. `nibbles` holds the blocks that another lane computed. The number l / 4 % 4 of that
// lane is the number of this lane XOR `distance`.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr uint32 kept_of_four(uint32 nibbles, int distance, int lane) {
  const int key = lane / 4 % 4;
  return (nibbles >> key & 0x11111111u) << (key ^ distance);
}

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)

// Returns a nibble whose bits state which of the four keys of a Philox block are kept.
[[nodiscard]] __device__ __forceinline__ uint32 kept_nibble(const DropMask& drop_mask, uint32 row, uint32 key_quad) {
  const PhiloxWords words = drop_mask.words(row, key_quad);
  uint32 nibble = 0;
#pragma unroll
  for (int n = 0; n < 4; ++n) nibble |= static_cast<uint32>(words.word[n] >= drop_mask.threshold) << n;
  return nibble;
}

// Returns the index of the last Philox block whose bits lie in word w, plus one. Each word has up to eight blocks, one
// for each j.
template <int kCount>
[[nodiscard]] __device__ __forceinline__ constexpr int end_of_blocks(int w) {
  return 8 * w + 8 < kCount / 4 ? 8 * w + 8 : kCount / 4;
}

// Computes which values of the tile are kept. Each thread computes kCount / 4 Philox blocks, and no block is computed
// twice. first_key must be a multiple of 4. If the tile belongs to a part of a larger problem, neighbouring keys must
// also be neighbours in the larger problem. All lanes of the warp must call it.
template <int kCount, class Config>
__device__ __forceinline__ void kept_bits(const TileRules<Config>& rules, uint32 (&kept)[kKeptWords<kCount>],
                                          int thread) {
  const int lane = thread % 32;
  const int mine = lane % 2;  // the row h, 0 or 1, whose Philox blocks this lane computes
  const int line = accumulator_row(thread) + mine * kRowHalf;
  const int column = accumulator_column(thread);
  const auto row = static_cast<uint32>(rules.first_row + line);
  const auto key_quad = static_cast<uint32>((rules.first_key + column) / 4);
#pragma unroll
  for (int w = 0; w < kKeptWords<kCount>; ++w) {
    uint32 nibbles = 0;
    // Computes two Philox blocks at a time, because the rounds of one block are a dependent chain. More blocks would
    // need more registers.
#pragma unroll 2
    for (int j = 8 * w; j < end_of_blocks<kCount>(w); ++j) {
      nibbles |= kept_nibble(rules.drop_mask, row, key_quad + j * (kColumnsOfTile / 4)) << (j % 8 * 4);
    }
    kept[w] = kept_of_pair(nibbles, __shfl_xor_sync(kAllLanes, nibbles, 1), lane);
  }
}

template <int kCount, class Config>
__device__ __forceinline__ void kept_bits_transposed(const TileRules<Config>& rules, uint32 (&kept)[kKeptWords<kCount>],
                                                     int thread) {
  const int lane = thread % 32;
  const int mine = lane / 4 % 4;  // value 2 h + b of the blocks that this lane computes
  const int line = accumulator_row(thread) + mine / 2 * kRowHalf;
  const int column = accumulator_column(thread) + mine % 2;
  const auto row = static_cast<uint32>(rules.first_row + column);
  const auto key_quad = static_cast<uint32>((rules.first_key + line) / 4);
#pragma unroll
  for (int w = 0; w < kKeptWords<kCount>; ++w) {
    uint32 nibbles = 0;
#pragma unroll 2  // see kept_bits()
    for (int j = 8 * w; j < end_of_blocks<kCount>(w); ++j) {
      nibbles |= kept_nibble(rules.drop_mask, row + j * kColumnsOfTile, key_quad) << (j % 8 * 4);
    }
    kept[w] = kept_of_four(nibbles, 0, lane);
#pragma unroll
    for (int distance = 1; distance < 4; ++distance) {
      kept[w] |= kept_of_four(__shfl_xor_sync(kAllLanes, nibbles, 4 * distance), distance, lane);
    }
  }
}

// Sets the dropped values to 0.
template <int kCount>
__device__ __forceinline__ void drop(float (&p)[kCount], const uint32 (&kept)[kKeptWords<kCount>]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) p[i] = (kept[i / 32] >> (i % 32) & 1u) != 0 ? p[i] : 0.0f;
}

#endif

}  // namespace attend
