// The matrices S, P and dS of rung 01 in the workspace. This file computes their places and reads their visible
// elements.
#pragma once

#include "../../attention/head_matrix.cuh"
#include "../../attention/work.cuh"
#include "product_tile.cuh"

namespace attend {

using Rows = HeadMatrix<const float>;

// Returns matrix `index` (seqlen_q, seqlen_k) of one head in the workspace. In the forward pass, matrix 0 is S and
// later P. In the backward pass, matrix 0 is P and matrix 1 is dS.
template <class Args>
__device__ __forceinline__ HeadMatrix<float> score_matrix(const Args& args, int index, uint32 batch, uint32 head) {
  const int64 all_heads = int64{args.batch} * args.num_heads_q;
  const int64 at = index * all_heads + int64{batch} * args.num_heads_q + head;
  return {static_cast<float*>(args.workspace) + at * args.seqlen_q * args.seqlen_k, args.seqlen_k, args.seqlen_q};
}

// Returns delta of one head. It lies behind the two matrices of the backward pass.
__device__ __forceinline__ float* delta_row(const BackwardArgs& args, uint32 batch, uint32 head) {
  return score_matrix(args, 2, 0, 0).data + (int64{batch} * args.num_heads_q + head) * args.seqlen_q;
}

__device__ __forceinline__ float element_or_zero(const Rows& matrix, int64 row, int64 col, int64 num_cols) {
  return row < matrix.num_rows && col < num_cols ? matrix.row(row)[col] : 0.0f;
}

// Returns an element of P or dS, or 0 if the mask hides it. Hidden elements are never read, so they need not be
// written.
__device__ __forceinline__ float visible_or_zero(const HeadMatrix<float>& scores, const WindowMask& mask, int64 row,
                                                 int64 key) {
  return row < mask.seqlen_q && mask.row(row).contains(key) ? scores.row(row)[key] : 0.0f;
}

// The tile of scores that a block computes, in a launch with Grid::kScoreTiles.
template <class Config>
struct ScoreMatrixTile {
  uint32 batch, head;
  int64 row_begin, key_begin;

  template <class Args>
  static __device__ __forceinline__ ScoreMatrixTile of_block(const Args& args) {
    static_assert(Config::kBlockM == ProductTile::kSize && Config::kBlockN == ProductTile::kSize);
    const auto row_tiles = static_cast<uint32>(num_tiles(args.seqlen_q, Config::kBlockM));
    const auto key_tiles = static_cast<uint32>(num_tiles(args.seqlen_k, Config::kBlockN));
    const auto [batch, head, tile] = HeadTile::of_block(blockIdx.x, row_tiles * key_tiles, args.num_heads_q);
    return {batch, head, tile / key_tiles * Config::kBlockM, tile % key_tiles * Config::kBlockN};
  }

  [[nodiscard]] __device__ __forceinline__ bool is_hidden(const WindowMask& mask) const {
    return mask.rows(row_begin, min(row_begin + Config::kBlockM, mask.seqlen_q)).end <= key_begin;
  }

  // Calls store(row, key, value) for this thread's elements of the tile that lie inside the matrix.
  template <class Store>
  __device__ __forceinline__ void for_each(const ProductTile& product, const WindowMask& mask,
                                           const Store& store) const {
    product.for_each([&](int row, int col, float value) {
      const int64 key = key_begin + col;
      if (row_begin + row < mask.seqlen_q && key < mask.seqlen_k) store(row_begin + row, key, value);
    });
  }
};

}  // namespace attend
