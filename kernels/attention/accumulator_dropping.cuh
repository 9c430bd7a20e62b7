// Dropout on a tile of accumulators: decides which values are kept.
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

// Words of the kept bits: bit i % 32 of word i / 32 states that value i is kept. The four bits of one j are a nibble.
template <int kCount>
constexpr int kKeptWords = (kCount + 31) / 32;

// Two neighbouring lanes have the same two rows, and share the four keys of a Philox block, two keys each. So each lane
// computes the block of one row (the even lane that of h = 0), and they exchange the bits of each other's keys.
// computed: a nibble for each j, for the four keys of row h = lane % 2. partners: the same from the other lane.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr uint32 kept_of_pair(uint32 computed, uint32 partners, int lane) {
  constexpr uint32 kLow = 0x33333333u;  // the first two keys, or the two of h = 0
  const bool is_odd = lane % 2 != 0;
  return is_odd ? (computed & ~kLow) | (partners >> 2 & kLow) : (computed & kLow) | (partners << 2 & ~kLow);
}

// In the transposed layout, the four keys are the same accumulator row of four lanes that are 4 apart. Each lane
// computes the block of one of the row's four values: c = 2 h + b = lane / 4 % 4.
// nibbles: computed by the lane whose c is this lane's c XOR distance. Returns this lane's bits among them.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr uint32 kept_of_four(uint32 nibbles, int distance, int lane) {
  const int key = lane / 4 % 4;
  return (nibbles >> key & 0x11111111u) << (key ^ distance);
}

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)

// Returns a nibble of decisions for the four keys of a Philox block.
[[nodiscard]] __device__ __forceinline__ uint32 kept_nibble(const DropMask& drop_mask, uint32 row, uint32 key_quad) {
  const PhiloxWords words = drop_mask.words(row, key_quad);
  uint32 nibble = 0;
#pragma unroll
  for (int n = 0; n < 4; ++n) nibble |= static_cast<uint32>(words.word[n] >= drop_mask.threshold) << n;
  return nibble;
}

// Returns the end of the Philox blocks of word w; each word has up to eight, one for each j.
template <int kCount>
[[nodiscard]] __device__ __forceinline__ constexpr int end_of_blocks(int w) {
  return 8 * w + 8 < kCount / 4 ? 8 * w + 8 : kCount / 4;
}

// Computes which values of the tile are kept. Each thread computes kCount / 4 Philox blocks, and no block is computed
// twice. first_key is a multiple of 4. In a part of a larger problem, neighbouring keys must be neighbours in the
// larger problem too. All lanes of the warp take part.
template <int kCount, class Config>
__device__ __forceinline__ void kept_bits(const TileRules<Config>& rules, uint32 (&kept)[kKeptWords<kCount>],
                                          int thread) {
  const int lane = thread % 32;
  const int mine = lane % 2;  // the h of the blocks that this lane computes
  const int line = accumulator_row(thread) + mine * kRowHalf;
  const int column = accumulator_column(thread);
  const auto row = static_cast<uint32>(rules.first_row + line);
  const auto key_quad = static_cast<uint32>((rules.first_key + column) / 4);
#pragma unroll
  for (int w = 0; w < kKeptWords<kCount>; ++w) {
    uint32 nibbles = 0;
#pragma unroll 2  // two at a time: a block's rounds are a dependent chain, and more blocks need more registers
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
  const int mine = lane / 4 % 4;  // the c of the blocks that this lane computes
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
