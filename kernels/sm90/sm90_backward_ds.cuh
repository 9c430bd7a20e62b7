// Computes ds in a computing warpgroup of the sm90 backward pass. ds is written to registers, where it is an A operand
// of the dk product, and to shared memory, for the dq product.
//
//   ds^T = p^T (dp^T - delta)
//
// The accumulator has 64 keys as rows and 64 query rows as columns. ds is stored to shared memory transposed, 16 query
// rows at a time.
#pragma once

#include "../isa/stmatrix.cuh"
#include "packed_drop.cuh"
#include "sm90_backward_products.cuh"
#include "sm90_backward_scores.cuh"
#include "sm90_backward_units.cuh"

namespace attend {

// Factor that converts dp to the units of ds. With a transform, p already contains a quarter of the derivative, so the
// factor is 4 times larger.
template <class Config>
constexpr float kUnitOfDs = (Score<Config>::kTransforms ? 4.0f : 1.0f) *
                            sm90_backward_unit(sm90_backward_units(Config::kElement).p_bits -
                                               sm90_backward_units(Config::kElement).ds_bits);

// Whether ds is computed as a product of bfloat16 pairs. dp - delta is then rounded before the product, which makes the
// errors of dq and dk 15 % larger. At head dimensions up to 64 the kernel is limited by arithmetic, so pairs are
// faster. At 128 they are not. With dropout pairs are not used, because all dropped entries of a row have the same
// -delta, and its rounding errors would add up in dq.
template <class Config>
constexpr bool kPacksDs = !kBackwardTile<Config>.is_persistent && ElementOf<Config>::kHasPairProduct;

// Stores query rows 16 i to 16 i + 15 of ds. `to` is this lane's address in the buffer.
__device__ __forceinline__ void store_ds_rows(uint32 to, const uint32 (&ds)[16], int i) {
  stmatrix_transposed(to + i * 16 * kSwizzleBytes, ds[4 * i], ds[4 * i + 1], ds[4 * i + 2], ds[4 * i + 3]);
}

// Computes ds from a dp that started at -delta.
template <class Config>
__device__ __forceinline__ void make_ds(uint32 (&ds)[16], uint32 to, const uint32 (&p)[16], const float (&dp)[32]) {
  using Element = ElementOf<Config>;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int j = 4 * i; j < 4 * i + 4; ++j) {
      const float low = dp[2 * j] * kUnitOfDs<Config>;
      const float high = dp[2 * j + 1] * kUnitOfDs<Config>;
      if constexpr (kPacksDs<Config>) {
        ds[j] = multiply_bf16_pairs(p[j], Element::pack(low, high));
      } else {
        ds[j] = Element::pack(Element::low(p[j]) * low, Element::high(p[j]) * high);
      }
    }
    store_ds_rows(to, ds, i);
  }
}

// Returns dp - delta of entry i of the accumulator. `delta` holds four row statistics, which include that of the entry.
template <class Config>
[[nodiscard]] __device__ __forceinline__ float kept_gradient(const float (&dp)[32], uint32 kept, int i,
                                                             const float (&delta)[4]) {
  const float gradient = (kept >> i & 1u) != 0 ? dp[i] : 0.0f;
  return (gradient - delta[backward_statistic(i) % 4]) * kUnitOfDs<Config>;
}

// Computes ds with dropout. For a dropped entry dp is 0, so dp - delta is -delta. The dropout factor 1 / (1 - p) is
// left out here, because it is later applied to dq, dk and dv. `stats` points to delta of the tile's query rows.
template <class Config>
__device__ __forceinline__ void make_kept_ds(uint32 (&ds)[16], uint32 to, const uint32 (&p)[16], const float (&dp)[32],
                                             uint32 kept, const float* stats) {
  using Element = ElementOf<Config>;
  float delta[2][4];  // two buffers, because the next four values are read before the current ones are used
  read_four_statistics(delta[0], stats, 0);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (i < 3) read_four_statistics(delta[(i + 1) % 2], stats, i + 1);
#pragma unroll
    for (int j = 4 * i; j < 4 * i + 4; ++j) {
      const float low = kept_gradient<Config>(dp, kept, 2 * j, delta[i % 2]);
      const float high = kept_gradient<Config>(dp, kept, 2 * j + 1, delta[i % 2]);
      ds[j] = Element::pack(Element::low(p[j]) * low, Element::high(p[j]) * high);
    }
    store_ds_rows(to, ds, i);
  }
}

}  // namespace attend
