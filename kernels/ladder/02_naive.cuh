// Rung 02, naive: computes o = softmax(scale q k^T) v with one thread for each query row.
//
// Shapes:   q (batch, heads, seqlen_q, d), k and v (batch, heads_k, seqlen_k, d and d_v); any strides whose last is 1.
// Supports: float32, any d and d_v, full and causal masks, grouped heads, and every architecture.
// Before:   Rung 01, standard, writes S and P to memory and reads them again. This is 4 * seqlen_q * seqlen_k floats
//           for each head.
// After:    Each score is used as soon as it is computed. The score updates the running maximum m, the running sum l
//           and the running output o (online softmax).
// Why:      Nothing of size seqlen_q x seqlen_k is stored, so memory grows linearly.
// Costs:    Each thread reads all of k and v, and reads its row of q again for each key. So speed depends on the
//           caches. Each exponential waits for a long dot product. The rung saves memory but no time. Rung 01 is
//           faster.
// Measured: 0.90 TFLOP/s at d = 64 and 0.91 at d = 128, with 8 x 16 heads, 2048 rows and keys, and no mask. H200, CUDA
//           13.0.
// Run:      `attend run --compute naive --data DIR`.
// Source:   Milakov and Gimelshein, Online normalizer calculation for softmax (2018), Algorithm 3.
#pragma once

#include "../attention/head_matrix.cuh"
#include "../attention/key_range.cuh"
#include "../attention/work.cuh"
#include "../common/args.cuh"
#include "../common/config_enums.cuh"
#include "../common/numbers.cuh"

namespace attend {

// Returns scale * <q, k>, summed over kHeadDim elements.
template <class Config>
__device__ __forceinline__ float scaled_dot(const float* __restrict__ q, const float* __restrict__ k, float scale) {
  float sum = 0.0f;
#pragma unroll 8
  for (int i = 0; i < Config::kHeadDim; ++i) sum = fmaf(q[i], k[i], sum);
  return scale * sum;
}

// Returns the range of keys that the row sees.
template <class Config>
__device__ __forceinline__ KeyRange visible_keys(const ForwardArgs& args, int64 row) {
  const int64 window_right = Config::kMask == MaskKind::kCausal ? 0 : kOpenWindow;
  return WindowMask{args.seqlen_q, args.seqlen_k, kOpenWindow, window_right}.row(row);
}

// Computes one query row in each thread. The grid has one block for each tile of kBlockM rows of every query head.
template <class Config>
__device__ void naive_forward(const ForwardArgs& args) {
  static_assert(Config::kThreads == Config::kBlockM);
  const auto row_tiles = static_cast<uint32>(num_tiles(args.seqlen_q, Config::kBlockM));
  const auto [batch, head, tile] = HeadTile::of_block(blockIdx.x, row_tiles, args.num_heads_q);
  const int64 row = tile * Config::kBlockM + threadIdx.x;
  const uint32 head_k = key_head_of(args, head);
  if (row >= args.seqlen_q) return;

  const float* q = static_cast<const float*>(args.q) + args.q_stride.offset(batch, head, row);
  const float* k = static_cast<const float*>(args.k) + args.k_stride.offset(batch, head_k, 0);
  const float* v = static_cast<const float*>(args.v) + args.v_stride.offset(batch, head_k, 0);
  float* o = static_cast<float*>(args.o) + args.o_stride.offset(batch, head, row);

  float row_max = -kInfinity;            // m, the row maximum so far
  float row_sum = 0.0f;                  // l, the sum of exp(s - m)
  float o_frag[Config::kHeadDimV] = {};  // the sum of exp(s - m) v
  const KeyRange keys = visible_keys<Config>(args, row);
  for (int64 key = keys.begin; key < keys.end; ++key) {
    const float score = scaled_dot<Config>(q, k + key * args.k_stride.row, args.scale);
    if (score == -kInfinity) continue;  // skipped like a masked score, so that m is never -inf below
    // A NaN is kept as the maximum, so that the entire row becomes NaN
    const float new_max = score > row_max || score != score ? score : row_max;
    const float rescale = expf(row_max - new_max);  // rescale is 0 for the first key, because row_max is -inf
    const float p = expf(score - new_max);
    row_sum = row_sum * rescale + p;
#pragma unroll
    for (int i = 0; i < Config::kHeadDimV; ++i) {
      o_frag[i] = fmaf(p, v[key * args.v_stride.row + i], o_frag[i] * rescale);
    }
    row_max = new_max;
  }

  const bool sees_nothing = row_max == -kInfinity;  // whether the row sees no key, or only scores of -inf
  const float inverse_sum = sees_nothing ? 0.0f : 1.0f / row_sum;
#pragma unroll
  for (int i = 0; i < Config::kHeadDimV; ++i) o[i] = sees_nothing ? 0.0f : o_frag[i] * inverse_sum;
  if (args.lse != nullptr) args.lse[args.lse_stride.offset(batch, head, row)] = row_max + logf(row_sum);
}

}  // namespace attend
