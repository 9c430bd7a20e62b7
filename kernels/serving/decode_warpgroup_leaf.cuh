// Computes the steps of a leaf for a tile of 64 query rows with one warpgroup. Used if kByWarpgroup is set. wgmma
// computes S = Q K^T and O += P V, with query rows as the rows of its tiles. Four lanes of one warp hold all scores of
// a row, so the warps exchange nothing in a step. The other warpgroup computes another leaf at the same time
// (decode_order.cuh).
//
// Source: FlashAttention-2, Algorithm 1, as in the forward kernel for training (../sm90). Results are bit-identical to
// those of decode_leaf.cuh, because the same numbers are added in the same order (decode_warpgroup_state.cuh).
#pragma once

#include "../isa/wgmma_widths.cuh"
#include "decode_rows.cuh"
#include "decode_warpgroup_state.cuh"

namespace attend {

template <class Config>
class DecodeWarpgroupLeaf {
 public:
  using Sizes = DecodeSizes<Config>;
  using State = DecodeState<Config>;
  using Element = ElementOf<Config>;
  using Role = DecodeRole<Config>;
  using KRows = typename Sizes::KRows;
  using VRows = typename Sizes::VRows;
  static constexpr int kEights = kStepKeys / 8;  // groups of eight keys
  static constexpr int kColumns = State::kColumns;
  using Scores = float[kEights][4];
  using Probabilities = uint32[kStepKeys / kWgmmaDepth][4];  // p of a step, in the operand layout of the second product

  float o[kColumns / 2];
  float row_max[2];
  float row_sum[2][State::kSums];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (float& x : o) x = 0.0f;
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      row_max[row] = -kInfinity;
#pragma unroll
      for (float& x : row_sum[row]) x = 0.0f;
    }
  }

  // Multiplies q by the keys in a slot. Element e of s[j] belongs to the thread's row e / 2 and to key 8 j + 2 (lane %
  // 4) + e % 2.
  static __device__ __forceinline__ void multiply(Scores& s, const char* slot, const char* q_rows) {
    constexpr int kDepths = ceil_div(Config::kHeadDim, kWgmmaDepth), kOfPanel = kPanelColumns / kWgmmaDepth;
    auto& d = reinterpret_cast<float(&)[kEights * 4]>(s);
    const MatrixDescriptor keys = MatrixDescriptor::along_rows(smem_address(slot));
    const MatrixDescriptor queries = MatrixDescriptor::along_rows(smem_address(q_rows));
    wgmma_fence();
#pragma unroll
    for (int depth = 0; depth < kDepths; ++depth) {
      const int panel = depth / kOfPanel, in_panel = depth % kOfPanel * kWgmmaDepth * 2;
      WgmmaOp<Config::kElement, kStepKeys>::template ss<false, 1>(
          d, queries.advance(panel * Config::kRows * kSwizzleBytes + in_panel),
          keys.advance(panel * KRows::kPanelBytes + in_panel), depth > 0);
    }
    wgmma_commit();
    wgmma_wait<0>(d);
  }

  // Adds ALiBi slopes, and sets the scores of keys that a row does not see to -infinity. `existing` has one bit for
  // each key of the step.
  static __device__ __forceinline__ void mask(Scores& s, const DecodeRow* rows, bool has_slopes, bool all_visible,
                                              uint64 existing, int first_key, const Role& role) {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const DecodeRow& of_row = rows[row_of(role, row)];
      if (has_slopes) add_slopes(s, row, of_row, first_key, role.lane);
      if (!all_visible) hide(s, row, existing & seen_keys(of_row, first_key), role.lane);
    }
  }
  // Masks the scores of missing keys. Called if every row sees every existing key.
  static __device__ __forceinline__ void mask_missing(Scores& s, uint64 existing, int lane) {
    hide(s, 0, existing, lane);
    hide(s, 1, existing, lane);
  }

  // Turns scores into p relative to lagging_maximum(), and rescales o to that maximum.
  __device__ __forceinline__ void weigh(Scores& s) {
    float factor[2];
    bool grows = false;
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      float top = -kInfinity;
#pragma unroll
      for (int j = 0; j < kEights; ++j) top = fmaxf(top, fmaxf(s[j][row * 2], s[j][row * 2 + 1]));
      top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, 1));
      top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, 2));
      top = lagging_maximum<Config>(row_max[row], top);
      grows |= top > row_max[row];
      const float base = exponent_base(top);
      factor[row] = exp2_fast(row_max[row] - base);
      row_max[row] = top;
#pragma unroll
      for (int j = 0; j < kEights; ++j) {
        s[j][row * 2] = exp2_fast(s[j][row * 2] - base);
        s[j][row * 2 + 1] = exp2_fast(s[j][row * 2 + 1] - base);
      }
#pragma unroll
      for (int i = 0; i < State::kSums; ++i) {
        const int low = i / 2 * 2, at = row * 2 + i % 2;  // this loop adds p of keys that are 8 apart
        row_sum[row][i] = factor[row] * row_sum[row][i] + (s[low][at] + s[low + 1][at]);
      }
    }
    if (!__any_sync(kAllLanes, grows)) return;
#pragma unroll
    for (int i = 0; i < kColumns / 2; ++i) o[i] *= factor[i % 4 / 2];
  }

  static __device__ __forceinline__ void pack(const Scores& s, Probabilities& p) {
#pragma unroll
    for (int i = 0; i < kEights * 2; ++i) p[i / 4][i % 4] = Element::pack(s[i / 2][i % 2 * 2], s[i / 2][i % 2 * 2 + 1]);
  }
  // Computes o += P V.
  __device__ __forceinline__ void add_values(const Probabilities& p, const char* values) {
    const MatrixDescriptor v = MatrixDescriptor::down_columns(smem_address(values), VRows::kPanelBytes);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < kStepKeys / kWgmmaDepth; ++step) {
      WgmmaOp<Config::kElement, kColumns>::template rs<true, 1>(o, p[step],
                                                                v.advance(step * kWgmmaDepth * kSwizzleBytes), true);
    }
    wgmma_commit();
    wgmma_wait<0>(o);
  }

  // Zeroes the values of missing keys. A box also copies the memory of missing keys, and 0 * NaN would reach all rows.
  // All threads of the warpgroup call it. `values` is the address of the warpgroup's columns of the values. The
  // functions below have the same argument.
  static __device__ __forceinline__ void clear_missing(char* values, uint64 existing, const Role& role) {
    // Waits until all threads of the warpgroup have multiplied the keys, because values may share the slot with keys.
    // The zeros change only rows of missing keys, whose scores are masked.
    team_barrier(role);
#pragma unroll 1
    for (int i = in_warpgroup(role); i < kStepKeys * kChunks; i += kWarpgroup) {
      const int key = i / kChunks;
      if ((existing >> key & 1) == 0) *reinterpret_cast<uint4*>(values + VRows::place(key, i % kChunks)) = {};
    }
    fence_smem_for_async();
    team_barrier(role);  // waits until the zeros are written; the product may then read the values
  }

  // Handles non-finite values of keys that some rows see and others do not. A matrix product would spread these values
  // to all rows, because 0 * NaN is NaN. This function adds them row by row, and then zeroes them in shared memory. All
  // threads of the warpgroup call it. weight(row, key) returns p of the thread's first (row 0) or second row (1). All
  // lanes of a warp must call it together. `words` has room for one word of each warp.
  template <class Weight>
  __device__ __forceinline__ void add_nonfinite(const Weight& weight, const DecodeRow* rows, char* values,
                                                uint64 existing, int first_key, uint32* words, const Role& role) {
    const uint32 of_warp = nonfinite_keys(values, role);
    if (role.lane == 0) words[role.warp] = of_warp;
    team_barrier(role);  // waits until all warps have stored their bits; any thread may then read them
    uint64 bad = 0;
    for (int w = 0; w < kTeamWarps; ++w) bad |= static_cast<uint64>(words[w]) << w * kWarpKeys;
    bad &= existing;
    if (bad == 0) return;
    // A copy of o in local memory, which code can index at run time. Code that selects among registers instead would be
    // long, and would push frequently used code out of the instruction cache
    float sums[kColumns / 2];
#pragma unroll
    for (int i = 0; i < kColumns / 2; ++i) sums[i] = o[i];
#pragma unroll 1
    for (uint64 left = bad; left != 0; left &= left - 1) {
      const int key = __ffsll(static_cast<int64>(left)) - 1;
#pragma unroll 1
      for (int row = 0; row < 2; ++row) {
        const float p = weight(row, key);
        if (sees(rows[row_of(role, row)], first_key + key)) add_key(sums, row, p, values, key, role.lane);
      }
    }
#pragma unroll
    for (int i = 0; i < kColumns / 2; ++i) o[i] = sums[i];
    team_barrier(role);  // waits until all threads have read the non-finite values, which may then be zeroed
#pragma unroll 1
    for (int i = in_warpgroup(role); i < kStepKeys * kColumns; i += kWarpgroup) {
      const int key = i / kColumns;
      if ((bad >> key & 1) == 0) continue;
      Bits16& x = at(values, key, i % kColumns);
      if (!is_finite(Element::to_float(x))) x = 0;
    }
    fence_smem_for_async();
    team_barrier(role);  // waits until the zeros are written; the product may then read the values
  }

  [[nodiscard]] __device__ __forceinline__ State finished() const {
    State state = State::empty();
#pragma unroll
    for (int i = 0; i < kColumns / 2; ++i) state.o(i) = o[i];
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      state.row_max(row) = row_max[row];
#pragma unroll
      for (int i = 0; i < State::kSums; ++i) state.row_sum(row, i) = row_sum[row][i];
    }
    return state;
  }

  // Returns the number within the tile of the thread's first row (0) or second row (1).
  [[nodiscard]] static __device__ __forceinline__ int row_of(const Role& role, int row) {
    return role.warp * 16 + role.lane / 4 + row * 8;
  }
  // Returns p of a row and key, from the lane that holds it.
  [[nodiscard]] static __device__ __forceinline__ float weight_of(const Probabilities& p, int row, int key, int lane) {
    uint32 pair = 0;  // selected by bit masks, because a run-time index would move the array to local memory
#pragma unroll
    for (int j = 0; j < kEights; ++j) {
      const uint32 of_row = row == 0 ? p[j / 2][j % 2 * 2] : p[j / 2][j % 2 * 2 + 1];
      pair |= key / 8 == j ? of_row : 0;
    }
    pair = __shfl_sync(kAllLanes, pair, lane / 4 * 4 + key % 8 / 2);
    return key % 2 == 0 ? Element::low(pair) : Element::high(pair);
  }

 private:
  static constexpr int kChunks = kColumns / kChunkElements;

  [[nodiscard]] static __device__ __forceinline__ int in_warpgroup(const Role& role) {
    return role.warp * kWarpThreads + role.lane;
  }

  static __device__ __forceinline__ void add_slopes(Scores& s, int row, const DecodeRow& of_row, int first_key,
                                                    int lane) {
#pragma unroll
    for (int i = 0; i < kEights * 2; ++i) {
      float& x = s[i / 2][row * 2 + i % 2];
      x = with_slope(x, of_row, first_key + i / 2 * 8 + lane % 4 * 2 + i % 2);
    }
  }
  // Sets the scores of hidden keys to -infinity. `visible` has one bit for each key of the step, which is set if the
  // key is visible.
  static __device__ __forceinline__ void hide(Scores& s, int row, uint64 visible, int lane) {
    const uint64 of_lane = visible >> lane % 4 * 2;
    const uint32 words[2] = {static_cast<uint32>(of_lane), static_cast<uint32>(of_lane >> 32)};
#pragma unroll
    for (int i = 0; i < kEights * 2; ++i) {
      const int bit = i / 2 * 8 + i % 2;
      if ((words[bit / 32] >> bit % 32 & 1) == 0) s[i / 2][row * 2 + i % 2] = -kInfinity;
    }
  }

  [[nodiscard]] static __device__ __forceinline__ bool is_finite(float x) {
    return fabsf(x) < kInfinity;
  }
  [[nodiscard]] static __device__ __forceinline__ Bits16& at(char* values, int key, int column) {
    return *reinterpret_cast<Bits16*>(values + VRows::template place_of<2>(key, column));
  }

  // Returns one bit for each of the warp's 16 keys, which is set if the key has a non-finite value.
  [[nodiscard]] static __device__ __forceinline__ uint32 nonfinite_keys(char* values, const Role& role) {
    uint32 found = 0;
#pragma unroll 1
    for (int i = role.lane; i < kWarpKeys * kChunks; i += kWarpThreads) {
      const int key = i / kChunks;
      const uint4 x = *reinterpret_cast<const uint4*>(values + VRows::place(role.warp * kWarpKeys + key, i % kChunks));
      bool is_bad = false;
#pragma unroll
      for (const uint32 pair : {x.x, x.y, x.z, x.w}) {
        is_bad |= !is_finite(Element::low(pair)) || !is_finite(Element::high(pair));
      }
      if (is_bad) found |= 1u << key;
    }
    return __reduce_or_sync(kAllLanes, found);
  }

  static __device__ __forceinline__ void add_key(float (&sums)[kColumns / 2], int row, float weight, char* values,
                                                 int key, int lane) {
#pragma unroll 1
    for (int i = 0; i < kColumns / 4; ++i) {
      const float x = Element::to_float(at(values, key, i / 2 * 8 + lane % 4 * 2 + i % 2));
      if (!is_finite(x)) sums[i / 2 * 4 + row * 2 + i % 2] += weight * x;
    }
  }
};

}  // namespace attend
