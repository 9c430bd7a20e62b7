// Dropout on packed pairs of p, for kernels that have no instructions to spare: the same decisions as
// accumulator_scores.cuh's, in its order of bits, made with fewer instructions and several Philox blocks at a time.
#pragma once

#include "accumulator_scores.cuh"

namespace attend {

// bits = 2 * bits + (word + addend carries), an addition and an addition with carry.
__device__ __forceinline__ void append_carry(uint32& bits, uint32 word, uint32 addend) {
  asm("{\n.reg .u32 sum;\nadd.cc.u32 sum, %1, %2;\naddc.u32 %0, %0, %0;\n}\n" : "+r"(bits) : "r"(word), "r"(addend));
}

// As kept_bits() (not transposed), kBlocks of the ten-round chains at once.
template <int kCount, int kBlocks, class Config>
__device__ __forceinline__ void kept_bits_wide(const TileRules<Config>& rules, uint32 (&kept)[kKeptWords<kCount>],
                                               int thread) {
  constexpr int kTiles = kCount / 4;
  const int lane = thread % 32;
  const auto row = static_cast<uint32>(rules.first_row + accumulator_row(thread) + lane % 2 * kRowHalf);
  const auto key_quad = static_cast<uint32>((rules.first_key + accumulator_column(thread)) / 4);
  const uint32 addend = 0u - rules.dropout.threshold;  // a word of at least the threshold carries
#pragma unroll
  for (int w = 0; w < kKeptWords<kCount>; ++w) {
    uint32 nibbles = 0;
#pragma unroll
    for (int end = kTiles < 8 * w + 8 ? kTiles : 8 * w + 8; end > 8 * w; end -= kBlocks) {  // the last comes first
      PhiloxWords words[kBlocks];
#pragma unroll
      for (int i = 0; i < kBlocks; ++i) {
        if (end - 1 - i < 8 * w) continue;
        words[i] = rules.dropout.words(row, key_quad + (end - 1 - i) * (kColumnsOfTile / 4));
      }
#pragma unroll
      for (int i = 0; i < kBlocks; ++i) {
        if (end - 1 - i < 8 * w) continue;
#pragma unroll
        for (int n = 3; n >= 0; --n) append_carry(nibbles, words[i].word[n], addend);
      }
    }
    if (rules.dropout.threshold == 0) nibbles = 0xffffffffu;
    kept[w] = kept_of_pair(nibbles, __shfl_xor_sync(kAllLanes, nibbles, 1), lane);
  }
}

// Both halves of `pair` are kept or become 0, by the top bits of byte kByte of `low` and of `high`.
// PTX ISA: prmt, whose selector's high bit repeats a byte's sign.
template <int kByte>
[[nodiscard]] __device__ __forceinline__ uint32 keep_halves(uint32 pair, uint32 low, uint32 high) {
  constexpr uint32 kSelector = (8u | kByte) * 0x11u | (12u | kByte) * 0x1100u;
  uint32 mask;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(mask) : "r"(low), "r"(high), "n"(kSelector));
  return pair & mask;
}

// p, packed in the accumulator's order, becomes 0 where it is not kept.
template <int kCount>
__device__ __forceinline__ void drop_pairs(uint32 (&p)[kCount / 2], const uint32 (&kept)[kKeptWords<kCount>]) {
#pragma unroll
  for (int w = 0; w < kKeptWords<kCount>; ++w) {
#pragma unroll
    for (int bit = 0; bit < 8; bit += 2) {  // of each byte, at its top
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
