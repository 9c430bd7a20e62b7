// Products of a warp in a step. The warp computes S^T = K Q^T for its 16 keys, and O^T += V^T P^T for its columns and
// all 64 keys. Keys and columns are the rows of the tensor cores' tiles, so that few query rows suffice to fill a tile.
//
// In S^T, a lane has the keys lane / 4 and lane / 4 + 8, and the query rows 2 (lane % 4) and 2 (lane % 4) + 1 of each
// group of eight rows. In O^T, it has the same rows, and the columns lane / 4 and lane / 4 + 8 of each group of sixteen
// columns. Between the two products, P lies in shared memory (decode_p.cuh).
#pragma once

#include "../isa/ldmatrix.cuh"
#include "../isa/mma.cuh"
#include "decode_p.cuh"

namespace attend {

// Products of 16-bit elements.
template <class Config>
struct DecodeProducts {
  using Sizes = DecodeSizes<Config>;
  using Role = DecodeRole<Config>;
  using KRows = typename Sizes::KRows;
  using VRows = typename Sizes::VRows;
  using Element = ElementOf<Config>;
  static constexpr int kEights = Sizes::kEights;
  static constexpr int kDepths = ceil_div(Config::kHeadDim, kMmaDepth);
  static constexpr bool kQInRegisters = kEights * kDepths * 2 <= 48;

  // Two depths of q for each group of eight rows. A depth is kMmaDepth columns of q, over which one product sums.
  // matrix[0] and matrix[1] belong to the first depth, and matrix[2] and matrix[3] to the second.
  LoadedMatrices q[kQInRegisters ? kEights : 1][kQInRegisters ? ceil_div(kDepths, 2) : 1];

  [[nodiscard]] static __device__ __forceinline__ LoadedMatrices load_q(const char* rows, int lane, int n,
                                                                        int pair_of_depths) {
    const uint32 first = smem_address(rows) + lane % 8 * Sizes::kQRow + lane / 8 * kChunkBytes;
    return ldmatrix_x4(first + n * 8 * Sizes::kQRow + pair_of_depths * 4 * kChunkBytes);
  }

  // `rows` are the warp's rows of q in shared memory.
  __device__ __forceinline__ void take_queries(const char* rows, int lane) {
    if constexpr (kQInRegisters) {
#pragma unroll
      for (int n = 0; n < kEights; ++n) {
#pragma unroll
        for (int pair = 0; pair < ceil_div(kDepths, 2); ++pair) q[n][pair] = load_q(rows, lane, n, pair);
      }
    }
  }

  // Accumulates all depths in one sum for any number of rows. So the bits of a score do not depend on how many other
  // rows there are.
  __device__ __forceinline__ void scores(float (&s)[kEights][4], const char* keys, const char* q_rows, int lane) const {
    const uint32 row = smem_address(keys) + KRows::place(lane % 16, lane / 16);
#pragma unroll
    for (int n = 0; n < kEights; ++n) s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0.0f;
#pragma unroll
    for (int depth = 0; depth < kDepths; ++depth) {
      const LoadedMatrices k = ldmatrix_x4(KRows::behind(row, depth * 2));
      const OperandA a = {{k.matrix[0], k.matrix[1], k.matrix[2], k.matrix[3]}};
#pragma unroll
      for (int n = 0; n < kEights; ++n) {
        const LoadedMatrices pair = kQInRegisters ? q[kQInRegisters ? n : 0][kQInRegisters ? depth / 2 : 0]
                                                  : load_q(q_rows, lane, n, depth / 2);
        const OperandB b = {{pair.matrix[depth % 2 * 2], pair.matrix[depth % 2 * 2 + 1]}};
        mma_add<Element>(s[n], a, b);
      }
    }
  }

  __device__ __forceinline__ void add_values(float (&o)[Sizes::kOwned][kEights][4], const char* p_rows,
                                             const char* values, const Role& role) const {
    const int key = role.lane % 8 + role.lane / 16 * 8, first_tile = role.column_tile(0);
    const uint32 first = smem_address(values) + VRows::place(key, first_tile * 2 + role.lane / 8 % 2);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      LoadedMatrices p[kEights];
#pragma unroll
      for (int n = 0; n < kEights; ++n) p[n] = DecodeP<Config>::load(p_rows, role.lane, n, half);
#pragma unroll
      for (int owned = 0; owned < Sizes::kOwned; ++owned) {
        if (Sizes::kColumnTiles % kTeamWarps != 0 && role.column_tile(owned) >= Sizes::kColumnTiles) continue;
        const uint32 tile = VRows::behind(first, owned * kTeamWarps * 2);
#pragma unroll
        for (int of_half = 0; of_half < 2; ++of_half) {
          const LoadedMatrices v = ldmatrix_x4_transposed(tile + (half * 2 + of_half) * 16 * VRows::kPitch);
          const OperandA a = {{v.matrix[0], v.matrix[1], v.matrix[2], v.matrix[3]}};
#pragma unroll
          for (int n = 0; n < kEights; ++n) {
            mma_add<Element>(o[owned][n], a, {{p[n].matrix[of_half * 2], p[n].matrix[of_half * 2 + 1]}});
          }
        }
      }
    }
  }

  // Returns the column of the lane's element `element`, counted from the first column of a 16-column tile of o.
  [[nodiscard]] static __device__ __forceinline__ int column(int lane, int element) {
    return lane / 4 + element / 2 * 8;
  }
  // Returns an element of v in shared memory as a float.
  [[nodiscard]] static __device__ __forceinline__ float value(const char* values, int key, int column) {
    return Element::to_float(*reinterpret_cast<const Bits16*>(values + VRows::template place_of<2>(key, column)));
  }
};

}  // namespace attend
