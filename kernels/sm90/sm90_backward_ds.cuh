// ds of a computing warpgroup of the sm90 backward pass. It is written to registers, as an A operand, and to shared
// memory, for dq.
//
//   ds^T = p^T (dp^T - delta)
//
// The accumulator has 64 keys and a tile of 64 query rows. ds is stored transposed, 16 query rows at a time.
#pragma once

#include "../isa/stmatrix.cuh"
#include "packed_drop.cuh"
#include "sm90_backward_products.cuh"
#include "sm90_backward_scores.cuh"
#include "sm90_backward_units.cuh"

namespace attend {

// Factor of dp in the units of ds. With a transform, p has been multiplied by a quarter of the derivative.
template <class Config>
constexpr float kUnitOfDs = (Score<Config>::kTransforms ? 4.0f : 1.0f) *
                            sm90_backward_unit(sm90_backward_units(Config::kElement).p_bits -
                                               sm90_backward_units(Config::kElement).ds_bits);

// Whether ds is a product of bfloat16 pairs. dp - delta is then rounded before the product, which makes errors of dq
// and dk 15 % larger. At 64 columns arithmetic limits the kernel, so that this is faster; at 128 columns it does not.
// With dropout pairs are not used: all dropped entries of a row have the same -delta, so its rounding would add up in
// dq.
template <class Config>
constexpr bool kPacksDs = !kBackwardTile<Config>.is_persistent && ElementOf<Config>::kHasPairProduct;

// Stores 16 query rows of ds, from row 16 i on. to: this lane's address in the buffer.
__device__ __forceinline__ void store_ds_rows(uint32 to, const uint32 (&ds)[16], int i) {
  stmatrix_transposed(to + i * 16 * kSwizzleBytes, ds[4 * i], ds[4 * i + 1], ds[4 * i + 2], ds[4 * i + 3]);
}

// Makes ds from a dp that started at -delta.
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

// Returns dp - delta of entry i of the accumulator. delta: the four statistics that include that of the entry.
template <class Config>
[[nodiscard]] __device__ __forceinline__ float kept_gradient(const float (&dp)[32], uint32 kept, int i,
                                                             const float (&delta)[4]) {
  const float gradient = (kept >> i & 1u) != 0 ? dp[i] : 0.0f;
  return (gradient - delta[backward_statistic(i) % 4]) * kUnitOfDs<Config>;
}

// Makes ds with dropout. A dropped entry has no dp, but still has -delta. The scale of kept entries is left out,
// because it is a factor of dq, dk and dv. stats: delta of the tile's rows.
template <class Config>
__device__ __forceinline__ void make_kept_ds(uint32 (&ds)[16], uint32 to, const uint32 (&p)[16], const float (&dp)[32],
                                             uint32 kept, const float* stats) {
  using Element = ElementOf<Config>;
  float delta[2][4];  // the next four are read before these are used
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
