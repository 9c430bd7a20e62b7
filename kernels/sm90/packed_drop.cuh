// Dropout for probabilities p that are packed in pairs of 16-bit values. It makes the same decisions as
// accumulator_scores.cuh and stores their bits in the same order, but it needs fewer instructions. It computes several
// Philox blocks at a time, and each block needs 15 instead of 20 wide multiplications (factored_philox.cuh).
#pragma once

#include "../attention/accumulator_scores.cuh"
#include "factored_philox.cuh"

namespace attend {

// Shifts `bits` left by one, and sets the lowest bit if word + addend overflows 32 bits. This takes two instructions.
__device__ __forceinline__ void append_carry(uint32& bits, uint32 word, uint32 addend) {
  asm("{\n.reg .u32 sum;\nadd.cc.u32 sum, %1, %2;\naddc.u32 %0, %0, %0;\n}\n" : "+r"(bits) : "r"(word), "r"(addend));
}

// Returns the row of the tile for which this thread computes Philox blocks. The thread holds values of two rows, but
// computes random words of only one of them. The adjacent lane computes the words of the other row.
[[nodiscard]] __device__ __forceinline__ int row_decided_by(int thread) {
  return accumulator_row(thread) + thread % 2 * kRowHalf;
}

// Decides which entries are kept, like kept_bits() for the layout that is not transposed. `row` is the Philox product
// of row row_decided_by(thread). `quads` points to the Philox states of the tile's quads of keys, in shared memory. The
// function interleaves the rounds of kBlocks Philox blocks, to hide their latency.
template <int kCount, int kBlocks>
__device__ __forceinline__ void kept_bits_factored(const DropMask& drop_mask, PhiloxProduct row,
                                                   const PhiloxQuad* quads, uint32 (&kept)[kKeptWords<kCount>],
                                                   int thread) {
  constexpr int kTiles = kCount / 4;
  const PhiloxQuad* quads_of_thread = quads + accumulator_column(thread) / 4;
  const uint32 addend = 0u - drop_mask.threshold;  // word + addend carries if word >= threshold
#pragma unroll
  for (int w = 0; w < kKeptWords<kCount>; ++w) {
    const int begin = 8 * w;
    uint32 nibbles = 0;
#pragma unroll
    for (int end = kTiles < begin + 8 ? kTiles : begin + 8; end > begin; end -= kBlocks) {
      // Last first, because append_carry() shifts earlier bits up.
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

// Returns `pair` with each 16-bit half kept or set to 0. The top bit of byte kByte of `low` decides whether the low
// half is kept. The same bit of `high` decides for the high half. The PTX instruction prmt replicates the sign of a
// byte if the high bit of the selector is set.
template <int kByte>
[[nodiscard]] __device__ __forceinline__ uint32 keep_halves(uint32 pair, uint32 low, uint32 high) {
  constexpr uint32 kSelector = (8u | kByte) * 0x11u | (12u | kByte) * 0x1100u;
  uint32 mask;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(mask) : "r"(low), "r"(high), "n"(kSelector));
  return pair & mask;
}

// Sets the entries of p that dropout removes to 0. p is packed in pairs, in the order of the wgmma accumulator.
template <int kCount>
__device__ __forceinline__ void drop_pairs(uint32 (&p)[kCount / 2], const uint32 (&kept)[kKeptWords<kCount>]) {
#pragma unroll
  for (int w = 0; w < kKeptWords<kCount>; ++w) {
#pragma unroll
    for (int bit = 0; bit < 8; bit += 2) {  // bit number in each byte; the code shifts this bit to the top of its byte
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
