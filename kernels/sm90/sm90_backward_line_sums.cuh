// Sums ds along the lines of a tile with the tensor cores. A line is a query row, a key or a diagonal of the tile.
//
// ds is in shared memory in the layout that the dq product needs: for each 64 keys, a swizzled panel of query rows. A
// matrix product with ones and zeros adds the elements, so that no warp has to read them one by one. ds has 16 bits,
// and the sums are float32. An infinite or NaN entry of ds makes the sums of the 16 adjacent diagonals NaN, because it
// is multiplied by zeros for these diagonals.
//
// The four warps of a warpgroup must call these functions, but they need not be synchronised. The functions call
// add(row, key, sum) in all lanes of a warp. (row, key) is one pair on the lane's line, and `sum` is 0 in lanes without
// a line. The first `keys` keys hold data, and `keys` is a multiple of 64.
#pragma once

#include "../isa/ldmatrix.cuh"
#include "../isa/mma.cuh"
#include "sm90_backward_storage.cuh"

namespace attend {

template <class Config>
class BackwardLineSums {
 public:
  static __device__ __forceinline__ void by_row(const Bits16* ds, int keys, auto add) {
    const int lane = static_cast<int>(threadIdx.x % 32), first = warp() * kMmaRows;
    const int row = first + lane / 8 % 2 * 8 + lane % 8;
    const OperandB ones = {{pair(true, true), pair(true, true)}};
    float sums[kAccumulatorsOfMma] = {}, others[kAccumulatorsOfMma] = {};  // two independent chains of products
#pragma unroll 2
    for (int key = 0; key < keys; key += 2 * kMmaDepth) {
      const LoadedMatrices m = ldmatrix_x4(chunk_address(ds, row, key / kChunk + lane / 16));
      const LoadedMatrices n = ldmatrix_x4(chunk_address(ds, row, (key + kMmaDepth) / kChunk + lane / 16));
      mma_add<Element>(sums, {{m.matrix[0], m.matrix[1], m.matrix[2], m.matrix[3]}}, ones);
      mma_add<Element>(others, {{n.matrix[0], n.matrix[1], n.matrix[2], n.matrix[3]}}, ones);
    }
    sums[0] += others[0], sums[2] += others[2];
    // All columns of the result are equal. Lane 4 n adds row n, and lane 4 n + 1 adds row n + 8.
    const int half = lane % 2;
    add(first + lane / 4 + half * 8, 0, lane % 4 > 1 ? 0.0f : half == 0 ? sums[0] : sums[2]);
  }

  static __device__ __forceinline__ void by_key(const Bits16* ds, int keys, auto add) {
    constexpr int kTiles = 4;  // tiles of 8 keys, so that each lane gets one key
    const int lane = static_cast<int>(threadIdx.x % 32);
    const OperandA ones = {{pair(true, true), pair(true, true), pair(true, true), pair(true, true)}};
#pragma unroll 1
    for (int first = warp() * 32; first < keys; first += kWarpgroup) {
      float sums[kTiles][kAccumulatorsOfMma] = {};
#pragma unroll
      for (int row = 0; row < Config::kBlockM; row += kMmaDepth) {
#pragma unroll
        for (int t = 0; t < kTiles; t += 2) {
          const LoadedMatrices m = ldmatrix_x4_transposed(
              chunk_address(ds, row + lane / 8 % 2 * 8 + lane % 8, first / kChunk + t + lane / 16));
          mma_add<Element>(sums[t], ones, {{m.matrix[0], m.matrix[1]}});
          mma_add<Element>(sums[t + 1], ones, {{m.matrix[2], m.matrix[3]}});
        }
      }
      // All rows of the result are equal. Each lane adds one of its eight keys.
      float sum = 0.0f;
#pragma unroll
      for (int i = 0; i < 2 * kTiles; ++i) {
        if (lane / 4 == i) sum = sums[i / 2][i % 2];
      }
      add(0, first + lane / 8 * 8 + lane % 4 * 2 + lane / 4 % 2, sum);
    }
  }

  // Sums ds along each diagonal. A diagonal consists of all pairs with the same difference key - row.
  //
  // A chunk is 8 adjacent elements of a row. Let a be a block of 8 rows, b a row of this block, and k a key of a chunk.
  // Then row 8 a + b and key k of chunk a + j have the difference key - row = 8 j + k - b. For eight adjacent j, a warp
  // computes
  //
  //   c[m][j] = sum over a, b and k of [m == k - b + 7] ds[8 a + b][8 (a + j) + k].
  //
  // The bracket [m == k - b + 7] is 1 if the equation holds, and 0 otherwise. For two rows b the sum is a product of
  // depth 16. The chunks are columns of its B operand, in the order in which they are loaded. The sum of diagonal 8 j +
  // i - 7 is c[i][j] + c[i + 8][j - 1], for i from 0 to 7.
  static __device__ __forceinline__ void by_distance(const Bits16* ds, int keys, auto add) {
    constexpr int kBlocks = Config::kBlockM / 8;  // blocks of 8 rows
    constexpr int kFirst = 1 - kBlocks;           // the smallest j
    constexpr int kWarps = kWarpgroup / 32;
    const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll 1
    for (int first = kFirst + warp() * 8; first < keys / kChunk; first += kWarps * 8) {
      float c[2][kAccumulatorsOfMma] = {};  // one sum for even blocks of rows and one for odd blocks
#pragma unroll 1
      for (int b = 0; b < 8; b += 2) {
        const OperandA ones = shifting_ones(b);
#pragma unroll
        for (int a = 0; a < kBlocks; a += 2) add_chunks(c, ones, ds, a, b, first, keys / kChunk);
      }
#pragma unroll
      for (int i = 0; i < kAccumulatorsOfMma; ++i) c[0][i] += c[1][i];
      const float left = __shfl_up_sync(kAllLanes, c[0][3], 1);  // entry of the preceding column
      c[0][0] += lane % 4 == 0 ? 0.0f : left;
      c[0][1] += c[0][2];
      c[0][3] = lane % 4 == 3 ? c[0][3] : 0.0f;  // the next warp adds the rest of that diagonal
      const int diagonal = (first + lane % 4 * 2) * kChunk + lane / 4 - 7;
#pragma unroll 1
      for (int n = 0; n < 3; ++n) {
        // A loop, so that add() is inlined only once.
        const int inside = min(diagonal + n * kChunk, Config::kBlockN - 1);  // a diagonal outside the tile has sum 0
        const int row = max(0, -inside);
        add(row, row + inside, n == 0 ? c[0][0] : n == 1 ? c[0][1] : c[0][3]);
      }
    }
  }

 private:
  using Element = ElementOf<Config>;
  static constexpr int kChunk = 8;

  [[nodiscard]] static __device__ __forceinline__ int warp() {
    return static_cast<int>(threadIdx.x % kWarpgroup) / 32;
  }
  [[nodiscard]] static __device__ __forceinline__ uint32 pair(bool low, bool high) {
    return Element::pack(low ? 1.0f : 0.0f, high ? 1.0f : 0.0f);
  }
  [[nodiscard]] static __device__ __forceinline__ uint32 chunk_address(const Bits16* ds, int row, int chunk) {
    return smem_address(ds) + chunk / 8 * static_cast<int>(BackwardShape<Config>::kPanelBytesM) +
           row * int{kSwizzleBytes} + (chunk % 8 ^ row % 8) * 16;
  }

  // Returns the A operand. It has ones where m == k - b + 7 in its left half, and where m == k - (b + 1) + 7 in its
  // right half. m is the row and k the column in the half.
  [[nodiscard]] static __device__ __forceinline__ OperandA shifting_ones(int b) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    const int at = lane % 4 * 2 - b + 7 - lane / 4;  // k - b + 7 - m
    return {{pair(at == 0, at == -1), pair(at == 8, at == 7), pair(at == 1, at == 0), pair(at == 9, at == 8)}};
  }

  // Adds rows b and b + 1 of the row blocks a and a + 1 to c.
  static __device__ __forceinline__ void add_chunks(float (&c)[2][kAccumulatorsOfMma], const OperandA& ones,
                                                    const Bits16* ds, int a, int b, int first, int chunks) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    const int block = a + lane / 16, chunk = first + block + lane % 8;
    const int row = block * 8 + b + lane / 8 % 2;
    LoadedMatrices m = ldmatrix_x4(chunk_address(ds, row, min(max(chunk, 0), chunks - 1)));
    // Returns whether column lane / 4 of the B operand is in the tile, for row block a + n. For a chunk outside the
    // tile another address was read, and the chunk counts as 0.
    const auto exists = [&](int n) { return static_cast<unsigned>(first + a + n + lane / 4) < unsigned(chunks); };
#pragma unroll
    for (int i = 0; i < 4; ++i) m.matrix[i] = exists(i / 2) ? m.matrix[i] : 0;
    mma_add<Element>(c[0], ones, {{m.matrix[0], m.matrix[1]}});
    mma_add<Element>(c[1], ones, {{m.matrix[2], m.matrix[3]}});
  }
};

}  // namespace attend
