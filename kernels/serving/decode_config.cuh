// What follows from a decode kernel's Config.
//
// Config: kElement (of q and o), kCacheElement, kHeadDim, kHeadDimV, kValuesAreKeys, kRows (of a warp), kRowParts,
// kColumnParts, kStages, kStackNodes, kAligned (rows of all tensors may be copied in chunks of 16 bytes), kThreads.
#pragma once

#include "../common/element.cuh"
#include "../common/warp_reduce.cuh"
#include "../isa/named_barrier.cuh"
#include "decode_shape.cuh"

namespace attend {

template <class Config>
struct DecodeSizes {
  static constexpr int kQBytes = element_info(Config::kElement).bytes;
  static constexpr int kCacheBytes = Config::kCacheElement == CacheElement::kSame ? kQBytes : 1;
  static constexpr DecodeTile kTile = {
      kQBytes,       kCacheBytes,       Config::kHeadDim,     Config::kHeadDimV, Config::kValuesAreKeys,
      Config::kRows, Config::kRowParts, Config::kColumnParts, Config::kStages,   Config::kStackNodes};
  static constexpr DecodeSmem kSmem = decode_smem(kTile);
  static constexpr int kParts = Config::kRowParts * Config::kColumnParts;  // warps of a stripe
  static constexpr int kPartThreads = kDecodeStripes * kWarpThreads;       // of one part, in all stripes
  static constexpr int kStripeThreads = kParts * kWarpThreads;
  static constexpr int kEights = Config::kRows / 8;
  static constexpr int kTileRows = Config::kRows * Config::kRowParts;
  static constexpr int kColumnTiles = decode_column_tiles(kTile);
  static constexpr int kOwned = decode_owned_tiles(kTile);
  static_assert(decode_threads(kTile) == Config::kThreads);
  static_assert(kParts <= 2 && Config::kRows % 8 == 0 && Config::kThreads >= kDecodeMostUnits);
};

// Unsigned integers of the size of an element.
template <int kBytes>
struct StorageOfBytes;
template <>
struct StorageOfBytes<1> {
  using Type = unsigned char;
};
template <>
struct StorageOfBytes<2> {
  using Type = unsigned short;
};
template <>
struct StorageOfBytes<4> {
  using Type = uint32;
};
template <int kBytes>
using StorageOf = typename StorageOfBytes<kBytes>::Type;

// Where a warp stands: its stripe of the keys, and its part of rows or columns.
template <class Config>
struct DecodeRole {
  int lane, stripe, part;

  [[nodiscard]] static __device__ __forceinline__ DecodeRole of_this_warp() {
    const int warp = static_cast<int>(threadIdx.x) / kWarpThreads;
    constexpr int kParts = DecodeSizes<Config>::kParts;
    return {static_cast<int>(threadIdx.x) % kWarpThreads, warp / kParts, warp % kParts};
  }
  [[nodiscard]] __device__ __forceinline__ int first_row() const {
    return Config::kRowParts == 2 ? part * Config::kRows : 0;
  }
  [[nodiscard]] __device__ __forceinline__ int first_column_tile() const {
    return Config::kColumnParts == 2 ? part * DecodeSizes<Config>::kColumnTiles : 0;
  }
};

// What the warps of a stripe wait at for each other: all have come, and see what the others wrote.
template <class Config>
__device__ __forceinline__ void stripe_barrier(const DecodeRole<Config>& role) {
  if constexpr (DecodeSizes<Config>::kParts == 1) {
    __syncwarp();
  } else {
    constexpr int kFirstBarrier = 4;
    barrier_wait<DecodeSizes<Config>::kStripeThreads>(kFirstBarrier + role.stripe);
  }
}

// Likewise those that have one part of rows and columns, of all stripes.
template <class Config>
__device__ __forceinline__ void part_barrier(const DecodeRole<Config>& role) {
  constexpr int kFirstBarrier = 1;
  barrier_wait<DecodeSizes<Config>::kPartThreads>(kFirstBarrier + role.part);
}

}  // namespace attend
