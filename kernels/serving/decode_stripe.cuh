// A warp's sums over its stripe's keys of a leaf, and how those of the four stripes become the leaf's state.
#pragma once

#include "../attention/score_transform.cuh"
#include "decode_loader.cuh"
#include "decode_products.cuh"
#include "decode_products_f32.cuh"
#include "decode_rows.cuh"
#include "decode_state.cuh"

namespace attend {

// What scores are made of, beside products.
struct DecodeScale {
  float log2;    // scale log2(e), without a transform
  float in_cap;  // scale / cap
  float of_cap;  // cap log2(e); 0: no transform

  [[nodiscard]] static __device__ __forceinline__ DecodeScale of(const DecodeArgs& args) {
    if (args.transform_cap == 0.0f) return {args.scale * kLog2E, 0.0f, 0.0f};
    const float in_cap = fmaxf(-kLargestFloat, fminf(kLargestFloat, args.scale / args.transform_cap));
    return {0.0f, in_cap, args.transform_cap * kLog2E};
  }
  // Products to scores, in units of log2.
  template <class Config, int kEights>
  __device__ __forceinline__ void apply(float (&s)[kEights][4]) const {
    if (of_cap == 0.0f) {
#pragma unroll
      for (int i = 0; i < kEights * 4; ++i) s[i / 4][i % 4] *= log2;
      return;
    }
#pragma unroll
    for (int i = 0; i < kEights * 4; ++i) {
      const float x = s[i / 4][i % 4] * in_cap;
      s[i / 4][i % 4] = of_cap * (Config::kElement == ElementType::kF32 ? tanhf(x) : tanh_fast(x));
    }
  }
};

template <class Config>
struct DecodeStripe {
  using Sizes = DecodeSizes<Config>;
  using Products = DecodeProducts<Config>;
  using State = DecodeState<Config>;
  static constexpr int kEights = Sizes::kEights, kColumnTiles = Sizes::kColumnTiles;
  static constexpr bool kHasFactors = DecodeLoader<Config>::kHasFactors;
  static constexpr int kLeastExponent = -126, kMostExponent = 126;

  float o[kColumnTiles][kEights][4];
  float row_max[kEights][2];  // of rows 2 (lane % 4) and the next, of every eight
  float row_sum[kEights][2];  // of the lane's keys
  int exponent;               // o is in units of 2^exponent: see weigh()

  __device__ __forceinline__ void clear() {
    exponent = kLeastExponent;
#pragma unroll
    for (int n = 0; n < kEights; ++n) {
      row_max[n][0] = row_max[n][1] = -kInfinity;
      row_sum[n][0] = row_sum[n][1] = 0.0f;
#pragma unroll
      for (int tile = 0; tile < kColumnTiles; ++tile) {
        o[tile][n][0] = o[tile][n][1] = o[tile][n][2] = o[tile][n][3] = 0.0f;
      }
    }
  }

  // From products to p, relative to the maximum so far, to which o is rescaled. first_key: of the stripe.
  __device__ __forceinline__ void softmax(float (&s)[kEights][4], const DecodeScale& scale, const DecodeRow* rows,
                                          bool has_slopes, bool all_visible, uint32 existing, int first_key, int lane) {
    const int key = first_key + lane / 4;
    scale.template apply<Config>(s);
    if (has_slopes || !all_visible) {
#pragma unroll
      for (int n = 0; n < kEights; ++n) {
#pragma unroll
        for (int row = 0; row < 2; ++row) {
          const DecodeRow& of_row = rows[n * 8 + lane % 4 * 2 + row];
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            float& x = s[n][half * 2 + row];
            const int at = key + half * 8;
            if (has_slopes) x -= of_row.slope * kLog2E * fabsf(static_cast<float>(of_row.position - at));
            const bool exists = (existing >> (lane / 4 + half * 8) & 1) != 0;
            if (!all_visible && !(exists && sees(of_row, at))) x = -kInfinity;
          }
        }
      }
    }
    bool grows = false;
    float factor[kEights][2];
#pragma unroll
    for (int n = 0; n < kEights; ++n) {
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        float top = fmaxf(s[n][row], s[n][2 + row]);
#pragma unroll
        for (int distance = 4; distance < kWarpThreads; distance *= 2) {
          top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, distance));
        }
        top = fmaxf(top, row_max[n][row]);
        grows |= top > row_max[n][row];
        const float base = exponent_base(top);
        factor[n][row] = exp2_fast(row_max[n][row] - base);
        row_max[n][row] = top;
        s[n][row] = exp2_fast(s[n][row] - base);
        s[n][2 + row] = exp2_fast(s[n][2 + row] - base);
        row_sum[n][row] = factor[n][row] * row_sum[n][row] + (s[n][row] + s[n][2 + row]);
      }
    }
    if (!__any_sync(kAllLanes, grows)) return;
#pragma unroll
    for (int tile = 0; tile < kColumnTiles; ++tile) {
#pragma unroll
      for (int n = 0; n < kEights; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) o[tile][n][i] *= factor[n][i % 2];
      }
    }
  }

  // Scores of a cache of 8 bits are products times the keys' factors.
  static __device__ __forceinline__ void multiply_keys(float (&s)[kEights][4], const float2* factors, int lane) {
    const float low = factors[lane / 4].x, high = factors[lane / 4 + 8].x;
#pragma unroll
    for (int n = 0; n < kEights; ++n) {
      s[n][0] *= low, s[n][1] *= low;
      s[n][2] *= high, s[n][3] *= high;
    }
  }

  // p times the values' factors. 16 bits may not hold that: o and p are in units of a power of two as large as the
  // largest factor of the leaf so far.
  __device__ __forceinline__ void weigh(float (&p)[kEights][4], const float2* factors, int lane) {
    const float of_lane = factors[lane % kStripeKeys].y;
    const bool counts = of_lane != 0.0f && fabsf(of_lane) < kInfinity;
    const int own = counts ? static_cast<int>(__float_as_uint(of_lane) >> 23 & 0xff) - 126 : kLeastExponent;
    const int top = min(max(__reduce_max_sync(kAllLanes, own), exponent), kMostExponent);
    if (top != exponent) {
      const float shrink = power_of_two(max(exponent - top, kLeastExponent));
#pragma unroll
      for (int tile = 0; tile < kColumnTiles; ++tile) {
#pragma unroll
        for (int n = 0; n < kEights; ++n) {
#pragma unroll
          for (float& x : o[tile][n]) x *= shrink;
        }
      }
      exponent = top;
    }
    const float unit = power_of_two(-exponent);
    const float low = factors[lane / 4].y * unit, high = factors[lane / 4 + 8].y * unit;
#pragma unroll
    for (int n = 0; n < kEights; ++n) {
      p[n][0] *= low, p[n][1] *= low;
      p[n][2] *= high, p[n][3] *= high;
    }
  }

  // In [kLeastExponent, kMostExponent].
  [[nodiscard]] static __device__ __forceinline__ float power_of_two(int exponent) {
    return __uint_as_float(static_cast<uint32>(exponent + 127) << 23);
  }

  // Where some rows see a key and others do not, values that are not finite would reach all of them, as 0 * NaN is NaN:
  // such elements are added row by row here, and become zeros in shared memory. A factor that is NaN makes all elements
  // of its key NaN.
  __device__ __forceinline__ void add_nonfinite(const float (&p)[kEights][4], const DecodeRow* rows, char* values,
                                                float2* factors, uint32 existing, int first_key,
                                                const DecodeRole<Config>& role) {
    using Storage = StorageOf<Sizes::kCacheBytes>;
    const auto is_bad = [](float x) { return !(fabsf(x) < kInfinity); };
    const auto has_bad_factor = [&](int key) {
      if constexpr (kHasFactors) return is_bad(factors[key].y);
      return false;
    };
    bool found = has_bad_factor(role.lane % kStripeKeys);
    for (int column = role.lane / kStripeKeys; column < Config::kHeadDimV; column += 2) {
      found |= is_bad(Products::value(values, role.lane % kStripeKeys, column));
    }
    uint32 bad = __ballot_sync(kAllLanes, found);
    bad = (bad | bad >> kStripeKeys) & existing;
    if (bad == 0) return;
    for (uint32 left = bad; left != 0; left &= left - 1) {
      const int key = __ffs(static_cast<int>(left)) - 1;
      const bool all_columns = has_bad_factor(key);
#pragma unroll
      for (int n = 0; n < kEights; ++n) {
#pragma unroll
        for (int row = 0; row < 2; ++row) {
          const float low = __shfl_sync(kAllLanes, p[n][row], key % 8 * 4 + role.lane % 4);
          const float high = __shfl_sync(kAllLanes, p[n][2 + row], key % 8 * 4 + role.lane % 4);
          const float weight = all_columns ? __uint_as_float(0x7fc00000u) : key < 8 ? low : high;
          if (!sees(rows[n * 8 + role.lane % 4 * 2 + row], first_key + key)) continue;
#pragma unroll
          for (int tile = 0; tile < kColumnTiles; ++tile) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
              const int column = (role.first_column_tile() + tile) * 16 + Products::column(role.lane, half * 2);
              if (column >= Config::kHeadDimV) continue;
              const float x = Products::value(values, key, column);
              if (all_columns || is_bad(x)) o[tile][n][half * 2 + row] += weight * x;
            }
          }
        }
      }
    }
    stripe_barrier(role);  // all have read the values
    for (uint32 left = bad; left != 0; left &= left - 1) {
      const int key = __ffs(static_cast<int>(left)) - 1;
      Storage* of_key = reinterpret_cast<Storage*>(values + key * DecodeLoader<Config>::kVRow);
      for (int column = role.lane; column < Config::kHeadDimV; column += kWarpThreads) {
        if (is_bad(Products::value(values, key, column))) of_key[column] = Storage{};
      }
      if constexpr (kHasFactors) {
        if (role.lane == 0 && has_bad_factor(key)) factors[key].y = 0.0f;
      }
    }
    stripe_barrier(role);  // the zeros are there
  }

  // The leaf's state: the stripes' sums, merged in their order. By all warps of the part; `turn` alternates between
  // leaves.
  [[nodiscard]] __device__ __forceinline__ State merged(char* exchange, float2* stats, const DecodeRole<Config>& role,
                                                        int turn) {
    constexpr int kPassTiles = decode_pass_tiles(Sizes::kTile);
    constexpr bool kInTurns = decode_exchanges_in_turns(Sizes::kTile);
    constexpr int kTileVectors = kEights * kWarpThreads;  // float4 of a tile of 16 columns
    if (kInTurns && turn != 0) {
      exchange += decode_exchange_bytes(Sizes::kTile);
      stats += decode_stats_bytes(Sizes::kTile) / static_cast<int>(sizeof(float2));
    }
    float4* sums = reinterpret_cast<float4*>(exchange) + role.part * kDecodeStripes * kPassTiles * kTileVectors;
    stats += role.part * kDecodeStripes * Config::kRows;
    share_rows(stats, role);
    State state = State::empty();
    float weight[kDecodeStripes][kEights][2];
#pragma unroll
    for (int first = 0; first < kColumnTiles; first += kPassTiles) {
#pragma unroll
      for (int tile = first; tile < min(first + kPassTiles, kColumnTiles); ++tile) {
#pragma unroll
        for (int n = 0; n < kEights; ++n) {
          const float unit = kHasFactors ? power_of_two(exponent) : 1.0f;
          const float x[4] = {o[tile][n][0] * unit, o[tile][n][1] * unit, o[tile][n][2] * unit, o[tile][n][3] * unit};
          sums[((role.stripe * kPassTiles + tile - first) * kEights + n) * kWarpThreads + role.lane] = {x[0], x[1],
                                                                                                        x[2], x[3]};
        }
      }
      part_barrier(role);  // the stripes' rows and sums are there
      if (first == 0) take_rows(state, weight, stats, role.lane);
#pragma unroll
      for (int group = 0; group < kPassTiles / kDecodeStripes; ++group) {
        const int tile = first + group * kDecodeStripes + role.stripe;
        if (first / kDecodeStripes + group >= Sizes::kOwned || tile >= kColumnTiles) continue;
#pragma unroll
        for (int n = 0; n < kEights; ++n) {
          float* mine = &state.o(first / kDecodeStripes + group, n, 0);
#pragma unroll
          for (int stripe = 0; stripe < kDecodeStripes; ++stripe) {
            const float4 x = sums[((stripe * kPassTiles + tile - first) * kEights + n) * kWarpThreads + role.lane];
            mine[0] += weight[stripe][n][0] * x.x;
            mine[1] += weight[stripe][n][1] * x.y;
            mine[2] += weight[stripe][n][0] * x.z;
            mine[3] += weight[stripe][n][1] * x.w;
          }
        }
      }
      if constexpr (!kInTurns) part_barrier(role);  // they have been read, and may be written again
    }
    return state;
  }

 private:
  // Maximum and sum of the warp's rows.
  __device__ __forceinline__ void share_rows(float2* stats, const DecodeRole<Config>& role) {
#pragma unroll
    for (int n = 0; n < kEights; ++n) {
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        float sum = row_sum[n][row];
#pragma unroll
        for (int distance = 4; distance < kWarpThreads; distance *= 2) {
          sum += __shfl_xor_sync(kAllLanes, sum, distance);
        }
        if (role.lane < 4) {
          stats[role.stripe * Config::kRows + n * 8 + role.lane * 2 + row] = {row_max[n][row], sum};
        }
      }
    }
  }

  __device__ __forceinline__ void take_rows(State& state, float (&weight)[kDecodeStripes][kEights][2],
                                            const float2* stats, int lane) {
#pragma unroll
    for (int n = 0; n < kEights; ++n) {
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        float2 of_stripe[kDecodeStripes];
        float top = -kInfinity;
#pragma unroll
        for (int stripe = 0; stripe < kDecodeStripes; ++stripe) {
          of_stripe[stripe] = stats[stripe * Config::kRows + n * 8 + lane % 4 * 2 + row];
          top = fmaxf(top, of_stripe[stripe].x);
        }
        const float base = exponent_base(top);
        float sum = 0.0f;
#pragma unroll
        for (int stripe = 0; stripe < kDecodeStripes; ++stripe) {
          weight[stripe][n][row] = exp2_fast(of_stripe[stripe].x - base);
          sum += weight[stripe][n][row] * of_stripe[stripe].y;
        }
        state.row_max(n, row) = top;
        state.row_sum(n, row) = sum;
      }
    }
  }
};

}  // namespace attend
