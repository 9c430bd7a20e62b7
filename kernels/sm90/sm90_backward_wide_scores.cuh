// Softcap and bias in the two kernels of the sm90 backward pass that know them: from products to exponents.
//
//   softcap   tanh x = 1 - 2 r with r = 1 / (e^2x + 1), so that  softcap tanh x - lse = -2 softcap r - (lse - softcap)
//             and the derivative 1 - tanh^2 is 4 (r - r^2). Products become r, r becomes p, and what ds is made of is
//             p (r - r^2): no register more than without
//   bias      in natural units, as the forward had it, since it may be as low as -FLT_MAX
#pragma once

#include "../common/lse_rounding.cuh"
#include "../common/numbers.cuh"
#include "../common/smaller_or_nan.cuh"
#include "../common/tma_panel.cuh"
#include "sm90_backward_wide_storage.cuh"
#include "sm90_bias_tile.cuh"

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
// would be no probability. p of rows whose lse is coarse is then divided by their sum: lse_rounding.cuh.
template <class Config>
[[nodiscard]] __device__ __forceinline__ float biased_probability(float score, float lse) {
  static_assert(!Config::kHasSoftcap);  // whose lse_offset() would hide which lse are coarse
  constexpr auto kBits = static_cast<float>(sm90_backward_units(Config::kElement).p_bits);
  return exp2_fast(smaller_or_nan(fmaf(score - lse, kLog2E, kBits), kBits));
}

// The bias of a thread's scores. kTransposed: rows of the accumulator are keys.
template <class Config, bool kTransposed, bool kHasBias = Config::kHasBias>
class WideBias : public Sm90BiasFragment<typename ElementTraits<Config::kBiasElement>::Type, kTransposed> {};
template <class Config, bool kTransposed>
class WideBias<Config, kTransposed, false> {};

// By one thread. kTiles tiles of 64 rows from `row` on and 64 keys from `key` on; head: of q.
template <int kTiles>
__device__ __forceinline__ void load_wide_bias(unsigned char (*to)[kBackwardBiasBytes], const Sm90BackwardArgs& args,
                                               Mbarrier& full, int key, int row, int head, int batch) {
  const TensorStrides& stride = args.options.bias_stride;
  full.arrive_expect_bytes(kTiles * kBackwardBiasBytes);
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
    tma_load_panel(smem_address(to[i]), args.bias_map, full,
                   {key, row + i * kBackwardRows, stride.head == 0 ? 0 : head, stride.batch == 0 ? 0 : batch});
  }
}

}  // namespace attend
