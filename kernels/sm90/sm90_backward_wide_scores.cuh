// Softcap and bias in the two kernels of the sm90 backward pass that know them: from products to exponents.
//
//   softcap   tanh x = 1 - 2 r with r = 1 / (e^2x + 1), so that  softcap tanh x - lse = -2 softcap r - (lse - softcap)
//             and the derivative 1 - tanh^2 is 4 (r - r^2). Products become r, r becomes p, and what ds is made of is
//             p (r - r^2): no register more than without
//   bias      in natural units, as the forward had it, since it may be as low as -FLT_MAX
#pragma once

#include "../common/ldmatrix.cuh"
#include "../common/numbers.cuh"
#include "../common/smaller_or_nan.cuh"
#include "../common/tma_panel.cuh"
#include "sm90_backward_wide_storage.cuh"

namespace attend {

// What stands for the score of a key that is not seen, so that its p is 0: instead of r with a softcap, of a score with
// a bias, else of a product. scale_log2 is not 0.
template <class Config>
[[nodiscard]] __device__ __forceinline__ float wide_unseen(const Sm90BackwardArgs& args) {
  if constexpr (Config::kHasSoftcap) return 1e18f;  // p is 2^-(huge), and r - r^2 is still finite
  return Config::kHasBias ? -kInfinity : -kInfinity * args.scale_log2;
}

struct WideSoftcap {
  float to_r;      // 2 log2(e) scale / softcap
  float exponent;  // -2 log2(e) softcap

  [[nodiscard]] static __device__ __forceinline__ WideSoftcap of(const Sm90BackwardArgs& args) {
    return {2.0f * args.scale_log2 / args.options.softcap, -2.0f * kLog2E * args.options.softcap};
  }
  // What is to be taken off lse_log2.
  [[nodiscard]] static __device__ __forceinline__ float lse_offset(const Sm90BackwardArgs& args) {
    return kLog2E * args.options.softcap;
  }
  [[nodiscard]] __device__ __forceinline__ float r(float product) const {
    return reciprocal_fast(exp2_fast(product * to_r) + 1.0f);
  }
  // lse: log2, less lse_offset().
  [[nodiscard]] __device__ __forceinline__ float probability(float r, float lse) const {
    return exp2_fast(fmaf(r, exponent, -lse));
  }
};
// A quarter of the derivative.
[[nodiscard]] __device__ __forceinline__ float softcap_slope_of_r(float r) {
  return fmaf(-r, r, r);
}

// 2^p_bits p of a score with its bias. lse: natural. Above 1, where lse is rounded more coarsely than scores differ, p
// would be no probability.
template <class Config>
[[nodiscard]] __device__ __forceinline__ float biased_probability(float score, float lse) {
  constexpr auto kBits = static_cast<float>(sm90_backward_units(Config::kElement).p_bits);
  return exp2_fast(smaller_or_nan(fmaf(score - lse, kLog2E, kBits), kBits));
}

// s, 64 x 64 products of a warpgroup, becomes scores with their bias. tile: in shared memory, of 64 query rows.
// kTransposed: rows of s are keys.
template <class Config, bool kTransposed, bool kHasBias = Config::kHasBias>
class WideBias {
 public:
  using Element = typename ElementTraits<Config::kBiasElement>::Type;

  // Can be read long before it is added.
  __device__ __forceinline__ void read(const Bits16* tile, int thread) {
    const int lane = thread % 32, warp = thread / 32;
    const int matrix = lane / 8, row_of_matrix = lane % 8;
#pragma unroll
    for (int j = 0; j < 8; j += 2) {  // columns j 8 to j 8 + 15 of s
      const int row = kTransposed ? (j + matrix / 2) * 8 + row_of_matrix
                                  : warp * 16 + matrix % 2 * 8 + row_of_matrix;
      const int piece = kTransposed ? warp * 2 + matrix % 2 : j + matrix / 2;
      const uint32 address = smem_address(tile) + row * kSwizzleBytes + ((piece ^ row_of_matrix) * 16);
      const LoadedMatrices m = kTransposed ? ldmatrix_x4_transposed(address) : ldmatrix_x4(address);
#pragma unroll
      for (int i = 0; i < 4; ++i) pairs_[2 * j + i] = m.matrix[i];
    }
  }
  __device__ __forceinline__ void add(float (&s)[32], float scale) const {
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      s[2 * i] = fmaf(s[2 * i], scale, Element::low(pairs_[i]));
      s[2 * i + 1] = fmaf(s[2 * i + 1], scale, Element::high(pairs_[i]));
    }
  }

 private:
  uint32 pairs_[16];
};
template <class Config, bool kTransposed>
class WideBias<Config, kTransposed, false> {};

// By one thread. kTiles tiles of 64 rows from `row` on and 64 keys from `key` on; head: of q.
template <int kTiles>
__device__ __forceinline__ void load_wide_bias(Bits16 (*to)[kBackwardBiasBytes / sizeof(Bits16)],
                                               const Sm90BackwardArgs& args, Mbarrier& full, int key, int row,
                                               int head, int batch) {
  const TensorStrides& stride = args.options.bias_stride;
  full.arrive_expect_bytes(kTiles * kBackwardBiasBytes);
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
    tma_load_panel(smem_address(to[i]), args.bias_map, full,
                   {key, row + i * kBackwardRows, stride.head == 0 ? 0 : head, stride.batch == 0 ? 0 : batch});
  }
}

}  // namespace attend
