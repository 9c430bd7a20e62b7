// Dropout for packed pairs of p, in kernels that are limited by instructions. The decisions and the order of their bits
// are those of accumulator_scores.cuh. This code needs fewer instructions: it computes several Philox blocks at a time,
// each with 15 of its 20 wide multiplications (factored_philox.cuh).
#pragma once

#include "../attention/accumulator_scores.cuh"
#include "factored_philox.cuh"

namespace attend {

// Computes bits = 2 * bits + (1 if word + addend carries, otherwise 0), in two instructions.
__device__ __forceinline__ void append_carry(uint32& bits, uint32 word, uint32 addend) {
  asm("{\n.reg .u32 sum;\nadd.cc.u32 sum, %1, %2;\naddc.u32 %0, %0, %0;\n}\n" : "+r"(bits) : "r"(word), "r"(addend));
}

// Returns the row whose Philox blocks the thread computes. A thread has values of two rows of the tile.
[[nodiscard]] __device__ __forceinline__ int row_decided_by(int thread) {
  return accumulator_row(thread) + thread % 2 * kRowHalf;
}

// Does the same as kept_bits() (not transposed), from two parts of the Philox state. `row` belongs to
// row_decided_by(thread), and `quads` to the tile's quads of keys, in shared memory. kBlocks chains of rounds run at a
// time.
template <int kCount, int kBlocks>
__device__ __forceinline__ void kept_bits_factored(const DropMask& drop_mask, PhiloxProduct row,
                                                   const PhiloxQuad* quads, uint32 (&kept)[kKeptWords<kCount>],
                                                   int thread) {
  constexpr int kTiles = kCount / 4;
  const PhiloxQuad* quads_of_thread = quads + accumulator_column(thread) / 4;
  const uint32 addend = 0u - drop_mask.threshold;  // a word of at least the threshold carries
#pragma unroll
  for (int w = 0; w < kKeptWords<kCount>; ++w) {
    const int begin = 8 * w;
    uint32 nibbles = 0;
#pragma unroll
    for (int end = kTiles < begin + 8 ? kTiles : begin + 8; end > begin; end -= kBlocks) {  // last first
      PhiloxWords words[kBlocks];
#pragma unroll
      for (int i = 0; i < kBlocks; ++i) {
        if (end - 1 - i >= begin) words[i] = quads_of_thread[(end - 1 - i) * (kColumnsOfTile / 4)].meet(row);
      }
#pragma unroll
      for (int round = kFactoredRounds; round < kPhiloxRounds; ++round) {
#pragma unroll
        for (int i = 0; i < kBlocks; ++i) {
          if (end - 1 - i >= begin) words[i] = philox_round(words[i], drop_mask.key0, drop_mask.key1, round);
        }
      }
#pragma unroll
      for (int i = 0; i < kBlocks; ++i) {
        if (end - 1 - i < begin) continue;
#pragma unroll
        for (int n = 3; n >= 0; --n) append_carry(nibbles, words[i].word[n], addend);
      }
    }
    if (drop_mask.threshold == 0) nibbles = 0xffffffffu;
    kept[w] = kept_of_pair(nibbles, __shfl_xor_sync(kAllLanes, nibbles, 1), thread % 32);
  }
}

// Returns `pair` with each half kept or set to 0. The top bit of byte kByte of `low` decides on the low half, that of
// `high` on the high half. PTX ISA: prmt, whose selector's high bit replicates the sign of a byte.
template <int kByte>
[[nodiscard]] __device__ __forceinline__ uint32 keep_halves(uint32 pair, uint32 low, uint32 high) {
  constexpr uint32 kSelector = (8u | kByte) * 0x11u | (12u | kByte) * 0x1100u;
  uint32 mask;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(mask) : "r"(low), "r"(high), "n"(kSelector));
  return pair & mask;
}

// Sets entries of p that are not kept to 0. p is packed in accumulator order.
template <int kCount>
__device__ __forceinline__ void drop_pairs(uint32 (&p)[kCount / 2], const uint32 (&kept)[kKeptWords<kCount>]) {
#pragma unroll
  for (int w = 0; w < kKeptWords<kCount>; ++w) {
#pragma unroll
    for (int bit = 0; bit < 8; bit += 2) {  // bit of each byte, shifted to its top
      const uint32 low = kept[w] << (7 - bit);
      const uint32 high = kept[w] << (6 - bit);
      const int i = 16 * w + bit / 2;
      if (i < kCount / 2) p[i] = keep_halves<0>(p[i], low, high);
      if (i + 4 < kCount / 2) p[i + 4] = keep_halves<1>(p[i + 4], low, high);
      if (i + 8 < kCount / 2) p[i + 8] = keep_halves<2>(p[i + 8], low, high);
      if (i + 12 < kCount / 2) p[i + 12] = keep_halves<3>(p[i + 12], low, high);
    }
  }
}

}  // namespace attend
