// The two matrix products of a warp, s = q k^T and o += p v, with mma.m16n8k16. Each operand of k or v is loaded once
// and multiplied with all of the warp's groups of 16 rows.
#pragma once

#include "../attention/accumulator_scores.cuh"
#include "../isa/mma.cuh"
#include "../tiles/block_reader.cuh"
#include "sm80_softmax.cuh"
#include "sm80_storage.cuh"

namespace attend {

// State of one group of 16 query rows of a warp. Each lane has two of these rows.
template <class Config>
struct Sm80Rows {
  using Shape = Sm80Shape<Config>;
  using Softmax = Sm80Softmax<Config::kSpeculates>;
  OperandA q[Config::kQInRegisters ? Shape::kDepth / kMmaDepth : 1];
  float s[Shape::kKeysOfWarp / 2];                                                        // scores, later p
  OperandA p[Config::kTrails && Config::kSplits == 1 ? Config::kBlockN / kMmaDepth : 1];  // p of the tile that was
                                                                                          // processed before
  float o[Shape::kColumnsOfWarp / 2] = {};  // sum of p v, relative to m of the row
  Softmax softmax;
};

// Returns the first row of a warp's group, as an index in the block's tile.
template <class Config>
[[nodiscard]] __device__ __forceinline__ int sm80_first_row(int group) {
  return static_cast<int>(threadIdx.x) / 32 / Config::kSplits * Sm80Shape<Config>::kRowsOfWarp + group * kMmaRows;
}

// Returns the operand of q for 16 rows of a group and 16 columns from `column` on. If Config::kNegateScores is set,
// returns -q.
template <class Config>
[[nodiscard]] __device__ __forceinline__ OperandA sm80_read_q(const typename Sm80Storage<Config>::QTile& tile,
                                                              uint32 thread, int group, int column) {
  const auto q = BlockReader<typename Sm80Storage<Config>::QTile>::by_rows(tile, recomputed(thread) % 32);
  const int row = static_cast<int>(thread / 32 / Config::kSplits) * Sm80Shape<Config>::kRowsOfWarp + group * kMmaRows;
  return negated<Config::kNegateScores>(q.a(row, column));
}

// A callback for the products that does nothing.
struct Sm80Idle {
  __device__ __forceinline__ void operator()(int /*block*/) const {}
};

// Computes s = q k^T. `thread` is threadIdx.x, possibly recomputed. The function calls beside(number) after each 16 x
// 16 block of k, so that the caller can interleave other work.
template <class Config, class Beside = Sm80Idle>
__device__ __forceinline__ void sm80_multiply_qk(Sm80Rows<Config> (&rows)[Config::kRowGroups],
                                                 const typename Sm80Storage<Config>::QTile& q_tile,
                                                 const typename Sm80Storage<Config>::KTile& k_tile, uint32 thread,
                                                 Beside&& beside = {}) {
  constexpr float kZero[kAccumulatorsOfMma] = {};
  const auto k = BlockReader<typename Sm80Storage<Config>::KTile>::by_columns(k_tile, thread % 32);
#pragma unroll
  for (int column = 0; column < Sm80Shape<Config>::kDepth; column += kMmaDepth) {
    OperandA q[Config::kRowGroups];
#pragma unroll
    for (int r = 0; r < Config::kRowGroups; ++r) {
      q[r] = Config::kQInRegisters ? rows[r].q[column / kMmaDepth] : sm80_read_q<Config>(q_tile, thread, r, column);
    }
#pragma unroll
    for (int key = 0; key < Sm80Shape<Config>::kKeysOfWarp; key += 2 * kMmaColumns) {
      const OperandBPair pair = k.b_transposed(key, column);
#pragma unroll
      for (int i = 0; i < 2 * Config::kRowGroups; ++i) {
        float* s = rows[i / 2].s + key / 2 + i % 2 * kAccumulatorsOfMma;
        mma_m16n8k16(ElementOf<Config>{}, s, q[i / 2], pair.half[i % 2], column == 0 ? kZero : s);
      }
      beside((column * Sm80Shape<Config>::kKeysOfWarp / kMmaDepth + key) / kMmaDepth);
    }
  }
}

// Computes o += p v. If Config::kTrails is set, p is already packed as 16-bit operands. The function calls
// beside(number) after each 16 x 16 block of v, so that the caller can interleave other work.
template <class Config, class Beside = Sm80Idle>
__device__ __forceinline__ void sm80_multiply_pv(Sm80Rows<Config> (&rows)[Config::kRowGroups],
                                                 const typename Sm80Storage<Config>::VTile& v_tile,
                                                 Beside&& beside = {}) {
  const auto v = BlockReader<typename Sm80Storage<Config>::VTile>::by_rows(v_tile, threadIdx.x % 32);
#pragma unroll
  for (int key = 0; key < Config::kBlockN; key += kMmaDepth) {
    OperandA p[Config::kRowGroups];
#pragma unroll
    for (int r = 0; r < Config::kRowGroups; ++r) {
      p[r] = Config::kTrails ? rows[r].p[key / kMmaDepth] : pack_operand_a<ElementOf<Config>>(rows[r].s + key / 2);
    }
#pragma unroll
    for (int column = 0; column < Sm80Shape<Config>::kColumnsV; column += 2 * kMmaColumns) {
      const OperandBPair pair = v.b(key, column);
#pragma unroll
      for (int i = 0; i < 2 * Config::kRowGroups; ++i) {
        float* o = rows[i / 2].o + column / 2 + i % 2 * kAccumulatorsOfMma;
        mma_add<ElementOf<Config>>(o, p[i / 2], pair.half[i % 2]);
      }
      beside((key * Sm80Shape<Config>::kColumnsV / kMmaDepth + column) / kMmaDepth);
    }
  }
}

}  // namespace attend
