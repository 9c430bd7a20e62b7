// The matrix products of a warp of sm80_backward, with mma.m16n8k16. The first product multiplies the warp's owned rows
// by the transposed streamed rows. Scores are computed from its result. The second product multiplies these scores by
// the same streamed rows. Each streamed operand is loaded once and multiplied with all groups of 16 rows that the warp
// owns.
#pragma once

#include "../isa/mma.cuh"
#include "../tiles/accumulator_mask.cuh"
#include "../tiles/block_reader.cuh"
#include "sm80_backward_load.cuh"

namespace attend {

// Returns the index of the group of keys or rows that the warp owns in its block. Warps of two roles, and the kParts
// warps of one role, own the same group.
template <class Config>
[[nodiscard]] __device__ __forceinline__ int sm80_key_warp() {
  if constexpr (Config::kRoles == kSm80General) return static_cast<int>(threadIdx.x) / 32;
  const int warp = recomputed_thread() / 32;
  return Config::kRoles == kSm80KeysAndValues ? warp : warp % (Config::kWarps / 2) / Config::kParts;
}

// Returns the index of the warp among the kParts warps of its role that share keys.
template <class Config>
[[nodiscard]] __device__ __forceinline__ int sm80_part() {
  return recomputed_thread() / 32 % Config::kParts;
}

// Returns the first row of the warp's row group `group`, as an index in the block's owned tile.
template <class Config>
[[nodiscard]] __device__ __forceinline__ int sm80_first_owned(int group) {
  return sm80_key_warp<Config>() * Sm80BackwardShape<Config>::kOwnedOfWarp + group * kMmaRows;
}

template <class Config>
using Sm80Scores = float[Config::kRowGroups][Sm80BackwardShape<Config>::kScores];

// The product of a warp's owned rows and the transposed streamed rows. The streamed rows start at row `first` of a
// tile.
template <class Config, Sm80Product kProduct>
struct Sm80OwnedProduct {
  using Operands = Sm80ProductOperands<Config, kProduct>;
  using OwnedReader = BlockReader<typename Operands::OwnedTile>;
  using StreamedReader = BlockReader<typename Operands::StreamedTile>;
  OwnedReader owned;
  StreamedReader streamed;
  int first;

  __device__ __forceinline__ Sm80OwnedProduct(const typename Operands::OwnedTile& owned_tile,
                                              const typename Operands::StreamedTile& streamed_tile, int first_row)
      : owned(OwnedReader::by_rows(owned_tile, recomputed_thread() % 32)),
        streamed(StreamedReader::by_columns(streamed_tile, recomputed_thread() % 32)),
        first(first_row) {}

  // Adds the contribution of 16 columns, from `column` on, to the products with 2 * kCount streamed rows.
  template <int kCount>
  __device__ __forceinline__ void add_columns(float (&sum)[Config::kRowGroups][kCount], int column) const {
    OperandA x[Config::kRowGroups];
#pragma unroll
    for (int r = 0; r < Config::kRowGroups; ++r) {
      x[r] = negated<Operands::kNegates>(owned.a(sm80_first_owned<Config>(r), column));
    }
#pragma unroll
    for (int row = 0; row < 2 * kCount; row += 2 * kMmaColumns) {
      const OperandBPair pair = streamed.b_transposed(first + row, column);
#pragma unroll
      for (int i = 0; i < 2 * Config::kRowGroups; ++i) {
        float* to = sum[i / 2] + row / 2 + i % 2 * kAccumulatorsOfMma;
        mma_add<ElementOf<Config>>(to, x[i / 2], pair.half[i % 2]);
      }
    }
  }
};

// Computes product = owned streamed^T for kStep streamed rows from `first` of the tile on.
template <class Config, Sm80Product kProduct>
__device__ __forceinline__ void sm80_multiply_owned(
    Sm80Scores<Config>& product, const typename Sm80ProductOperands<Config, kProduct>::OwnedTile& owned,
    const typename Sm80ProductOperands<Config, kProduct>::StreamedTile& streamed, int first) {
  const Sm80OwnedProduct<Config, kProduct> of_columns(owned, streamed, first);
#pragma unroll
  for (int r = 0; r < Config::kRowGroups; ++r) {
#pragma unroll
    for (float& number : product[r]) number = 0.0f;
  }
#pragma unroll 4  // keeps as many operands in flight as the registers next to the sums allow
  for (int column = 0; column < Sm80ProductOperands<Config, kProduct>::kDepth; column += kMmaDepth) {
    of_columns.add_columns(product, column);
  }
}

// A gradient of the warp's owned keys or rows, as sums over streamed rows. It covers kColumns of the gradient's
// columns.
template <class Config, int kColumns>
struct Sm80WarpSums {
  float sum[Config::kRowGroups][kColumns / 2] = {};

  // Adds the product of x and streamed rows, for 16 * kBlocks streamed rows from `first` on and for kColumns columns
  // from `column` on. `x` holds rounded scores.
  template <class Tile, int kBlocks>
  __device__ __forceinline__ void add(const OperandA (&x)[Config::kRowGroups][kBlocks], const Tile& streamed, int first,
                                      int column = 0) {
    const auto b = BlockReader<Tile>::by_rows(streamed, recomputed_thread() % 32);
#pragma unroll
    for (int row = 0; row < kBlocks * kMmaDepth; row += kMmaDepth) {
#pragma unroll
      for (int c = 0; c < kColumns; c += 2 * kMmaColumns) {
        const OperandBPair pair = b.b(first + row, column + c);
#pragma unroll
        for (int i = 0; i < 2 * Config::kRowGroups; ++i) {
          float* to = sum[i / 2] + c / 2 + i % 2 * kAccumulatorsOfMma;
          mma_add<ElementOf<Config>>(to, x[i / 2][row / kMmaDepth], pair.half[i % 2]);
        }
      }
    }
  }

  // Does the same as add() for all rows of a streamed tile, with x in shared memory. x_tile has one row for each key
  // and one column for each streamed row. The sums cover the columns that this warp computes.
  template <class ScoreTile, class Tile>
  __device__ __forceinline__ void add_shared(const ScoreTile& x_tile, const Tile& streamed) {
    const auto a = BlockReader<ScoreTile>::by_rows(x_tile, recomputed_thread() % 32);
#pragma unroll
    for (int row = 0; row < Config::kStreamed; row += kMmaDepth) {
      OperandA x[Config::kRowGroups][1];
#pragma unroll
      for (int r = 0; r < Config::kRowGroups; ++r) x[r][0] = a.a(sm80_first_owned<Config>(r), row);
      add(x, streamed, row, sm80_part<Config>() * kColumns);
    }
  }

  // Multiplies the sums by `factor`, rounds them, and writes them to the block's tile, in the columns that this warp
  // computes.
  template <class Tile>
  __device__ __forceinline__ void write(Tile& tile, float factor) const {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int r = 0; r < Config::kRowGroups; ++r) {
#pragma unroll
      for (int i = 0; i < kColumns / 2; i += 2) {
        const int row = sm80_first_owned<Config>(r) + lane / 4 + i / 2 % 2 * kRowHalf;
        uint4& chunk = tile.chunk[Tile::index(row, sm80_part<Config>() * (kColumns / kChunkElements) + i / 4)];
        reinterpret_cast<uint32*>(&chunk)[lane % 4] =
            ElementOf<Config>::pack(sum[r][i] * factor, sum[r][i + 1] * factor);
      }
    }
  }
};

// Rounds scores and packs them into operands for 16 * kBlocks streamed rows.
template <class Config, int kBlocks>
__device__ __forceinline__ void sm80_pack(OperandA (&to)[Config::kRowGroups][kBlocks],
                                          const float (&scores)[Config::kRowGroups][kBlocks * kMmaDepth / 2]) {
#pragma unroll
  for (int r = 0; r < Config::kRowGroups; ++r) {
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) to[r][i] = pack_operand_a<ElementOf<Config>>(scores[r] + i * kMmaDepth / 2);
  }
}

}  // namespace attend
