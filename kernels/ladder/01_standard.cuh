// Rung 01, standard: computes o = softmax(scale q k^T) v with three kernels, and its gradients with six. S, P and dS
// are stored in memory.
//
// Shapes:   q (batch, heads, seqlen_q, d), k and v (batch, heads_k, seqlen_k, d and d_v); any strides whose last is 1.
// Supports: float32, any d and d_v, full and causal masks, grouped heads, forward and backward, and every architecture.
// Before:   Rung 00, cpu_naive, evaluates the definition with one thread.
// After:    The rung computes S = scale q k^T, the softmax of the rows of S in place, and o = P v. Each product is
//           computed in tiles of 64 x 64 (product_tile.cuh).
// Why:      Every multiprocessor works, and an element that is copied to shared memory is used 64 times.
// Costs:    S is written, read three times by the softmax, written as P and read again. This is up to 24 bytes of
//           traffic for each of the seqlen_q x seqlen_k scores of a head. The forward pass allocates 4 bytes for each
//           score, and the backward pass 8 bytes for P and dS. So memory limits the length. The rung refuses a problem
//           that needs more than 32 GiB.
// Measured: 11.0 TFLOP/s at d = 64 and 15.0 at d = 128, with 8 x 16 heads, 2048 rows and keys, and no mask. The
//           backward pass reaches 13.1 and 16.3. H200, CUDA 13.0.
// Run:      `attend run --compute standard --mode both --data DIR`.
// Source:   Dao, Fu, Ermon, Rudra, Re, FlashAttention (2022), Algorithm 0; appendix B.2 for the gradients.
#pragma once

#include "../attention/head_matrix.cuh"
#include "../attention/work.cuh"
#include "../common/numbers.cuh"
#include "../common/warp_reduce.cuh"
#include "../tiles/shared_storage.cuh"
#include "pieces/product_tile.cuh"
#include "pieces/score_matrix.cuh"

namespace attend {

// Returns the product A B^T for the rows of A from a_begin on, and the rows of B from b_begin on. Used for q k^T and
// dout v^T.
template <class Config>
__device__ __forceinline__ ProductTile rows_by_rows(const Rows& a, int64 a_begin, const Rows& b, int64 b_begin,
                                                    int head_dim) {
  ProductTile product;
  auto& shared = shared_storage<ProductTile::SharedStorage, Config>();
  product.multiply(shared, 0, head_dim, [&](ProductTile::SharedStorage& to, int64 step) {
    ProductTile::fill_along_depth(
        to.a, [&](int row, int k) { return element_or_zero(a, a_begin + row, step + k, head_dim); });
    ProductTile::fill_along_depth(
        to.b, [&](int row, int k) { return element_or_zero(b, b_begin + row, step + k, head_dim); });
  });
  return product;
}

// Computes out = factor W X for a tile of rows, where W is a matrix of scores. Used for P v and dS k.
template <class Config>
__device__ __forceinline__ void scores_by_keys(const HeadMatrix<float>& scores, const WindowMask& mask, int64 row_begin,
                                               const Rows& x, const HeadMatrix<float>& out, int head_dim,
                                               float factor) {
  auto& shared = shared_storage<ProductTile::SharedStorage, Config>();
  const int64 key_end = mask.rows(row_begin, min(row_begin + ProductTile::kSize, mask.seqlen_q)).end;
  for (int col_begin = 0; col_begin < head_dim; col_begin += ProductTile::kSize) {
    ProductTile product;
    product.multiply(shared, 0, key_end, [&](ProductTile::SharedStorage& to, int64 key) {
      ProductTile::fill_along_depth(
          to.a, [&](int row, int k) { return visible_or_zero(scores, mask, row_begin + row, key + k); });
      ProductTile::fill_across_depth(
          to.b, [&](int col, int k) { return element_or_zero(x, key + k, col_begin + col, head_dim); });
    });
    product.for_each([&](int row, int col, float value) {
      if (row_begin + row < mask.seqlen_q && col_begin + col < head_dim) {
        out.row(row_begin + row)[col_begin + col] = factor * value;
      }
    });
  }
}

// Computes out = factor W^T X for a tile of keys, where W is a matrix of scores. The result is summed over the query
// heads that share the keys. Used for P^T dout and dS^T q.
template <class Config>
__device__ __forceinline__ void scores_by_rows(const BackwardArgs& args, int matrix, const void* x,
                                               const TensorStrides& x_stride, void* out,
                                               const TensorStrides& out_stride, int head_dim, float factor) {
  auto& shared = shared_storage<ProductTile::SharedStorage, Config>();
  const auto key_tiles = static_cast<uint32>(num_tiles(args.seqlen_k, Config::kBlockN));
  const auto [batch, head_k, tile] = HeadTile::of_block(blockIdx.x, key_tiles, args.num_heads_k);
  const WindowMask mask = mask_of<Config>(args);
  const int64 key_begin = tile * Config::kBlockN;
  const int64 row_begin = mask.rows_of_key(key_begin).begin;  // fewer rows see the later keys of the tile
  const auto out_rows = head_matrix<float>(out, out_stride, batch, head_k, args.seqlen_k);
  const uint32 group = args.num_heads_q / args.num_heads_k;
  for (int col_begin = 0; col_begin < head_dim; col_begin += ProductTile::kSize) {
    ProductTile product;
    for (uint32 head = head_k * group; head < (head_k + 1) * group; ++head) {
      const HeadMatrix<float> scores = score_matrix(args, matrix, batch, head);
      const Rows x_rows = head_matrix<const float>(x, x_stride, batch, head, args.seqlen_q);
      product.multiply(shared, row_begin, args.seqlen_q, [&](ProductTile::SharedStorage& to, int64 row) {
        ProductTile::fill_across_depth(
            to.a, [&](int key, int k) { return visible_or_zero(scores, mask, row + k, key_begin + key); });
        ProductTile::fill_across_depth(
            to.b, [&](int col, int k) { return element_or_zero(x_rows, row + k, col_begin + col, head_dim); });
      });
    }
    product.for_each([&](int key, int col, float value) {
      if (key_begin + key < args.seqlen_k && col_begin + col < head_dim) {
        out_rows.row(key_begin + key)[col_begin + col] = factor * value;
      }
    });
  }
}

// Computes S = scale q k^T. The grid has one block for each tile of scores.
template <class Config>
__device__ void standard_scores(const ForwardArgs& args) {
  const auto tile = ScoreMatrixTile<Config>::of_block(args);
  const WindowMask mask = mask_of<Config>(args);
  if (tile.is_hidden(mask)) return;
  const auto q = head_matrix<const float>(args.q, args.q_stride, tile.batch, tile.head, args.seqlen_q);
  const auto k =
      head_matrix<const float>(args.k, args.k_stride, tile.batch, key_head_of(args, tile.head), args.seqlen_k);
  const ProductTile product = rows_by_rows<Config>(q, tile.row_begin, k, tile.key_begin, Config::kHeadDim);
  const HeadMatrix<float> s = score_matrix(args, 0, tile.batch, tile.head);
  tile.for_each(product, mask, [&](int64 row, int64 key, float value) { s.row(row)[key] = args.scale * value; });
}

// Computes P = softmax of the rows of S, in place, and lse. The grid has one block for each tile of rows, and each row
// has a warp.
template <class Config>
__device__ void standard_softmax(const ForwardArgs& args) {
  static_assert(Config::kThreads == Config::kBlockM * kWarpThreads);
  const auto row_tiles = static_cast<uint32>(num_tiles(args.seqlen_q, Config::kBlockM));
  const auto [batch, head, tile] = HeadTile::of_block(blockIdx.x, row_tiles, args.num_heads_q);
  const int64 row = tile * Config::kBlockM + threadIdx.x / kWarpThreads;
  if (row >= args.seqlen_q) return;  // the condition is the same in all lanes of the warp
  const int64 lane = threadIdx.x % kWarpThreads;
  float* const s = score_matrix(args, 0, batch, head).row(row);
  const int64 end = mask_of<Config>(args).row(row).end;

  float row_max = -kInfinity;
  for (int64 key = lane; key < end; key += kWarpThreads) row_max = fmaxf(row_max, s[key]);
  row_max = warp_max(row_max);
  float row_sum = 0.0f;
  for (int64 key = lane; key < end; key += kWarpThreads) row_sum += expf(s[key] - exponent_base(row_max));
  row_sum = warp_sum(row_sum);
  const float inverse_sum = inverse_or_zero(row_sum);
  for (int64 key = lane; key < end; key += kWarpThreads) s[key] = expf(s[key] - exponent_base(row_max)) * inverse_sum;
  if (lane == 0 && args.lse != nullptr) args.lse[args.lse_stride.offset(batch, head, row)] = row_max + logf(row_sum);
}

// Computes o = P v. The grid has one block for each tile of rows.
template <class Config>
__device__ void standard_output(const ForwardArgs& args) {
  const auto row_tiles = static_cast<uint32>(num_tiles(args.seqlen_q, Config::kBlockM));
  const auto [batch, head, tile] = HeadTile::of_block(blockIdx.x, row_tiles, args.num_heads_q);
  const auto v = head_matrix<const float>(args.v, args.v_stride, batch, key_head_of(args, head), args.seqlen_k);
  const auto o = head_matrix<float>(args.o, args.o_stride, batch, head, args.seqlen_q);
  scores_by_keys<Config>(score_matrix(args, 0, batch, head), mask_of<Config>(args), tile * Config::kBlockM, v, o,
                         Config::kHeadDimV, 1.0f);
}

// Computes delta = rowsum(dout o) - dlse, which the gradient of the softmax subtracts. The grid has one block for each
// tile of rows, and each row has a warp.
template <class Config>
__device__ void standard_delta(const BackwardArgs& args) {
  const auto row_tiles = static_cast<uint32>(num_tiles(args.seqlen_q, Config::kBlockM));
  const auto [batch, head, tile] = HeadTile::of_block(blockIdx.x, row_tiles, args.num_heads_q);
  const int64 row = tile * Config::kBlockM + threadIdx.x / kWarpThreads;
  if (row >= args.seqlen_q) return;  // the condition is the same in all lanes of the warp
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  const float* const dout = head_matrix<const float>(args.dout, args.dout_stride, batch, head, args.seqlen_q).row(row);
  const float* const o = head_matrix<const float>(args.o, args.o_stride, batch, head, args.seqlen_q).row(row);
  float sum = 0.0f;
  for (int col = lane; col < Config::kHeadDimV; col += kWarpThreads) sum = fmaf(dout[col], o[col], sum);
  sum = warp_sum(sum);
  if (lane != 0) return;
  const float dlse = args.dlse == nullptr ? 0.0f : args.dlse[args.dlse_stride.offset(batch, head, row)];
  delta_row(args, batch, head)[row] = sum - dlse;
}

// Computes S again, and P = exp(S - lse). The grid has one block for each tile of scores.
template <class Config>
__device__ void standard_probabilities(const BackwardArgs& args) {
  const auto tile = ScoreMatrixTile<Config>::of_block(args);
  const WindowMask mask = mask_of<Config>(args);
  if (tile.is_hidden(mask)) return;
  const auto q = head_matrix<const float>(args.q, args.q_stride, tile.batch, tile.head, args.seqlen_q);
  const auto k =
      head_matrix<const float>(args.k, args.k_stride, tile.batch, key_head_of(args, tile.head), args.seqlen_k);
  const ProductTile product = rows_by_rows<Config>(q, tile.row_begin, k, tile.key_begin, Config::kHeadDim);
  const HeadMatrix<float> p = score_matrix(args, 0, tile.batch, tile.head);
  const float* const lse = args.lse + args.lse_stride.offset(tile.batch, tile.head, 0);
  tile.for_each(product, mask, [&](int64 row, int64 key, float value) {
    // If lse is -inf, the row saw no key, or only scores of -inf, and its gradients are 0
    const float row_lse = lse[row * args.lse_stride.row];
    p.row(row)[key] = row_lse == -kInfinity ? 0.0f : expf(args.scale * value - row_lse);
  });
}

// Computes dS = P (dP - delta) with dP = dout v^T. The grid has one block for each tile of scores.
template <class Config>
__device__ void standard_dscores(const BackwardArgs& args) {
  const auto tile = ScoreMatrixTile<Config>::of_block(args);
  const WindowMask mask = mask_of<Config>(args);
  if (tile.is_hidden(mask)) return;
  const auto dout = head_matrix<const float>(args.dout, args.dout_stride, tile.batch, tile.head, args.seqlen_q);
  const auto v =
      head_matrix<const float>(args.v, args.v_stride, tile.batch, key_head_of(args, tile.head), args.seqlen_k);
  const ProductTile product = rows_by_rows<Config>(dout, tile.row_begin, v, tile.key_begin, Config::kHeadDimV);
  const HeadMatrix<float> p = score_matrix(args, 0, tile.batch, tile.head);
  const HeadMatrix<float> ds = score_matrix(args, 1, tile.batch, tile.head);
  const float* const delta = delta_row(args, tile.batch, tile.head);
  tile.for_each(product, mask,
                [&](int64 row, int64 key, float value) { ds.row(row)[key] = p.row(row)[key] * (value - delta[row]); });
}

// Computes dq = scale dS k. The grid has one block for each tile of rows.
template <class Config>
__device__ void standard_dq(const BackwardArgs& args) {
  const auto row_tiles = static_cast<uint32>(num_tiles(args.seqlen_q, Config::kBlockM));
  const auto [batch, head, tile] = HeadTile::of_block(blockIdx.x, row_tiles, args.num_heads_q);
  const auto k = head_matrix<const float>(args.k, args.k_stride, batch, key_head_of(args, head), args.seqlen_k);
  const auto dq = head_matrix<float>(args.dq, args.dq_stride, batch, head, args.seqlen_q);
  scores_by_keys<Config>(score_matrix(args, 1, batch, head), mask_of<Config>(args), tile * Config::kBlockM, k, dq,
                         Config::kHeadDim, args.scale);
}

// Computes dk = scale dS^T q. The grid has one block for each tile of keys.
template <class Config>
__device__ void standard_dk(const BackwardArgs& args) {
  scores_by_rows<Config>(args, 1, args.q, args.q_stride, args.dk, args.dk_stride, Config::kHeadDim, args.scale);
}

// Computes dv = P^T dout. The grid has one block for each tile of keys.
template <class Config>
__device__ void standard_dv(const BackwardArgs& args) {
  scores_by_rows<Config>(args, 0, args.dout, args.dout_stride, args.dv, args.dv_stride, Config::kHeadDimV, 1.0f);
}

}  // namespace attend
