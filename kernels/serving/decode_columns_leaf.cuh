// Partial results of a warpgroup for one leaf of keys, with half of the columns of o. Used if kColumnParts is 2. The
// warpgroup computes the scores of every second step, and multiplies P of all steps by its columns of the values. The
// two warpgroups exchange P through shared memory. The values are the first columns of k. The panel of k behind these
// columns is not needed once the scores are computed, so P overwrites it.
//
// Source: DeepSeek-AI, FlashMLA, "A deep dive into the flash MLA kernel" (2025), which describes two warpgroups that
// exchange P
#pragma once

#include "../isa/stmatrix.cuh"
#include "decode_warpgroup_leaf.cuh"

namespace attend {

template <class Config>
class DecodeColumnsLeaf : public DecodeWarpgroupLeaf<Config> {
  using Leaf = DecodeWarpgroupLeaf<Config>;

 public:
  using Leaf::kColumns;
  using Leaf::kEights;
  using Leaf::o;
  using Leaf::row_max;
  using Leaf::row_sum;
  using typename Leaf::Element;
  using typename Leaf::KRows;
  using typename Leaf::Probabilities;
  using typename Leaf::Role;
  using typename Leaf::Scores;

  // Starts to multiply q by some of the key columns. If kPart is 0, these are the columns of the slot's first part.
  // Otherwise they are all other columns. Until finish_scores() returns, s must not be accessed.
  template <int kPart>
  static __device__ __forceinline__ void start_scores(Scores& s, const char* slot, const char* q_rows) {
    constexpr int kOfPanel = kPanelColumns / kWgmmaDepth, kDepths = ceil_div(Config::kHeadDim, kWgmmaDepth);
    constexpr int kBegin = kPart == 0 ? 0 : kColumns / kWgmmaDepth,
                  kEnd = kPart == 0 ? kColumns / kWgmmaDepth : kDepths;
    auto& d = reinterpret_cast<float(&)[kEights * 4]>(s);
    if constexpr (kPart == 0) {  // Explicit zeros. If the first product overwrote s, the compiler would treat its
                                 // registers as uninitialised and use other registers
#pragma unroll
      for (float& x : d) x = 0.0f;
    }
    const MatrixDescriptor keys = MatrixDescriptor::along_rows(recomputed(smem_address(slot)));
    const MatrixDescriptor queries = MatrixDescriptor::along_rows(recomputed(smem_address(q_rows)));
    wgmma_fence();
#pragma unroll
    for (int depth = kBegin; depth < kEnd; ++depth) {
      const int panel = depth / kOfPanel, in_panel = depth % kOfPanel * kWgmmaDepth * 2;
      WgmmaOp<Config::kElement, kStepKeys>::template ss<false, 1>(
          d, queries.advance_low(panel * Config::kRows * kSwizzleBytes + in_panel),
          keys.advance_low(panel * KRows::kPanelBytes + in_panel), true);
    }
    wgmma_commit();
  }
  static __device__ __forceinline__ void finish_scores(Scores& s) {
    wgmma_wait<0>(reinterpret_cast<float(&)[kEights * 4]>(s));
  }

  // values_of() returns the address of the warpgroup's columns of the values in a slot. p_of() returns the address of
  // P.
  [[nodiscard]] static __device__ __forceinline__ char* values_of(char* slot, int part) {
    return slot + part * (kColumns / kPanelColumns) * KRows::kPanelBytes;
  }
  [[nodiscard]] static __device__ __forceinline__ char* p_of(char* slot) {
    constexpr int kPanel = Config::kHeadDimV / kPanelColumns;
    static_assert(Config::kHeadDimV % kPanelColumns == 0 && kPanel < KRows::kPanels);
    return slot + kPanel * KRows::kPanelBytes;
  }

  // Computes the row maxima relative to which p of a step will be computed; see lagging_maximum(). The scores of the
  // step are s * factor, and the factor is positive.
  __device__ __forceinline__ void find_maxima(const Scores& s, float factor, float (&top)[2]) const {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      float part[kChains];
#pragma unroll
      for (int i = 0; i < kEights * 2; ++i) {
        const float x = s[i / 2][row * 2 + i % 2];
        part[i % kChains] = i < kChains ? x : fmaxf(part[i % kChains], x);
      }
      float of_row = fmaxf(fmaxf(part[0], part[1]), fmaxf(part[2], part[3]));
      of_row = fmaxf(of_row, __shfl_xor_sync(kAllLanes, of_row, 1));
      of_row = fmaxf(of_row, __shfl_xor_sync(kAllLanes, of_row, 2));
      top[row] = lagging_maximum<Config>(row_max[row], of_row * factor);
    }
  }
  // Sets new row maxima, and rescales o and the row sums. No product with o may be in flight.
  __device__ __forceinline__ void take_maxima(const float (&top)[2]) {
    if (!__any_sync(kAllLanes, top[0] > row_max[0] || top[1] > row_max[1])) return;
    float factor[2];
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      factor[row] = exp2_fast(row_max[row] - exponent_base(top[row]));
      row_max[row] = top[row];
      row_sum[row][0] *= factor[row];
    }
#pragma unroll
    for (int i = 0; i < kColumns / 2; ++i) o[i] *= factor[i % 4 / 2];
  }
  // Turns scores into p relative to the maxima `top`, and computes the row sums of p over the lane's keys.
  static __device__ __forceinline__ void weigh(Scores& s, float factor, const float (&top)[2], float (&sums)[2]) {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const float finite = exponent_base(top[row]);
      float part[kChains];
#pragma unroll
      for (int i = 0; i < kEights * 2; ++i) {
        float& x = s[i / 2][row * 2 + i % 2];
        x = exp2_fast(multiply_add(x, factor, -finite));
        part[i % kChains] = i < kChains ? x : part[i % kChains] + x;
      }
      sums[row] = (part[0] + part[1]) + (part[2] + part[3]);
    }
  }
  __device__ __forceinline__ void add_sums(const float (&sums)[2]) {
    row_sum[0][0] += sums[0];
    row_sum[1][0] += sums[1];
  }

  // Stores P in shared memory for the other warpgroup.
  static __device__ __forceinline__ void store(const Probabilities& p, char* p_rows, const Role& role) {
    const int tile = role.lane / 8, row = role.warp * 16 + tile % 2 * 8 + role.lane % 8;
    const uint32 first = smem_address(p_rows) + swizzled_offset(Config::kRows, row, tile / 2);
#pragma unroll
    for (int i = 0; i < kStepKeys / kWgmmaDepth; ++i) stmatrix_x4(first ^ (i * 2 * kChunkBytes), p[i]);
    fence_smem_for_async();
  }
  [[nodiscard]] static __device__ __forceinline__ float stored(const char* p_rows, int row, int key) {
    const char* chunk = p_rows + swizzled_offset(Config::kRows, row, key / kChunkElements);
    return Element::to_float(reinterpret_cast<const Bits16*>(chunk)[key % kChunkElements]);
  }

  // Starts o += P V, with P in registers or in shared memory. Until finish_products() returns, o must not be accessed.
  __device__ __forceinline__ void start_products(const Probabilities& p, const char* values) {
    const MatrixDescriptor v = MatrixDescriptor::down_columns(recomputed(smem_address(values)), KRows::kPanelBytes);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < kStepKeys / kWgmmaDepth; ++step) {
      Product::template rs<true, 1>(o, p[step], v.advance_low(step * kWgmmaDepth * kSwizzleBytes), true);
    }
    wgmma_commit();
  }
  __device__ __forceinline__ void start_products(const char* p_rows, const char* values) {
    const MatrixDescriptor v = MatrixDescriptor::down_columns(recomputed(smem_address(values)), KRows::kPanelBytes);
    const MatrixDescriptor p = MatrixDescriptor::along_rows(recomputed(smem_address(p_rows)));
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < kStepKeys / kWgmmaDepth; ++step) {
      Product::template ss<true, 1>(o, p.advance_low(step * kWgmmaDepth * 2),
                                    v.advance_low(step * kWgmmaDepth * kSwizzleBytes), true);
    }
    wgmma_commit();
  }
  __device__ __forceinline__ void finish_products() {
    wgmma_wait<0>(o);
  }

 private:
  static constexpr int kChains = 4;  // number of independent chains of maxima and of sums, whose latencies overlap
  using Product = WgmmaOp<Config::kElement, kColumns>;
};

}  // namespace attend
