// sm90_fp8_transpose: writes v of sm90_fp8_forward with neighbouring keys next to each other, because the tensor cores
// read 8-bit operands only along the summed dimension. sm90_fp8_args.cuh has the layout.
//
// Work     A thread block transposes kBlockN keys of one head. It copies them to shared memory. A thread then reads
//          four columns of 16 keys, and transposes groups of 4 x 4 bytes in registers.
// Called   by the backend 'sm90_fp8_forward', before its main kernel.
#pragma once

#include "../attention/sequence.cuh"
#include "../attention/work.cuh"
#include "sm90_fp8_args.cuh"
#include "sm90_fp8_shape.cuh"

namespace attend {

template <class Config>
struct Fp8Transpose {
  static constexpr int kColumns = Config::kHeadDimV;
  static constexpr int kGroupKeys = 16;  // keys that one thread transposes
  static constexpr int kGroups = Config::kBlockN / kGroupKeys;
  static constexpr int kWords = kColumns / 4;  // words in a row of v
  static constexpr int kChunks = kColumns / kChunkBytes;
  // One word more than the largest row, and 4 words more for each group. Then the 8 groups and 4 words that a warp
  // reads together lie in different banks.
  static constexpr int kPitch = 33, kGroupSkew = 4;
  static constexpr int kTileWords = Config::kBlockN * kPitch + kGroups * kGroupSkew;
  static constexpr int kMostGroups = kFp8PanelKeys / kGroupKeys;

  [[nodiscard]] static __device__ __forceinline__ int word(int key, int n) {
    return key * kPitch + key / kGroupKeys * kGroupSkew + n;
  }

  static __device__ __forceinline__ void load(uint32* tile, const unsigned char* from, int64 row_stride, int keys) {
    for (int i = static_cast<int>(threadIdx.x); i < Config::kBlockN * kChunks; i += kFp8TransposeThreads) {
      const int key = i / kChunks, chunk = i % kChunks;
      uint4 four = make_uint4(0, 0, 0, 0);
      if (key < keys) four = __ldg(reinterpret_cast<const uint4*>(from + key * row_stride + chunk * kChunkBytes));
      uint32* to = tile + word(key, 4 * chunk);
      to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
    }
  }

  // Transposes four columns of four keys. The result has a word for each column.
  static __device__ __forceinline__ void transpose(const uint32 (&key)[4], uint32 (&column)[4]) {
    const uint32 low_01 = __byte_perm(key[0], key[1], 0x5140), low_23 = __byte_perm(key[2], key[3], 0x5140);
    const uint32 high_01 = __byte_perm(key[0], key[1], 0x7362), high_23 = __byte_perm(key[2], key[3], 0x7362);
    column[0] = __byte_perm(low_01, low_23, 0x5410);
    column[1] = __byte_perm(low_01, low_23, 0x7632);
    column[2] = __byte_perm(high_01, high_23, 0x5410);
    column[3] = __byte_perm(high_01, high_23, 0x7632);
  }

  static __device__ __forceinline__ void store(const uint32* tile, unsigned char* to) {
    const int group = static_cast<int>(threadIdx.x) % kMostGroups;
    if (group >= kGroups) return;
    for (int n = static_cast<int>(threadIdx.x) / kMostGroups; n < kWords; n += kFp8TransposeThreads / kMostGroups) {
      uint32 of_column[4][4];  // four columns of 16 keys
#pragma unroll
      for (int q = 0; q < 4; ++q) {
        constexpr int kKeys[4] = {0, 1, 8, 9};
        uint32 key[4], column[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) key[i] = tile[word(group * kGroupKeys + 2 * q + kKeys[i], n)];
        transpose(key, column);
#pragma unroll
        for (int c = 0; c < 4; ++c) of_column[c][q] = column[c];
      }
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        *reinterpret_cast<uint4*>(to + (4 * n + c) * kFp8PanelKeys + group * kGroupKeys) =
            make_uint4(of_column[c][0], of_column[c][1], of_column[c][2], of_column[c][3]);
      }
    }
  }
};

// Grid: args.blocks blocks for each KV head of each sequence.
template <class Config>
__device__ void sm90_fp8_transpose(const Sm90Fp8TransposeArgs& args) {
  static_assert(Config::kThreads == kFp8TransposeThreads);
  using Transpose = Fp8Transpose<Config>;
  __shared__ uint32 tile[Transpose::kTileWords];
  const HeadTile at = HeadTile::of_block(blockIdx.x, args.blocks, args.base.num_heads_k);
  const SequenceSpan span = sequence_span<Config>(args.base, args.options, at.batch);
  const int64 first = at.tile * Config::kBlockN;
  if (first >= span.seqlen_k) return;
  const auto* from = static_cast<const unsigned char*>(args.base.v) +
                     args.base.v_stride.offset(span.batch, at.head, span.k_begin + first);
  Transpose::load(tile, from, args.base.v_stride.row,
                  static_cast<int>(min(span.seqlen_k - first, int64{Config::kBlockN})));
  __syncthreads();  // all rows of the tile are in shared memory, so any thread may read them
  const int64 first_tile =
      Config::kIsVarlen ? F32PieceRows::first(span.k_begin, at.batch, Config::kBlockN) / Config::kBlockN : 0;
  const int64 head = static_cast<int64>(span.batch) * args.base.num_heads_k + at.head;
  Transpose::store(tile, args.to + (head * args.tiles + first_tile + at.tile) * Config::kHeadDimV * kFp8PanelKeys);
}

}  // namespace attend
