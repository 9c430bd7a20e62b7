// The matrix products of a warp of sm80_backward, with mma.m16n8k16: of what it owns with streamed rows, transposed,
// and of what that has become with the same rows. Each operand of these serves all groups of 16 that it owns.
#pragma once

#include "../isa/mma.cuh"
#include "../tiles/block_reader.cuh"
#include "sm80_backward_storage.cuh"

namespace attend {

// Which part of the block's tile a warp owns: its own, or that of its kind, or of those that share it (kParts).
template <class Config>
[[nodiscard]] __device__ __forceinline__ int sm80_key_warp() {
  if constexpr (Config::kRoles == 0) return static_cast<int>(threadIdx.x) / 32;
  const int warp = recomputed_thread() / 32;
  return Config::kRoles == 1 ? warp : warp % (Config::kWarps / 2) / Config::kParts;
}

// Where what a warp owns begins in the block's tile.
template <class Config>
[[nodiscard]] __device__ __forceinline__ int sm80_first_owned(int group) {
  return sm80_key_warp<Config>() * Sm80BackwardShape<Config>::kOwnedOfWarp + group * kMmaRows;
}

template <class Config>
using Sm80Scores = float[Config::kRowGroups][Sm80BackwardShape<Config>::kScores];

// product = owned streamed^T over kDepth columns, for kStep streamed rows from `first` on; negated where scores are to
// be.
template <class Config, int kDepth, bool kNegate, class OwnedTile, class StreamedTile>
__device__ __forceinline__ void sm80_multiply_owned(Sm80Scores<Config>& product, const OwnedTile& owned,
                                                    const StreamedTile& streamed, int first) {
  const auto a = BlockReader<OwnedTile>::by_rows(owned, recomputed_thread() % 32);
  const auto b = BlockReader<StreamedTile>::by_columns(streamed, recomputed_thread() % 32);
#pragma unroll
  for (int r = 0; r < Config::kRowGroups; ++r) {
#pragma unroll
    for (float& number : product[r]) number = 0.0f;
  }
#pragma unroll 4  // operands on their way at once: registers that the sums leave
  for (int column = 0; column < kDepth; column += kMmaDepth) {
    OperandA x[Config::kRowGroups];
#pragma unroll
    for (int r = 0; r < Config::kRowGroups; ++r) x[r] = negated<kNegate>(a.a(sm80_first_owned<Config>(r), column));
#pragma unroll
    for (int row = 0; row < Config::kStep; row += 2 * kMmaColumns) {
      const OperandBPair pair = b.b_transposed(first + row, column);
#pragma unroll
      for (int i = 0; i < 2 * Config::kRowGroups; ++i) {
        float* to = product[i / 2] + row / 2 + i % 2 * kAccumulatorsOfMma;
        mma_add<ElementOf<Config>>(to, x[i / 2], pair.half[i % 2]);
      }
    }
  }
}

// gradient += x streamed, for kStep streamed rows from `first` on. x: scores, rounded.
template <class Config, int kColumns, class StreamedTile>
__device__ __forceinline__ void sm80_add_gradient(float (&gradient)[Config::kRowGroups][kColumns / 2],
                                                  const OperandA (&x)[Config::kRowGroups][Config::kStep / kMmaDepth],
                                                  const StreamedTile& streamed, int first) {
  const auto b = BlockReader<StreamedTile>::by_rows(streamed, recomputed_thread() % 32);
#pragma unroll
  for (int row = 0; row < Config::kStep; row += kMmaDepth) {
#pragma unroll
    for (int column = 0; column < kColumns; column += 2 * kMmaColumns) {
      const OperandBPair pair = b.b(first + row, column);
#pragma unroll
      for (int i = 0; i < 2 * Config::kRowGroups; ++i) {
        float* to = gradient[i / 2] + column / 2 + i % 2 * kAccumulatorsOfMma;
        mma_add<ElementOf<Config>>(to, x[i / 2][row / kMmaDepth], pair.half[i % 2]);
      }
    }
  }
}

}  // namespace attend
