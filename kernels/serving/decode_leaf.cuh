// Partial results of a thread for one leaf of keys: o in the warp's columns, and the row maxima and row sums. All warps
// of a team use the same maxima, so their columns of o need no merge. A row sum covers only the keys whose scores the
// lane holds. At the end of a work item, decode_output.cuh adds the sums of all lanes.
#pragma once

#include "decode_products.cuh"
#include "decode_products_f32.cuh"
#include "decode_rows.cuh"
#include "decode_state.cuh"

namespace attend {

template <class Config>
struct DecodeLeaf {
  using Sizes = DecodeSizes<Config>;
  using Products = DecodeProducts<Config>;
  using State = DecodeState<Config>;
  using Role = DecodeRole<Config>;
  static constexpr int kEights = Sizes::kEights, kOwned = Sizes::kOwned;
  // For caches with descale factors, p is scaled up by 2^kTopOfP, because f16 has little precision far below 1.
  static constexpr int kTopOfP = 14, kLeastExponent = kTopOfP - 126;

  float o[kOwned][kEights][4];
  float row_max[kEights][2];  // maxima of rows 2 (lane % 4) and 2 (lane % 4) + 1 of each group of eight rows
  float row_sum[kEights][2];  // sums of p over the lane's keys, for the same rows
  int exponent[kEights][2];   // o of the row is in units of 2^(exponent - kTopOfP); see weigh(). Used only with
                              // kRowFactors

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int n = 0; n < kEights; ++n) {
      exponent[n][0] = exponent[n][1] = kLeastExponent;
      row_max[n][0] = row_max[n][1] = -kInfinity;
      row_sum[n][0] = row_sum[n][1] = 0.0f;
#pragma unroll
      for (int owned = 0; owned < kOwned; ++owned) {
        o[owned][n][0] = o[owned][n][1] = o[owned][n][2] = o[owned][n][3] = 0.0f;
      }
    }
  }

  // Zeroes the values of missing keys in the warp's columns. A box is a rectangle that one TMA copy loads. It also
  // copies the memory of missing keys, and 0 * NaN would reach all rows. Without boxes, the loading warps zero missing
  // rows as they copy. `existing` has one bit for each key of the step.
  static __device__ __forceinline__ void clear_missing(char* values, uint64 existing, const Role& role) {
    constexpr int kChunksOfTile = 16 * Sizes::kCacheBytes / Sizes::VRows::kChunk, kChunks = kOwned * kChunksOfTile;
#pragma unroll 1
    for (int i = role.part * kWarpThreads + role.lane; i < kStepKeys * kChunks; i += Config::kRowParts * kWarpThreads) {
      const int key = i / kChunks, tile = role.column_tile(i % kChunks / kChunksOfTile);
      if ((existing >> key & 1) != 0 || tile >= Sizes::kColumnTiles) continue;
      const int chunk = tile * kChunksOfTile + i % kChunksOfTile;
      *reinterpret_cast<uint4*>(values + Sizes::VRows::place(key, chunk)) = {};
    }
    if constexpr (Config::kRowParts == 1) {
      __syncwarp();  // waits until the warp's lanes have written the zeros; all of them may then read the values
    } else {
      compute_barrier<Config>();  // waits for the other team's zeros too, because both teams read the same columns
    }
  }

  // Masks the scores of missing keys. Called if every row sees every existing key. `existing` has one bit for each key
  // of the warp.
  static __device__ __forceinline__ void mask_missing(float (&s)[kEights][4], uint32 existing, int lane) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if ((existing >> (lane / 4 + half * 8) & 1) != 0) continue;
#pragma unroll
      for (int n = 0; n < kEights; ++n) s[n][half * 2] = s[n][half * 2 + 1] = -kInfinity;
    }
  }

  // Adds ALiBi slopes, and sets the scores of keys that a row does not see to -infinity. `existing` has one bit for
  // each key of the warp. `first_key` is the position of the warp's first key in its sequence.
  static __device__ __forceinline__ void mask(float (&s)[kEights][4], const DecodeRow* rows, bool has_slopes,
                                              bool all_visible, uint32 existing, int first_key, int lane) {
#pragma unroll
    for (int n = 0; n < kEights; ++n) {
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        const DecodeRow& of_row = rows[n * 8 + lane % 4 * 2 + row];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float& x = s[n][half * 2 + row];
          const int in_warp = lane / 4 + half * 8, key = first_key + in_warp;
          if (has_slopes) x = with_slope(x, of_row, key);
          const bool exists = (existing >> in_warp & 1) != 0;
          if (!all_visible && !(exists && sees(of_row, key))) x = -kInfinity;
        }
      }
    }
  }

  // Writes each row's maximum over the warp's keys to shared memory, for the other warps of the team.
  static __device__ __forceinline__ void share_maxima(const float (&s)[kEights][4], float* maxima, const Role& role) {
#pragma unroll
    for (int n = 0; n < kEights; ++n) {
      float top[2];
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        top[row] = fmaxf(s[n][row], s[n][2 + row]);
#pragma unroll
        for (int distance = 4; distance < kWarpThreads; distance *= 2) {
          top[row] = fmaxf(top[row], __shfl_xor_sync(kAllLanes, top[row], distance));
        }
      }
      if (role.lane < 4) pair_of(maxima, role.warp, n, role.lane) = {top[0], top[1]};
    }
  }

  // Turns scores into p relative to lagging_maximum(), and rescales o to that maximum.
  __device__ __forceinline__ void take_maxima(float (&s)[kEights][4], float* maxima, const Role& role) {
    bool grows = false;
    float factor[kEights][2];
#pragma unroll
    for (int n = 0; n < kEights; ++n) {
      float2 of_team = {-kInfinity, -kInfinity};
#pragma unroll
      for (int warp = 0; warp < kTeamWarps; ++warp) {
        const float2 of_warp = pair_of(maxima, warp, n, role.lane);
        of_team = {fmaxf(of_team.x, of_warp.x), fmaxf(of_team.y, of_warp.y)};
      }
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        const float top = lagging_maximum<Config>(row_max[n][row], row == 0 ? of_team.x : of_team.y);
        grows |= top > row_max[n][row];
        const float base = exponent_base(top);
        factor[n][row] = exp2_fast(row_max[n][row] - base);
        row_max[n][row] = top;
        s[n][row] = exp2_fast(s[n][row] - base);
        s[n][2 + row] = exp2_fast(s[n][2 + row] - base);
        row_sum[n][row] = factor[n][row] * row_sum[n][row] + (s[n][row] + s[n][2 + row]);
      }
    }
    // If o is small, multiplying it costs less than a branch. The branch would stop the compiler from interleaving the
    // multiplications with other instructions
    constexpr bool kAsks = kOwned * kEights > 8;
    if (kAsks && !__any_sync(kAllLanes, grows)) return;
#pragma unroll
    for (int owned = 0; owned < kOwned; ++owned) {
#pragma unroll
      for (int n = 0; n < kEights; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) o[owned][n][i] *= factor[n][i % 2];
      }
    }
  }

  // Multiplies the scores of an 8-bit cache by the descale factors of the keys, and by DecodeRow::unit of the query
  // rows. `of_low` is the factor of the key of elements 0 and 1 of each s[n]. `of_high` is the factor of the key of
  // elements 2 and 3 of each s[n].
  static __device__ __forceinline__ void multiply_keys(float (&s)[kEights][4], float of_low, float of_high,
                                                       const DecodeRow* rows, int lane) {
    const float low = multiplier(of_low), high = multiplier(of_high);
#pragma unroll
    for (int n = 0; n < kEights; ++n) {
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        const float unit = kConvertsQueries<Config> ? rows[n * 8 + lane % 4 * 2 + row].unit : 1.0f;
        s[n][row] = s[n][row] * unit * low;
        s[n][2 + row] = s[n][2 + row] * unit * high;
      }
    }
  }

  // For each row, writes the largest exponent among the values' descale factors to shared memory. The other warps of
  // the team read this exponent. Keys that the row does not see are ignored, because the result of a row must not
  // depend on hidden keys.
  static __device__ __forceinline__ void share_exponents(const float (&s)[kEights][4], const float2* factors,
                                                         bool all_visible, int* exponents, const Role& role) {
    int of_keys[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float factor = factors[role.lane / 4 + half * 8].y;
      const bool counts = factor != 0.0f && is_finite(factor);
      const int exponent = static_cast<int>(__float_as_uint(factor) >> 23 & 0xff) - 126;
      of_keys[half] = counts ? max(exponent, kLeastExponent) : kLeastExponent;
    }
    const int of_all = __reduce_max_sync(kAllLanes, max(of_keys[0], of_keys[1]));
#pragma unroll
    for (int n = 0; n < kEights; ++n) {
      int top[2] = {of_all, of_all};
      if (!all_visible) {
#pragma unroll
        for (int row = 0; row < 2; ++row) {
          top[row] = max(s[n][row] == -kInfinity ? kLeastExponent : of_keys[0],
                         s[n][2 + row] == -kInfinity ? kLeastExponent : of_keys[1]);
#pragma unroll
          for (int distance = 4; distance < kWarpThreads; distance *= 2) {
            top[row] = max(top[row], __shfl_xor_sync(kAllLanes, top[row], distance));
          }
        }
      }
      if (role.lane < 4) pair_of<int2>(exponents, role.warp, n, role.lane) = {top[0], top[1]};
    }
  }

  // Multiplies p by the values' descale factors. The products may exceed the range of 16 bits. So o and p of a row are
  // stored in units of a power of two. The unit grows with the largest factor that the row has seen in this leaf. A NaN
  // factor makes a row NaN only if the row sees the factor's key.
  __device__ __forceinline__ void weigh(float (&p)[kEights][4], const float2* factors, const int* exponents,
                                        const DecodeRow* rows, bool all_visible, int first_key, int lane) {
    float unit[kEights][2];
#pragma unroll
    for (int n = 0; n < kEights; ++n) {
      int2 top = {exponent[n][0], exponent[n][1]};
#pragma unroll
      for (int warp = 0; warp < kTeamWarps; ++warp) {
        const int2 of_warp = pair_of<int2>(exponents, warp, n, lane);
        top = {max(top.x, of_warp.x), max(top.y, of_warp.y)};
      }
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        const int next = row == 0 ? top.x : top.y;  // at most 128
        if (next != exponent[n][row]) {
          const int change = exponent[n][row] - next;
          const float shrink = change < -126 ? 0.0f : power_of_two(change);
#pragma unroll
          for (int owned = 0; owned < kOwned; ++owned) o[owned][n][row] *= shrink, o[owned][n][2 + row] *= shrink;
          exponent[n][row] = next;
        }
        unit[n][row] = power_of_two(kTopOfP - next);
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int in_warp = lane / 4 + half * 8;
      const float of_key = multiplier(factors[in_warp].y);
#pragma unroll
      for (int n = 0; n < kEights; ++n) {
#pragma unroll
        for (int row = 0; row < 2; ++row) {
          float& x = p[n][half * 2 + row];
          const float weight = of_key * unit[n][row];
          // The weight of a key that share_exponents() ignored may be infinite, and 0 * infinity is NaN
          const bool drops =
              !all_visible && !is_finite(weight) &&
              (is_finite(of_key) ? x == 0.0f : !sees(rows[n * 8 + lane % 4 * 2 + row], first_key + in_warp));
          x = drops ? 0.0f : x * weight;
        }
      }
    }
  }

  // Handles non-finite values of keys that some rows see and others do not. A matrix product would spread these values
  // to all rows, because 0 * NaN is NaN. This function adds them row by row in the warp's columns, and then zeroes them
  // in shared memory. All computing warps call it. `existing` has one bit for each of the step's 64 keys. `first_key`
  // is the position of the step's first key in its sequence.
  __device__ __forceinline__ void add_nonfinite(const char* p_rows, const DecodeRow* rows, char* values,
                                                uint64 existing, int first_key, const Role& role) {
    const uint64 bad = nonfinite_keys(values, role) & existing;
    for (uint64 left = bad; left != 0; left &= left - 1) {
      const int key = __ffsll(static_cast<int64>(left)) - 1;
#pragma unroll 1
      for (int n = 0; n < kEights; ++n) {
#pragma unroll
        for (int row = 0; row < 2; ++row) {
          const int in_team = n * 8 + role.lane % 4 * 2 + row;
          if (sees(rows[in_team], first_key + key)) {
            add_key(n, row, DecodeP<Config>::at(p_rows, in_team, key), values, key, role);
          }
        }
      }
    }
    if constexpr (Config::kRowParts == 1) {
      __syncwarp();  // waits until all lanes have read the warp's columns; the non-finite values may then be zeroed
    } else {
      compute_barrier<Config>();  // waits until both teams have read the columns; the non-finite values may then be
                                  // zeroed
    }
    for (uint64 left = bad; left != 0; left &= left - 1) {
      const int key = __ffsll(static_cast<int64>(left)) - 1;
      for_each_column(role, [&](int column) {
        char* at = values + Sizes::VRows::template place_of<Sizes::kCacheBytes>(key, column);
        if (!is_finite(Products::value(values, key, column))) *reinterpret_cast<StorageOf<Sizes::kCacheBytes>*>(at) = 0;
      });
    }
    __syncwarp();  // waits until the zeros are written; the product may then read the values
  }

  // Scales p up by 2^kTopOfP. Called without kRowFactors. o is then in units of 2^-kTopOfP, until finished() multiplies
  // it by the values' common factor.
  static __device__ __forceinline__ void raise(float (&p)[kEights][4]) {
#pragma unroll
    for (int i = 0; i < kEights * 4; ++i) p[i / 4][i % 4] *= static_cast<float>(1 << kTopOfP);
  }

  // Returns the leaf's state. `of_values` is the descale factor that all values share. Used without kRowFactors.
  [[nodiscard]] __device__ __forceinline__ State finished(float of_values) const {
    const float value_factor = multiplier(of_values);
    State state;
#pragma unroll
    for (int n = 0; n < kEights; ++n) {
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        state.row_max(n, row) = row_max[n][row];
        state.row_sum(n, row) = row_sum[n][row];
        const float unit = Sizes::kRowFactors   ? power_of_two(exponent[n][row] - kTopOfP)
                           : Sizes::kHasFactors ? power_of_two(-kTopOfP)
                                                : 1.0f;
#pragma unroll
        for (int owned = 0; owned < kOwned; ++owned) {
#pragma unroll
          for (int half = 0; half < 4; half += 2) {
            const float x = o[owned][n][half + row] * unit;
            state.o(owned, n, half + row) = Sizes::kHasFactors && !Sizes::kRowFactors ? x * value_factor : x;
          }
        }
      }
    }
    return state;
  }

 private:
  [[nodiscard]] static __device__ __forceinline__ bool is_finite(float x) {
    return fabsf(x) < kInfinity;
  }
  // Returns a factor, with infinity replaced by NaN. The factor is applied after the product. An infinite factor would
  // then hide that the correct result is NaN, for example infinity * 0, or a sum of infinities of both signs.
  [[nodiscard]] static __device__ __forceinline__ float multiplier(float factor) {
    return fabsf(factor) == kInfinity ? __uint_as_float(0x7fc00000u) : factor;
  }
  // Returns 2^exponent, for an exponent in [-126, 127].
  [[nodiscard]] static __device__ __forceinline__ float power_of_two(int exponent) {
    return __uint_as_float(static_cast<uint32>(exponent + 127) << 23);
  }
  // Returns a warp's pair of numbers for the lane's two rows, in the n-th group of eight rows.
  template <class Pair = float2, class Number>
  [[nodiscard]] static __device__ __forceinline__ Pair& pair_of(Number* stats, int warp, int n, int lane) {
    return *reinterpret_cast<Pair*>(stats + warp * Config::kRows + n * 8 + lane % 4 * 2);
  }
  template <class Pair>
  [[nodiscard]] static __device__ __forceinline__ const Pair& pair_of(const int* stats, int warp, int n, int lane) {
    return *reinterpret_cast<const Pair*>(stats + warp * Config::kRows + n * 8 + lane % 4 * 2);
  }

  // Calls visit(column) for the lane's share of the warp's columns.
  template <class Visit>
  static __device__ __forceinline__ void for_each_column(const Role& role, const Visit& visit) {
#pragma unroll 1
    for (int owned = role.lane / 16; owned < kOwned; owned += 2) {
      const int column = role.column_tile(owned) * 16 + role.lane % 16;
      if (column < Config::kHeadDimV) visit(column);
    }
  }

  // Returns one bit for each key that has a non-finite value in the warp's columns.
  [[nodiscard]] static __device__ __forceinline__ uint64 nonfinite_keys(const char* values, const Role& role) {
    uint64 found = 0;
#pragma unroll 1
    for (int half = 0; half < 2; ++half) {
      bool is_bad = false;
#pragma unroll 1
      for (int at = 0; at < kOwned * 16; ++at) {
        const int column = role.column_tile(at / 16) * 16 + at % 16;
        if (column >= Config::kHeadDimV) break;
        is_bad |= !is_finite(Products::value(values, half * kWarpThreads + role.lane, column));
      }
      found |= static_cast<uint64>(__ballot_sync(kAllLanes, is_bad)) << half * kWarpThreads;
    }
    return found;
  }

  __device__ __forceinline__ void add_key(int n, int row, float weight, const char* values, int key, const Role& role) {
#pragma unroll
    for (int owned = 0; owned < kOwned; ++owned) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int column = role.column_tile(owned) * 16 + Products::column(role.lane, half * 2);
        if (column >= Config::kHeadDimV) continue;
        const float x = Products::value(values, key, column);
        if (is_finite(x)) continue;
          // Visits every group of eight rows, because registers cannot be indexed by a run-time number
#pragma unroll
        for (int each = 0; each < kEights; ++each) {
          if (each == n) o[owned][each][half * 2 + row] += weight * x;
        }
      }
    }
  }
};

}  // namespace attend
